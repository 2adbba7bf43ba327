"""The options that ``sample`` and ``batch`` share, and the `StrategySpec` made from them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Any, Literal

from mellea_like.cli.errors import BUDGETS
from mellea_like.cli.exit_codes import misuse, value_errors
from mellea_like.cli.option_fields import option, option_names, read_section
from mellea_like.core.requirement import Requirement
from mellea_like.requirements.expressions import CHECK_FORMS, CODE_FORMS, is_code_check, parse_check
from mellea_like.schedules.expressions import SCHEDULES
from mellea_like.specification.section import why_renamed
from mellea_like.specification.selection_expressions import (
    KEYS,
    SCORES,
    SELECTIONS,
    parse_selection,
)
from mellea_like.specification.strategy import (
    CallBudgetSpec,
    OptionsSpec,
    StageSpec,
    StrategyName,
    StrategySpec,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CHECKS = "Requirements"
DRAWS = "Draws"
COSTS = "Costs and limits"
BACKEND = "Backend"
OUTPUT = "Output"
PANELS = (CHECKS, DRAWS, COSTS, BACKEND, OUTPUT)

BackendName = Literal["markov", "openai", "llama", "pydantic-ai"]
BatchAPIName = Literal["openai", "azure", "anthropic", "mistral"]

ATTEMPTS = 5
"""The default number of attempts in each lane, if ``--n`` doesn't need more."""

REQUEST = ("temperature", "top_p", "seed", "max_tokens")
"""The options that are sent with each request."""

RESERVED = frozenset({"messages", "input", "stream", "stream_options", "n", "tools"})
"""The fields of a request that ``--extra`` can't set, because the library sets them."""

JUDGING = ("temperature", "top-p", "max-tokens")
"""The names that ``--judge-option`` takes, besides ``extra.FIELD``."""

CHECK_HELP = (
    f"A check: {'  '.join(CHECK_FORMS)}. Repeatable.\n\nChecks that run code, in a sandbox:"
    f" {'  '.join(CODE_FORMS)}."
)
"""The help text of ``--check``."""

PRICE = (
    None,
    "--price IN,OUT",
    "Dollars per million input and output tokens; 0.15,0.60,EUR for euros.",
    COSTS,
)
"""The option ``--price`` of commands that ask models."""

DEBUG = (False, "--debug", "Show log records and tracebacks.", OUTPUT)
"""The option ``--debug`` of commands that ask models."""


class TemplatedChecks:
    """Options whose checks may be templates, which are filled in for each row."""

    checks: list[str]

    @property
    def row_checks(self) -> list[str]:
        """The checks that are templates."""
        return [one for one in self.checks if "{{" in one]

    @property
    def fixed_checks(self) -> list[str]:
        """The checks that are the same for all rows."""
        return [one for one in self.checks if "{{" not in one]


