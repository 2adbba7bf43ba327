"""Conversations: which messages wait, which are being answered, what comes next, who wants in.

All of it is decided here, without waiting, with the time passed in. `ChatDispatcher` does what is
decided.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar

import anyio

from mellea_like.coalescing.alarms import Alarms
from mellea_like.coalescing.gathering import Window, due_at
from mellea_like.errors import QueueFull, Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterator

    from opentelemetry.trace import SpanContext

    from mellea_like.coalescing.ticket import Ticket
    from mellea_like.errors import CoalescingError

__all__ = [
    "ChatPhase",
    "Rules",
    "Session",
    "Sessions",
    "Submission",
    "Waiters",
    "queue_full",
]

M = TypeVar("M")
R = TypeVar("R")


class ChatPhase(StrEnum):
    """What a session is doing.

    Attributes:
        IDLE: nothing; it will be forgotten.
        GATHERING: it waits for more messages, or for its turn to run.
        RUNNING: a run answers messages.
        STOPPING: a run was cancelled and has not ended yet.
        STUCK: a run was cancelled and did not end in time; nothing new is accepted until it does.
    """

    IDLE = "idle"
    GATHERING = "gathering"
    RUNNING = "running"
    STOPPING = "stopping"
    STUCK = "stuck"


class Rules(NamedTuple):
    """What holds for every session of a dispatcher."""

    window: Window
    max_pending: int = 100
    on_busy: Literal["queue", "interrupt", "reject"] = "queue"
    stop_grace: float = 5.0


@dataclass(eq=False, slots=True)
class Submission(Generic[M, R]):
    """One message on its way."""

    key: Hashable
    message: M
    run: Callable[[list[M]], Awaitable[R]]
    ticket: Ticket[R]
    at: float
    deadline: float = math.inf
    span: SpanContext | None = None


class Stopping(NamedTuple, Generic[M, R]):
    """What a stop found."""

    running: tuple[Submission[M, R], ...]
    discarded: tuple[Submission[M, R], ...]


class Session(Generic[M, R]):
    """The state of one conversation. It has one run at most at any time."""

    __slots__ = (
        "_cancelling",
        "_earliest",
        "_grace_ends",
        "_rules",
        "_stuck",
        "key",
        "pending",
        "run",
        "window_over",
    )

    def __init__(self, key: Hashable, rules: Rules) -> None:
        self.key = key
        self.pending: list[Submission[M, R]] = []
        self.run: tuple[Submission[M, R], ...] = ()
        """The messages that are being answered."""
        self.window_over = False
        """Whether what waits may run at once: its window is over."""
        self._rules = rules
        self._cancelling: Literal["stop", "interrupt"] | None = None
        self._grace_ends = math.inf
        self._stuck = False
        self._earliest = math.inf  # No deadline is earlier; whose it was may be gone.

    @property
    def phase(self) -> ChatPhase:
        """What it does at the moment."""
        if self._stuck:
            return ChatPhase.STUCK
        if self.run:
            return ChatPhase.STOPPING if self._cancelling else ChatPhase.RUNNING
        return ChatPhase.GATHERING if self.pending else ChatPhase.IDLE

    def admit(self, new: Submission[M, R], now: float) -> CoalescingError | None:
        """Take a message in, or return why not; the phase says whether it interrupts the run."""
        phase = self.phase
        if phase is ChatPhase.STUCK:
            return self.stuck_error()
        busy = phase is ChatPhase.RUNNING
        if busy and self._rules.on_busy == "reject":
            return Refused(f"session {self.key!r} is busy: it takes no message during a run")
        interrupts = (
            busy
            and self._rules.on_busy == "interrupt"
            and self._joins_the_run(new, now)
            and len(self.run) < self._rules.max_pending
        )
        # What is interrupted comes back, and needs its room.
        returning = len(self.run) if interrupts or self._cancelling == "interrupt" else 0
        if len(self.pending) + returning >= self._rules.max_pending:
            what = f"{self._rules.max_pending} of its messages wait"
            return queue_full(self.key, what, "max_pending")
        new.at = now
        self.pending.append(new)
        self._earliest = min(self._earliest, new.deadline)
        if interrupts:
            self._cancel("interrupt", now)
        return None

    def stuck_error(self) -> Refused:
        """Make the error of messages that come while the session is stuck."""
        return Refused(
            f"session {self.key!r} is stuck: its run was cancelled and has not ended within"
            f" {self._rules.stop_grace:g} s; nothing else can run until it does"
        )

    def due(self) -> float:
        """Return when what waits may run, as far as this session is concerned."""
        if self.run or not self.pending:
            return math.inf
        if self.window_over:
            return -math.inf
        return due_at(
            self._rules.window, self.pending[0].at, self.pending[-1].at, len(self.pending)
        )

    def alarm(self) -> float:
        """Return when to look at it again, if nothing happens before."""
        due = math.inf if self.window_over else self.due()
        grace = math.inf if self._stuck else self._grace_ends
        return min(due, grace, self._earliest)

    def take(self) -> tuple[Submission[M, R], ...]:
        """Begin to answer what waits, up to the first message with another ``run`` function."""
        assert self.pending and not self.run  # noqa: S101, PT018 (one run at a time)
        run = self.pending[0].run
        self.run = tuple(takewhile(lambda each: each.run == run, self.pending))
        del self.pending[: len(self.run)]
        self.window_over = False
        return self.run

    def run_ended(self, *, cancelled: bool) -> None:
        """Note that the run ended; what came meanwhile is next."""
        interrupted = cancelled and self._cancelling == "interrupt"
        if interrupted:  # Those answered or given up meanwhile don't come back.
            self.pending[:0] = [each for each in self.run if not each.ticket.done]
        afresh = interrupted or self._cancelling == "stop"
        self.window_over = bool(self.pending) and not afresh
        self.run = ()
        self._cancelling, self._grace_ends, self._stuck = None, math.inf, False

    def end_window(self) -> None:
        """End the window: what waits may run as soon as nothing else does."""
        self.window_over = bool(self.pending)

    def expire(self, now: float) -> tuple[Submission[M, R], ...]:
        """Find the messages whose deadline has passed; those that wait will not run."""
        if now < self._earliest:
            return ()
        late = tuple(each for each in (*self.run, *self.pending) if each.deadline <= now)
        self.pending = [each for each in self.pending if each.deadline > now]
        self.window_over = self.window_over and bool(self.pending)
        for each in late:
            each.deadline = math.inf
        left = (each.deadline for each in (*self.run, *self.pending))
        self._earliest = min(left, default=math.inf)
        return late

    def withdraw(self, leaving: Submission[M, R]) -> bool:
        """Take out a message that waits."""
        if leaving not in self.pending:
            return False
        self.pending.remove(leaving)
        self.window_over = self.window_over and bool(self.pending)
        return True

    def stop(self, now: float) -> Stopping[M, R]:
        """Discard what waits, and give up the run."""
        discarded, self.pending = tuple(self.pending), []
        self.window_over = False
        if self.run:
            self._cancel("stop", now)
        return Stopping(self.run, discarded)

    def check_stuck(self, now: float) -> tuple[Submission[M, R], ...] | None:
        """Find out whether a cancelled run has used up its grace."""
        if self._stuck or now < self._grace_ends:
            return None
        self._stuck = True
        refused, self.pending = tuple(self.pending), []
        return refused

    def _cancel(self, why: Literal["stop", "interrupt"], now: float) -> None:
        self._cancelling = why
        self._grace_ends = min(self._grace_ends, now + self._rules.stop_grace)

    def _joins_the_run(self, new: Submission[M, R], now: float) -> bool:
        """Tell whether a message would have been in the run if that had begun later."""
        if self.pending or new.run != self.run[0].run:
            return False
        return now < self.run[0].at + self._rules.window.max_wait


def queue_full(key: Hashable, what: str, limit: str) -> QueueFull:
    """Make the error of a message that finds no room."""
    return QueueFull(
        f"no room for a message of session {key!r}, since {what}: use submit_wait, try again"
        f" later, or allow more with {limit}"
    )


class Sessions(Generic[M, R]):
    """Sessions by their keys. Nothing here waits; the time is passed in."""

    def __init__(self, rules: Rules, most: int, idle_ttl: float) -> None:
        self._rules = rules
        self._most = most
        self._idle_ttl = idle_ttl
        self._by_key: dict[Hashable, Session[M, R]] = {}
        self._idle: dict[Hashable, float] = {}  # Since when, the longest first.
        self._ready: dict[Hashable, Session[M, R]] = {}  # In the order they became so.
        self._alarms: Alarms[Session[M, R]] = Alarms()

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Session[M, R]]:
        return iter(tuple(self._by_key.values()))

    @property
    def ready(self) -> int:
        """How many wait for their turn to run."""
        return len(self._ready)

    @property
    def idle(self) -> int:
        """How many have nothing to do."""
        return len(self._idle)

    def get(self, key: Hashable) -> Session[M, R] | None:
        """Return a session, or None where it is not known."""
        return self._by_key.get(key)

    def open(self, key: Hashable) -> Session[M, R] | None:
        """Return a session, a new one where it is not known."""
        session = self._by_key.get(key)
        if session is not None:
            return session
        if len(self._by_key) >= self._most:
            if not self._idle:
                return None
            self._forget(next(iter(self._idle)))
        session = self._by_key[key] = Session(key, self._rules)
        return session

    def update(self, session: Session[M, R], now: float) -> None:
        """Put a session where it belongs after anything happened to it."""
        key = session.key
        if session.due() <= now:
            session.end_window()
            self._ready[key] = session
        else:
            self._ready.pop(key, None)
        if session.phase is not ChatPhase.IDLE:
            self._idle.pop(key, None)
            self._alarms.set(session, session.alarm())
        elif key not in self._idle:
            self._alarms.clear(session)
            self._idle[key] = now

    def take_ready(self) -> Session[M, R] | None:
        """Take the session whose turn to run it is out of the line."""
        if not self._ready:
            return None
        return self._ready.pop(next(iter(self._ready)))

    def forget(self, now: float) -> None:
        """Forget those that have had nothing to do for long enough."""
        while self._idle:
            key, since = next(iter(self._idle.items()))
            if since + self._idle_ttl > now:
                break
            self._forget(key)

    def due(self, now: float) -> list[Session[M, R]]:
        """Find those that are to be looked at now."""
        return self._alarms.due(now)

    def next_check(self) -> float:
        """Return when `forget` or `due` will have something to do; ``math.inf`` for never."""
        forget = next(iter(self._idle.values()), math.inf) + self._idle_ttl
        return min(self._alarms.next(), forget)

    def _forget(self, key: Hashable) -> None:
        del self._idle[key], self._by_key[key]


@dataclass(eq=False, slots=True)
class Waiter(Generic[M, R]):
    """A caller that waits for room, until ``over``; an error says why it was not let in."""

    submission: Submission[M, R]
    over: anyio.Event = field(default_factory=anyio.Event)
    error: CoalescingError | None = None

    def end(self, error: CoalescingError | None) -> None:
        """End the wait."""
        self.error = error
        self.over.set()


class Waiters(Generic[M, R]):
    """Everyone who waits for room: in a session, or for a session that doesn't exist yet."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[Waiter[M, R]]] = {}
        self._unopened: dict[Hashable, None] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __contains__(self, key: Hashable) -> bool:
        return key in self._queues

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """The sessions that someone waits for."""
        return tuple(self._queues)

    def add(self, new: Submission[M, R], *, known: bool) -> Waiter[M, R]:
        """Queue a caller, and say whether its session exists."""
        waiter = Waiter(new)
        self._queues.setdefault(new.key, deque()).append(waiter)
        if not known:
            self._unopened[new.key] = None
        return waiter

    def first(self, key: Hashable) -> Waiter[M, R] | None:
        """Return who is first in a session's queue, if anyone is."""
        queue = self._queues.get(key)
        return queue[0] if queue else None

    def unopened(self) -> Iterator[Hashable]:
        """Go through the sessions that don't exist, until `opened` has been told of all."""
        while self._unopened:
            yield next(iter(self._unopened))

    def opened(self, key: Hashable) -> None:
        """Note that a session exists now."""
        self._unopened.pop(key, None)

    def remove(self, leaving: Submission[M, R]) -> None:
        """Take a caller out of its queue, if it is in it."""
        queue = self._queues.get(leaving.key, deque())
        for waiter in queue:
            if waiter.submission is leaving:
                queue.remove(waiter)
                break
        if not queue:
            self._queues.pop(leaving.key, None)
            self._unopened.pop(leaving.key, None)

    def refuse(self, key: Hashable, error: CoalescingError) -> int:
        """End the wait of all who wait for a session; return how many there were."""
        queue = self._queues.pop(key, deque())
        self._unopened.pop(key, None)
        for waiter in queue:
            waiter.end(error)
        return len(queue)
