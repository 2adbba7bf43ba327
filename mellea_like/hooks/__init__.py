"""Plugins: writing and registering them, and the payloads that they get and may change.

The payload classes load much of pydantic, so they are imported when they are first used. Each is
defined beside the option that fires its hook.
"""

from typing import TYPE_CHECKING

from mellea_like.errors import Blocked, HookError
from mellea_like.hooks.plugins import Plugin, PluginSet, hook, register, unregister
from mellea_like.hooks.types import HookMode, HookType
from mellea_like.lazy import lazy_exports

if TYPE_CHECKING:
    from mellea_like.hooks.call import (
        SamplingIterationPayload,
        SamplingLoopEndPayload,
        SamplingLoopStartPayload,
    )
    from mellea_like.hooks.check import ValidationPostCheckPayload, ValidationPreCheckPayload
    from mellea_like.hooks.payload import Payload
    from mellea_like.hooks.repair import SamplingRepairPayload
    from mellea_like.hooks.request import (
        GenerationErrorPayload,
        GenerationPostCallPayload,
        GenerationPreCallPayload,
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
    {
        "mellea_like.hooks.call": (
            "SamplingIterationPayload SamplingLoopEndPayload SamplingLoopStartPayload"
        ),
        "mellea_like.hooks.check": "ValidationPostCheckPayload ValidationPreCheckPayload",
        "mellea_like.hooks.payload": "Payload",
        "mellea_like.hooks.repair": "SamplingRepairPayload",
        "mellea_like.hooks.request": (
            "GenerationErrorPayload GenerationPostCallPayload GenerationPreCallPayload"
        ),
    },
)
