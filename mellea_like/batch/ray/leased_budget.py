"""What one worker may spend of the cluster's budget: its leases, and who waits for the next one."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING

import anyio

from mellea_like.batch.ray.leases import Entry
from mellea_like.core.estimate import estimate_input_tokens
from mellea_like.errors import LimitExceeded
from mellea_like.limits.allowance import Allowance, amounts
from mellea_like.limits.charging import charged_tokens
from mellea_like.limits.ledger import Amounts, Claim

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.batch.ray.limit import ClusterLimit
    from mellea_like.core.backend import Backend, Request
    from mellea_like.limits.allowance import Rate
    from mellea_like.limits.base import RequestEnd
    from mellea_like.limits.ledger import Limits

__all__ = ["LeasedBudget"]

AHEAD = 3
"""How many times what was reserved since the last look is leased ahead."""


class _Waiting:
    __slots__ = ("claim", "denied", "settled", "wanted")

    def __init__(self, wanted: Amounts) -> None:
        self.wanted = wanted
        self.settled = anyio.Event()
        self.denied = False
        self.claim: Claim | None = None


class LeasedBudget(Allowance):
    """A worker's part of the budget; a limit.

    A request that finds no room waits, in the order of arrival, until more is leased or others have
    ended. It is denied when the office says that there will never be enough.

    Args:
        limit: the cluster's limit.
        on_need: is called when a request begins to wait.
    """

    def __init__(self, limit: ClusterLimit, on_need: Callable[[], object]) -> None:
        super().__init__(limit.budget, limit.prices, limit.assume_output_tokens, limit.name)
        self.total: Limits = limit.total
        self._on_need = on_need
        self._granted = Amounts()
        self._returned = Amounts()
        self._line: deque[_Waiting] = deque()
        self._reserved_lately = Amounts()
        self._fit()

    # --- what the office is told -----------------------------------------------------------------

    @property
    def entry(self) -> Entry:
        """The worker's own books."""
        spent = self._account.spent
        # What requests cost beyond their estimates was never leased, and is to be charged, too.
        return Entry(self._granted.most(spent.plus(self._returned)), spent, self._returned)

    @property
    def waiting(self) -> int:
        """Requests that wait for room."""
        return len(self._line)

    def needs(self) -> Amounts | None:
        """Return the least that would let the first request go that waits; None without one."""
        if not self._line:
            return None
        return self._limited(self._line[0].wanted.minus(self._spare()).most(Amounts()))

    def wants(self) -> Amounts:
        """Return what to lease, to have enough until the next look; and begin to count anew."""
        ahead = Amounts._make(AHEAD * amount for amount in self._reserved_lately)
        for waiting in self._line:
            ahead = ahead.plus(waiting.wanted)
        self._reserved_lately = Amounts()
        return self._limited(ahead.minus(self._spare()).most(Amounts()))

    def give_back(self) -> None:
        """Give back what is leased and neither spent nor reserved."""
        self._returned = self._returned.plus(self._limited(self._spare()))
        self._fit()

    # --- what the office says --------------------------------------------------------------------

    def take(self, entry: Entry) -> None:
        """Take what was leased.

        Args:
            entry: the worker's books, as the office has them.
        """
        self._granted = entry.granted
        self._fit()

    def deny(self) -> None:
        """Deny the first request that waits, unless requests under way can make room for it."""
        if self._line and self._account.lacking(self._line[0].wanted) is not None:
            first = self._line.popleft()
            first.denied = True
            first.settled.set()

    # --- what requests do ------------------------------------------------------------------------

    async def acquire(self, request: Request, backend: Backend) -> LeasedPermit:
        """Reserve what a request may cost.

        Args:
            request: the request.
            backend: what will answer it.

        Returns:
            The reservation; to be released.

        Raises:
            LimitExceeded: the cluster's budget is spent.
            ValueError: what it may cost can't be told.
        """
        sent = estimate_input_tokens(request)
        model = request.options.model or getattr(backend, "model", None)
        received, rate = self._terms(request.options, model)
        place = _Waiting(amounts(1, sent, received, rate))
        self._line.append(place)
        self._serve()
        if not place.settled.is_set():
            self._on_need()
            try:
                await place.settled.wait()
            except BaseException:
                if place.claim is not None:
                    place.claim.leave()
                elif not place.denied:
                    self._line.remove(place)
                self._serve()
                raise
        if place.claim is None:
            raise self._refused(place.wanted)
        return LeasedPermit(self, place.claim, sent, rate)

    def settle(self, claim: Claim, spent: Amounts, unknown: int) -> None:
        """Charge a request that has ended.

        Args:
            claim: its reservation.
            spent: what it cost.
            unknown: how many requests did not say for sure what they cost.
        """
        claim.settle([spent], unknown)
        self._serve()

    def _serve(self) -> None:
        while self._line and self._account.has_room(self._line[0].wanted):
            first = self._line.popleft()
            first.claim = Claim([(self._account, first.wanted)])
            first.claim.submit()
            self._reserved_lately = self._reserved_lately.plus(first.wanted)
            first.settled.set()

    def _fit(self) -> None:
        held = self._granted.minus(self._returned)
        requests, sent, received, money = (
            inf if total == inf else leased for total, leased in zip(self.total, held, strict=True)
        )
        self._account.limits = requests, sent, received, money
        self._serve()

    def _spare(self) -> Amounts:
        account = self._account
        held = self._granted.minus(self._returned)
        return held.minus(account.spent).minus(account.reserved).most(Amounts())

    def _limited(self, counted: Amounts) -> Amounts:
        return Amounts._make(
            0 if total == inf else amount for amount, total in zip(counted, self.total, strict=True)
        )

    def _refused(self, wanted: Amounts) -> LimitExceeded:
        limits = ", ".join(
            f"{name}={most:g}" for name, most in self._limits._asdict().items() if most is not None
        )
        msg = (
            f"the cluster's budget ({limits}) is spent, or too little is left for this request"
            f" (prompt about {wanted.input_tokens} tokens, reply up to {wanted.output_tokens})"
        )
        return LimitExceeded(msg)


class LeasedPermit:
    """What is reserved for one request.

    Args:
        budget: where.
        claim: the reservation.
        sent: the prompt's tokens, as they were estimated.
        rate: what tokens cost.
    """

    __slots__ = ("_budget", "_claim", "_rate", "_sent")

    def __init__(self, budget: LeasedBudget, claim: Claim, sent: int, rate: Rate) -> None:
        self._budget = budget
        self._claim = claim
        self._sent = sent
        self._rate = rate

    def release(self, end: RequestEnd) -> None:
        """Charge what the request cost.

        Args:
            end: how it ended.
        """
        tokens = charged_tokens(end, self._sent)
        spent = amounts(end.usage.requests, *tokens, self._rate)
        self._budget.settle(self._claim, spent, end.usage.unknown)