@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """The options that ``sample`` and ``batch`` share. Fields are named as in `StrategySpec`."""

    requirements: list[str] = option(
        list, "--require TEXT", "A requirement in words, which a model judges. Repeatable.", CHECKS
    )
    checks: list[str] = option(list, "--check EXPR", CHECK_HELP, CHECKS)
    json_schema: Path | None = option(
        None, "--schema FILE", "A JSON Schema that the reply must match.", CHECKS
    )
    strategy: StrategyName = option(
        "rejection",
        "--strategy NAME",
        "After a failure, rejection asks again, repair adds the reasons to the instruction, and"
        " multi-turn continues the conversation with a message that lists them.",
        DRAWS,
    )
    select: str = option(
        "first",
        "--select WHO",
        f"Which reply wins: {'  '.join(SELECTIONS)}.\n\nSCORE is one of {'  '.join(SCORES)}."
        f"\n\nKEY is one of {'  '.join(KEYS)}.",
        DRAWS,
    )
    n: int | None = option(
        None,
        "--n N",
        "How many replies must pass before best, vote, consensus or tournament decides. Default:"
        " all draws, but at most 16 for vote and 8 for consensus and tournament.",
        DRAWS,
    )
    attempts: int | None = option(
        None,
        "--attempts N",
        f"Maximum draws in each lane, one after another. Default: {ATTEMPTS}, or as many as --n"
        " needs.",
        DRAWS,
    )
    lanes: int = option(4, "--lanes K", "How many draws run at the same time.", DRAWS)
    escalate: list[str] = option(
        list,
        "--escalate MODEL,...",
        "A bigger model to try when the previous one has failed, such as"
        " gpt-4.1,attempts=2,carry=best. After the name: attempts in each lane (default 1), carry"
        " (the failures it sees: nothing, best or chat), price (IN,OUT) and base-url. Repeatable.",
        DRAWS,
    )
    escalate_when: Literal["spent", "cheaper"] = option(
        "spent",
        "--escalate-when WHEN",
        "When to move on to the next model: spent, once the previous one has used its attempts; or"
        " cheaper, once a pass is expected to cost less there (this needs all prices).",
        DRAWS,
    )
    seed: int | None = option(
        None, "--seed S", "Seed for repeatable draws, if the model supports it.", DRAWS
    )
    temperature: float | None = option(
        None,
        "--temperature T",
        "Sampling temperature, from 0 (most likely text) to 2 (most variety). Default: the"
        " server's.",
        DRAWS,
    )
    top_p: float | None = option(
        None,
        "--top-p P",
        "Nucleus sampling: draw from this share of the probability, above 0 and at most 1.",
        DRAWS,
    )
    extra: list[str] = option(
        list,
        "--extra KEY=VALUE",
        "A field to add to each request: top_k=20, or"
        ' chat_template_kwargs={"enable_thinking": false}. VALUE is JSON, or else text.'
        " Repeatable.",
        DRAWS,
    )
    timeout: float | None = option(
        None, "--timeout SECONDS", "Stop after this many seconds.", DRAWS
    )
    schedule: str = option(
        "eager",
        "--schedule WHEN",
        f"When draws start: {'  '.join(SCHEDULES)}. Eager starts all lanes at once.",
        DRAWS,
    )
    early: bool = option(
        False,
        "--early",
        "Reject a reply as soon as a check fails, while it is still arriving.",
        DRAWS,
    )
    give_up: bool = option(
        False,
        "--give-up",
        "Stop when a requirement fails so often that more draws won't help.",
        DRAWS,
    )
    accept_incomplete: bool = option(
        False,
        "--accept-incomplete",
        "Accept replies that were cut off, refused or empty, as needed for text completion.",
        DRAWS,
    )
    budget: list[str] = option(
        list,
        "--budget KIND=N",
        f"Limit for all requests together: {', '.join(BUDGETS)}. Repeatable.",
        COSTS,
    )
    price: str | None = option(*PRICE)
    max_tokens: int | None = option(None, "--max-tokens N", "Maximum tokens in one reply.", COSTS)
    retries: int = option(
        2,
        "--retries N",
        "How often to retry a request after a transient error; 0 for never.",
        COSTS,
    )
    requests_per_minute: float | None = option(
        None, "--rpm N", "Maximum requests per minute, such as your quota.", COSTS
    )
    tokens_per_minute: float | None = option(
        None, "--tpm N", "Maximum tokens per minute, such as your quota.", COSTS
    )
    backend: BackendName | None = option(
        None,
        "--backend NAME",
        "openai, any OpenAI-compatible server; llama, a llama.cpp server started for a GGUF file;"
        " pydantic-ai, a provider such as Anthropic (--model anthropic:claude-sonnet-5-5); or"
        " markov, a small text generator in this process. Default: openai if OPENAI_API_KEY or"
        " OPENAI_BASE_URL is set; otherwise sample uses markov.",
        BACKEND,
    )
    model: str | None = option(
        None, "--model MODEL", "The model's name (openai, pydantic-ai).", BACKEND
    )
    base_url: str | None = option(
        None,
        "--base-url URL",
        "The server's URL (openai), such as http://localhost:8000/v1.",
        BACKEND,
    )
    gguf: Path | None = option(None, "--gguf FILE", "The model file (llama).", BACKEND)
    corpus: list[Path] = option(
        list, "--corpus FILE", "A text to learn from (markov). Repeatable.", BACKEND
    )
    cache: Path | None = option(
        None,
        "--cache FILE",
        "Store replies in this file and reuse them, for development and tests.",
        BACKEND,
    )
    judge_model: str | None = option(
        None,
        "--judge-model MODEL",
        "The model that judges --require and --select. Default: the one that generates.",
        BACKEND,
    )
    judge_base_url: str | None = option(
        None, "--judge-base-url URL", "The judge's server. Default: that of --base-url.", BACKEND
    )
    judge_option: list[str] = option(
        list,
        "--judge-option NAME=VALUE",
        f"An option for the judge's requests: {', '.join(JUDGING)}, or a field that its server"
        " understands, such as extra.reasoning_effort=low. Default: temperature=0, if its model"
        " allows it; temperature=none leaves it to the server. Repeatable.",
        BACKEND,
    )
    quiet: bool = option(False, "--quiet -q", "Don't show progress on stderr.", OUTPUT)
    debug: bool = option(*DEBUG)

    @cached_property
    def spec(self) -> StrategySpec:
        """The strategy that the options describe."""
        given: dict[str, Any] = {
            name: getattr(self, name) for name in StrategySpec.model_fields if hasattr(self, name)
        }
        given["checks"] = [one for one in self.fixed_checks if not is_code_check(one)]
        given["attempts"] = self._attempts()
        given["json_schema"] = self.json_schema and str(self.json_schema)
        given["budget"] = parse_budget(self.budget) or None
        given["options"] = {name: getattr(self, name) for name in REQUEST}
        given["options"]["extra"] = parse_extra(self.extra)
        given["judge_options"] = parse_judge_options(self.judge_option)
        given["escalate"] = tuple(bigger.stage for bigger in self.bigger)
        spec = read_section(StrategySpec, given, option_names(type(self)))
        self._check_budget(given["budget"] or {})
        return spec

    @cached_property
    def bigger(self) -> tuple[Bigger, ...]:
        """The bigger models that ``--escalate`` names, in order."""
        return tuple(map(_read_bigger, self.escalate))

    def _attempts(self) -> int:
        if self.attempts is not None:
            return self.attempts
        try:
            wanted = parse_selection(self.select, self.n).n or 1
        except ValueError:  # The section's error says why.
            wanted = 1
        return max(ATTEMPTS, -(-wanted // max(1, self.lanes)))

    def _check_budget(self, budget: Mapping[str, float]) -> None:
        if "money" in budget and self.price is None:
            misuse(
                "--budget cost needs the price of tokens: add --price IN,OUT, in dollars (or"
                " another currency: IN,OUT,EUR) per million input and output tokens"
            )
        for kind, name in (("money", "cost"), ("output_tokens", "output-tokens")):
            if kind in budget and self.max_tokens is None:
                misuse(
                    f"--budget {name} needs to know how long one reply may get: add --max-tokens N"
                )

    def make_requirements(self) -> list[Requirement]:
        """Make the requirements: the checks, the schema, and the requirements for a judge."""
        return requirements_of(self.spec, self.fixed_checks, self.json_schema)

    @property
    def fixed_checks(self) -> list[str]:
        """All checks. `BatchOptions` overrides this to leave out checks that are templates."""
        return self.checks

    @property
    def request_options(self) -> dict[str, Any]:
        """The options that are sent with each request."""
        options = self.spec.options
        asked = options.model_dump(include=set(REQUEST), exclude_none=True)
        return asked | ({"extra": options.extra} if options.extra else {})


def requirements_of(
    spec: StrategySpec, checks: Iterable[str], schema: Path | None
) -> list[Requirement]:
    """Make the requirements of ``spec`` and code checks; a schema's is named after its file."""
    made = spec.make_requirements(schema_name="" if schema is None else f"schema:{schema.name}")
    with value_errors("--check"):
        code = [parse_check(one, code=True) for one in checks if is_code_check(one)]
    return [*(Requirement(one) if isinstance(one, str) else one for one in made), *code]


@dataclass(frozen=True)
class Bigger:
    """A bigger model that ``--escalate`` names: the settings of its stage and of its server."""

    stage: StageSpec
    upstream: dict[str, Any]


_OF_STAGE = ("attempts", "carry")
_OF_UPSTREAM = {"price": "price", "base-url": "base_url"}


def _read_bigger(text: str) -> Bigger:
    """Parse a value of ``--escalate``, such as ``big,attempts=2,price=2.00,8.00``."""
    given, *parts = re.split(r",(?=[^,=]*=)", text)  # A price has a comma, too.
    model, found = given.strip(), _pairs("--escalate", parts, "attempts=2")
    allowed = (*_OF_STAGE, *_OF_UPSTREAM)
    for name in found:
        if renamed := why_renamed(name, allowed):
            misuse(f"--escalate {text!r}: {renamed}")
    if not re.fullmatch("[^,=]+", model) or not found.keys() <= set(allowed):
        misuse(
            f"--escalate {text!r}: write the model first, then any of {', '.join(allowed)}, as in"
            " gpt-4.1,attempts=2,carry=best,price=2.00,8.00"
        )
    stage = {name: _json_or_text(found[name]) for name in _OF_STAGE if name in found}
    upstream = {field: found[name] for name, field in _OF_UPSTREAM.items() if name in found}
    names = {name: f"--escalate {model}: {name}" for name in _OF_STAGE}
    return Bigger(read_section(StageSpec, stage, names), {"model": model, **upstream})


def _pairs(option: str, given: Iterable[str], example: str) -> dict[str, str]:
    """Split texts of the form NAME=VALUE; a name may occur once."""
    found: dict[str, str] = {}
    for text in given:
        name, _, value = (part.strip() for part in text.partition("="))
        if not (name and value) or name in found:
            misuse(f"{option} {text!r}: write a name and a value, as in {example}, each name once")
        found[name] = value
    return found


def parse_extra(given: Iterable[str]) -> dict[str, Any]:
    """Parse the values of ``--extra``, such as ``top_k=20``."""
    found = _pairs("--extra", given, "top_k=20")
    for name in found:
        if name in REQUEST or name == "model":
            misuse(f"--extra {name}: use the option --{name.replace('_', '-')} instead")
        if name in RESERVED:
            misuse(f"--extra {name}: mellea-like itself sets this field")
    return {name: _json_or_text(value) for name, value in found.items()}


def parse_judge_options(given: Iterable[str]) -> dict[str, Any]:
    """Parse the values of ``--judge-option``, such as ``temperature=1`` or ``extra.FIELD=x``."""
    found: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, written in _pairs("--judge-option", given, "temperature=0.5").items():
        value = None if written == "none" else _json_or_text(written)
        if name.startswith("extra."):
            extra[name.removeprefix("extra.")] = value
        elif name in JUDGING:
            found[name.replace("-", "_")] = value
        else:
            misuse(f"--judge-option {name}: use {', '.join(JUDGING)} or extra.FIELD")
    flags = {name.replace("-", "_"): f"--judge-option {name}" for name in JUDGING}
    read_section(OptionsSpec, found, flags)
    return {**found, "extra": extra} if extra else found


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def parse_budget(given: Iterable[str]) -> dict[str, float]:
    """Parse the values of ``--budget``, such as ``requests=20``."""
    found: dict[str, Any] = {}
    for kind, amount in _pairs("--budget", given, "requests=20 or cost=0.50").items():
        if kind not in BUDGETS:
            misuse(f"--budget {kind}: use {', '.join(BUDGETS)} (--timeout is for time)")
        found[BUDGETS[kind]] = _json_or_text(amount)
    if found:
        flags = {name: f"--budget {kind}" for kind, name in BUDGETS.items()}
        read_section(CallBudgetSpec, found, flags)
    return found
