"""The parts of a whole, as rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from mellea_like.report.format import count, percent, plural
from mellea_like.report.icons import swatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.report.markup import Html

__all__ = ["Part", "told_parts", "whole_of"]


class Part(TypedDict):
    """A row: a sign, what it is, how much, and its share of the whole."""

    sign: Html
    name: str
    number: str
    share: str


def whole_of(parts: Sequence[tuple[str, str, int]]) -> list[Part]:
    """Make the rows of a table.

    Args:
        parts: of each part its outcome (or fate), its name, and how much it is.

    Returns:
        A row for each.
    """
    whole = sum(number for _, _, number in parts)
    return [
        Part(sign=swatch(kind), name=name, number=count(number), share=percent(number, whole))
        for kind, name, number in parts
    ]


def told_parts(parts: Sequence[tuple[str, int]], thing: str) -> str:
    """Say in a sentence what the parts are.

    Args:
        parts: of each part its name, and how much it is.
        thing: what is counted.

    Returns:
        The sentence.
    """
    whole = sum(number for _, number in parts)
    said = ", ".join(f"{percent(number, whole)} {name}" for name, number in parts)
    return f"{plural(whole, thing)}: {said}" if said else plural(whole, thing)
