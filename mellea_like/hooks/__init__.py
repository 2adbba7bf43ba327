"""Plugins: what they are told, what they may change, and how they are registered.

The payload classes load pydantic's machinery, so they are imported when first named.
"""

from typing import TYPE_CHECKING, Any

from mellea_like.errors import Blocked, HookError
from mellea_like.hooks.registry import (
    Plugin,
    PluginSet,
    hook,
    load_plugins,
    register,
    unregister,
)
from mellea_like.hooks.types import HookMode, HookType

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
    "load_plugins",
    "register",
    "unregister",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from mellea_like.hooks import payloads  # noqa: PLC0415

        return getattr(payloads, name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
