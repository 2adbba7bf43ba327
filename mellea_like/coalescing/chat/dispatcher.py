"""A dispatcher for conversations: one run at a time in each, however many messages come."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Self, TypeVar, get_args

import anyio
from anyio.lowlevel import cancel_shielded_checkpoint, checkpoint_if_cancelled

from mellea_like.coalescing.background_service import BackgroundService
from mellea_like.coalescing.chat.chat_run import ChatRun
from mellea_like.coalescing.chat.session import ChatPhase, Rules, Session, Submission
from mellea_like.coalescing.gathering_window import GatheringWindow
from mellea_like.coalescing.ticket import Ticket
from mellea_like.core.argument_checks import check_one_of, check_type, real_number, whole_number
from mellea_like.errors import CoalescingError, Expired, QueueFull, ShutdownError, Stopped
from mellea_like.runtime.event_loops import clock
from mellea_like.runtime.logs import logger, warn
from mellea_like.telemetry.spans import caller_span

if TYPE_CHECKING:
    from collections.abc import Awaitable, Hashable, Iterable

__all__ = ["ChatDispatcher", "ChatStatistics", "StopReport"]

M = TypeVar("M")
R = TypeVar("R")
OnBusy = Literal["queue", "interrupt", "reject"]

DEADLINE = "a message's deadline, on the clock of anyio.current_time(),"


class StopReport(NamedTuple):
    """The effect of stopping a session; truthy if a run was ended or messages were discarded.

    Attributes:
        known: whether the session had a run or waiting messages.
        cancelled: whether a run was active and has ended; False if there was no run, or if the run
            did not end within ``stop_grace``.
        discarded: the number of waiting messages that were discarded, not counting those of the
            active run.
    """

    known: bool
    cancelled: bool
    discarded: int

    def __bool__(self) -> bool:
        return self.cancelled or self.discarded > 0


class ChatStatistics(NamedTuple):
    """A snapshot of a `ChatDispatcher`.

    Attributes:
        sessions: the number of sessions that have a run or waiting messages.
        stuck: the number of sessions whose cancelled run does not end.
        pending: the number of messages that wait for a run.
        running: the number of active runs.
        accepted: the number of messages accepted since the dispatcher was opened.
        answered: the number of messages that got a result.
        failed: the number of messages whose run raised an error.
        dropped: the number of messages that were stopped, refused, withdrawn, expired, or left over
            when the dispatcher was closed.
        runs: the number of runs started.
    """

    sessions: int
    stuck: int
    pending: int
    running: int
    accepted: int
    answered: int
    failed: int
    dropped: int
    runs: int


class ChatDispatcher(BackgroundService, Generic[M, R]):
    """Answers the messages of many conversations, each with one run at a time.

    ::

        async with ChatDispatcher(reply) as dispatcher:
            ticket = dispatcher.submit("channel 7", "Hello")
            print(await ticket)

    Messages of one session that come within ``quiet`` seconds of each other go to one run, in
    order. Messages that come during a run wait until it has ended, and then go to one run
    immediately, without another ``quiet`` period. Sessions don't wait for each other, unless
    ``concurrency`` limits them.

    Tickets need not be awaited. If a caller is cancelled while it awaits a ticket, its message is
    withdrawn, unless a run already has it. A run continues even if nobody waits for it.
    If a run fails and nobody waits, the error is logged. Logs and spans contain the keys of
    sessions.

    The dispatcher belongs to the event loop in which it was entered. Threads must submit through
    that loop: ``anyio.from_thread.run_sync(dispatcher.submit, key, message, token=token)``.

    Args:
        run: an async function that takes the list of messages and returns the result for all their
            tickets. `joined` makes such a function from a function of one text. Messages with
            different run functions (``!=``) go to separate runs, in order.
        quiet: the seconds without a new message after which a run begins. Each message restarts
            the count.
        max_wait: the longest time from the first message until the run begins, in seconds, however
            many more messages come.
        max_pending: the largest number of waiting messages of one session.
        max_sessions: the largest number of sessions with a run or waiting messages.
        concurrency: the largest number of active runs over all sessions; None for no limit.
            Sessions wait in the order in which they became ready.
        on_busy: what to do with a message that comes during a run. ``"queue"`` lets it wait for
            the end of the run. ``"interrupt"`` cancels the run, whose messages then wait again
            together with the new message; ``max_wait`` still counts from the first of them. After
            that time, or if the run functions differ, the message is queued. ``"reject"`` raises
            `Refused`.
        stop_grace: the seconds that a cancelled run may take to end. A session whose run takes
            longer is stuck: it refuses messages until the run ends, because runs would overlap.

    Raises:
        TypeError: an argument that must be a number isn't one, or ``run`` can't be called.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        run: Callable[[list[M]], Awaitable[R]],
        *,
        quiet: float = 0.5,
        max_wait: float = 5.0,
        max_pending: int = 100,
        max_sessions: int = 10_000,
        concurrency: int | None = None,
        on_busy: OnBusy = "queue",
        stop_grace: float = 5.0,
    ) -> None:
        super().__init__()
        check_one_of("ChatDispatcher: on_busy", on_busy, get_args(OnBusy))
        self._rules = Rules(
            GatheringWindow(_seconds("quiet", quiet), _seconds("max_wait", max_wait)),
            whole_number("ChatDispatcher: max_pending", max_pending),
            on_busy,
            _seconds("stop_grace", stop_grace),
        )
        self._max_sessions = whole_number("ChatDispatcher: max_sessions", max_sessions)
        self._concurrency = (
            math.inf
            if concurrency is None
            else whole_number("ChatDispatcher: concurrency", concurrency)
        )
        self._run = _runnable(run)
        self._now = anyio.current_time
        self._clear()

    # Everything is decided in synchronous steps: when a message comes or is withdrawn, when a run
    # ends, when time is up. Each step ends with `_update`, which does what the session requires.

    def _clear(self) -> None:
        self._sessions: dict[Hashable, Session[M, R]] = {}  # Sessions with something to do.
        self._ready: dict[Hashable, Session[M, R]] = {}  # Ordered by readiness.
        self._active: dict[Hashable, ChatRun[M, R]] = {}
        self._looks: list[tuple[float, int, Session[M, R]]] = []  # A heap.
        self._order = count()
        self._news = anyio.Event()
        self._accepted = self._answered = self._failed = self._dropped = self._runs = 0

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._clear()
        # Messages may come from callbacks, in which anyio doesn't know the event loop.
        self._now = clock()
        self._start(self._keep_time, name="mellea_like chat timer")
        return self

    def submit(
        self,
        session_key: Hashable,
        message: M,
        *,
        run: Callable[[list[M]], Awaitable[R]] | None = None,
        deadline: float | None = None,
    ) -> Ticket[R]:
        """Submit a message without waiting.

        Args:
            session_key: the key of the conversation that the message belongs to.
            message: the message.
            run: the function that answers the message; the default is the dispatcher's.
            deadline: the time until which an answer is useful, on ``anyio.current_time``'s clock.
                After that time, the ticket raises `Expired`. If the message is still waiting then,
                it is dropped; if a run has it, the run continues.

        Returns:
            The ticket, which may be awaited for the answer. It raises the run's exception, or
            `Stopped`, `Expired`, `Refused` (the session got stuck) or `ShutdownError`.

        Raises:
            QueueFull: too many messages of this session wait, or too many sessions are busy.
            Refused: the session is stuck, or it is busy and ``on_busy="reject"``.
            ShutdownError: the dispatcher is closing, or was not opened.
            TypeError: ``run`` can't be called, the deadline isn't a number, or the key can't be
                hashed.
            ValueError: the deadline is ``nan``.
        """
        self._check_open()
        new = self._submission(session_key, message, run, deadline)
        now = self._now()
        if new.ticket.deadline <= now:
            self._accepted += 1
            self._drop([new], Expired(new.ticket.late))
            return new.ticket
        session = self._sessions.get(session_key) or self._new_session(session_key)
        session.admit(new, now)
        self._sessions[session_key] = session
        self._accepted += 1
        depth = len(session.pending)
        ids = {"session": session_key, "depth": depth}
        logger.debug("session %r is %s: %d waiting", session_key, session.phase, depth, extra=ids)
        if session.phase is ChatPhase.STOPPING:
            self._active[session_key].scope.cancel()
        self._update(session)
        return new.ticket

    async def stop(self, session_key: Hashable) -> StopReport:
        """Cancel a session's run, discard its waiting messages, and wait for the run's end.

        The tickets of all messages of the session raise `Stopped` immediately. Messages that come
        later are answered by a new run, after the cancelled run has ended.

        Args:
            session_key: the key of the conversation.

        Returns:
            A report of the effect. If the run doesn't end within ``stop_grace``, the session is
            stuck.
        """
        await checkpoint_if_cancelled()
        self._check_loop()
        known = session_key in self._sessions
        active = self._active.get(session_key)
        discarded = self._discard(session_key, Stopped(f"session {session_key!r} was stopped"))
        if active is None:
            await cancel_shielded_checkpoint()
            return StopReport(known, cancelled=False, discarded=discarded)
        await active.over.wait()
        return StopReport(known, cancelled=active.ended, discarded=discarded)

    def phase(self, session_key: Hashable) -> ChatPhase:
        """Return the phase of a session.

        Args:
            session_key: the key of the conversation.

        Returns:
            The phase; `ChatPhase.IDLE` if the session is unknown.
        """
        session = self._sessions.get(session_key)
        return ChatPhase.IDLE if session is None else session.phase

    def statistics(self) -> ChatStatistics:
        """Return the current numbers of sessions, messages and runs.

        Returns:
            The snapshot.
        """
        sessions = self._sessions.values()
        return ChatStatistics(
            sessions=len(sessions),
            stuck=sum(session.phase is ChatPhase.STUCK for session in sessions),
            pending=sum(len(session.pending) for session in sessions),
            running=len(self._active),
            accepted=self._accepted,
            answered=self._answered,
            failed=self._failed,
            dropped=self._dropped,
            runs=self._runs,
        )

    # --- how messages get in, and out before they run -------------------------------------------

    def _submission(
        self,
        key: Hashable,
        message: M,
        run: Callable[[list[M]], Awaitable[R]] | None,
        deadline: float | None,
    ) -> Submission[M, R]:
        until = (
            math.inf
            if deadline is None
            else real_number(DEADLINE, deadline, least=-math.inf, most=math.inf)
        )
        late = f"the deadline of a message of session {key!r} passed before it was answered"
        ticket: Ticket[R] = Ticket(lambda _, error: self._left(new, error), until, late)
        run = self._run if run is None else _runnable(run)
        new = Submission(key, message, run, ticket, self._now(), caller_span())
        return new

    def _new_session(self, key: Hashable) -> Session[M, R]:
        if len(self._sessions) >= self._max_sessions:
            msg = (
                f"no room for a message of session {key!r}, because all {self._max_sessions}"
                " sessions have work to do: try again later, or raise max_sessions"
            )
            raise QueueFull(msg)
        return Session(key, self._rules)

    def _left(self, leaving: Submission[M, R], error: CoalescingError) -> None:
        """Withdraw the message of a caller that no longer waits, unless a run has the message."""
        session = self._sessions.get(leaving.key)
        if session is not None and session.withdraw(leaving):
            self._drop([leaving], error)
            self._update(session)
        elif isinstance(error, Expired):
            self._drop([leaving], error)

    def _discard(self, key: Hashable, error: CoalescingError) -> int:
        """Fail a session's messages and cancel its run; return how many messages were waiting."""
        session = self._sessions.get(key)
        if session is None:
            return 0
        discarded = session.stop(self._now())
        self._drop((*session.run, *discarded), error)
        if session.run:
            self._active[key].scope.cancel()
        self._update(session)
        return len(discarded)

    def _drop(self, them: Iterable[Submission[M, R]], error: CoalescingError) -> None:
        unseen = 0
        for each in them:
            if each.ticket.fail(error):
                self._dropped += 1
                unseen += not each.ticket.waiters
        if unseen and not isinstance(error, Stopped):
            warn("%d messages that no one was waiting for were dropped: %s", unseen, error)

    # --- what happens next ----------------------------------------------------------------------

    def _update(self, session: Session[M, R]) -> None:
        """Queue, schedule or forget a session, depending on its state; called after each event."""
        key = session.key
        if self.closing:
            session.end_window()
        if session.due() <= self._now():
            session.end_window()
            self._ready[key] = session
        else:
            self._ready.pop(key, None)
        if session.phase is ChatPhase.IDLE:
            del self._sessions[key]
        elif (at := session.next_look()) < session.alarm:
            session.alarm = at
            heappush(self._looks, (at, next(self._order), session))
        self._news.set()
        self._progressed()

    def _next_look(self) -> float:
        return self._looks[0][0] if self._looks else math.inf

    def _begin_runs(self) -> None:
        """Start all runs that may start. Only the timer's task calls this, never a caller's."""
        while self._ready and len(self._active) < self._concurrency:
            session = self._ready.pop(next(iter(self._ready)))
            for late in session.expire(self._now()):
                self._drop([late], Expired(late.ticket.late))
            if session.pending:
                run = self._active[session.key] = ChatRun(session.key, session.take())
                self._runs += 1
                self._start(self._carry_out, session, run, name=run.name)
            self._update(session)

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
            self._update(session)

    # --- time -----------------------------------------------------------------------------------

    async def _keep_time(self) -> None:
        try:
            while True:
                now = self._now()
                while self._next_look() <= now:
                    session = heappop(self._looks)[2]
                    session.alarm = math.inf
                    if self._sessions.get(session.key) is session:
                        self._give_up(session, now)
                        self._update(session)
                self._begin_runs()
                self._news = anyio.Event()
                with anyio.CancelScope(deadline=self._next_look()):
                    await self._news.wait()
        finally:
            # All tickets are settled even if the tasks are cancelled while the block continues.
            self._shut()

    def _give_up(self, session: Session[M, R], now: float) -> None:
        """Refuse a session's waiting messages if its cancelled run has not ended in time."""
        refused = session.check_stuck(now)
        if refused is not None:
            run = self._active[session.key]
            run.log_stuck(self._rules.stop_grace)
            run.over.set()
            self._drop(refused, session.stuck_error())

    # --- the end --------------------------------------------------------------------------------

    def _hurry(self) -> None:
        for session in list(self._sessions.values()):
            self._update(session)

    def _idle(self) -> bool:
        return not self._sessions

    def _settle_all(self, error: ShutdownError) -> None:
        for key in list(self._sessions):
            self._discard(key, error)


def _seconds(name: str, value: float) -> float:
    return real_number(f"ChatDispatcher: {name}", value, least=0, most=math.inf, unit="seconds")


def _runnable(run: Callable[[list[M]], Awaitable[R]]) -> Callable[[list[M]], Awaitable[R]]:
    check_type("run", run, Callable, "an async function that takes a list of messages")
    return run
