"""Who waits for the next tick of a `RerunGate`: a state machine without a loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, get_args

from mellea_like.core.callables import check_plain
from mellea_like.core.numbers import real_number, whole_number
from mellea_like.errors import Expired, QueueFull

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import SpanContext

    from mellea_like.coalescing.rerun.status import RerunStatus
    from mellea_like.coalescing.ticket import Ticket
    from mellea_like.errors import ShutdownError

__all__ = [
    "Asked",
    "Batch",
    "OnBusy",
    "Submissions",
    "check",
    "check_submission",
    "expired",
    "when_busy",
]

T = TypeVar("T")

OnBusy = Literal["queue", "ignore", "restart"]

MAX_REASONS = 100
"""How many different reasons of pokes are kept for one tick; more are counted only."""


@dataclass(slots=True, eq=False)
class Asked(Generic[T]):
    """One or more submissions with the same reason."""

    reason: str
    at: float
    ticket: Ticket[T] | None = None
    deadline: float = math.inf
    span: SpanContext | None = None
    count: int = 1
    failed: Batch[T] | None = None


@dataclass(slots=True, eq=False)
class Batch(Generic[T]):
    """What one tick answers."""

    asked: list[Asked[T]]
    number: int = 0
    error: Exception | None = None
    refused: bool = False
    watching: int = 0

    @property
    def first(self) -> float:
        """When the oldest submission came."""
        return min(asked.at for asked in self.asked)

    @property
    def count(self) -> int:
        """How many submissions the tick answers."""
        return sum(asked.count for asked in self.asked)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The different reasons, in the order they came."""
        return tuple(dict.fromkeys(asked.reason for asked in self.asked if asked.reason))

    def settle(self, value: T) -> None:
        """Give everyone the result."""
        for asked in self.asked:
            if asked.ticket is not None:
                asked.ticket.settle(value)

    def fail(self, error: Exception) -> bool:
        """Give everyone the error."""
        self.error = error
        for asked in self.asked:
            ticket, asked.ticket = asked.ticket, None  # It holds the frames that hold this.
            if ticket is not None:
                waiting = ticket.waiters
                if ticket.fail(error):
                    asked.failed = self
                    self.watching += waiting
        return self.watching > 0

    def refuse(self, error: ShutdownError) -> None:
        """Give everyone an error that is not the tick's."""
        self.refused = True
        for asked in self.asked:
            if asked.ticket is not None:
                asked.ticket.fail(error)

    def left(self, *, seen: bool) -> bool:
        """Note that a requester has left."""
        self.watching = 0 if seen else self.watching - 1
        if seen:
            self.error = None
        return self.watching == 0 and not seen


def when_busy(on_busy: OnBusy, now: float, first: float, max_wait: float) -> OnBusy:
    """Decide what becomes of a submission during a tick."""
    return "queue" if on_busy == "restart" and now - first >= max_wait else on_busy


