"""How far a batch has come, and reporting it now and then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import anyio

from mellea_like.core.generation import Usage
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mellea_like.backends import JobState

__all__ = ["OnProgress", "Progress", "Reporter"]

EVERY_SECONDS = 0.5
"""The least time between two calls of ``on_progress``, but for the last one."""

OnProgress: TypeAlias = "Callable[[Progress], object]"


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
        waiting: items that wait for their next draw, with ``order="breadth"``.
        usage: the cost of items done in this run, and of the draws of items that wait.
        replayed_usage: the earlier cost of items that came from the journal.
        elapsed: seconds since the run began.
        jobs: the jobs under way at a provider's batch API, as they were last seen; see `BatchJobs`.
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
    waiting: int = 0
    jobs: Sequence[JobState] = ()

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
        """How long the rest takes at this rate; None if that isn't known."""
        if self.total is None or self.rate <= 0:
            return None
        return max(0, self.total - self.done) / self.rate


class Reporter:
    """Tells the user how far a batch has come: at its start, now and then, and at its end."""

    def __init__(self, tell: OnProgress, look: Callable[[], Progress]) -> None:
        self._on_progress: OnProgress | None = tell
        self._look = look
        self._changed = anyio.Event()

    def changed(self) -> None:
        """Say that there is something to tell."""
        self._changed.set()

    async def run(self) -> None:
        """Tell at the start, and after changes."""
        while True:
            self._tell()
            await anyio.sleep(EVERY_SECONDS)
            await self._changed.wait()

    def close(self) -> None:
        """Tell a last time."""
        self._tell()
        self._on_progress = None

    def _tell(self) -> None:
        self._changed = anyio.Event()
        if self._on_progress is None:
            return
        try:
            self._on_progress(self._look())
        except Exception as exc:  # noqa: BLE001 (it ends nothing)
            self._on_progress = None
            warn("on_progress: %s: %s; it is called no more", type(exc).__name__, exc)
