"""Which iteration the running code belongs to, and on which meter it spends."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mellea_like.core.backend import RequestMeta
    from mellea_like.core.generation import Meter

__all__ = ["ITERATION", "SPENDS_ON", "current_iteration"]

ITERATION: ContextVar[RequestMeta | None] = ContextVar("mellea_like_iteration", default=None)
"""Set by the engine around the generation and validation of each slice."""

SPENDS_ON: ContextVar[Meter | None] = ContextVar("mellea_like_spends_on", default=None)
"""The meter of the request or slice under way: what a call inside it costs is part of its cost."""


def current_iteration() -> int | None:
    """Return the id of the iteration that the calling code belongs to.

    Returns:
        The 1-based id, unique within its call; None outside an iteration, and inside work that
        several iterations share.
    """
    ids = ITERATION.get()
    return None if ids is None else ids.iteration
