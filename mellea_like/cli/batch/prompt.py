"""A prompt for each row: a Jinja template, filled in with the row's fields."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import UndefinedError

from mellea_like.batch.rows.formats import BadRow
from mellea_like.batch.rows.template import RowTemplate
from mellea_like.cli.exit_codes import Exit, Problem
from mellea_like.cli.standard_streams import one_line

if TYPE_CHECKING:
    from mellea_like.batch.rows.formats import Row

__all__ = ["PromptTemplate"]


class PromptTemplate:
    """What to ask for each row."""

    def __init__(self, text: str) -> None:
        self.text = text
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
        try:
            return cls(Path(argument[1:]).read_text(encoding="utf-8-sig"))
        except (OSError, UnicodeDecodeError) as exc:
            msg = f"--prompt: can't read {argument[1:]}: {getattr(exc, 'strerror', None) or exc}"
            raise Problem(msg) from exc

    def fill(self, row: Row, place: str = "line") -> str:
        """Make the prompt for a row."""
        wrong = ""
        try:
            prompt = self._template.fill(row)
        except UndefinedError as exc:
            fields = one_line(", ".join(row)) or "none"
            wrong = f"the prompt can't be made: {one_line(str(exc))}; the row's fields: {fields}"
        except Exception as exc:  # noqa: BLE001 (a template may do anything)
            wrong = f"the prompt can't be made: {one_line(f'{type(exc).__name__}: {exc}')}"
        else:
            if prompt.strip():
                return prompt
            wrong = "the prompt is empty"
        msg = f"{place} {row.number}: {wrong}"
        raise BadRow(msg, row.number)
