"""Counts what a backend without a tokeniser does: its requests, and words for tokens."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from mellea_like.core.conversation import Message

__all__ = ["Flight", "RequestCounter", "RequestStatistics", "count_words", "word_pieces"]


class RequestStatistics(NamedTuple):
    """A look at a backend's requests: ``started = finished + failed + cancelled + in_flight``.

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


class RequestCounter:
    """The running counts of a backend."""

    def __init__(self) -> None:
        self.started = 0
        self.finished = 0
        self.failed = 0
        self.cancelled = 0
        self.in_flight = 0
        self.max_in_flight = 0
        self.input_tokens = 0
        self.output_tokens = 0

    def flight(self) -> Flight:
        """Return a context manager to hold while one request is in flight."""
        return Flight(self)

    def statistics(self) -> RequestStatistics:
        """Return the counts of this moment."""
        return RequestStatistics(**vars(self))


class Flight:
    """One request in flight. Unless it is told how the request ended, its caller left."""

    __slots__ = ("_counter", "_outcome")

    def __init__(self, counter: RequestCounter) -> None:
        self._counter = counter
        self._outcome: Literal["finished", "failed", "cancelled"] = "cancelled"

    def finished(self) -> None:
        """Say that the request was answered in full."""
        self._outcome = "finished"

    def failed(self) -> None:
        """Say that the request ended with an error."""
        self._outcome = "failed"

    def __enter__(self) -> Self:
        counter = self._counter
        counter.started += 1
        counter.in_flight += 1
        counter.max_in_flight = max(counter.max_in_flight, counter.in_flight)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        counter = self._counter
        counter.in_flight -= 1
        setattr(counter, self._outcome, getattr(counter, self._outcome) + 1)


_PIECE = re.compile(r"\A\s+|\S+\s*")


def word_pieces(text: str) -> list[str]:
    """Cut a text after the white space behind each word."""
    return _PIECE.findall(text)


def count_words(messages: Iterable[Message]) -> int:
    """Count the words of a conversation."""
    return sum(len(message.content.split()) for message in messages)