class Submissions(Generic[T]):
    """What was submitted and not begun."""

    def __init__(self, most: int, full: Literal["wait", "raise"]) -> None:
        self._most = most
        self._full = full
        # By their tickets, and pokes by their reasons.
        self._pending: dict[Ticket[T] | str, Asked[T]] = {}
        self._requests = 0
        self._line: dict[Ticket[T], Asked[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._pending)

    @property
    def waiting(self) -> int:
        """How many requests wait for a tick to begin, those in the line included."""
        return self._requests + len(self._line)

    @property
    def count(self) -> int:
        """How many submissions the next tick will answer."""
        return sum(asked.count for asked in self._pending.values())

    def check_room(self) -> None:
        """Refuse a request that finds no room and would not wait."""
        if self._full == "raise" and self._requests >= self._most:
            msg = (
                f"{self._requests} requests wait for the next tick already, the most that"
                f" max_pending={self._most} allows; try again later, or pass full='wait'"
            )
            raise QueueFull(msg)

    def add(self, ticket: Ticket[T], asked: Asked[T]) -> None:
        """Take a request in."""
        if self._requests >= self._most:
            self._line[ticket] = asked
        else:
            self._requests += 1
            self._pending[ticket] = asked

    def poke(self, asked: Asked[T]) -> None:
        """Take a poke in; one with the same reason as another is counted only."""
        same = self._pending.get(asked.reason)
        if same is None and len(self._pending) - self._requests >= MAX_REASONS:
            same = next(old for old in self._pending.values() if old.ticket is None)
        if same is None:
            self._pending[asked.reason] = asked
        else:
            same.count += asked.count

    def drop(self, ticket: Ticket[T]) -> None:
        """Take a request back out, if it is here."""
        if self._line.pop(ticket, None) is None and self._pending.pop(ticket, None) is not None:
            self._requests -= 1
            self._move_up()

    def take(self, now: float) -> Batch[T] | None:
        """Take out what the tick that begins now is to answer; what has expired is not."""
        taken, self._pending, self._requests = self._pending, {}, 0
        self._move_up()
        batch: Batch[T] = Batch([])
        for asked in taken.values():
            if asked.ticket is not None and asked.deadline <= now:
                asked.ticket.fail(expired())
            else:
                batch.asked.append(asked)
        return batch if batch.asked else None

    def put_back(self, batch: Batch[T]) -> None:
        """Let the next tick answer what a cancelled one did not."""
        later, self._pending, self._requests = self._pending, {}, 0
        for asked in [*batch.asked, *later.values()]:
            if asked.ticket is None:
                self.poke(asked)
            elif asked.ticket.waiters:
                self._pending[asked.ticket] = asked
                self._requests += 1
        self._move_up()

    def settle_all(self, error: ShutdownError) -> None:
        """Give everyone an error; nothing is left."""
        for asked in [*self._pending.values(), *self._line.values()]:
            if asked.ticket is not None:
                asked.ticket.fail(error)
        self._pending, self._requests, self._line = {}, 0, {}

    def _move_up(self) -> None:
        while self._line and self._requests < self._most:
            ticket = next(iter(self._line))
            self._requests += 1
            self._pending[ticket] = self._line.pop(ticket)


def expired() -> Expired:
    """Say that a request's time was up."""
    return Expired("the request's deadline passed before a tick answered it")


def check_submission(reason: str, deadline: float | None = None) -> None:
    """Check what somebody submits."""
    if not isinstance(reason, str):
        msg = f"a reason is a text, not {reason!r}"
        raise TypeError(msg)
    if deadline is not None:
        real_number("a request's deadline", deadline, least=-math.inf, most=math.inf)


def check(
    tick: object,
    *,
    min_interval: float,
    on_busy: str,
    max_wait: float,
    max_pending: int,
    full: str,
    state: object,
    on_status: Callable[[RerunStatus], object] | None,
) -> None:
    """Check a gate's arguments."""
    if not callable(tick):
        msg = f"RerunGate: a tick is an async function, not {tick!r}"
        raise TypeError(msg)
    if on_busy not in get_args(OnBusy):
        msg = f"RerunGate: on_busy is one of {', '.join(get_args(OnBusy))}, not {on_busy!r}"
        raise ValueError(msg)
    if full not in {"wait", "raise"}:
        msg = f"RerunGate: full is 'wait' or 'raise', not {full!r}"
        raise ValueError(msg)
    real_number("RerunGate: min_interval", min_interval, least=0, unit="seconds")
    real_number("RerunGate: max_wait", max_wait, least=0, most=math.inf, unit="seconds")
    whole_number("RerunGate: max_pending", max_pending)
    if not (state is None or isinstance(state, str | Path) or hasattr(state, "last_tick")):
        msg = f"state is a GateState or the name of a file, not {state!r}"
        raise TypeError(msg)
    check_plain("RerunGate: on_status", on_status)
