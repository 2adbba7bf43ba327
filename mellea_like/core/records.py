"""Cheap records: dataclasses that are frozen only for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from dataclasses import dataclass

    def record(*, frozen: bool, **settings: Any) -> Any:  # noqa: ARG001 (for type checkers)
        """Make a dataclass that isn't frozen: frozen ones take four times as long to construct."""
        return dataclass(unsafe_hash=True, **settings)


__all__ = ["record"]
