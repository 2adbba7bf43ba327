"""Regular expressions that come with requests: what it costs to compile one has a bound.

A pattern's matching has a timeout; its compiling has none, and ``((a{1000}){1000}){1000}`` takes
more memory than there is.
"""

from __future__ import annotations

import re

__all__ = ["problem_with_pattern"]

MAX_CHARACTERS = 1000
"""Of a pattern as it is written."""

MAX_EXPANDED = 20_000
"""Of a pattern with its counted repeats written out; compiling so many takes some hundredths of a
second."""

_TOKEN = re.compile(
    r"""
      (?P<escape>\\.)
    | (?P<set>\[\^?\]?(?:\\.|[^\]\\])*+\]?)
    | (?P<open>\()
    | (?P<close>\))
    | (?P<times>\{(?P<least>\d*)(?P<to>,)?(?P<most>\d*)\})
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)

_SPACED = re.compile(r"\(\?(?:\#|[a-zA-Z0-9]*x)")
"""What lets comments or blanks stand between a part and its repeat: a comment, the flag ``x``."""


def problem_with_pattern(pattern: str) -> str | None:
    """Look for what makes a pattern too costly to compile.

    Args:
        pattern: a regular expression in the dialect of the ``regex`` package.

    Returns:
        What is wrong with it, or None.
    """
    if len(pattern) > MAX_CHARACTERS:
        return f"{MAX_CHARACTERS} characters are the most for a request's pattern"
    if _SPACED.search(pattern) is not None:
        return "a request's pattern has no comments and no flag x"
    if _expanded(pattern) > MAX_EXPANDED:
        return f"its repeats come to more than {MAX_EXPANDED:,} characters when written out"
    return None


def _expanded(pattern: str) -> int:
    """Return how long a pattern is with its repeats written out, or a little more than that."""
    groups = [[0]]  # The parts of each group that is open, the whole first.
    for token in _TOKEN.finditer(pattern):
        parts = groups[-1]
        if token["open"]:
            groups.append([1])
        elif token["close"] and len(groups) > 1:
            groups.pop()
            groups[-1].append(sum(parts))
        elif token["times"]:
            counts = [int(count) for count in (token["least"], token["most"]) if count]
            parts[-1] *= max(1, *counts, 1)
        else:
            parts.append(len(token[0]))
        if parts[-1] > MAX_EXPANDED:
            break  # The numbers need not get any larger.
    return sum(map(sum, groups))
