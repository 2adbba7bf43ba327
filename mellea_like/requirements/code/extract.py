"""Find the code in a model's reply."""

from __future__ import annotations

import re
from typing import Literal, get_args

from mellea_like.core.argument_checks import check_one_of

Fence = Literal["longest", "first", "last"]

LABELS = {
    "python": ("python", "py", "python3", "py3", "ipython", "pycon"),
    "sql": (
        *("sql", "sqlite", "sqlite3", "postgresql", "postgres"),
        *("mysql", "tsql", "duckdb", "bigquery"),
    ),
}
"""The labels of each language's fences, in lower case."""

_OPENS = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([^\s`{]*)[^`\n]*$")


def fenced(text: str, language: str, which: Fence = "longest") -> str | None:
    """Return the code in a reply's Markdown fences, or None if the reply has no fence.

    Fences with the language's label are preferred to fences without a label, and fences without a
    label to fences with another label. If several are equally good, ``which`` decides; of equally
    long fences, the last one counts. A fence that is never closed extends to the end of the reply.

    Args:
        text: the reply.
        language: ``"python"`` or ``"sql"``.
        which: ``"longest"``, ``"first"`` or ``"last"``.

    Returns:
        The code, with a line break at its end.

    Raises:
        ValueError: the language or the value of ``which`` is unknown.
    """
    check_one_of("fenced: language", language, LABELS)
    check_one_of("fenced: which", which, get_args(Fence))
    found: list[tuple[str, list[str]]] = []
    indent, mark = "", ""
    # `splitlines` also breaks at characters that strings in the code may contain.
    for line in text.replace("\r\n", "\n").removesuffix("\n").split("\n"):
        if not mark:
            if opens := _OPENS.match(line):
                indent, mark = opens[1], opens[2]
                found.append((opens[3].lower(), []))
        elif line.strip().startswith(mark) and not line.strip().strip(mark[0]):
            mark = ""
        else:
            found[-1][1].append(line.removeprefix(indent))
    for labels in (LABELS[language], ("",), [label for label, _ in found]):
        if codes := ["\n".join(lines) + "\n" for label, lines in found if label in labels]:
            if which == "longest":
                return max(reversed(codes), key=lambda code: len(code.strip()))
            return codes[0 if which == "first" else -1]
    return None
