"""How far a batch has come, and reporting it now and then."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import anyio

from mellea_like.core.generation import Usage
from mellea_like.runtime.event_loops import cancel_requested, split_cancellation
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["OnProgress", "Progress", "Reporter"]

EVERY_SECONDS = 0.5
"""The least time between two calls of ``on_progress``, but for the last one."""

LAST_CALL_SECONDS = 2.0
"""How long the last call may take when the block is left."""

MOST_FAILURES = 3
"""After so many failed calls in a row there are no more."""

OnProgress: TypeAlias = "Callable[[Progress], Awaitable[object] | object]"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a batch has come: the numbers of one moment.

    Args:
        total: how many items there are, where the source has a length; else None.
        taken: items taken from the source.
        done: items of which it is known what came of them.
        handed_on: items among them that the consumer has.
        passed: items done with a slice that passed.
        failed: items done without one.
        errored: items done whose call raised.
        replayed: items done that came from the journal.
        in_flight: items that are being sampled.
        usage: what the items done cost in this run.
        replayed_usage: what those that came from the journal cost when they were sampled.
        elapsed: seconds since the run began.
    """

    total: int | None = None
    taken: int = 0
    done: int = 0
    handed_on: int = 0
    passed: int = 0
    failed: int = 0
    errored: int = 0
    replayed: int = 0
    in_flight: int = 0
    usage: Usage = Usage()
    replayed_usage: Usage = Usage()
    elapsed: float = 0.0

    @property
    def rate(self) -> float:
        """Items a second that were sampled in this run; those from the journal do not count."""
        return (self.done - self.replayed) / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def pass_rate(self) -> float | None:
        """The share of the items done that passed; None before the first one is done."""
        return self.passed / self.done if self.done else None

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this rate; None where that can't be told."""
        if self.total is None or self.rate <= 0:
            return None
        return max(0, self.total - self.done) / self.rate


class Reporter:
    """Tells the user how far a batch has come: at its start, now and then, and at its end."""

    def __init__(
        self,
        tell: OnProgress,
        look: Callable[[], Progress],
        interrupted: Callable[[BaseException], None],
    ) -> None:
        self._tell = tell
        self._look = look
        self._interrupted = interrupted
        self._failures = 0
        self._changed = anyio.Event()
        self._closing = anyio.Event()
        self._ended = anyio.Event()
        self._scope = anyio.CancelScope(shield=True)

    def changed(self) -> None:
        """Say that there is something to tell."""
        self._changed.set()

    async def run(self) -> None:
        """Tell until closed. Only `close` ends it: it is shielded from all other cancellations."""
        try:
            with self._scope:
                await self._call()
                while not self._closing.is_set():
                    with anyio.move_on_after(EVERY_SECONDS):
                        await self._closing.wait()
                    await self._changed.wait()
                    if not self._closing.is_set():
                        self._changed = anyio.Event()
                        await self._call()
                await self._call()
        finally:
            self._ended.set()

    async def close(self) -> None:
        """Tell a last time, and end."""
        self._closing.set()
        self._changed.set()
        with anyio.move_on_after(LAST_CALL_SECONDS, shield=True) as patience:
            await self._ended.wait()
        self._scope.cancel()
        if patience.cancelled_caught:
            warn("on_progress took over %g s at the end, and was cancelled", LAST_CALL_SECONDS)

    async def _call(self) -> None:
        if self._failures == MOST_FAILURES:
            return
        try:
            answer = self._tell(self._look())
            if inspect.isawaitable(answer):
                await answer
        except BaseException as exc:
            cancellation, rest = split_cancellation(exc)
            if cancellation is not None and cancel_requested():
                raise
            error = exc if rest is None else rest
            if cancellation is None and not isinstance(error, Exception):
                self._interrupted(error)
                self._failures = MOST_FAILURES
                return
            self._failures += 1
            silenced = "; it is called no more" if self._failures == MOST_FAILURES else ""
            warn("on_progress: %s: %s%s", type(error).__name__, error, silenced)
        else:
            self._failures = 0
