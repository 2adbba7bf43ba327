"""Plugins: writing and registering them, and the payloads that they get and may change.

The payload classes load much of pydantic, so they are imported when they are first used.
"""

from typing import TYPE_CHECKING

from mellea_like.errors import Blocked, HookError
from mellea_like.hooks.plugins import Plugin, PluginSet, hook, register, unregister
from mellea_like.hooks.types import HookMode, HookType
from mellea_like.lazy import lazy_exports

if TYPE_CHECKING:
    from mellea_like.hooks.payloads import (
        GenerationErrorPayload,
        GenerationPostCallPayload,
        GenerationPreCallPayload,
        Payload,
        SamplingIterationPayload,
        SamplingLoopEndPayload,
        SamplingLoopStartPayload,
        SamplingRepairPayload,
        ValidationPostCheckPayload,
        ValidationPreCheckPayload,
    )

__all__ = [
    "Blocked",
    "GenerationErrorPayload",
    "GenerationPostCallPayload",
    "GenerationPreCallPayload",
    "HookError",
    "HookMode",
    "HookType",
    "Payload",
    "Plugin",
    "PluginSet",
    "SamplingIterationPayload",
    "SamplingLoopEndPayload",
    "SamplingLoopStartPayload",
    "SamplingRepairPayload",
    "ValidationPostCheckPayload",
    "ValidationPreCheckPayload",
    "hook",
    "register",
    "unregister",
]


__getattr__, __dir__ = lazy_exports(
    globals(),
    {"mellea_like.hooks.payloads": " ".join(name for name in __all__ if name.endswith("Payload"))},
)
