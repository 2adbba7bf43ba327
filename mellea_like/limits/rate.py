"""Limits on requests and tokens per minute, for users who know their quota."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.core.token_estimate import estimate_input_tokens
from mellea_like.errors import RateLimited
from mellea_like.limits.bucket import MINUTE, Bucket
from mellea_like.limits.fair_queue import QueuedLimit

if TYPE_CHECKING:
    from mellea_like.limits.base import RequestEnd
    from mellea_like.limits.fair_queue import QueuedPermit
    from mellea_like.limits.store import Store, Take, Turn

__all__ = ["RateLimiter"]

ASSUMED = 256
"""The assumed length of a reply without a length limit, in tokens."""


class RateLimiter(QueuedLimit):
    """Caps the requests and tokens per minute, over all backends and calls that share the limiter.

    Each limit is a `Bucket`. A request waits until both buckets hold what it needs. Waiting
    requests are admitted in the order of a `FairQueue`, so small requests can't overtake a large
    one forever.

    Tokens are reserved before a request is sent: the `estimate_input_tokens` of its messages and,
    for the reply, ``options.max_tokens`` or else ``assume_output_tokens``. Once the request has
    ended, its real cost is charged instead, which may leave a debt that later requests wait for. If
    only a part of the cost is known, because the request was cancelled or broke off, this part is
    charged or, if that is more, everything that was reserved. A request that was never sent is
    charged nothing. A request that needs more than a bucket can hold is sent when the bucket is
    full.

    After a 429, no request is sent until the time that the 429 names (at most 120 s), or for 0.2 s
    if it names none.

    Within any minute, at most a minute's quota plus one burst is used. Providers tend to enforce a
    minute's quota second by second, which the default burst respects. With a longer burst, a
    limiter that has been idle sends more requests at the same time.

    With a ``store``, limiters of the same name share the buckets, even across processes. Each
    limiter still pauses separately after a 429. The first waiting request of each limiter is
    promised a time, and requests are sent in the order of these promises. So large requests wait
    no longer than small ones.

    Args:
        requests_per_minute: the largest number of requests per minute, over 0; None for no limit.
        tokens_per_minute: the largest number of tokens per minute, input and output together, over
            0; None for no limit.
        burst_seconds: how many seconds' quota may be used at one moment, over 0. A full bucket
            always suffices for one request.
        assume_output_tokens: the length to assume for a reply without ``options.max_tokens``, at
            least 1.
        store: the store of the buckets, such as ``SQLiteStore("rates.db")``. By default, they are
            kept in memory, in this object.
        name: the buckets' name in the store; required with a store.

    Raises:
        TypeError: an argument that must be a number isn't one.
        ValueError: a number is out of range, there is no limit, or there is a store but no name.
    """

    def __init__(
        self,
        *,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        burst_seconds: float = 1.0,
        assume_output_tokens: int = ASSUMED,
        store: Store | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if requests_per_minute is None and tokens_per_minute is None:
            msg = "RateLimiter needs a limit: requests_per_minute, tokens_per_minute or both"
            raise ValueError(msg)
        burst = real_number("RateLimiter: burst_seconds", burst_seconds, over=0)
        self._assumed = whole_number("RateLimiter: assume_output_tokens", assume_output_tokens)
        self._requests = _bucket("requests_per_minute", requests_per_minute, burst)
        self._tokens = _bucket("tokens_per_minute", tokens_per_minute, burst)
        if store is not None and not name:
            msg = "RateLimiter: buckets in a store need a name: pass name='...'"
            raise ValueError(msg)
        self._store, self._name = store, name
        self._promised: tuple[QueuedPermit, Turn, float] | None = None  # ... and when it may go.

    @property
    def requests_per_minute(self) -> float | None:
        """The largest number of requests per minute; None for no limit."""
        return None if self._requests is None else self._requests.per_minute

    @property
    def tokens_per_minute(self) -> float | None:
        """The largest number of tokens per minute; None for no limit."""
        return None if self._tokens is None else self._tokens.per_minute

    def _delay(self, now: float, permit: QueuedPermit) -> float:
        delay = self._pause_left(now)
        if self._store is not None:
            if self._promised is None or self._promised[0] is not permit:
                permit.wake()  # It asks for its turn.
                return math.inf
            return max(delay, self._promised[2] - now)
        if self._requests is not None:
            delay = max(delay, self._requests.delay(now, 1.0))
        if self._tokens is not None:
            delay = max(delay, self._tokens.delay(now, self._estimate(permit)))
        return delay

    async def _ask(self, permit: QueuedPermit) -> bool:
        if self._store is None or (self._promised and self._promised[0] is permit):
            return False
        if self._promised is not None:
            self._left(self._promised[0])  # Another request is first now.
        turn = await self._store.take(self._takes(1.0, self._estimate(permit)))
        self._promised = permit, turn, self._timeline.now() + turn.seconds
        return True

    def _left(self, permit: QueuedPermit) -> None:
        if self._promised is not None and self._promised[0] is permit:
            self._promised[1].give_back()
            self._promised = None

    def _takes(self, requests: float, tokens: float) -> list[Take]:
        """Return the limiter's buckets in the store, each with the amount to take from it."""
        return [
            (self._store.bucket(f"{self._name}: {what}", own.per_minute, own.capacity), amount)
            for what, own, amount in (
                ("requests", self._requests, requests),
                ("tokens", self._tokens, tokens),
            )
            if self._store is not None and own is not None and amount
        ]

    def _granted(self, now: float, permit: QueuedPermit) -> None:
        if self._store is not None:
            self._promised = None
            return
        if self._requests is not None:
            self._requests.take(now, 1.0)
        if self._tokens is not None:
            self._tokens.take(now, self._estimate(permit))

    def _ended(self, now: float, permit: QueuedPermit, end: RequestEnd) -> None:
        usage = end.usage
        requests, tokens = usage.requests - 1.0, 0.0
        if self._tokens is not None and permit.reserved_tokens is not None:
            spent: float = usage.total_tokens
            if usage.unknown:
                spent = max(spent, permit.reserved_tokens)
            tokens = spent - permit.reserved_tokens
        if self._store is not None:
            if takes := self._takes(requests, tokens):
                self._store.correct(takes)
        else:
            for bucket, amount in ((self._requests, requests), (self._tokens, tokens)):
                if bucket is not None:
                    bucket.take(now, amount)
        if isinstance(end.error, RateLimited):
            self._pause_after(now, end.error)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_promised": None}

    def _estimate(self, permit: QueuedPermit) -> float:
        if permit.reserved_tokens is None:
            output = permit.request.options.max_tokens or self._assumed or 0
            permit.reserved_tokens = float(estimate_input_tokens(permit.request) + output)
        return permit.reserved_tokens


def _bucket(name: str, rate: float | None, burst: float) -> Bucket | None:
    if rate is None:
        return None
    rate = float(real_number(f"RateLimiter: {name}", rate, over=0))
    return Bucket(rate, max(1.0, rate / MINUTE * burst))
