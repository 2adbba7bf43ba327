"""Who waits for the next tick of a `RerunGate`: a state machine without a loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from mellea_like.errors import Expired

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from mellea_like.coalescing.ticket import Ticket
    from mellea_like.errors import ShutdownError

__all__ = ["MAX_REASONS", "OnBusy", "Submission", "Submissions", "TickRun", "expired", "when_busy"]

T = TypeVar("T")

OnBusy = Literal["queue", "ignore", "restart"]

MAX_REASONS = 100
"""How many different reasons of pokes are kept for one tick; more are only counted."""


@dataclass(slots=True, eq=False)
class Submission(Generic[T]):
    """A request, which has a ticket, or one or more pokes with the same reason."""

    reason: str
    at: float
    ticket: Ticket[T] | None = None
    deadline: float = math.inf
    span: SpanContext | None = None
    count: int = 1


@dataclass(slots=True, eq=False)
class TickRun(Generic[T]):
    """The submissions that one tick answers, in the order they came."""

    submissions: list[Submission[T]]
    number: int = 0
    refused: bool = False

    @property
    def first(self) -> float:
        """When the oldest submission came."""
        return min(each.at for each in self.submissions)

    @property
    def count(self) -> int:
        """How many submissions the tick answers."""
        return sum(each.count for each in self.submissions)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The different reasons, in the order they came."""
        return tuple(dict.fromkeys(each.reason for each in self.submissions if each.reason))

    def settle(self, value: T) -> None:
        """Give every requester the result."""
        for each in self.submissions:
            if each.ticket is not None:
                each.ticket.settle(value)

    def fail(self, error: Exception) -> bool:
        """Give every requester the error, and tell whether any of them is waiting for it."""
        seen = False
        for each in self.submissions:
            ticket, each.ticket = each.ticket, None  # It holds the frames that hold this.
            if ticket is not None:
                waiting = ticket.waiters > 0
                seen |= ticket.fail(error) and waiting
        return seen

    def refuse(self, error: ShutdownError) -> None:
        """Give every requester an error that isn't the tick's."""
        self.refused = True
        for each in self.submissions:
            if each.ticket is not None:
                each.ticket.fail(error)


def when_busy(on_busy: OnBusy, now: float, first: float, max_wait: float) -> OnBusy:
    """Decide what becomes of a submission during a tick: no restart once the first waited long."""
    return "queue" if on_busy == "restart" and now - first >= max_wait else on_busy


class Submissions(Generic[T]):
    """What was submitted and hasn't begun."""

    def __init__(self) -> None:
        # By their tickets, and pokes by their reasons.
        self._pending: dict[Ticket[T] | str, Submission[T]] = {}
        self._requests = 0

    def __bool__(self) -> bool:
        return bool(self._pending)

    @property
    def requests(self) -> int:
        """How many requests wait for the next tick."""
        return self._requests

    @property
    def count(self) -> int:
        """How many submissions the next tick will answer."""
        return sum(each.count for each in self._pending.values())

    def add(self, ticket: Ticket[T], request: Submission[T]) -> None:
        """Take a request in."""
        self._pending[ticket] = request
        self._requests += 1

    def poke(self, poke: Submission[T]) -> None:
        """Take a poke in; one with the same reason as another is only counted."""
        same = self._pending.get(poke.reason)
        if same is None and len(self._pending) - self._requests >= MAX_REASONS:
            same = next(old for old in self._pending.values() if old.ticket is None)
        if same is None:
            self._pending[poke.reason] = poke
        else:
            same.count += poke.count

    def drop(self, ticket: Ticket[T]) -> None:
        """Take a request back out, if it is here."""
        if self._pending.pop(ticket, None) is not None:
            self._requests -= 1

    def take(self, now: float) -> TickRun[T] | None:
        """Take out what the tick that begins now is to answer; what has expired is not."""
        taken, self._pending, self._requests = self._pending, {}, 0
        # A requester whose deadline has passed is told by its own timer.
        due = [each for each in taken.values() if each.ticket is None or each.deadline > now]
        return TickRun(due) if due else None

    def put_back(self, run: TickRun[T]) -> None:
        """Let the next tick answer what a cancelled one did not, for those who are still there."""
        later, self._pending, self._requests = self._pending, {}, 0
        for each in [*run.submissions, *later.values()]:
            if each.ticket is None:
                self.poke(each)
            elif each.ticket.waiters:
                self.add(each.ticket, each)

    def settle_all(self, error: ShutdownError) -> None:
        """Give everyone an error; nothing is left."""
        for each in self._pending.values():
            if each.ticket is not None:
                each.ticket.fail(error)
        self._pending, self._requests = {}, 0


def expired() -> Expired:
    """Make the error of a request whose time is up."""
    return Expired("the request's deadline passed before a tick answered it")
