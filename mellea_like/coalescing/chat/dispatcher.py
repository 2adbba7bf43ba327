"""A dispatcher for conversations: one run at a time for each, however many messages come."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

import anyio
from anyio.lowlevel import cancel_shielded_checkpoint, checkpoint_if_cancelled

from mellea_like.coalescing.chat.session import ChatPhase, Rules, Submission
from mellea_like.coalescing.chat.stats import ChatStatistics, StopReport
from mellea_like.coalescing.chat.work import ChatWork, expired
from mellea_like.coalescing.flush import Window
from mellea_like.coalescing.ticket import Ticket
from mellea_like.core.numbers import real_number, whole_number
from mellea_like.errors import QueueFull, Stopped
from mellea_like.telemetry.shared import caller_span

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from mellea_like.errors import CoalescingError

__all__ = ["ChatDispatcher"]

M = TypeVar("M")
R = TypeVar("R")
OnBusy = Literal["queue", "interrupt", "reject"]

DEADLINE = "a message's deadline, on the clock of anyio.current_time(),"


class ChatDispatcher(ChatWork[M, R]):
    """Answers the messages of many conversations, each with one run at a time.

    ::

        async with ChatDispatcher(reply) as dispatcher:
            ticket = dispatcher.submit("channel 7", "Hello")
            print(await ticket)

    Messages of one session that come within ``quiet`` seconds of each other go to one run, in their
    order. What comes during a run waits, and runs as one when that has ended, without another
    window. Sessions do not wait for each other, unless ``max_runs`` says so.

    A ticket need not be awaited. Whoever is cancelled while it awaits one takes its message back,
    if no run has it yet. A run is never cancelled because no one waits for it; if it fails and no
    one does, the error is logged. Keys of sessions stand in logs and spans.

    It belongs to the event loop that it was entered in. A thread goes through that:
    ``anyio.from_thread.run_sync(dispatcher.submit, key, message, token=token)``.

    Args:
        run: an async function that gets the list of messages and returns what each of their tickets
            gives; `joined` makes one of a function that wants one text. Messages with different run
            functions (``!=``) run apart, in their order.
        quiet: seconds without a newcomer after which messages go; each one restarts them.
        max_wait: seconds after the first one at which they go whatever happens.
        max_pending: messages of a session that may wait.
        idle_ttl: seconds after which a session that has nothing to do is forgotten.
        max_sessions: how many sessions there may be. The one that has been idle for longest makes
            room for a new one.
        max_runs: how many runs may be active over all sessions; None for no limit. Sessions wait
            in the order in which they were ready.
        on_busy: what a message does that comes during a run. ``"queue"``: it waits for the end.
            ``"interrupt"``: it cancels the run, whose messages wait again, now with this one, and
            ``max_wait`` still counts from the first of them; later than that, or with another run
            function, it is queued. ``"reject"``: `Refused` is raised.
        stop_grace: seconds that a cancelled run may take to end. A session whose run takes longer
            is stuck: it refuses messages until the run ends, for they would overlap.

    Raises:
        TypeError: a number is none, or ``run`` can't be called.
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        run: Callable[[list[M]], Awaitable[R]],
        *,
        quiet: float = 0.5,
        max_wait: float = 5.0,
        max_pending: int = 100,
        idle_ttl: float = 600.0,
        max_sessions: int = 10_000,
        max_runs: int | None = None,
        on_busy: OnBusy = "queue",
        stop_grace: float = 5.0,
    ) -> None:
        rules = Rules(
            Window(_seconds("quiet", quiet), _seconds("max_wait", max_wait)),
            whole_number("ChatDispatcher: max_pending", max_pending),
            _policy(on_busy),
            _seconds("stop_grace", stop_grace),
        )
        super().__init__(
            rules,
            whole_number("ChatDispatcher: max_sessions", max_sessions),
            _seconds("idle_ttl", idle_ttl),
            math.inf if max_runs is None else whole_number("ChatDispatcher: max_runs", max_runs),
        )
        self._run = _runnable(run)

    def submit(
        self,
        session_key: Hashable,
        message: M,
        *,
        run: Callable[[list[M]], Awaitable[R]] | None = None,
        deadline: float | None = None,
    ) -> Ticket[R]:
        """Hand in a message, without waiting.

        Args:
            session_key: which conversation it belongs to.
            message: the message.
            run: what is to answer it; by default the dispatcher's.
            deadline: until when an answer is of use, on ``anyio.current_time``'s clock. Then the
                ticket raises `Expired`; a message that still waits is not sent, a run goes on.

        Returns:
            The ticket: await it for the answer, or don't. It raises what the run raised, or
            `Stopped`, `Expired`, `Refused` (the session got stuck) or `ShutdownError`.

        Raises:
            QueueFull: too many messages of this session wait, or there are too many sessions.
            Refused: the session is stuck, or busy and ``on_busy="reject"``.
            ShutdownError: the dispatcher is closing, or was not opened.
            TypeError: ``run`` can't be called, the deadline is no number, or the key no key.
            ValueError: the deadline is not a number (``nan``).
        """
        self._check_open()
        new = self._submission(session_key, message, run, deadline)
        error = self._receive(new)
        if error is not None:
            raise error
        return new.ticket

    async def submit_wait(
        self,
        session_key: Hashable,
        message: M,
        *,
        run: Callable[[list[M]], Awaitable[R]] | None = None,
        deadline: float | None = None,
    ) -> Ticket[R]:
        """Hand in a message; wait for room if there is none.

        Whoever waits is let in by the order of coming, and before `submit`.

        Args:
            session_key: which conversation it belongs to.
            message: the message.
            run: what is to answer it; by default the dispatcher's.
            deadline: as for `submit`; the wait for room counts.

        Returns:
            The ticket.

        Raises:
            CoalescingError: `Expired`, `Refused`, `Stopped` or `ShutdownError`: there was no room
                before the deadline, the session's stop, or the end.
            TypeError: as `submit` raises it.
            ValueError: as `submit` raises it.
        """
        await checkpoint_if_cancelled()
        self._check_open()
        new = self._submission(session_key, message, run, deadline)
        error = self._receive(new)
        try:
            if isinstance(error, QueueFull):
                error = await self._wait_for_room(new)
            else:
                await cancel_shielded_checkpoint()
        except BaseException:
            self._withdraw(new)
            raise
        if error is not None:
            raise error
        return new.ticket

    async def _wait_for_room(self, new: Submission[M, R]) -> CoalescingError | None:
        place = self._lobby.join(new, known=self._sessions.get(new.key) is not None)
        with anyio.CancelScope(deadline=new.deadline):
            await place.over.wait()
        if place.over.is_set():
            return place.error
        self._lobby.leave(new)
        return expired(new)

    async def stop(self, session_key: Hashable) -> StopReport:
        """Cancel a session's run and discard what waits; wait for the run's end.

        The tickets of all its messages raise `Stopped`, at once. Messages that come later start
        afresh, when the run has ended.

        Args:
            session_key: which conversation.

        Returns:
            What it did. If the run has not ended within ``stop_grace``, the session is stuck.
        """
        await checkpoint_if_cancelled()
        self._check_loop()
        known = self._sessions.get(session_key) is not None or session_key in self._lobby
        active = self._active.get(session_key)
        discarded = self._discard(session_key, Stopped(f"session {session_key!r} was stopped"))
        if active is None:
            await cancel_shielded_checkpoint()
            return StopReport(known, cancelled=False, discarded=discarded)
        await active.over.wait()
        return StopReport(known, cancelled=active.ended, discarded=discarded)

    def phase(self, session_key: Hashable) -> ChatPhase:
        """Tell what a session does at the moment.

        Args:
            session_key: which conversation.

        Returns:
            Its phase; `ChatPhase.IDLE` for one that is not known.
        """
        session = self._sessions.get(session_key)
        return ChatPhase.IDLE if session is None else session.phase

    def statistics(self) -> ChatStatistics:
        """Return how many sessions, messages and runs there are.

        Returns:
            The numbers of this moment.
        """
        sessions = self._sessions
        return ChatStatistics(
            sessions=len(sessions),
            idle=sessions.idle,
            stuck=sum(session.phase is ChatPhase.STUCK for session in sessions),
            pending=sum(len(session.pending) for session in sessions),
            waiting=len(self._lobby),
            running=len(self._active),
            accepted=self._accepted,
            answered=self._answered,
            failed=self._failed,
            dropped=self._dropped,
            runs=self._runs,
        )

    def _submission(
        self,
        key: Hashable,
        message: M,
        run: Callable[[list[M]], Awaitable[R]] | None,
        deadline: float | None,
    ) -> Submission[M, R]:
        hash(key)  # What is no key of a dictionary, or can't be logged, is told before all else.
        repr(key)
        until = (
            math.inf
            if deadline is None
            else real_number(DEADLINE, deadline, least=-math.inf, most=math.inf)
        )
        ticket: Ticket[R] = Ticket(lambda _: self._withdraw(new))
        run = self._run if run is None else _runnable(run)
        now = self._now()
        new = Submission(key, message, run, ticket, now, until, caller_span())
        return new


def _seconds(name: str, value: float) -> float:
    return real_number(f"ChatDispatcher: {name}", value, least=0, most=math.inf, unit="seconds")


def _runnable(run: Callable[[list[M]], Awaitable[R]]) -> Callable[[list[M]], Awaitable[R]]:
    if not callable(run):
        msg = f"a run is an async function that gets a list of messages, not {run!r}"
        raise TypeError(msg)
    return run


def _policy(on_busy: OnBusy) -> OnBusy:
    if on_busy not in get_args(OnBusy):
        msg = f"ChatDispatcher: on_busy is 'queue', 'interrupt' or 'reject', not {on_busy!r}"
        raise ValueError(msg)
    return on_busy
