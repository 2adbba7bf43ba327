"""The code in a model's reply."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Fence", "fenced"]

Fence = Literal["longest", "first", "last"]

LABELS = {
    "python": frozenset({"python", "py", "python3", "py3", "ipython", "pycon"}),
    "sql": frozenset(
        {
            "sql",
            "sqlite",
            "sqlite3",
            "postgresql",
            "postgres",
            "mysql",
            "tsql",
            "duckdb",
            "bigquery",
        }
    ),
}
"""What models write behind the fence of a language, in lower case."""

_OPENS = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([^\s`{]*)[^`\n]*$")


def fenced(text: str, language: str, which: Fence = "longest") -> str | None:
    """Return the code in a reply's Markdown fences; None where there are no fences.

    Fences that name the language go before fences that name none, and those before fences that
    name another one. Of several, it is the longest, or the last of those; a fence that is never
    closed goes to the end of the reply.

    Args:
        text: the reply.
        language: ``"python"`` or ``"sql"``.
        which: ``"longest"``, ``"first"`` or ``"last"``.

    Returns:
        The code, with a line break at its end.
    """
    # Not `splitlines`, which breaks at what may stand in a string of the code.
    found = _fences(text.replace("\r\n", "\n").removesuffix("\n").split("\n"))
    if not found:
        return None
    labels = LABELS[language]
    for group in (
        [code for label, code in found if label in labels],
        [code for label, code in found if not label],
        [code for _, code in found],
    ):
        if group:
            return _chosen(group, which)
    return None


def _chosen(codes: Sequence[str], which: Fence) -> str:
    if which == "longest":
        return max(reversed(codes), key=lambda code: len(code.strip()))
    return codes[0 if which == "first" else -1]


def _fences(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return the label and the code of each fence."""
    found: list[tuple[str, str]] = []
    inside: list[str] | None = None
    indent, mark, label = "", "", ""
    for line in lines:
        if inside is None:
            if opens := _OPENS.match(line):
                indent, mark, label = opens[1], opens[2], opens[3].lower()
                inside = []
        elif line.strip().startswith(mark) and not line.strip().strip(mark[0]):
            found.append((label, "\n".join(inside) + "\n"))
            inside = None
        else:
            inside.append(line.removeprefix(indent))
    if inside is not None:
        found.append((label, "\n".join(inside) + "\n"))
    return found
