"""The options of commands that judge a file's replies: the fields of a row, the judge, its cost."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from mellea_like.batch.rows.files import read_rows
from mellea_like.batch.rows.formats import RowFormat, format_of
from mellea_like.cli.backends import openai_upstream
from mellea_like.cli.draw_options import COSTS, JUDGING, PRICE, parse_budget, parse_judge_options
from mellea_like.cli.errors import BUDGETS
from mellea_like.cli.exit_codes import Exit, fail, misuse, os_errors, value_errors
from mellea_like.cli.option_fields import option, option_names, read_section
from mellea_like.cli.standard_streams import STANDARD
from mellea_like.core.conversation import as_action
from mellea_like.core.display import one_line
from mellea_like.core.given import as_reply
from mellea_like.report.numbers import money
from mellea_like.specification.strategy import CallBudgetSpec, StrategySpec
from mellea_like.specification.upstream import OpenAIUpstream, Upstream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from mellea_like.core.generation import Usage
    from mellea_like.limits import Budget, Price


REPLIES = ("reply", "output", "response", "completion", "answer", "text")
"""The fields that may contain the reply without ``--reply``; the first that exists is used."""


def opened(source: str) -> AbstractContextManager[BinaryIO]:
    """Open the file of replies, or standard input if ``source`` is ``-``."""
    if source == STANDARD:
        return nullcontext(sys.stdin.buffer)
    with os_errors(f"{source} can't be read"):
        return Path(source).open("rb")


def rows_of(source: str, file: BinaryIO) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file. The name ``source`` determines the format; ``-`` means JSONL."""
    with value_errors(source, Exit.SETUP):
        format = RowFormat.JSONL if source == STANDARD else format_of(source)
        yield from read_rows(file, format)


def field_of(row: dict[str, Any], name: str, flag: str) -> Any:
    """Return a field of a row; ``flag`` is the option that names the field, for errors."""
    if name not in row:
        fail(f"there is no field {name!r}, only {', '.join(row)}: name one with {flag} FIELD")
    return row[name]


def usable(value: Any, read: Callable[[Any], object], what: str) -> Any:
    """Return the value of a field if it can be read; ``what`` names the field, for errors."""
    try:
        read(value)
    except ValueError as exc:
        fail(f"{what} can't be read: {exc}")
    except TypeError:
        shown = one_line(repr(value), 80)
        fail(f"{what} must be a text, or a message in the format of OpenAI's API, not {shown}")
    return value


JUDGE = "Judge"

MAX_TOKENS = "--judge-option max-tokens=N"
"""The option that limits a judge's replies."""


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """The options that ``check`` and ``judge-agreement`` share."""

    reply: str | None = option(
        None,
        "--reply FIELD",
        f"The field that holds the reply. Default: the first of {', '.join(REPLIES)}.",
    )
    prompt: str | None = option(
        None, "--prompt FIELD", "The field that holds the task, for the judge. Default: none."
    )
    judge: Any = option(None, "--judge MODEL", "The model that judges.", JUDGE)
    judge_base_url: str | None = option(
        None, "--judge-base-url URL", "The judge's OpenAI-compatible server.", JUDGE
    )
    judge_option: list[str] = option(
        list,
        "--judge-option NAME=VALUE",
        f"An option for the judge's requests: {', '.join(JUDGING)}, or extra.FIELD. Repeatable.",
        JUDGE,
    )
    budget: list[str] = option(
        list,
        "--budget KIND=N",
        f"Limit for all judge requests together: {', '.join(BUDGETS)}. Repeatable.",
        COSTS,
    )
    price: str | None = option(*PRICE)

    def reply_of(self, row: dict[str, Any]) -> Any:
        """Return the reply in a row."""
        name = self.reply or next((name for name in REPLIES if name in row), "reply")
        return usable(field_of(row, name, "--reply"), as_reply, f"the reply in the field {name!r}")

    def task_of(self, row: dict[str, Any]) -> Any:
        """Return the task in a row; None without ``--prompt``, or if the field is null."""
        task = None if self.prompt is None else field_of(row, self.prompt, "--prompt")
        if task is None:
            return None
        return usable(task, as_action, f"the task in the field {self.prompt!r}")

    def upstream(self, model: str | None) -> OpenAIUpstream:
        """Return the settings of a judge's server, after checking them."""
        names = {"model": "--judge", "base_url": "--judge-base-url"}
        return openai_upstream(model, self.judge_base_url, names)

    @cached_property
    def request_options(self) -> dict[str, Any]:
        """The options that are sent with each of the judge's requests."""
        given = {"judge_options": parse_judge_options(self.judge_option)}
        spec = read_section(StrategySpec, given, option_names(type(self)))
        return spec.judge_options.model_dump(exclude_unset=True)

    @cached_property
    def tokens_price(self) -> Price | None:
        """The value of ``--price``."""
        return read_section(Upstream, {"price": self.price}, {"price": "--price"}).price

    def cost_of(self, usage: Usage) -> str | None:
        """Return the cost of the judges' requests as text; None without ``--price``."""
        if (price := self.tokens_price) is None:
            return None
        return money(price.cost(usage), price.currency, at_least=bool(usage.unknown))

    def make_budget(self, models: Sequence[str | None]) -> Budget | None:
        """Make one budget for all judges; return None if there is no limit."""
        limits = parse_budget(self.budget)
        price = self.tokens_price
        if not limits:
            return None
        if "money" in limits and (price is None or None in models):
            misuse(
                "--budget cost needs the price of tokens and the model's name: add --price IN,OUT"
                " and --judge MODEL"
            )
        prices = None if price is None else {str(model): price for model in models}
        return CallBudgetSpec.model_validate(limits).make(name="this run", prices=prices)
