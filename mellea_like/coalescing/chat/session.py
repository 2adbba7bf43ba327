"""One conversation: which of its messages wait, which are being answered, and what comes next.

All of it is decided here, without waiting, with the time passed in. `ChatDispatcher` does what a
session decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, StrEnum
from itertools import takewhile
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar

from mellea_like.coalescing.flush import Window, due_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from opentelemetry.trace import SpanContext

    from mellea_like.coalescing.ticket import Ticket

__all__ = ["Admission", "ChatPhase", "Rules", "Session", "Stopping", "Submission"]

M = TypeVar("M")
R = TypeVar("R")


class ChatPhase(StrEnum):
    """What a session does at the moment.

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


class Admission(Enum):
    """What becomes of a message that comes."""

    ACCEPTED = "accepted"
    INTERRUPTS = "interrupts"
    FULL = "full"
    BUSY = "busy"
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
        "ripe",
        "run",
    )

    def __init__(self, key: Hashable, rules: Rules) -> None:
        self.key = key
        self.pending: list[Submission[M, R]] = []
        self.run: tuple[Submission[M, R], ...] = ()
        """The messages that are being answered."""
        self.ripe = False
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

    def admit(self, new: Submission[M, R], now: float) -> Admission:
        """Take a message in, or say why not."""
        phase = self.phase
        if phase is ChatPhase.STUCK:
            return Admission.STUCK
        busy = phase is ChatPhase.RUNNING
        if busy and self._rules.on_busy == "reject":
            return Admission.BUSY
        interrupts = (
            busy
            and self._rules.on_busy == "interrupt"
            and self._joins_the_run(new, now)
            and len(self.run) < self._rules.max_pending
        )
        # What is interrupted comes back, and needs its room.
        returning = len(self.run) if interrupts or self._cancelling == "interrupt" else 0
        if len(self.pending) + returning >= self._rules.max_pending:
            return Admission.FULL
        new.at = now
        self.pending.append(new)
        self._earliest = min(self._earliest, new.deadline)
        if interrupts:
            self._cancel("interrupt", now)
        return Admission.INTERRUPTS if interrupts else Admission.ACCEPTED

    def due(self) -> float:
        """Return when what waits may run, as far as this session is concerned."""
        if self.run or not self.pending:
            return math.inf
        if self.ripe:
            return -math.inf
        return due_at(
            self._rules.window, self.pending[0].at, self.pending[-1].at, len(self.pending)
        )

    def alarm(self) -> float:
        """Return when to look at it again, if nothing happens before."""
        due = math.inf if self.ripe else self.due()
        grace = math.inf if self._stuck else self._grace_ends
        return min(due, grace, self._earliest)

    def take(self) -> tuple[Submission[M, R], ...]:
        """Begin to answer what waits, up to the first message with another ``run`` function."""
        if self.run or not self.pending:
            msg = "a session runs one thing at a time, and only what waits"
            raise ValueError(msg)
        run = self.pending[0].run
        self.run = tuple(takewhile(lambda each: each.run == run, self.pending))
        del self.pending[: len(self.run)]
        self.ripe = False
        return self.run

    def run_ended(self, *, cancelled: bool) -> None:
        """Note that the run ended; what came meanwhile is next."""
        interrupted = cancelled and self._cancelling == "interrupt"
        if interrupted:  # Whoever was answered or gave up meanwhile does not come back.
            self.pending[:0] = [each for each in self.run if not each.ticket.done]
        afresh = interrupted or self._cancelling == "stop"
        self.ripe = bool(self.pending) and not afresh
        self.run = ()
        self._cancelling, self._grace_ends, self._stuck = None, math.inf, False

    def ripen(self) -> None:
        """End the window: what waits may run as soon as nothing else does."""
        self.ripe = bool(self.pending)

    def expire(self, now: float) -> tuple[Submission[M, R], ...]:
        """Find the messages whose deadline has passed; those that wait will not run."""
        if now < self._earliest:
            return ()
        late = tuple(each for each in (*self.run, *self.pending) if each.deadline <= now)
        self.pending = [each for each in self.pending if each.deadline > now]
        self.ripe = self.ripe and bool(self.pending)
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
        self.ripe = self.ripe and bool(self.pending)
        return True

    def stop(self, now: float) -> Stopping[M, R]:
        """Discard what waits, and give up the run."""
        discarded, self.pending = tuple(self.pending), []
        self.ripe = False
        if self.run:
            self._cancel("stop", now)
        return Stopping(self.run, discarded)

    def look_for_stuck(self, now: float) -> tuple[Submission[M, R], ...] | None:
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
