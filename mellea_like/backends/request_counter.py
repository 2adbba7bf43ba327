"""Counts a backend's requests, and words in place of tokens if there is no tokeniser."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from mellea_like.core.conversation import Message

__all__ = ["Flight", "RequestCounter", "RequestStatistics", "count_words", "word_pieces"]


class RequestStatistics(NamedTuple):
    """A snapshot of a backend's requests: ``started = finished + failed + cancelled + in_flight``.

    Attributes:
        started: requests that arrived.
        finished: requests that were answered in full.
        failed: requests that ended with an error.
        cancelled: requests whose caller left, by cancellation or by leaving a stream early.
        in_flight: requests that are being answered now.
        max_in_flight: the most that were in flight at one time.
        input_tokens: tokens of the prompts of all requests.
        output_tokens: tokens generated, those of failed and cancelled requests included.
    """

    started: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class Flight:
    """How one request in flight ends. Unless it is told, its caller left."""

    outcome: Literal["finished", "failed", "cancelled"] = "cancelled"


class RequestCounter(Counter[str]):
    """The running counts of a backend, by the names of `RequestStatistics`."""

    @contextmanager
    def flight(self) -> Generator[Flight]:
        """Count one request while it is in flight."""
        self["started"] += 1
        self["in_flight"] += 1
        self["max_in_flight"] = max(self["max_in_flight"], self["in_flight"])
        flight = Flight()
        try:
            yield flight
        finally:
            self["in_flight"] -= 1
            self[flight.outcome] += 1

    def statistics(self) -> RequestStatistics:
        """Return the counts of this moment."""
        return RequestStatistics(**self)


_PIECE = re.compile(r"\A\s+|\S+\s*")


def word_pieces(text: str) -> list[str]:
    """Cut a text after the white space behind each word."""
    return _PIECE.findall(text)


def count_words(messages: Iterable[Message]) -> int:
    """Count the words of a conversation."""
    return sum(len(message.text.split()) for message in messages)
