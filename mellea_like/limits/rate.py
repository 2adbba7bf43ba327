"""Limits on requests and tokens per minute, for users who know their quota."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.core.token_estimate import estimate_input_tokens
from mellea_like.limits.bucket import MINUTE, Bucket
from mellea_like.limits.fair_queue import QueuedLimit
from mellea_like.limits.store import check_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.limits.base import RequestEnd
    from mellea_like.limits.fair_queue import QueuedPermit
    from mellea_like.limits.store import Store, Turn

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
        TypeError: an argument that must be a number isn't one, or ``store`` isn't a store.
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
        if store is not None:
            check_store("a RateLimiter", store, name)
        self._store, self._name = store, name
        self._burst = real_number("RateLimiter: burst_seconds", burst_seconds, over=0)
        self._assumed = whole_number("RateLimiter: assume_output_tokens", assume_output_tokens)
        self._requests = self._bucket("requests", requests_per_minute)
        self._tokens = self._bucket("tokens", tokens_per_minute)
        self._per_minute = [
            None if rate is None else float(rate)
            for rate in (requests_per_minute, tokens_per_minute)
        ]
        self._promised: tuple[QueuedPermit, Turn, float] | None = None  # ... and when it may go.

    def _bucket(self, what: str, per_minute: float | None) -> Any:
        """Return a bucket in memory or in the store; None if there is no limit."""
        if per_minute is None:
            return None
        rate = float(real_number(f"RateLimiter: {what}_per_minute", per_minute, over=0))
        capacity = max(1.0, rate / MINUTE * self._burst)
        if self._store is None:
            return Bucket(rate, capacity)
        return self._store.bucket(f"{self._name}: {what}", rate, capacity)

    @property
    def requests_per_minute(self) -> float | None:
        """The largest number of requests per minute; None for no limit."""
        return self._per_minute[0]

    @property
    def tokens_per_minute(self) -> float | None:
        """The largest number of tokens per minute; None for no limit."""
        return self._per_minute[1]

    def _delay(self, now: float, permit: QueuedPermit) -> float:
        delay = self._pause_left(now)
        if self._store is None:
            for bucket, amount in self._wanted(permit):
                delay = max(delay, bucket.delay(now, amount))
            return delay
        if self._promised is None or self._promised[0] is not permit:
            permit.wake()  # It asks for its turn.
            return math.inf
        return max(delay, self._promised[2] - now)

    async def _ask(self, permit: QueuedPermit) -> bool:
        if self._store is None or (self._promised and self._promised[0] is permit):
            return False
        if self._promised is not None:
            self._left(self._promised[0])  # Another request is first now.
        turn = await self._store.take(self._wanted(permit))
        self._promised = permit, turn, self._timeline.now() + turn.seconds
        return True

    def _left(self, permit: QueuedPermit) -> None:
        if self._promised is not None and self._promised[0] is permit:
            self._promised[1].give_back()
            self._promised = None

    def _granted(self, now: float, permit: QueuedPermit) -> None:
        if self._promised is None:
            self._take(now, self._wanted(permit))
        self._promised = None

    def _ended(self, now: float, permit: QueuedPermit, end: RequestEnd) -> None:
        usage = end.usage
        reserved = permit.wanted[-1][1]  # The tokens, if they are limited.
        spent = max(usage.total_tokens, reserved if usage.unknown else 0.0)
        self._take(now, self._amounts(usage.requests - 1.0, spent - reserved))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_promised": None}

    def _wanted(self, permit: QueuedPermit) -> Sequence[tuple[Any, float]]:
        """Return the buckets, each with the amount that a request takes from it."""
        if not permit.wanted:
            tokens = permit.request.options.max_tokens or self._assumed
            if self._tokens is not None:
                tokens += estimate_input_tokens(permit.request)
            permit.wanted = self._amounts(1.0, float(tokens))
        return permit.wanted

    def _take(self, now: float, amounts: Sequence[tuple[Any, float]]) -> None:
        """Take amounts from the buckets now; put negative amounts back."""
        if self._store is None:
            for bucket, amount in amounts:
                bucket.take(now, amount)
        elif amounts:
            self._store.correct(amounts)

    def _amounts(self, requests: float, tokens: float) -> list[tuple[Any, float]]:
        both = (self._requests, requests), (self._tokens, tokens)
        return [(bucket, amount) for bucket, amount in both if bucket is not None and amount]
