"""The moments when hooks fire, and the modes in which handlers run."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["HookMode", "HookType"]


class HookType(StrEnum):
    """A moment in a call at which plugins may act."""

    SAMPLING_LOOP_START = "sampling_loop_start"
    """Before the first draw. Handlers may change ``loop_budget``."""
    GENERATION_PRE_CALL = "generation_pre_call"
    """Before each request to a backend or a judge. Handlers may change ``options``."""
    GENERATION_POST_CALL = "generation_post_call"
    """After each request that was answered."""
    GENERATION_ERROR = "generation_error"
    """After each request that failed."""
    VALIDATION_PRE_CHECK = "validation_pre_check"
    """Before a reply is validated. Handlers may add ``requirements``."""
    VALIDATION_POST_CHECK = "validation_post_check"
    """After a reply was validated. Handlers may turn a pass into a failure.

    They do so with the fields ``passed`` and ``reason``.
    """
    SAMPLING_REPAIR = "sampling_repair"
    """Before a draw that repairs a failed one, when the strategy has chosen what to ask."""
    SAMPLING_ITERATION = "sampling_iteration"
    """After each draw, in the order in which draws were recorded."""
    SAMPLING_LOOP_END = "sampling_loop_end"
    """Once, at the end of the call, no matter how it ends."""


class HookMode(StrEnum):
    """How a handler runs."""

    SEQUENTIAL = "sequential"
    """Handlers run one after another, by priority, and the call waits for them.

    They may change the payload or raise `Blocked`. A failure ends the call. At the hook for the end
    of the call, a failure is only logged.
    """
    OBSERVE = "observe"
    """Handlers run concurrently, and the call waits for them. They can't change the payload.

    A failure is logged. After three in a row, the plugin's observing handlers don't run any more.
    """
    BACKGROUND = "background"
    """The call doesn't wait for handlers, except for up to 2 s at the end of the call.

    A failure is logged.
    """
