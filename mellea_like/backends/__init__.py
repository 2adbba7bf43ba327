"""Models that generate. A larger backend's parts are in modules that begin with its name.

A backend that needs an extra is imported when it is first used.
"""

from typing import TYPE_CHECKING

from mellea_like.backends.function import FunctionBackend
from mellea_like.backends.markov import MarkovBackend
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.backends.simulated import SimulatedBackend
from mellea_like.lazy import keep_installed, lazy_exports

if TYPE_CHECKING:
    from mellea_like.backends.cached import CachedBackend, CacheStatistics
    from mellea_like.backends.llama import LlamaCppBackend
    from mellea_like.backends.mcp import MCPSamplingBackend, SamplingRounds
    from mellea_like.backends.openai import OpenAIBackend
    from mellea_like.backends.pydantic_ai import PydanticAIBackend
    from mellea_like.backends.reward_model import RewardModel

__all__ = [
    "CacheStatistics",
    "CachedBackend",
    "FunctionBackend",
    "LlamaCppBackend",
    "MCPSamplingBackend",
    "MarkovBackend",
    "OpenAIBackend",
    "PydanticAIBackend",
    "Reply",
    "RewardModel",
    "SamplingRounds",
    "ScriptedBackend",
    "SimulatedBackend",
]

keep_installed(
    __all__,
    LlamaCppBackend="xllamacpp openai httpx2",  # It talks to its server through the SDK.
    MCPSamplingBackend="mcp mcp_types",
    OpenAIBackend="openai httpx2",
    PydanticAIBackend="pydantic_ai",
    RewardModel="openai httpx2",
    SamplingRounds="mcp mcp_types",
)

__getattr__, __dir__ = lazy_exports(
    globals(),
    {
        "mellea_like.backends.cached": "CacheStatistics CachedBackend",
        "mellea_like.backends.llama": "LlamaCppBackend",
        "mellea_like.backends.mcp": "MCPSamplingBackend SamplingRounds",
        "mellea_like.backends.openai": "OpenAIBackend",
        "mellea_like.backends.pydantic_ai": "PydanticAIBackend",
        "mellea_like.backends.reward_model": "RewardModel",
    },
)
