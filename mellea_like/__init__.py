"""Concurrent rejection sampling: results from language models that meet stated requirements.

Everything is imported when it is first named.
"""

from typing import TYPE_CHECKING

from mellea_like.runtime.lazy import keep_installed, lazy_exports

if TYPE_CHECKING:
    from mellea_like.backends import FunctionBackend, OpenAIBackend
    from mellea_like.batch import Journal, sample_many
    from mellea_like.coalescing import ChatDispatcher, RerunGate, SamplingCoordinator
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
    from mellea_like.sampling.base import BaseSamplingStrategy
    from mellea_like.sampling.escalate import Escalate, Stage
    from mellea_like.sampling.strategies import (
        MultiTurnStrategy,
        RejectionSamplingStrategy,
        RepairTemplateStrategy,
    )
    from mellea_like.sampling.sync import SyncSampler
    from mellea_like.scoring import judge_score
    from mellea_like.selections import (
        BestOf,
        Collect,
        Consensus,
        First,
        Ordered,
        Tournament,
        Vote,
    )
    from mellea_like.telemetry import Telemetry

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

keep_installed(__all__, OpenAIBackend="openai httpx2")

__getattr__, __dir__ = lazy_exports(
    {
        "Action": "mellea_like.core.conversation",
        "AdaptiveLimiter": "mellea_like.limits",
        "Audio": "mellea_like.core.parts",
        "Backend": "mellea_like.core.backend",
        "BackendError": "mellea_like.errors",
        "BaseSamplingStrategy": "mellea_like.sampling.base",
        "BestOf": "mellea_like.selections",
        "Blocked": "mellea_like.errors",
        "Budget": "mellea_like.limits",
        "Candidate": "mellea_like.core.validation",
        "ChatDispatcher": "mellea_like.coalescing",
        "Collect": "mellea_like.selections",
        "ConcurrencyLimiter": "mellea_like.limits",
        "Consensus": "mellea_like.selections",
        "Context": "mellea_like.core.conversation",
        "Escalate": "mellea_like.sampling.escalate",
        "FallbackBackend": "mellea_like.limits",
        "File": "mellea_like.core.parts",
        "First": "mellea_like.selections",
        "FunctionBackend": "mellea_like.backends",
        "Generation": "mellea_like.core.generation",
        "HookError": "mellea_like.errors",
        "HookMode": "mellea_like.hooks.types",
        "HookType": "mellea_like.hooks.types",
        "Image": "mellea_like.core.parts",
        "Instruction": "mellea_like.core.conversation",
        "Journal": "mellea_like.batch",
        "LimitExceeded": "mellea_like.errors",
        "LimitedBackend": "mellea_like.limits",
        "MelleaError": "mellea_like.errors",
        "Message": "mellea_like.core.conversation",
        "MultiTurnStrategy": "mellea_like.sampling.strategies",
        "OpenAIBackend": "mellea_like.backends",
        "Options": "mellea_like.core.backend",
        "Ordered": "mellea_like.selections",
        "Outcome": "mellea_like.core.slice",
        "Plugin": "mellea_like.hooks.plugins",
        "PluginSet": "mellea_like.hooks.plugins",
        "Price": "mellea_like.limits",
        "RateLimiter": "mellea_like.limits",
        "RejectionSamplingStrategy": "mellea_like.sampling.strategies",
        "RepairTemplateStrategy": "mellea_like.sampling.strategies",
        "Request": "mellea_like.core.backend",
        "Requirement": "mellea_like.core.requirement",
        "RequirementError": "mellea_like.errors",
        "RerunGate": "mellea_like.coalescing",
        "Retry": "mellea_like.limits",
        "SamplingCoordinator": "mellea_like.coalescing",
        "SamplingFailed": "mellea_like.errors",
        "SamplingResult": "mellea_like.core.result",
        "SamplingTimeout": "mellea_like.errors",
        "Slice": "mellea_like.core.slice",
        "Stage": "mellea_like.sampling.escalate",
        "StopReason": "mellea_like.core.result",
        "SyncSampler": "mellea_like.sampling.sync",
        "Telemetry": "mellea_like.telemetry",
        "Text": "mellea_like.core.parts",
        "Tool": "mellea_like.core.tools",
        "ToolCall": "mellea_like.core.tools",
        "Tournament": "mellea_like.selections",
        "Usage": "mellea_like.core.generation",
        "ValidationResult": "mellea_like.core.validation",
        "Verdict": "mellea_like.core.validation",
        "Vote": "mellea_like.selections",
        "agent": "mellea_like.agent",
        "backends": "mellea_like.backends",
        "batch": "mellea_like.batch",
        "checks": "mellea_like.requirements.checks",
        "coalescing": "mellea_like.coalescing",
        "current_iteration": "mellea_like.core.backend",
        "errors": "mellea_like.errors",
        "estimate": "mellea_like.estimate",
        "export": "mellea_like.export",
        "gateway": "mellea_like.gateway",
        "hook": "mellea_like.hooks.plugins",
        "hooks": "mellea_like.hooks",
        "judge_score": "mellea_like.scoring",
        "limits": "mellea_like.limits",
        "pass_rates": "mellea_like.pass_rates",
        "register": "mellea_like.hooks.plugins",
        "report": "mellea_like.report",
        "requirement": "mellea_like.core.requirement",
        "requirements": "mellea_like.requirements",
        "sample_many": "mellea_like.batch",
        "sampling": "mellea_like.sampling",
        "schedules": "mellea_like.schedules",
        "scoring": "mellea_like.scoring",
        "selections": "mellea_like.selections",
        "telemetry": "mellea_like.telemetry",
        "testing": "mellea_like.testing",
        "unregister": "mellea_like.hooks.plugins",
        "web": "mellea_like.web",
    },
    globals(),
)
