"""A prompt for each row: a Jinja template, filled in with the row's fields."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import UndefinedError
from jinja2.exceptions import SecurityError

from mellea_like.batch.rows.formats import BadRow
from mellea_like.batch.rows.template import RowTemplate
from mellea_like.cli.exits import Exit, Problem
from mellea_like.cli.terminal import one_line

if TYPE_CHECKING:
    from mellea_like.batch.rows.formats import Row

__all__ = ["PromptTemplate"]

LONGEST_TEMPLATE = 2**20
"""Characters."""

MOST_FIELDS = 20
"""How many of a row's fields a message names."""

_UNDEFINED = re.compile(r"^'(?P<name>[^']*)' is undefined$")


class PromptTemplate:
    """What to ask for each row."""

    def __init__(self, text: str) -> None:
        self.text = text
        if not text.strip():
            msg = "--prompt is empty: say what to ask for each row, with its fields: {{ text }}"
            raise Problem(msg, Exit.USAGE)
        try:
            self._template = RowTemplate(text)
        except ValueError as exc:
            msg = f"--prompt {exc}"
            raise Problem(msg, Exit.USAGE) from exc

    @classmethod
    def given(cls, argument: str) -> PromptTemplate:
        """Read the template."""
        if not argument.startswith("@"):
            return cls(argument)
        path = Path(argument[1:])
        try:
            with path.open(encoding="utf-8-sig") as file:
                text = file.read(LONGEST_TEMPLATE + 1)
        except OSError as exc:
            msg = f"--prompt: can't read {path}: {exc.strerror or exc}"
            raise Problem(msg) from exc
        except UnicodeDecodeError as exc:
            msg = f"--prompt: {path} isn't UTF-8 text"
            raise Problem(msg) from exc
        if len(text) > LONGEST_TEMPLATE:
            msg = f"--prompt: {path} is longer than {LONGEST_TEMPLATE} characters"
            raise Problem(msg)
        return cls(text)

    def fill(self, row: Row, place: str = "line") -> str:
        """Make the prompt for a row."""
        where = f"{place} {row.number}"
        try:
            prompt = self._template.fill(row)
        except UndefinedError as exc:
            msg = f"{where}: {_lacks(str(exc), row)}"
            raise BadRow(msg, row.number) from exc
        except SecurityError as exc:
            msg = f"{where}: the prompt does what templates may not: {one_line(str(exc))}"
            raise BadRow(msg, row.number) from exc
        except Exception as exc:
            reason = one_line(f"{type(exc).__name__}: {exc}")
            msg = f"{where}: the prompt can't be made of this row: {reason}"
            raise BadRow(msg, row.number) from exc
        if not prompt.strip():
            msg = f"{where}: the prompt is empty"
            raise BadRow(msg, row.number)
        return prompt


def _lacks(error: str, row: Row) -> str:
    found = _UNDEFINED.match(error)
    names = [one_line(name, 40) for name in list(row)[:MOST_FIELDS]]
    more = ", ..." if len(row) > MOST_FIELDS else ""
    fields = f"its fields: {', '.join(names)}{more}" if names else "it has no fields"
    if found is None:
        return f"the prompt can't be made: {one_line(error)}; {fields}"
    close = difflib.get_close_matches(found["name"], list(row), n=1)
    hint = f" (did you mean {one_line(close[0], 40)}?)" if close else ""
    return f"the prompt names {found['name']!r}, which the row does not have{hint}; {fields}"
