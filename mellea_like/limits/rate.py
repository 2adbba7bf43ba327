"""Requests and tokens per minute, for people who know their quota."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.core.backend import estimate_input_tokens, output_bound
from mellea_like.errors import RateLimited
from mellea_like.limits.fair_queue import QueuedLimit

if TYPE_CHECKING:
    from mellea_like.limits.base import RequestEnd
    from mellea_like.limits.fair_queue import QueuedPermit

__all__ = ["Bucket", "RateLimiter"]

MINUTE = 60.0


class Bucket:
    """A token bucket: it fills at an even rate up to its capacity, and each request takes from it.

    Pure: the time is passed in. (J. Turner, "New directions in communications (or which way to the
    information age?)", 1986; RFC 2697 describes the same meter.) Unlike in those, it may be in
    debt: what was taken can turn out to have been too little, and what is larger than the bucket
    goes when the bucket is full.
    """

    __slots__ = ("_at", "_capacity", "_level", "per_minute")

    def __init__(self, per_minute: float, capacity: float) -> None:
        self.per_minute = per_minute
        self._capacity = capacity
        self._level = capacity
        self._at = -math.inf

    def level(self, now: float) -> float:
        """Return what is in it; negative is debt."""
        passed = max(0.0, now - self._at)
        return min(self._capacity, self._level + passed * self.per_minute / MINUTE)

    def delay(self, now: float, amount: float) -> float:
        """Return in how many seconds it holds an amount, or is full where the amount is larger."""
        missing = min(amount, self._capacity) - self.level(now)
        return max(0.0, missing * MINUTE / self.per_minute)

    def take(self, now: float, amount: float) -> None:
        """Take an amount out, or put it back if it is negative."""
        self._level = min(self._capacity, self.level(now) - amount)
        self._at = max(self._at, now)


class RateLimiter(QueuedLimit):
    """At most so many requests and tokens a minute, over all backends and calls that share it.

    Each limit is a `Bucket`. A request waits until both hold what it needs; waiting requests go
    in the order of a `FairQueue`, so that smaller ones don't overtake a large one for ever.

    Tokens are reserved before a request is sent: `estimate_input_tokens` of its messages and, for
    the reply, ``options.max_tokens`` or else ``assume_output_tokens``. Once it has ended, what it
    really cost is charged instead, which may leave a debt that later requests wait for. A request
    of unknown cost (cancelled or broken) is charged the larger of the two, and one that was never
    sent nothing. A request that needs more than the bucket can hold goes when the bucket is full.

    After a 429 nobody goes until the time that it names, 120 s at most, or for 0.2 s where it names
    none.

    In any minute that follows, at most a minute's quota and one burst go. Providers tend to count a
    minute's quota second by second, which is what the default burst keeps to; with a longer one a
    limiter that has been idle lets more go at once.

    Args:
        requests_per_minute: how many, over 0; None for no limit.
        tokens_per_minute: how many, input and output together, over 0; None for no limit.
        burst_seconds: how many seconds' quota may be used at one moment, over 0. One request may
            always go from a full bucket.
        assume_output_tokens: tokens of a reply without ``options.max_tokens``, at least 1.

    Raises:
        TypeError: something isn't a number.
        ValueError: a number is out of its range, or there is no limit.
    """

    def __init__(
        self,
        *,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        burst_seconds: float = 1.0,
        assume_output_tokens: int = 256,
    ) -> None:
        super().__init__()
        if requests_per_minute is None and tokens_per_minute is None:
            msg = "RateLimiter needs a limit: requests_per_minute, tokens_per_minute or both"
            raise ValueError(msg)
        burst = real_number("RateLimiter: burst_seconds", burst_seconds, over=0)
        self._assumed = whole_number("RateLimiter: assume_output_tokens", assume_output_tokens)
        self._requests = _bucket("requests_per_minute", requests_per_minute, burst)
        self._tokens = _bucket("tokens_per_minute", tokens_per_minute, burst)

    @property
    def requests_per_minute(self) -> float | None:
        """How many requests may go in a minute; None for no limit."""
        return None if self._requests is None else self._requests.per_minute

    @property
    def tokens_per_minute(self) -> float | None:
        """How many tokens may be spent in a minute; None for no limit."""
        return None if self._tokens is None else self._tokens.per_minute

    def _delay(self, now: float, permit: QueuedPermit) -> float:
        delay = self._pause_left(now)
        if self._requests is not None:
            delay = max(delay, self._requests.delay(now, 1.0))
        if self._tokens is not None:
            delay = max(delay, self._tokens.delay(now, self._estimate(permit)))
        return delay

    def _granted(self, now: float, permit: QueuedPermit) -> None:
        if self._requests is not None:
            self._requests.take(now, 1.0)
        if self._tokens is not None:
            self._tokens.take(now, self._estimate(permit))

    def _ended(self, now: float, permit: QueuedPermit, end: RequestEnd) -> None:
        usage = end.usage
        if self._requests is not None:
            self._requests.take(now, usage.requests - 1.0)
        if self._tokens is not None and permit.reserved_tokens is not None:
            spent: float = usage.total_tokens
            if usage.unknown:
                spent = max(spent, permit.reserved_tokens)
            self._tokens.take(now, spent - permit.reserved_tokens)
        if isinstance(end.error, RateLimited):
            self._pause_after(now, end.error)

    def _estimate(self, permit: QueuedPermit) -> float:
        if permit.reserved_tokens is None:
            output = output_bound(permit.request, self._assumed) or 0
            permit.reserved_tokens = float(estimate_input_tokens(permit.request) + output)
        return permit.reserved_tokens


def _bucket(name: str, rate: float | None, burst: float) -> Bucket | None:
    if rate is None:
        return None
    rate = float(real_number(f"RateLimiter: {name}", rate, over=0))
    return Bucket(rate, max(1.0, rate / MINUTE * burst))
