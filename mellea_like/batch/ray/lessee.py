"""A worker's side of the cluster's limit: it leases, renews ahead of time, and keeps to it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

import anyio

from mellea_like.batch.ray.leased_budget import LeasedBudget
from mellea_like.batch.ray.leases import Ask, Entry, lapsed
from mellea_like.core.generation import Usage
from mellea_like.limits.base import RequestEnd
from mellea_like.limits.budget_stats import BudgetLimits
from mellea_like.limits.ledger import Amounts
from mellea_like.runtime.logs import inform, warn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from mellea_like.batch.ray.leases import Answer
    from mellea_like.batch.ray.limit import ClusterLimit
    from mellea_like.core.backend import Backend, Request
    from mellea_like.limits.base import Permit

__all__ = ["Lessee", "LesseeStatistics", "Office", "OfficeGone"]

RENEW = 1 / 2
"""After which part of a lease it is renewed, and how long an answer is waited for."""

AGAIN = 1 / 8
"""After which part of a lease a worker asks again that could not have what it needs."""

QUIET = 1 / 100
"""The least part of a lease between two questions."""


class OfficeGone(Exception):
    """The office did not answer."""


class Office(Protocol):
    """Where leases are had."""

    async def exchange(self, ask: Ask) -> Answer:
        """Ask.

        Args:
            ask: what the worker says.

        Returns:
            What the office says.

        Raises:
            OfficeGone: it does not answer.
        """
        ...


class LesseeStatistics(NamedTuple):
    """A look at a worker's leases.

    Attributes:
        share: the part of the cluster's rates that it has.
        entry: its books of the budget.
        waiting: requests that wait.
        in_touch: whether the office answered the last time it was asked.
    """

    share: float
    entry: Entry
    waiting: int
    in_touch: bool


class Lessee:
    """The limit that stands in a worker for that of the whole cluster.

    Args:
        limit: the cluster's limit.
        office: where leases are had.
        worker: the worker's name.
        holder: the process's name.
        workers: how many workers there are.
    """

    def __init__(
        self, limit: ClusterLimit, office: Office, *, worker: str, holder: str, workers: int
    ) -> None:
        self._lease = limit.lease_seconds
        self._limit = limit
        self._office = office
        self._names = worker, holder
        # Where no office is ever found, this is what is left of.
        self._share = 1 / workers
        self._until = -1.0
        self._known = anyio.Event()
        self._told = True
        self._rate = limit.rate_limiter(self._share) if limit.has_rate else None
        self._budget = None
        if limit.budget != BudgetLimits():
            self._budget = LeasedBudget(limit, self._ask_now)
        self._books: Mapping[str, Entry] = {}
        self._users = 0
        self._keeping = anyio.Lock()
        self._news = anyio.Event()

    # --- the limit -------------------------------------------------------------------------------

    async def acquire(self, request: Request, backend: Backend) -> Permit:
        """Wait until a request may be sent.

        Args:
            request: the request.
            backend: what will answer it.

        Returns:
            The permit.

        Raises:
            LimitExceeded: the cluster's budget is spent.
            ValueError: what it may cost can't be told.
        """
        permits: list[Permit] = []
        try:
            if self._budget is not None:
                permits.append(await self._budget.acquire(request, backend))
            if self._rate is not None:
                if self._share == 0.0:
                    self._ask_now()
                await self._known.wait()
                permits.append(await self._rate.acquire(request, backend))
        except BaseException as exc:
            for permit in permits:
                permit.release(RequestEnd(Usage(), None, exc))
            raise
        return _Permits(permits)

    @asynccontextmanager
    async def in_use(self) -> AsyncGenerator[None]:
        """Keep the leases renewed for a block; when the last block ends, give all back.

        Yields:
            Nothing.
        """
        self._users += 1
        try:
            error: Exception | None = None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._keep, name="renews the leases")
                try:
                    yield
                except Exception as exc:  # noqa: BLE001 (raised below, not through the group)
                    error = exc
                tasks.cancel_scope.cancel()
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # A frame that holds its own exception waits for the collector.
        finally:
            self._users -= 1
            if not self._users:
                with anyio.CancelScope(shield=True):
                    await self._renew()

    def statistics(self) -> LesseeStatistics:
        """Return what is leased.

        Returns:
            The numbers of this moment.
        """
        rate, budget = self._rate, self._budget
        return LesseeStatistics(
            self._share,
            Entry() if budget is None else budget.entry,
            (0 if rate is None else rate.statistics().waiting)
            + (0 if budget is None else budget.waiting),
            self._told,
        )

    # --- renewing --------------------------------------------------------------------------------

    def _ask_now(self) -> None:
        self._news.set()

    async def _keep(self) -> None:
        """Renew the leases for as long as this is the block whose turn it is."""
        async with self._keeping:
            while True:
                pause = await self._renew()
                await anyio.sleep(min(pause, QUIET * self._lease))
                with anyio.move_on_after(pause):
                    await self._news.wait()

    async def _renew(self) -> float:
        """Ask the office once.

        Returns:
            After how many seconds to ask again.
        """
        now = anyio.current_time()
        self._news = anyio.Event()
        try:
            with anyio.fail_after(self._lease * RENEW):
                answer = await self._office.exchange(self._ask(now))
        except (OfficeGone, TimeoutError) as exc:
            self._alone(anyio.current_time(), exc)
            return self._lease * RENEW * RENEW
        return self._take(now, answer)

    def _ask(self, now: float) -> Ask:
        weight = 0.0
        if self._rate is not None:
            figures = self._rate.statistics()
            weight += figures.waiting + figures.in_flight
        wants, needs, entry = Amounts(), None, Entry()
        if self._budget is not None:
            if self._users:
                wants = self._budget.wants()
            else:
                self._budget.give_back()
            needs, entry = self._budget.needs(), self._budget.entry
            weight += self._budget.waiting
        if self._users:
            weight = max(weight, 1.0)
        going = lapsed(self._share, now - self._until, self._lease)
        return Ask(*self._names, weight, going, entry, wants, needs, self._books)

    def _take(self, asked: float, answer: Answer) -> float:
        if not self._told:
            self._told = True
            inform("the office of the cluster's limit answers again")
        self._share, self._until = answer.share, asked + self._lease
        self._books = answer.books
        self._set_rate(answer.share)
        self._known.set()
        pause = self._lease * RENEW
        if self._budget is not None:
            self._budget.take(answer.entry)
            if answer.spent_up:
                self._budget.deny()
            if answer.give_back:
                self._budget.give_back()
            if self._budget.waiting or answer.give_back:
                pause = self._lease * AGAIN
        if not answer.share and self._rate is not None and self._rate.statistics().waiting:
            pause = self._lease * AGAIN
        return pause

    def _alone(self, now: float, error: Exception) -> None:
        """Go on without the office."""
        if self._told:
            self._told = False
            warn(
                "the office of the cluster's limit does not answer (%s): going on slowly, with what"
                " is leased, until there is one again",
                error or type(error).__name__,
            )
        self._set_rate(lapsed(self._share, now - self._until, self._lease))
        self._known.set()

    def _set_rate(self, share: float) -> None:
        if self._rate is None:
            return
        requests, tokens = self._limit.rates(share)
        if requests != self._rate.requests_per_minute:
            self._rate.requests_per_minute = requests
        if tokens != self._rate.tokens_per_minute:
            self._rate.tokens_per_minute = tokens


class _Permits:
    __slots__ = ("_permits",)

    def __init__(self, permits: list[Permit]) -> None:
        self._permits = permits

    def release(self, end: RequestEnd) -> None:
        for permit in reversed(self._permits):
            permit.release(end)
