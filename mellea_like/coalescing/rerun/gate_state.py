"""The state that a `RerunGate` keeps across processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from mellea_like.errors import CoalescingError
from mellea_like.runtime.atomic_files import replaced

if TYPE_CHECKING:
    from pathlib import Path


class GateState(BaseModel):
    """The state file's content. Running ticks aren't recorded: a crash would leave the record."""

    # Of another version's file, known fields are read.
    last_event: AwareDatetime | None = None
    last_tick: AwareDatetime | None = None
    last_trigger: str = ""
    ticks: int = Field(default=0, ge=0)
    failed: int = Field(default=0, ge=0)
    submissions: int = Field(default=0, ge=0)
    coalesced: int = Field(default=0, ge=0)

    @classmethod
    def open(cls, path: Path) -> GateState:
        """Read the state from a file, and make sure that the file can be written."""
        try:
            state = cls.load(path)
            state.save(path)
        except OSError as error:
            msg = f"a gate's state can't be kept in {path}: {error.strerror or error}"
            raise CoalescingError(msg) from error
        return state

    @classmethod
    def load(cls, path: Path) -> GateState:
        """Read the state from a file, or make a new one if there is no file."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return cls()
        try:
            fields: Any = json.loads(data)
            return cls.model_validate(fields)
        except (ValueError, RecursionError) as exc:  # pydantic's ValidationError is a ValueError.
            what = _summary(exc) if isinstance(exc, ValidationError) else str(exc)
            msg = f"the gate's state in {path} is damaged ({what}): delete it to start afresh"
            raise CoalescingError(msg) from exc

    def save(self, path: Path) -> None:
        """Write the file completely or not at all, keeping the existing file's permissions."""
        with replaced(path, None if path.exists() else 0o600) as file:
            file.write(f"{self.model_dump_json(indent=2)}\n".encode())


def _summary(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]
