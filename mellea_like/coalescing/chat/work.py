"""How the messages of many conversations get in, run, and are settled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import anyio

from mellea_like.coalescing.chat.runs import ChatRun
from mellea_like.coalescing.chat.session import Admission, Rules, Session, Submission
from mellea_like.coalescing.chat.sessions import Sessions
from mellea_like.coalescing.chat.waiters import Lobby
from mellea_like.coalescing.component import Component
from mellea_like.errors import (
    CoalescingError,
    Expired,
    QueueFull,
    Refused,
    ShutdownError,
    Stopped,
)
from mellea_like.runtime.logs import logger, warn
from mellea_like.runtime.native import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

__all__ = ["ChatWork", "expired"]

M = TypeVar("M")
R = TypeVar("R")


class ChatWork(Component, Generic[M, R]):
    """What goes on inside a `ChatDispatcher`: all but what its callers do."""

    def __init__(self, rules: Rules, max_sessions: int, idle_ttl: float, max_runs: float) -> None:
        super().__init__()
        self._rules = rules
        self._max_sessions = max_sessions
        self._idle_ttl = idle_ttl
        self._max_runs = max_runs
        self._now = anyio.current_time
        self._clear()

    def _clear(self) -> None:
        self._sessions: Sessions[M, R] = Sessions(self._rules, self._max_sessions, self._idle_ttl)
        self._active: dict[Hashable, ChatRun[M, R]] = {}
        self._lobby: Lobby[M, R] = Lobby()
        self._timer: anyio.Event | None = None
        self._timer_ends = math.inf
        self._calm: anyio.Event | None = None
        self._accepted = self._answered = self._failed = self._dropped = self._runs = 0

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._clear()
        # Messages may come from callbacks, where anyio does not know which event loop it is.
        self._now = clock()
        self._start(self._keep_time, name="mellea_like chat timer")
        return self

    # --- how messages get in, and out before they run -------------------------------------------

    def _receive(self, new: Submission[M, R]) -> CoalescingError | None:
        """Take a message in, or return why not."""
        now = self._now()
        if new.deadline <= now:
            self._accepted += 1
            self._drop([new], expired(new))
            return None
        # Where there is room, no one waits for it: they are let in as soon as there is.
        session = self._sessions.open(new.key)
        if session is None:
            return self._full(new.key)
        error = self._admit(session, new, now)
        if error is None:
            self._look(session)
        return error

    def _admit(
        self, session: Session[M, R], new: Submission[M, R], now: float
    ) -> CoalescingError | None:
        key = session.key
        admission = session.admit(new, now)
        if admission is Admission.FULL:
            return self._full(key)
        if admission is Admission.BUSY:
            return Refused(f"session {key!r} is busy: it takes no message during a run")
        if admission is Admission.STUCK:
            return self._stuck(key)
        self._accepted += 1
        depth = len(session.pending)
        message = "session %r is %s: %d waiting"
        logger.debug(message, key, session.phase, depth, extra={"session": key, "depth": depth})
        if admission is Admission.INTERRUPTS:
            self._active[key].scope.cancel()
        return None

    def _full(self, key: Hashable) -> QueueFull:
        if self._sessions.get(key) is None:
            what, limit = f"all {self._max_sessions} sessions have work to do", "max_sessions"
        else:
            what, limit = f"{self._rules.max_pending} of its messages wait", "max_pending"
        return QueueFull(
            f"no room for a message of session {key!r}, since {what}: use submit_wait, try again"
            f" later, or allow more with {limit}"
        )

    def _stuck(self, key: Hashable) -> Refused:
        return Refused(
            f"session {key!r} is stuck: its run was cancelled and has not ended within"
            f" {self._rules.stop_grace:g} s; nothing else can run until it does"
        )

    def _withdraw(self, leaving: Submission[M, R]) -> None:
        """Take back the message of someone who was cancelled, unless a run has it."""
        self._lobby.leave(leaving)
        session = self._sessions.get(leaving.key)
        if session is not None and session.withdraw(leaving):
            self._drop([leaving], Stopped("it was taken back: its caller was cancelled"))
            self._look(session)

    def _discard(self, key: Hashable, error: CoalescingError) -> int:
        """Settle all that a session has, cancel its run, and count what waited."""
        turned_away = self._lobby.turn_away(key, error)
        session = self._sessions.get(key)
        if session is None:
            return turned_away
        stopping = session.stop(self._now())
        self._drop((*stopping.running, *stopping.discarded), error)
        if stopping.running:
            self._active[key].scope.cancel()
        self._look(session)
        return turned_away + len(stopping.discarded)

    def _drop(self, them: Iterable[Submission[M, R]], error: CoalescingError) -> None:
        unseen = 0
        for each in them:
            if each.ticket.fail(error):
                self._dropped += 1
                unseen += not each.ticket.waiters
        if unseen and not isinstance(error, Stopped):
            warn("%d messages that no one waits for were dropped: %s", unseen, error)

    # --- what happens next ----------------------------------------------------------------------

    def _look(self, session: Session[M, R]) -> None:
        """Do what a session asks for after anything happened to it."""
        now = self._now()
        for late in session.expire(now):
            self._drop([late], expired(late))
        self._file(session, now)
        self._let_strangers_in(now)
        if self._timer is not None and self._has_something_to_do():
            self._timer.set()
        if self._calm is not None:
            self._calm.set()

    def _has_something_to_do(self) -> bool:
        ready = self._sessions.ready and len(self._active) < self._max_runs
        return bool(ready) or self._sessions.next_look() < self._timer_ends

    def _begin_runs(self) -> None:
        """Start all runs that may start; only in the timer's task, never in a caller's."""
        while len(self._active) < self._max_runs:
            session = self._sessions.take_ready()
            if session is None:
                break
            run = self._active[session.key] = ChatRun(session.key, session.take())
            self._runs += 1
            self._start(self._carry_out, session, run, name=run.name)
            self._file(session, self._now())

    def _file(self, session: Session[M, R], now: float) -> None:
        while (place := self._lobby.first(session.key)) is not None:
            error = self._admit(session, place.submission, now)
            if isinstance(error, QueueFull):
                break
            self._lobby.let_in(place, error)
        if self.closing:
            session.ripen()
        self._sessions.file(session, now)

    def _let_strangers_in(self, now: float) -> None:
        for key in self._lobby.strangers():
            session = self._sessions.open(key)
            if session is None:
                break
            self._lobby.introduce(key)
            self._file(session, now)

    async def _carry_out(self, session: Session[M, R], run: ChatRun[M, R]) -> None:
        try:
            await run.carry_out()
        except BaseException:
            self._shut()
            raise
        finally:
            settled = run.end()
            self._answered += settled if run.answered else 0
            self._failed += settled if run.error is not None else 0
            del self._active[session.key]
            session.run_ended(cancelled=not run.answered and run.error is None)
            self._look(session)

    # --- time -----------------------------------------------------------------------------------

    async def _keep_time(self) -> None:
        try:
            while True:
                now = self._now()
                self._sessions.forget(now)
                for session in self._sessions.due(now):
                    self._give_up(session, now)
                    self._look(session)
                self._begin_runs()
                self._timer = anyio.Event()
                self._timer_ends = self._sessions.next_look()
                with anyio.CancelScope(deadline=self._timer_ends):
                    await self._timer.wait()
        finally:
            # Everyone is settled, too, when the tasks are cancelled and the block goes on.
            self._shut()

    def _give_up(self, session: Session[M, R], now: float) -> None:
        """Refuse what waits for a run that was cancelled and does not end in time."""
        refused = session.look_for_stuck(now)
        if refused is not None:
            run = self._active[session.key]
            run.log_stuck(self._rules.stop_grace)
            run.over.set()
            self._drop(refused, self._stuck(session.key))

    # --- the end --------------------------------------------------------------------------------

    async def _serve_the_rest(self) -> None:
        error = ShutdownError("this ChatDispatcher is closing")
        for key in self._lobby.keys:
            self._lobby.turn_away(key, error)
        for session in self._sessions:
            self._look(session)
        await self._until(lambda: self._sessions.idle == len(self._sessions))

    async def _until_idle(self) -> None:
        await self._until(lambda: not self._active)

    async def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            if self._calm is None or self._calm.is_set():
                self._calm = anyio.Event()
            await self._calm.wait()

    def _settle_all(self, error: ShutdownError) -> None:
        for key in (*self._lobby.keys, *(session.key for session in self._sessions)):
            self._discard(key, error)


def expired(late: Submission[M, R]) -> Expired:
    """Make the error of a message whose time is up."""
    return Expired(f"the deadline of a message of session {late.key!r} passed before its answer")
