"""Concurrent rejection sampling: results from language models that meet stated requirements.

What only some programs use is imported when it is first named.
"""

from typing import TYPE_CHECKING

from mellea_like.core.backend import Backend, Options, Request, current_iteration
from mellea_like.core.conversation import Action, Context, Instruction, Message
from mellea_like.core.generation import Generation, Usage
from mellea_like.core.requirement import Requirement, requirement
from mellea_like.core.result import SamplingResult, StopReason
from mellea_like.core.slice import Outcome, Slice
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
        LimitedBackend,
        Price,
        RateLimiter,
        Retry,
    )
    from mellea_like.requirements import checks

__all__ = [
    "Action",
    "AdaptiveLimiter",
    "Backend",
    "BackendError",
    "BaseSamplingStrategy",
    "Blocked",
    "Budget",
    "Candidate",
    "ChatDispatcher",
    "ConcurrencyLimiter",
    "Context",
    "FunctionBackend",
    "Generation",
    "HookError",
    "HookMode",
    "HookType",
    "Instruction",
    "Journal",
    "LimitExceeded",
    "LimitedBackend",
    "MelleaError",
    "Message",
    "MultiTurnStrategy",
    "OpenAIBackend",
    "Options",
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
    "StopReason",
    "SyncSampler",
    "Telemetry",
    "Usage",
    "ValidationResult",
    "Verdict",
    "checks",
    "current_iteration",
    "hook",
    "register",
    "requirement",
    "sample_many",
    "unregister",
]

keep_installed(__all__, OpenAIBackend="openai")

__getattr__, __dir__ = lazy_exports(
    {
        "AdaptiveLimiter": "mellea_like.limits",
        "Budget": "mellea_like.limits",
        "ChatDispatcher": "mellea_like.coalescing",
        "ConcurrencyLimiter": "mellea_like.limits",
        "FunctionBackend": "mellea_like.backends",
        "Journal": "mellea_like.batch",
        "LimitedBackend": "mellea_like.limits",
        "OpenAIBackend": "mellea_like.backends",
        "Price": "mellea_like.limits",
        "RateLimiter": "mellea_like.limits",
        "RerunGate": "mellea_like.coalescing",
        "Retry": "mellea_like.limits",
        "SamplingCoordinator": "mellea_like.coalescing",
        "checks": "mellea_like.requirements.checks",
        "sample_many": "mellea_like.batch",
    },
    globals(),
)
