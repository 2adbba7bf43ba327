"""Backends: models that generate replies.

A larger backend is split into modules whose names begin with the backend's name. A backend that
needs an optional dependency is imported when it is first used.
"""

from typing import TYPE_CHECKING

from mellea_like.backends.function import FunctionBackend
from mellea_like.backends.markov import MarkovBackend
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.backends.simulated import SimulatedBackend
from mellea_like.lazy import keep_installed, lazy_exports

if TYPE_CHECKING:
    from mellea_like.backends.anthropic_batches import AnthropicBatches
    from mellea_like.backends.batch_api import (
        BatchAPI,
        Intention,
        JobError,
        JobLimits,
        JobOutcome,
        JobResult,
        JobState,
    )
    from mellea_like.backends.cached import CachedBackend, CacheStatistics
    from mellea_like.backends.llama import LlamaCppBackend
    from mellea_like.backends.mcp import MCPSamplingBackend, SamplingRounds
    from mellea_like.backends.mistral_batches import MistralBatches
    from mellea_like.backends.openai import OpenAIBackend
    from mellea_like.backends.openai_batches import OpenAIBatches
    from mellea_like.backends.openai_server import azure_client
    from mellea_like.backends.output_mode import refuses
    from mellea_like.backends.pydantic_ai import PydanticAIBackend
    from mellea_like.backends.reward_model import RewardModel
    from mellea_like.backends.server_address import OFFICIAL_URL, split_url

__all__ = [
    "OFFICIAL_URL",
    "AnthropicBatches",
    "BatchAPI",
    "CacheStatistics",
    "CachedBackend",
    "FunctionBackend",
    "Intention",
    "JobError",
    "JobLimits",
    "JobOutcome",
    "JobResult",
    "JobState",
    "LlamaCppBackend",
    "MCPSamplingBackend",
    "MarkovBackend",
    "MistralBatches",
    "OpenAIBackend",
    "OpenAIBatches",
    "PydanticAIBackend",
    "Reply",
    "RewardModel",
    "SamplingRounds",
    "ScriptedBackend",
    "SimulatedBackend",
    "azure_client",
    "refuses",
    "split_url",
]

keep_installed(
    __all__,
    AnthropicBatches="anthropic httpx2",
    LlamaCppBackend="xllamacpp openai httpx2",  # It speaks to its server through the SDK.
    MCPSamplingBackend="mcp mcp_types",
    MistralBatches="mistralai httpx2",
    OpenAIBackend="openai httpx2",
    OpenAIBatches="openai httpx2",
    azure_client="openai httpx2",
    PydanticAIBackend="pydantic_ai",
    RewardModel="openai httpx2",
    SamplingRounds="mcp mcp_types",
)

__getattr__, __dir__ = lazy_exports(
    globals(),
    {
        "mellea_like.backends.anthropic_batches": "AnthropicBatches",
        "mellea_like.backends.batch_api": (
            "BatchAPI Intention JobError JobLimits JobOutcome JobResult JobState"
        ),
        "mellea_like.backends.cached": "CacheStatistics CachedBackend",
        "mellea_like.backends.llama": "LlamaCppBackend",
        "mellea_like.backends.mcp": "MCPSamplingBackend SamplingRounds",
        "mellea_like.backends.mistral_batches": "MistralBatches",
        "mellea_like.backends.openai": "OpenAIBackend",
        "mellea_like.backends.openai_batches": "OpenAIBatches",
        "mellea_like.backends.openai_server": "azure_client",
        "mellea_like.backends.output_mode": "refuses",
        "mellea_like.backends.pydantic_ai": "PydanticAIBackend",
        "mellea_like.backends.reward_model": "RewardModel",
        "mellea_like.backends.server_address": "OFFICIAL_URL split_url",
    },
)
