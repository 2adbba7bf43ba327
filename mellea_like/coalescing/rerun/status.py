"""What a `RerunGate` says about itself, and the state that it keeps from process to process."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from mellea_like.errors import CoalescingError

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["GateState", "RerunStatistics", "RerunStatus", "Tick"]

PERMISSIONS = 0o777
TRANSIENT = ("in_flight", "pending")


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
    """What a gate has counted.

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


class GateState(BaseModel):
    """The state of a `RerunGate`, as ``RerunGate(..., state="gate.json")`` keeps it in a file.

    A file of another version is read as far as it goes: what it lacks has its default, what is
    unknown is ignored. What holds for one process only is never written, and is not believed where
    a file says it.

    Attributes:
        last_event: when something was submitted last.
        last_tick: when the last tick began.
        last_trigger: the first reason of the last tick.
        ticks: how many ticks began.
        failed: how many of them raised.
        submissions: how many requests and pokes ticks were begun for.
        coalesced: how many of those cost no tick of their own.
        in_flight: whether a tick is under way; not persisted.
        pending: how many submissions wait for the next tick; not persisted.
    """

    model_config = ConfigDict(extra="ignore")

    last_event: AwareDatetime | None = None
    last_tick: AwareDatetime | None = None
    last_trigger: str = ""
    ticks: int = Field(default=0, ge=0)
    failed: int = Field(default=0, ge=0)
    submissions: int = Field(default=0, ge=0)
    coalesced: int = Field(default=0, ge=0)
    in_flight: bool = Field(default=False, exclude=True)
    pending: int = Field(default=0, exclude=True)

    @classmethod
    def load(cls, path: str | Path) -> GateState:
        """Read a state from a file.

        Args:
            path: the file; one that does not exist gives a fresh state.

        Returns:
            The state, with nothing in flight or pending.

        Raises:
            CoalescingError: the file is damaged.
            OSError: it can't be read.
        """
        try:
            data = Path(path).read_bytes()
        except FileNotFoundError:
            return cls()
        try:
            fields: Any = json.loads(data)
            if isinstance(fields, dict):
                for name in TRANSIENT:
                    cast("dict[str, Any]", fields).pop(name, None)
            return cls.model_validate(fields)
        except (ValueError, RecursionError) as exc:  # pydantic's ValidationError is a ValueError.
            what = _summary(exc) if isinstance(exc, ValidationError) else str(exc)
            msg = f"the gate's state in {path} is damaged ({what}): delete it to start afresh"
            raise CoalescingError(msg) from exc

    def save(self, path: str | Path) -> None:
        """Write the state to a file, as a whole or not at all.

        A new file can be read by its owner only; one that exists keeps its permissions.

        Args:
            path: the file. Its directory must exist.

        Raises:
            OSError: it can't be written.
        """
        target = Path(path).resolve()
        number, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with open(number, "w", encoding="utf-8") as file:  # noqa: PTH123 (it is open already)
                file.write(self.model_dump_json(indent=2) + "\n")
                file.flush()
                os.fsync(number)
            with suppress(FileNotFoundError):
                Path(name).chmod(target.stat().st_mode & PERMISSIONS)
            Path(name).replace(target)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise


def _summary(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]
