"""When hooks fire, and how they run."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["HookMode", "HookType"]


class HookType(StrEnum):
    """A moment in a call at which plugins are asked or told."""

    SAMPLING_LOOP_START = "sampling_loop_start"
    """Before the first turn; may change ``loop_budget``."""
    GENERATION_PRE_CALL = "generation_pre_call"
    """Before each request to a backend, judge calls included; may change ``options``."""
    GENERATION_POST_CALL = "generation_post_call"
    """After each request that was answered."""
    GENERATION_ERROR = "generation_error"
    """After each request that failed."""
    VALIDATION_PRE_CHECK = "validation_pre_check"
    """Before a slice is validated; may add ``requirements``."""
    VALIDATION_POST_CHECK = "validation_post_check"
    """After a slice was validated; may turn a pass into a failure (``passed``, ``reason``)."""
    SAMPLING_REPAIR = "sampling_repair"
    """After the strategy chose what to ask next."""
    SAMPLING_ITERATION = "sampling_iteration"
    """Once for each slice, in the order recorded."""
    SAMPLING_LOOP_END = "sampling_loop_end"
    """Once, at the end, whatever the end was."""


class HookMode(StrEnum):
    """How a handler runs."""

    SEQUENTIAL = "sequential"
    """In priority order, awaited; may change the payload or raise `Blocked`; fails closed."""
    OBSERVE = "observe"
    """All together, awaited; a failure is logged, and three in a row silence the plugin."""
    BACKGROUND = "background"
    """Not waited for, but for at most 2 s at the end; a failure is logged."""
