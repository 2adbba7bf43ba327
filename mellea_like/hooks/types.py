"""The moments when hooks fire, and the modes in which handlers run."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["HookMode", "HookType"]


class HookType(StrEnum):
    """A moment in a call at which plugins may act."""

    SAMPLING_LOOP_START = "sampling_loop_start"
    """Before the first draw; may change ``loop_budget``."""
    GENERATION_PRE_CALL = "generation_pre_call"
    """Before each request to a backend, including judges'; may change ``options``."""
    GENERATION_POST_CALL = "generation_post_call"
    """After each request that was answered."""
    GENERATION_ERROR = "generation_error"
    """After each request that failed."""
    VALIDATION_PRE_CHECK = "validation_pre_check"
    """Before a reply is validated; may add ``requirements``."""
    VALIDATION_POST_CHECK = "validation_post_check"
    """After a reply was validated; may turn a pass into a failure (``passed``, ``reason``)."""
    SAMPLING_REPAIR = "sampling_repair"
    """After the strategy has chosen what to ask next."""
    SAMPLING_ITERATION = "sampling_iteration"
    """Once for each draw, in the order recorded."""
    SAMPLING_LOOP_END = "sampling_loop_end"
    """Once, at the end of the call, no matter how it ends."""


class HookMode(StrEnum):
    """How a handler runs."""

    SEQUENTIAL = "sequential"
    """Awaited, by priority. May change the payload or raise `Blocked`. A failure ends the call."""
    OBSERVE = "observe"
    """Awaited, all concurrently. A failure is logged, and three in a row silence the plugin."""
    BACKGROUND = "background"
    """Not awaited, except for at most 2 s at the end of the call. A failure is logged."""
