"""What a chat dispatcher tells of itself."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ChatStatistics", "StopReport"]


class StopReport(NamedTuple):
    """What stopping a session did; true where it ended a run or discarded messages.

    Attributes:
        known: whether the session was known: it had work, or had some within ``idle_ttl``.
        cancelled: whether a run was active and has ended; False where there was none, and where it
            would not end within ``stop_grace``.
        discarded: how many messages waited and will not run; those of the active run don't count.
    """

    known: bool
    cancelled: bool
    discarded: int

    def __bool__(self) -> bool:
        return self.cancelled or self.discarded > 0


class ChatStatistics(NamedTuple):
    """A look at a `ChatDispatcher`.

    Attributes:
        sessions: sessions that are known.
        idle: those of them that have nothing to do, and will be forgotten.
        stuck: those whose cancelled run would not end.
        pending: messages accepted that wait for a run.
        waiting: callers of ``submit_wait`` that wait for room.
        running: runs that are active.
        accepted: messages accepted since the dispatcher was opened.
        answered: those of them that were given a result.
        failed: those whose run raised an error.
        dropped: those that were stopped, refused, withdrawn, too late, or shut out at the end.
        runs: runs started.
    """

    sessions: int
    idle: int
    stuck: int
    pending: int
    waiting: int
    running: int
    accepted: int
    answered: int
    failed: int
    dropped: int
    runs: int
