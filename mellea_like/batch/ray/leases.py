"""What the office decides: who has which part of the rates, and who may spend how much. Pure.

Rates are leased as shares, parts of 1. The shares of leases that have not lapsed add up to 1 at
most. A lapsed lease still has what its worker goes on with, which both sides know: see `lapsed`.

The budget is kept in books: for each holder, how much was leased to it, how much it gave back, and
how much it says it spent. The three only ever grow, so that two copies of the books are merged by
taking the larger of each number (a grow-only counter: M. Shapiro et al., "A comprehensive study of
convergent and commutative replicated data types", 2011). Each worker has a copy, and a new office
learns from them what the old one knew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mellea_like.limits.ledger import Amounts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mellea_like.limits.ledger import Limits

__all__ = ["Answer", "Ask", "Entry", "LeaseBook", "lapsed"]

SLOWEST = 1 / 8
"""What a worker goes on with in the end, of its last share."""

FORGOTTEN = 30
"""Leases' lengths after which the office takes a worker for dead."""


def lapsed(share: float, over: float, lease: float) -> float:
    """Return what a worker goes on with when its lease is over.

    Args:
        share: the share it had.
        over: seconds since the lease was over; negative while it is not.
        lease: seconds that a lease holds.

    Returns:
        The whole share until then; half of it for as long again, then a quarter, then an eighth.
    """
    if over < 0:
        return share
    return share * max(SLOWEST, 0.5 ** (1 + min(int(over / lease), 9)))


class Entry(NamedTuple):
    """The books of one holder.

    Attributes:
        granted: what was leased to it.
        spent: what it says it spent.
        returned: what it gave back.
    """

    granted: Amounts = Amounts()
    spent: Amounts = Amounts()
    returned: Amounts = Amounts()

    def merged(self, other: Entry) -> Entry:
        """Return what two copies know together.

        Args:
            other: the other copy.

        Returns:
            The larger number of each.
        """
        return Entry(*(mine.most(theirs) for mine, theirs in zip(self, other, strict=True)))

    @property
    def held(self) -> Amounts:
        """What is leased to it."""
        return self.granted.minus(self.returned)

    @property
    def unspent(self) -> Amounts:
        """What is leased to it and not spent, as far as is known."""
        return self.held.minus(self.spent).most(Amounts())


class Ask(NamedTuple):
    """What a worker says to the office.

    Attributes:
        worker: the worker; a process that takes the place of a dead one has its name.
        holder: the process.
        weight: how much it has to do: requests that wait or are in flight.
        share: the share of the rates that it goes on with.
        entry: its own books.
        wants: how much it would lease now, to have enough until it asks again.
        needs: the least that lets its next request go, which waits for it; None where none waits.
        books: what it knows of all books.
    """

    worker: str
    holder: str
    weight: float
    share: float
    entry: Entry
    wants: Amounts
    needs: Amounts | None
    books: Mapping[str, Entry]


class Answer(NamedTuple):
    """What the office says to a worker.

    Attributes:
        share: its share of the rates, from the time it asked, for the length of a lease.
        entry: its books, with what was leased to it now.
        spent_up: there will never be as much as it needs.
        give_back: others wait for what it has leased and does not need at this moment.
        books: all books.
    """

    share: float
    entry: Entry
    spent_up: bool
    give_back: bool
    books: Mapping[str, Entry]


class _Lease(NamedTuple):
    holder: str
    share: float
    weight: float
    until: float


class LeaseBook:
    """All leases, as the office knows them.

    A new office that takes the place of another one leases nothing beyond what workers say they
    have, until all old leases are over and every worker has asked.

    Args:
        total: the budget, in the order of `Amounts`; infinite for no limit.
        lease: seconds that a lease holds.
        workers: how many workers are expected.
        now: the time in seconds.
        first: whether there was no office before.
    """

    def __init__(
        self, total: Limits, lease: float, workers: int, now: float, *, first: bool
    ) -> None:
        self._total = total
        self._lease = lease
        self._workers = workers
        self._first = first
        self._open_at = now + lease
        self._leases: dict[str, _Lease] = {}
        self._waiting: dict[str, float] = {}
        self.books: dict[str, Entry] = {}

    def answer(self, now: float, ask: Ask) -> Answer:
        """Answer a worker.

        Args:
            now: the time in seconds.
            ask: what it says.

        Returns:
            The answer.
        """
        for holder, entry in (*ask.books.items(), (ask.holder, ask.entry)):
            self.books[holder] = self.books.get(holder, Entry()).merged(entry)
        for worker, lease in list(self._leases.items()):
            if now > lease.until + FORGOTTEN * self._lease:
                del self._leases[worker]
        share = self._share(now, ask)
        self._leases[ask.worker] = _Lease(ask.holder, share, ask.weight, now + self._lease)
        granted, spent_up, give_back = self._grant(now, ask)
        entry = self.books[ask.holder]
        entry = entry._replace(granted=entry.granted.plus(granted))
        self.books[ask.holder] = entry
        return Answer(share, entry, spent_up, give_back, dict(self.books))

    def _share(self, now: float, ask: Ask) -> float:
        others = [lease for worker, lease in self._leases.items() if worker != ask.worker]
        taken = sum(lapsed(o.share, now - o.until, self._lease) for o in others)
        weights = ask.weight + sum(o.weight for o in others if now < o.until)
        fair = ask.weight / weights if ask.weight else 0.0
        if now < self._open_at:
            most = max(ask.share, 1 / self._workers) if self._first else ask.share
            fair = min(fair, most)
        return max(0.0, min(fair, 1 - taken))

    def _grant(self, now: float, ask: Ask) -> tuple[Amounts, bool, bool]:
        """Decide what to lease; whether there is never enough; whether some is wanted back."""
        nothing = Amounts()
        for worker in [w for w in self._waiting if not self._holds(now, w)]:
            del self._waiting[worker]
        if ask.needs is None:
            self._waiting.pop(ask.worker, None)
        else:
            self._waiting.setdefault(ask.worker, now)
        if now < self._open_at and not self._first:
            return nothing, False, False
        if next(iter(self._waiting), ask.worker) != ask.worker:
            return nothing, False, True  # Another worker has waited for longer.
        left = self._left()
        if ask.needs is None:
            return self._chunk(ask.wants, left), False, False
        if self._within(ask.needs, left):
            del self._waiting[ask.worker]
            return self._chunk(ask.wants, left).most(ask.needs), False, False
        for holder in {lease.holder for lease in self._leases.values()} - {ask.holder}:
            left = left.plus(self.books[holder].unspent)
        if self._within(ask.needs, left):
            return nothing, False, False
        del self._waiting[ask.worker]
        return nothing, True, False

    def _holds(self, now: float, worker: str) -> bool:
        lease = self._leases.get(worker)
        return lease is not None and now < lease.until

    def _left(self) -> Amounts:
        """Return what nobody has leased; 0 where there is no limit."""
        held = Amounts()
        for entry in self.books.values():
            held = held.plus(entry.held)
        free = (
            0 if total == float("inf") else max(0, round(total) - taken)
            for total, taken in zip(self._total, held, strict=True)
        )
        return Amounts._make(free)

    def _within(self, wanted: Amounts, left: Amounts) -> bool:
        return all(
            total == float("inf") or want <= free
            for want, free, total in zip(wanted, left, self._total, strict=True)
        )

    def _chunk(self, wants: Amounts, left: Amounts) -> Amounts:
        """Return a part of what is left that leaves enough for the others."""
        parts = 2 * max(self._workers, len(self._leases))
        return Amounts._make(
            min(want, free // parts) for want, free in zip(wants, left, strict=True)
        )
