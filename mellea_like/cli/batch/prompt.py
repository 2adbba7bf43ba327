"""The prompt and the checks of each row: Jinja templates filled in with the row's fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mellea_like.batch.rows.formats import BadRow
from mellea_like.cli.exit_codes import Exit, Problem, os_errors
from mellea_like.core.conversation import Conversation, Instruction, Message
from mellea_like.core.display import one_line
from mellea_like.lazy import needs_extra
from mellea_like.requirements.expressions import parse_check

with needs_extra("cli", "prompts and checks made from rows need jinja2"):
    from jinja2 import UndefinedError

    from mellea_like.batch.rows.template import RowTemplate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.batch.rows.formats import Row
    from mellea_like.core.conversation import Asked
    from mellea_like.core.requirement import Requirement


class PromptTemplate:
    """Makes each row's checks, and its prompt from a template or from the row's own messages."""

    def __init__(
        self,
        text: str | None,
        system: str | None = None,
        checks: Sequence[str] = (),
        *,
        early: bool = False,
    ) -> None:
        self.text = text
        self.system = system
        self._template = None if text is None else _template("--prompt", text)
        self._checks = [_template("--check", one) for one in checks]
        self._early = early

    def fill(self, row: Row) -> Asked | Conversation:
        """Make the prompt for a row, with the row's own requirements."""
        must_hold = self.requirements_of(row)
        if self._template is None:
            messages = self._messages(row)
            return Conversation(tuple(messages), must_hold) if must_hold else messages
        prompt = _filled(self._template, "the prompt", row)
        if not prompt.strip():
            raise _bad(row, "the prompt is empty")
        if self.system is None and not must_hold:
            return prompt
        return Instruction(prompt, self.system, must_hold)

    def requirements_of(self, row: Row) -> tuple[Requirement, ...]:
        """Make the row's own requirements from the checks that are templates."""
        return tuple(self._check(template, row) for template in self._checks)

    def _check(self, template: RowTemplate, row: Row) -> Requirement:
        text = _filled(template, "a check", row)
        try:
            return parse_check(
                text, early=self._early, code=True, name=template.text, check_only=True
            )
        except ValueError as exc:
            raise _bad(row, one_line(str(exc))) from exc

    def _messages(self, row: Row) -> list[Message]:
        """Return a row's messages from its field ``messages``: a list, or JSON in a text column."""
        if "messages" not in row:
            raise _bad(row, "the row has no field 'messages', and there is no --prompt")
        try:
            given: Any = row["messages"]
            messages = list(
                map(Message.from_dict, json.loads(given) if isinstance(given, str) else given)
            )
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise _bad(row, f"the row's messages can't be read: {one_line(str(exc))}") from exc
        if not messages or messages[-1].role == "assistant":
            why = "end with a reply: remove it" if messages else "are empty"
            raise _bad(row, f"the row's messages {why}")
        if self.system is not None and messages[0].role != "system":
            messages.insert(0, Message("system", self.system))
        return messages


def _template(option: str, text: str) -> RowTemplate:
    try:
        return RowTemplate(text)
    except ValueError as exc:
        msg = f"{option} {exc}"
        raise Problem(msg, Exit.USAGE) from exc


def _filled(template: RowTemplate, what: str, row: Row) -> str:
    try:
        return template.fill(row)
    except UndefinedError as exc:
        fields = one_line(", ".join(row)) or "none"
        wrong = f"{what} can't be filled in: {one_line(str(exc))}; the row's fields: {fields}"
    except Exception as exc:  # noqa: BLE001 (a template may do anything)
        wrong = f"{what} can't be filled in: {one_line(f'{type(exc).__name__}: {exc}')}"
    raise _bad(row, wrong)


def _bad(row: Row, wrong: str) -> BadRow:
    return BadRow(f"{row.where}: {wrong}", row.number)


def read_text(option: str, argument: str | None) -> str | None:
    """Return an option's value or, if the value is @FILE, the content of that file."""
    if argument is None or not argument.startswith("@"):
        return argument
    with os_errors(f"{option}: can't read {argument[1:]}"):
        return Path(argument[1:]).read_text(encoding="utf-8-sig")
