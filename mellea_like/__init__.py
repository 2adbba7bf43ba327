"""Concurrent rejection sampling: results from language models that meet stated requirements.

What only some programs use is imported when it is first named.
"""

from typing import TYPE_CHECKING

from mellea_like.core.backend import Backend, Options, Request, current_iteration
from mellea_like.core.conversation import Action, Context, Instruction, Message
from mellea_like.core.generation import Generation, Usage
from mellea_like.core.parts import Audio, File, Image, Text
from mellea_like.core.requirement import Requirement, requirement
from mellea_like.core.result import SamplingResult, StopReason
from mellea_like.core.slice import Outcome, Slice
from mellea_like.core.tools import Tool, ToolCall
from mellea_like.core.validation import Candidate, ValidationResult, Verdict
from mellea_like.errors import (
    BackendError,
    Blocked,
    HookError,
    LimitExceeded,
    MelleaError,
    RequirementError,
    SamplingFailed,
    SamplingTimeout,
)
from mellea_like.hooks.plugins import Plugin, PluginSet, hook, register, unregister
from mellea_like.hooks.types import HookMode, HookType
from mellea_like.runtime.lazy import keep_installed, lazy_exports
from mellea_like.sampling.base import BaseSamplingStrategy
from mellea_like.sampling.strategies import (
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
)
from mellea_like.sampling.sync import SyncSampler
from mellea_like.telemetry import Telemetry

if TYPE_CHECKING:
    from mellea_like.backends import FunctionBackend, OpenAIBackend
    from mellea_like.batch import Journal, sample_many
    from mellea_like.coalescing import ChatDispatcher, RerunGate, SamplingCoordinator
    from mellea_like.limits import (
        AdaptiveLimiter,
        Budget,
        ConcurrencyLimiter,
        FallbackBackend,
        LimitedBackend,
        Price,
        RateLimiter,
        Retry,
    )
    from mellea_like.requirements import checks
    from mellea_like.sampling.escalate import Escalate, Stage
    from mellea_like.sampling.selections import (
        BestOf,
        Collect,
        Consensus,
        First,
        Ordered,
        Tournament,
        Vote,
    )
    from mellea_like.scoring import judge_score

__all__ = [
    "Action",
    "AdaptiveLimiter",
    "Audio",
    "Backend",
    "BackendError",
    "BaseSamplingStrategy",
    "BestOf",
    "Blocked",
    "Budget",
    "Candidate",
    "ChatDispatcher",
    "Collect",
    "ConcurrencyLimiter",
    "Consensus",
    "Context",
    "Escalate",
    "FallbackBackend",
    "File",
    "First",
    "FunctionBackend",
    "Generation",
    "HookError",
    "HookMode",
    "HookType",
    "Image",
    "Instruction",
    "Journal",
    "LimitExceeded",
    "LimitedBackend",
    "MelleaError",
    "Message",
    "MultiTurnStrategy",
    "OpenAIBackend",
    "Options",
    "Ordered",
    "Outcome",
    "Plugin",
    "PluginSet",
    "Price",
    "RateLimiter",
    "RejectionSamplingStrategy",
    "RepairTemplateStrategy",
    "Request",
    "Requirement",
    "RequirementError",
    "RerunGate",
    "Retry",
    "SamplingCoordinator",
    "SamplingFailed",
    "SamplingResult",
    "SamplingTimeout",
    "Slice",
    "Stage",
    "StopReason",
    "SyncSampler",
    "Telemetry",
    "Text",
    "Tool",
    "ToolCall",
    "Tournament",
    "Usage",
    "ValidationResult",
    "Verdict",
    "Vote",
    "checks",
    "current_iteration",
    "hook",
    "judge_score",
    "register",
    "requirement",
    "sample_many",
    "unregister",
]

keep_installed(__all__, OpenAIBackend="openai")

__getattr__, __dir__ = lazy_exports(
    {
        "AdaptiveLimiter": "mellea_like.limits",
        "BestOf": "mellea_like.sampling.selections",
        "Budget": "mellea_like.limits",
        "ChatDispatcher": "mellea_like.coalescing",
        "Collect": "mellea_like.sampling.selections",
        "ConcurrencyLimiter": "mellea_like.limits",
        "Consensus": "mellea_like.sampling.selections",
        "Escalate": "mellea_like.sampling.escalate",
        "FallbackBackend": "mellea_like.limits",
        "First": "mellea_like.sampling.selections",
        "FunctionBackend": "mellea_like.backends",
        "Journal": "mellea_like.batch",
        "LimitedBackend": "mellea_like.limits",
        "OpenAIBackend": "mellea_like.backends",
        "Ordered": "mellea_like.sampling.selections",
        "Price": "mellea_like.limits",
        "RateLimiter": "mellea_like.limits",
        "RerunGate": "mellea_like.coalescing",
        "Retry": "mellea_like.limits",
        "SamplingCoordinator": "mellea_like.coalescing",
        "Stage": "mellea_like.sampling.escalate",
        "Tournament": "mellea_like.sampling.selections",
        "Vote": "mellea_like.sampling.selections",
        "checks": "mellea_like.requirements.checks",
        "judge_score": "mellea_like.scoring",
        "sample_many": "mellea_like.batch",
    },
    globals(),
)
