"""The state of a key while the gateway runs: its spending, its rates, and its requests."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from math import ceil, inf, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from mellea_like.core.display import plural
from mellea_like.gateway.refusal import NO_BUDGET_SOON, budget_spent, too_many
from mellea_like.limits.budget_accounts import Amounts, Denied
from mellea_like.limits.memory_store import MemoryStore
from mellea_like.web import while_here

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence

    from mellea_like.core.prices import Price
    from mellea_like.gateway.config.gateway_config import KeyLimits, Period
    from mellea_like.limits.budget import Budget
    from mellea_like.limits.store import Reservation, Store, StoreAccount, StoreBucket

MINUTE = 60.0

LONGEST_WAIT = 60.0
"""The highest Retry-After, in seconds, for a request refused because too many are under way."""

WEIGHT = 0.2
"""The weight of the latest request in the moving average of the requests' durations."""

ONE = Amounts(requests=1)

ASKED_TOKENS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class KeyState:
    """The state of a key while the gateway runs: its budget, its rates, and its requests."""

    # The store ``spent`` records the spending. If processes share limits, ``together`` counts them.
    def __init__(
        self,
        name: str,
        limits: KeyLimits,
        *,
        spent: Store | None = None,
        together: Store | None = None,
        now: Callable[[], float] = time.time,
        changed: Callable[[KeyState], object] = bool,
    ) -> None:
        self.name = name
        self.prices: Mapping[str, Price] | None = None
        self._spent = MemoryStore() if spent is None else spent
        self._together = together
        self._rated = MemoryStore() if together is None else together
        self._changed = changed
        self._now = now  # The time of day, in seconds since 1970.
        self._here = 0
        self._turns = anyio.CapacityLimiter(limits.concurrency)
        self._average = 0.0
        self._accounts: dict[str, float] = {}
        """When the periods of the accounts that this process has used end, by account."""
        self._limit_to(limits)
        self._changed(self)

    def change(self, to: KeyState) -> None:
        """Take over the limits of ``to``, a newer state of the same key, but not its counts."""
        self.prices = to.prices
        self._turns.total_tokens = to.limits.concurrency
        self._limit_to(to.limits)

    def _limit_to(self, limits: KeyLimits) -> None:
        self.limits = limits
        self._budget: Budget | None = None
        self._ends = -inf  # The end of the period, in seconds since 1970.
        self._calls: StoreAccount | None = None
        self._calls_spent = False  # As far as this process knows.
        self._rates = [
            _Rate(what, self._rated.bucket(f"key {self.name}: {what}", most, most), most)
            for what, most in (
                ("requests", limits.requests_per_minute),
                ("tokens", limits.tokens_per_minute),
            )
            if most is not None
        ]
        # The default concurrency protects each process's memory, so it isn't shared.
        self._places: StoreAccount | None = None
        if self._together is not None and "concurrency" in limits.model_fields_set:
            most = float(limits.concurrency), inf, inf, inf
            self._places = self._together.account(f"key {self.name}: at a time", most)

    # --- what it spends --------------------------------------------------------------------------

    @property
    def budget(self) -> Budget | None:
        """The budget of the current period; None if nothing limits the spending on upstreams."""
        self._look_at_the_time()
        return self._budget

    def _look_at_the_time(self) -> None:
        """Begin a new budget if a new period has begun."""
        spec = self.limits.budget
        if spec is None:
            return
        now = self._now()
        if now < self._ends:
            return
        name = f"key {self.name}"
        self._ends = inf
        if spec.per is not None:
            self._ends = end_of_period(now, spec.per)
            until = time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(self._ends))
            name = f"{name}, {spec.per} to {until}"
        store: Any = self._spent
        over = [account for account, end in self._accounts.items() if end <= now]
        if over and hasattr(store, "forget"):
            store.forget(*over)
        for account in over:
            del self._accounts[account]
        self._accounts |= dict.fromkeys((name, f"{name}: caller_requests"), self._ends)
        if spec.of_upstreams:
            self._budget = spec.make(name=name, prices=self.prices, store=store)
        if spec.caller_requests is not None:
            most = float(spec.caller_requests), inf, inf, inf
            self._calls_spent = False
            self._calls = store.account(f"{name}: caller_requests", most)

    def seconds_to_reset(self) -> float:
        """Return the seconds until the budget starts again, or an hour if it never does."""
        return self._ends - self._now() if isfinite(self._ends) else NO_BUDGET_SOON

    def check_budget(self) -> None:
        """Refuse a request if the key has spent its whole budget."""
        budget = self.budget
        spent_one = budget is not None and any(
            limit is not None and spent >= limit
            for spent, limit in zip(budget.spent, budget.limits, strict=False)
        )
        if spent_one or self._calls_spent:
            raise budget_spent()

    async def count(self) -> None:
        """Count a request of the caller; refuse it if the budget has no room for it."""
        self._look_at_the_time()
        if self._calls is not None:
            try:
                counted = await self._spent.reserve([(self._calls, ONE)])
            except Denied:
                self._calls_spent = True
                raise budget_spent() from None
            counted.settle([ONE])

    async def take_rates(self, body: Mapping[str, Any]) -> Charge:
        """Charge a request to the key's rates; refuse it if it is over one of them."""
        rates, store = self._rates, self._rated
        if not rates:
            return Charge(store)
        asked = [body[field] for field in ASKED_TOKENS if type(body.get(field)) is int]
        wanted = max(0, min(asked, default=self.limits.max_tokens or 0))
        amounts = [min(wanted, rate.most) if rate.what == "tokens" else 1 for rate in rates]
        takes = [(rate.bucket, amount) for rate, amount in zip(rates, amounts, strict=True)]
        turn = await store.take(takes)
        if turn.seconds > 0:
            turn.give_back()
            before = [left + taken for left, taken in zip(turn.left, amounts, strict=True)]
            lacking = [
                (min(amount, rate.most) - had) / rate.most
                for had, amount, rate in zip(before, amounts, rates, strict=True)
            ]
            scarce = rates[lacking.index(max(lacking))]
            message = (
                f"the key {self.name!r} is limited to {scarce.most:,.12g} {scarce.what} a minute:"
                f" try again in {max(1, ceil(turn.seconds))} s"
            )
            refusal = too_many(message, turn.seconds)
            refusal.headers = {**refusal.headers, **_told(rates, before)}
            raise refusal
        taken = amounts[-1] if rates[-1].what == "tokens" else None
        return Charge(store, rates[-1].bucket, taken, _told(rates, turn.left))

    # --- how many at a time ----------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """The number of requests that this process is working on."""
        return self._turns.borrowed_tokens

    @property
    def waiting(self) -> int:
        """The number of requests that wait in this process for one of the key's slots."""
        return self._here - self.in_flight

    @contextmanager
    def queued(self) -> Generator[None]:
        """Count a request while the block runs, or refuse it if too many are waiting."""
        # It is counted before its body is read, because memory for bodies is limited.
        limits = self.limits
        if self._here >= limits.concurrency + limits.queue:
            requests = plural(limits.concurrency, "request")
            message = (
                f"the key {self.name!r} has {requests} under way and"
                f" {limits.queue} waiting, which is its limit: try again later"
            )
            raise too_many(message, self.retry_after())
        self._here += 1
        self._changed(self)
        try:
            yield
        finally:
            self._here -= 1
            self._changed(self)

    @asynccontextmanager
    async def turn(
        self, receive: Callable[[], Awaitable[Mapping[str, Any]]]
    ) -> AsyncGenerator[None]:
        """Wait in line for one of the key's slots, and hold it while the block runs."""
        slot, began = object(), None
        places: list[Reservation] = []
        try:
            try:
                self._turns.acquire_on_behalf_of_nowait(slot)
            except anyio.WouldBlock:
                acquire = partial(self._turns.acquire_on_behalf_of, slot)
                await while_here(receive, partial(self._in_time, acquire))
            if self._places is not None:
                reserve = partial(self._reserve, self._places, places)
                await while_here(receive, partial(self._in_time, reserve))
            began = anyio.current_time()
            self._changed(self)
            yield
        finally:
            for place in places:
                place.settle([Amounts()])
            with suppress(RuntimeError):  # It may have left before its turn or just then.
                self._turns.release_on_behalf_of(slot)
                self._changed(self)
            if began is not None:
                took = anyio.current_time() - began
                self._average += (took - self._average) * (WEIGHT if self._average else 1.0)

    async def _in_time(self, acquire: Callable[[], Awaitable[object]]) -> None:
        seconds = self.limits.queue_seconds
        with anyio.move_on_after(seconds):
            await acquire()
            return
        message = f"the key {self.name!r} had no free slot for this request within {seconds:g} s"
        raise too_many(message, self.retry_after())

    async def _reserve(self, account: StoreAccount, places: list[Reservation]) -> None:
        """Wait for one of the slots that all processes share for the key, and reserve it."""
        places.append(await self._rated.reserve([(account, ONE)]))

    def retry_after(self) -> float:
        """Estimate the seconds until all waiting requests are served, from 1 to `LONGEST_WAIT`."""
        turns = (self.waiting + 1) / self.limits.concurrency
        return min(max(self._average * turns, 1.0), LONGEST_WAIT)


