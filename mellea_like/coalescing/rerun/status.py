"""What a `RerunGate` says about itself, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from mellea_like.core.shown import error_text
from mellea_like.errors import CoalescingError
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from pathlib import Path

    from mellea_like.coalescing.rerun.gate_state import GateState
    from mellea_like.coalescing.rerun.queue import Batch

__all__ = ["Numbers", "RerunStatistics", "RerunStatus", "Tick", "load", "log_unseen"]


class Tick(NamedTuple):
    """What a tick is run for.

    Attributes:
        number: 1 for the gate's first tick, counting those of earlier processes where the gate has
            a state.
        reasons: the different reasons of the submissions, in the order they came.
        submissions: how many requests and pokes it answers.
    """

    number: int
    reasons: tuple[str, ...]
    submissions: int


class RerunStatus(NamedTuple):
    """What a gate is doing.

    Attributes:
        in_flight: whether a tick is under way.
        pending: how many submissions the next tick will answer.
        window: in how many seconds that may begin at the earliest, as ``min_interval`` has it.
        coalesced: how many submissions cost no tick of their own.
        ticks: how many ticks began.
        last_trigger: the first reason of the last tick.
        last_event: when something was submitted last; with a state, an earlier process's counts.
        restart_window: for how many seconds a submission would still restart the tick under way, as
            ``max_wait`` has it; 0 where none would.
    """

    in_flight: bool
    pending: int
    window: float
    coalesced: int
    ticks: int
    last_trigger: str
    last_event: datetime | None
    restart_window: float


class RerunStatistics(NamedTuple):
    """Numbers of a gate, to look at.

    Attributes:
        requests: accepted requests.
        pokes: accepted pokes.
        refused: requests and pokes that came during a tick and were not taken.
        expired: requests whose deadline passed.
        waiting: requests that wait for a tick to begin.
        ticks: ticks that began.
        failed: ticks that raised.
        restarted: ticks that were cancelled for a newer submission.
        coalesced: submissions that cost no tick of their own.
    """

    requests: int
    pokes: int
    refused: int
    expired: int
    waiting: int
    ticks: int
    failed: int
    restarted: int
    coalesced: int


@dataclass(slots=True)
class Numbers:
    """What a gate counts; the first seven are what its state keeps."""

    last_event: datetime | None = None
    last_tick: datetime | None = None
    last_trigger: str = ""
    ticks: int = 0
    failed: int = 0
    submissions: int = 0
    coalesced: int = 0
    requests: int = 0
    pokes: int = 0
    refused: int = 0
    expired: int = 0
    restarted: int = 0

    def begin(self, batch: Batch[Any]) -> int:
        """Count a tick that begins."""
        self.last_tick = datetime.now(UTC)
        reason = next(iter(batch.reasons), "")  # A file's name need not be Unicode.
        self.last_trigger = reason.encode(errors="backslashreplace").decode()
        self.ticks += 1
        self.submissions += batch.count
        self.coalesced += batch.count - 1
        return self.ticks

    def restart(self, batch: Batch[Any]) -> None:
        """Count a tick that was cancelled for a newer submission; the next one answers it all."""
        self.restarted += 1
        self.submissions -= batch.count
        self.coalesced -= batch.count - 1

    def remember(self, state: GateState) -> None:
        """Go on from what an earlier process counted."""
        self.last_event = state.last_event
        self.last_tick = state.last_tick
        self.last_trigger = state.last_trigger
        self.ticks = state.ticks
        self.failed = state.failed
        self.submissions = state.submissions
        self.coalesced = state.coalesced

    def state(self, *, in_flight: bool = False, pending: int = 0) -> GateState:
        """Return what a later process may go on from."""
        from mellea_like.coalescing.rerun.gate_state import GateState  # noqa: PLC0415 (pydantic's model)

        return GateState(
            last_event=self.last_event,
            last_tick=self.last_tick,
            last_trigger=self.last_trigger,
            ticks=self.ticks,
            failed=self.failed,
            submissions=self.submissions,
            coalesced=self.coalesced,
            in_flight=in_flight,
            pending=pending,
        )

    def save(self, file: Path) -> Exception | None:
        """Write the state to a file."""
        try:
            self.state().save(file)
        except Exception as error:  # noqa: BLE001 (the gate logs it)
            return error
        return None

    def statistics(self, waiting: int) -> RerunStatistics:
        """Return numbers to look at."""
        return RerunStatistics(
            requests=self.requests,
            pokes=self.pokes,
            refused=self.refused,
            expired=self.expired,
            waiting=waiting,
            ticks=self.ticks,
            failed=self.failed,
            restarted=self.restarted,
            coalesced=self.coalesced,
        )


def load(file: Path) -> GateState:
    """Read a state from a file, and import pydantic's models only then."""
    from mellea_like.coalescing.rerun.gate_state import GateState  # noqa: PLC0415 (pydantic's model)

    try:
        state = GateState.load(file)
        state.save(file)
    except OSError as error:
        msg = f"a gate's state can't be kept in {file}: {error.strerror or error}"
        raise CoalescingError(msg) from error
    return state


def log_unseen(name: str, batch: Batch[Any]) -> None:
    """Log what a tick raised, and nobody saw."""
    error, number, batch.error = batch.error, batch.number, None
    reasons, text = (
        ", ".join(batch.reasons) or "no reason given",
        f"{type(error).__name__}: {error_text(error)}",
    )
    message = "tick %d of %s (%s) failed: %s"
    warn(message, number, name, reasons, text, gate=name, tick=number)
