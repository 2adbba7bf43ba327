"""Which iteration the running code belongs to."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["ITERATION", "IterationIds", "current_iteration"]


@dataclass(frozen=True, slots=True)
class IterationIds:
    """The names of one iteration: the call's id, its own 1-based id, and its subsample's index."""

    sampling_id: str
    iteration: int
    subsample: int


ITERATION: ContextVar[IterationIds | None] = ContextVar("mellea_like_iteration", default=None)
"""Set by the engine round the generation and validation of each slice."""


def current_iteration() -> int | None:
    """Return the id of the iteration that the calling code belongs to.

    Returns:
        The 1-based id, unique within its call; None outside an iteration, and inside work that
        several iterations share.
    """
    ids = ITERATION.get()
    return None if ids is None else ids.iteration
