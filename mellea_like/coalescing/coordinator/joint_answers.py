"""Reading a joint reply: whose answer is whose, and which of them count.

No repair of broken JSON: that invents answers. What does not decode is missing.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["MAX_CHARACTERS", "read_answers", "until_stop"]

MAX_CHARACTERS = 1_000_000
"""A longer reply is not read at all."""

EFFORT = 4 * MAX_CHARACTERS
"""Characters looked at in all, of whatever reply: a nasty one must not take for ever."""

DIGITS = 18
"""Whole numbers with more digits than this are none that we look for, and slow to read."""

START = re.compile(r'\[\s*[\[{]|\{\s*"')
"""Where an array of arrays or objects begins, or an object."""


def read_answers(text: str, keys: Sequence[str]) -> list[str | None]:
    """Read the answers out of a joint reply."""
    found: list[list[_Said]] = [[] for _ in keys]
    if len(text) <= MAX_CHARACTERS:
        loose = _Array(keys)
        for value in _values(text, keys):
            if isinstance(value, _Array):
                value.add_to(found)
            else:
                loose.add(value)
        loose.add_to(found)
    return [_settled(said) for said in found]


def until_stop(text: str, stop: Iterable[str]) -> str:
    """Cut a response where the request wanted it to end."""
    return text[: min((at for each in stop if (at := text.find(each)) >= 0), default=None)]


class _Said:
    """What one place says is a task's response; None for something that is no text."""

    __slots__ = ("response",)

    def __init__(self, response: str | None) -> None:
        self.response = response


class _Array:
    """The entries that stand together."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys
        self.said: dict[int, _Said] = {}

    def add(self, entry: object) -> None:
        """Take an entry, if it counts."""
        fields = cast("dict[str, object]", entry)
        index = _index_of(entry, self.keys)
        if index is not None:
            response = fields.get("response")
            usable = isinstance(response, str) and index not in self.said
            self.said[index] = _Said(str(response) if usable else None)

    def add_to(self, found: list[list[_Said]]) -> None:
        for index, said in self.said.items():
            found[index].append(said)


def _settled(said: list[_Said]) -> str | None:
    responses = {each.response for each in said}
    return responses.pop() if len(responses) == 1 else None


def _index_of(entry: object, keys: Sequence[str]) -> int | None:
    """Return the task that an entry belongs to; None where it does not count."""
    if not isinstance(entry, dict):
        return None
    fields = cast("dict[str, object]", entry)
    index = fields.get("task_index")
    # True is an int, and 1.0 is equal to one.
    if type(index) is not int or not 0 <= index < len(keys) or fields.get("key") != keys[index]:
        return None
    return index


def _values(text: str, keys: Sequence[str]) -> Iterable[Any]:
    """Find the arrays that hold entries, and the entries outside of them."""
    position, effort, leap = 0, 0, 1
    while effort < EFFORT and (start := START.search(text, position)) is not None:
        at = start.start()
        effort += at - position + 100
        position = at + 1
        try:
            value, end = _decoder.raw_decode(text, at)
        except RecursionError:
            # It is so next to here too, and how soon Python sees it differs between its versions.
            position = at + leap
            leap *= 2
            continue
        except json.JSONDecodeError as exc:
            # The error counts lines from the beginning, if quickly.
            effort += exc.pos - at + exc.pos // 64
            continue
        effort += end - at
        if isinstance(value, list):
            array = _Array(keys)
            for entry in cast("list[object]", value):
                array.add(entry)
            if array.said:
                yield array
                position = end
        elif _index_of(value, keys) is not None:
            yield value
            position = end


def _whole_number(digits: str) -> int | None:
    return int(digits) if len(digits) <= DIGITS else None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    # Of two responses in one object, which one is meant?
    return fields if len(fields) == len(pairs) else {**fields, "response": None}


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_int=_whole_number)
