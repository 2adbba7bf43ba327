"""Count a backend's requests, and count words instead of tokens if there is no tokenizer."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from mellea_like.core.conversation import Message


class RequestStatistics(NamedTuple):
    """A snapshot of a backend's requests: ``started = finished + failed + cancelled + in_flight``.

    Attributes:
        started: the number of requests that arrived.
        finished: the number of requests that were answered completely.
        failed: the number of requests that ended with an error.
        cancelled: the number of requests whose caller was cancelled or closed a stream early.
        in_flight: the number of requests that are being answered now.
        max_in_flight: the largest number of requests that were in flight at one time.
        input_tokens: the number of tokens in the prompts of all requests.
        output_tokens: the number of tokens generated, including those of failed and cancelled
            requests.
    """

    started: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class RequestCounter(Counter[str]):
    """Counts a backend's requests and tokens, under the field names of `RequestStatistics`."""

    @contextmanager
    def flight(self) -> Generator[None]:
        """Count one request as in flight during the block, and count its outcome afterwards."""
        self["started"] += 1
        self["in_flight"] += 1
        self["max_in_flight"] = max(self["max_in_flight"], self["in_flight"])
        outcome = "cancelled"
        try:
            yield
            outcome = "finished"
        except Exception:
            outcome = "failed"
            raise
        finally:
            self["in_flight"] -= 1
            self[outcome] += 1

    def statistics(self) -> RequestStatistics:
        """Return the current counts."""
        return RequestStatistics(**self)


_PIECE = re.compile(r"\A\s+|\S+\s*")


def word_pieces(text: str) -> list[str]:
    """Split a text into words, each with the white space after it."""
    return _PIECE.findall(text)


def count_words(messages: Iterable[Message]) -> int:
    """Count the words of a conversation."""
    return sum(len(message.text.split()) for message in messages)
