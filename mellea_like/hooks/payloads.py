"""The payloads of all hooks. Each is defined beside the option that fires its hook.

Importing this module builds their pydantic models.
"""

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
    "GenerationErrorPayload",
    "GenerationPostCallPayload",
    "GenerationPreCallPayload",
    "Payload",
    "SamplingIterationPayload",
    "SamplingLoopEndPayload",
    "SamplingLoopStartPayload",
    "SamplingRepairPayload",
    "ValidationPostCheckPayload",
    "ValidationPreCheckPayload",
]