class _Rate(NamedTuple):
    what: str
    bucket: StoreBucket
    most: float


@dataclass(frozen=True, slots=True)
class Charge:
    """The tokens that a request reserves from its key's rate until its cost is known."""

    store: Store
    bucket: StoreBucket | None = None
    taken: float | None = None
    told: Mapping[str, str] = field(default_factory=dict[str, str])
    """The headers that tell the caller how much of the rates is left."""

    def settle(self, tokens: int) -> None:
        """Replace the reservation by the request's real cost in tokens."""
        if self.bucket is not None and self.taken is not None and tokens != self.taken:
            self.store.correct([(self.bucket, tokens - self.taken)])


def _told(rates: Sequence[_Rate], left: Sequence[float]) -> dict[str, str]:
    """Return the headers in which OpenAI's servers report how much of a rate is left."""
    headers: dict[str, str] = {}
    for (what, _, most), now in zip(rates, left, strict=True):
        headers[f"x-ratelimit-limit-{what}"] = f"{most:.0f}"
        headers[f"x-ratelimit-remaining-{what}"] = str(max(0, int(now)))
        headers[f"x-ratelimit-reset-{what}"] = f"{(most - now) * MINUTE / most:.3f}s"
    return headers


def end_of_period(now: float, period: Period) -> float:
    """Return the end of the UTC period that contains ``now``, as seconds since 1970."""
    hour = datetime.fromtimestamp(now, UTC).replace(minute=0, second=0, microsecond=0)
    day = hour.replace(hour=0)
    ends = {
        "hour": hour + timedelta(hours=1),
        "day": day + timedelta(days=1),
        "week": day + timedelta(days=7 - day.weekday()),
        "month": (day.replace(day=1) + timedelta(days=31)).replace(day=1),
    }
    return ends[period].timestamp()
