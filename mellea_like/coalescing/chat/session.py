"""The state of a conversation: its waiting messages, its run, and the decisions about both.

Nothing here waits or reads a clock: callers pass the time in. `ChatDispatcher` carries out the
decisions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar

from mellea_like.coalescing.gathering_window import GatheringWindow, due_at
from mellea_like.errors import QueueFull, Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from opentelemetry.trace import SpanContext

    from mellea_like.coalescing.ticket import Ticket

__all__ = ["ChatPhase"]

M = TypeVar("M")
R = TypeVar("R")


class ChatPhase(StrEnum):
    """The phase of a session.

    Attributes:
        IDLE: the session has nothing to do.
        GATHERING: the session waits for more messages, or for its turn to run.
        RUNNING: a run is answering messages.
        STOPPING: a run was cancelled and has not ended yet.
        STUCK: a run was cancelled and did not end in time; nothing new is accepted until it ends.
    """

    IDLE = "idle"
    GATHERING = "gathering"
    RUNNING = "running"
    STOPPING = "stopping"
    STUCK = "stuck"


class Rules(NamedTuple):
    """The settings shared by all sessions of a dispatcher."""

    window: GatheringWindow
    max_pending: int = 100
    on_busy: Literal["queue", "interrupt", "reject"] = "queue"
    stop_grace: float = 5.0


@dataclass(eq=False, slots=True)
class Submission(Generic[M, R]):
    """A submitted message, the function that answers it, and the ticket for the answer."""

    key: Hashable
    message: M
    run: Callable[[list[M]], Awaitable[R]]
    ticket: Ticket[R]
    at: float
    span: SpanContext | None = None


@dataclass(eq=False, slots=True)
class Session(Generic[M, R]):
    """The state of one conversation, which has at most one run at any time."""

    key: Hashable
    _rules: Rules
    pending: list[Submission[M, R]] = field(default_factory=list[Submission[M, R]])
    run: tuple[Submission[M, R], ...] = ()
    """The messages that are being answered."""
    window_over: bool = False
    """Whether waiting messages may run immediately, because gathering is over."""
    alarm: float = math.inf
    """The time at which the dispatcher will look at this session again."""
    _cancelling: Literal["stop", "interrupt"] | None = None
    _grace_ends: float = math.inf
    _stuck: bool = False

    @property
    def phase(self) -> ChatPhase:
        if self._stuck:
            return ChatPhase.STUCK
        if self.run:
            return ChatPhase.STOPPING if self._cancelling else ChatPhase.RUNNING
        return ChatPhase.GATHERING if self.pending else ChatPhase.IDLE

    def admit(self, new: Submission[M, R], now: float) -> None:
        """Accept a message, which may interrupt the run, or raise the error that refuses it."""
        phase = self.phase
        if phase is ChatPhase.STUCK:
            raise self.stuck_error()
        busy = phase is ChatPhase.RUNNING
        if busy and self._rules.on_busy == "reject":
            msg = f"session {self.key!r} is busy: it accepts no messages during a run"
            raise Refused(msg)
        interrupts = (
            busy
            and self._rules.on_busy == "interrupt"
            and self._joins_the_run(new, now)
            and len(self.run) < self._rules.max_pending
        )
        # Interrupted messages come back, and need room.
        returning = len(self.run) if interrupts or self._cancelling == "interrupt" else 0
        if len(self.pending) + returning >= self._rules.max_pending:
            msg = (
                f"no room for a message of session {self.key!r}, because"
                f" {self._rules.max_pending} of its messages are waiting: try again later, or raise"
                " max_pending"
            )
            raise QueueFull(msg)
        new.at = now
        self.pending.append(new)
        if interrupts:
            self._cancel("interrupt", now)

    def stuck_error(self) -> Refused:
        return Refused(
            f"session {self.key!r} is stuck: its run was cancelled, but did not end within"
            f" {self._rules.stop_grace:g} s; nothing else can run until it does"
        )

    def due(self) -> float:
        """Return when a run may begin: -inf if immediately, and inf if no run can begin yet."""
        if self.run or not self.pending:
            return math.inf
        if self.window_over:
            return -math.inf
        return due_at(
            self._rules.window, self.pending[0].at, self.pending[-1].at, len(self.pending)
        )

    def next_look(self) -> float:
        """Return when the dispatcher must check this session again if nothing happens before."""
        due = math.inf if self.window_over else self.due()
        return due if self._stuck else min(due, self._grace_ends)

    def take(self) -> tuple[Submission[M, R], ...]:
        """Move waiting messages to the run, up to the first with another function; return them."""
        assert self.pending and not self.run  # noqa: S101, PT018 (one run at a time)
        run = self.pending[0].run
        self.run = tuple(takewhile(lambda each: each.run == run, self.pending))
        del self.pending[: len(self.run)]
        self.window_over = False
        return self.run

    def run_ended(self, *, cancelled: bool) -> None:
        """Record the run's end; after an interruption, its unanswered messages wait again."""
        interrupted = cancelled and self._cancelling == "interrupt"
        if interrupted:  # Settled messages don't come back.
            self.pending[:0] = [each for each in self.run if not each.ticket.done]
        afresh = interrupted or self._cancelling == "stop"
        self.window_over = bool(self.pending) and not afresh
        self.run = ()
        self._cancelling, self._grace_ends, self._stuck = None, math.inf, False

    def end_window(self) -> None:
        """Stop gathering: waiting messages may run as soon as no run is active."""
        self.window_over = bool(self.pending)

    def expire(self, now: float) -> tuple[Submission[M, R], ...]:
        """Remove the waiting messages whose deadline has passed, and return them."""
        late = tuple(each for each in self.pending if each.ticket.deadline <= now)
        for each in late:
            self.withdraw(each)
        return late

    def withdraw(self, leaving: Submission[M, R]) -> bool:
        """Remove a message if it is waiting, and return whether it was."""
        if leaving not in self.pending:
            return False
        self.pending.remove(leaving)
        self.window_over = self.window_over and bool(self.pending)
        return True

    def stop(self, now: float) -> tuple[Submission[M, R], ...]:
        """Mark the run as cancelled; remove and return the waiting messages, which won't run."""
        discarded, self.pending = tuple(self.pending), []
        self.window_over = False
        if self.run:
            self._cancel("stop", now)
        return discarded

    def check_stuck(self, now: float) -> tuple[Submission[M, R], ...] | None:
        """Mark the session as stuck if its grace is over; remove and return what waits, if so."""
        if self._stuck or now < self._grace_ends:
            return None
        self._stuck = True
        refused, self.pending = tuple(self.pending), []
        return refused

    def _cancel(self, why: Literal["stop", "interrupt"], now: float) -> None:
        self._cancelling = why
        self._grace_ends = min(self._grace_ends, now + self._rules.stop_grace)

    def _joins_the_run(self, new: Submission[M, R], now: float) -> bool:
        """Return whether a message may be answered together with the current run's messages."""
        if self.pending or new.run != self.run[0].run:
            return False
        return now < self.run[0].at + self._rules.window.max_wait
