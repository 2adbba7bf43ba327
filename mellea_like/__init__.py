"""Concurrent rejection sampling: language model replies that meet stated requirements.

This package exports the names that most programs use. The others are in its subpackages. A name
is imported when it is first used.
"""

from typing import TYPE_CHECKING

from mellea_like.lazy import keep_installed, lazy_exports

if TYPE_CHECKING:
    from mellea_like.backends import FunctionBackend, OpenAIBackend
    from mellea_like.batch import Journal, sample_many
    from mellea_like.checking import check, check_sync
    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.conversation import Context, Instruction, Message
    from mellea_like.core.generation import Generation
    from mellea_like.core.parts import Image
    from mellea_like.core.requirement import Requirement, requirement
    from mellea_like.core.result import SamplingResult
    from mellea_like.core.slice import Outcome, Slice
    from mellea_like.core.tools import Tool
    from mellea_like.core.validation import Candidate, ValidationResult
    from mellea_like.errors import (
        BackendError,
        LimitExceeded,
        MelleaError,
        SamplingFailed,
        SamplingTimeout,
    )
    from mellea_like.limits import Budget, Price
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
    from mellea_like.selections import BestOf, Collect, Vote
    from mellea_like.version import __version__ as __version__

__all__ = [
    "Backend",
    "BackendError",
    "BaseSamplingStrategy",
    "BestOf",
    "Budget",
    "Candidate",
    "Collect",
    "Context",
    "Escalate",
    "FunctionBackend",
    "Generation",
    "Image",
    "Instruction",
    "Journal",
    "LimitExceeded",
    "MelleaError",
    "Message",
    "MultiTurnStrategy",
    "OpenAIBackend",
    "Outcome",
    "Price",
    "RejectionSamplingStrategy",
    "RepairTemplateStrategy",
    "Request",
    "Requirement",
    "SamplingFailed",
    "SamplingResult",
    "SamplingTimeout",
    "Slice",
    "Stage",
    "SyncSampler",
    "Tool",
    "ValidationResult",
    "Vote",
    "check",
    "check_sync",
    "checks",
    "judge_score",
    "requirement",
    "sample_many",
]

keep_installed(__all__, OpenAIBackend="openai httpx2")

__getattr__, __dir__ = lazy_exports(
    globals(),
    {
        "mellea_like": (
            "agent agreement backends batch checking coalescing core errors estimate export "
            "gateway hooks limits pass_rates report requirements rewards sampling schedules "
            "scoring selections telemetry testing web"
        ),
        "mellea_like.backends": "FunctionBackend OpenAIBackend",
        "mellea_like.batch": "Journal sample_many",
        "mellea_like.checking": "check check_sync",
        "mellea_like.core.backend": "Backend Request",
        "mellea_like.core.conversation": "Context Instruction Message",
        "mellea_like.core.generation": "Generation",
        "mellea_like.core.parts": "Image",
        "mellea_like.core.requirement": "Requirement requirement",
        "mellea_like.core.result": "SamplingResult",
        "mellea_like.core.slice": "Outcome Slice",
        "mellea_like.core.tools": "Tool",
        "mellea_like.core.validation": "Candidate ValidationResult",
        "mellea_like.errors": (
            "BackendError LimitExceeded MelleaError SamplingFailed SamplingTimeout"
        ),
        "mellea_like.limits": "Budget Price",
        "mellea_like.requirements": "checks",
        "mellea_like.sampling.base": "BaseSamplingStrategy",
        "mellea_like.sampling.escalate": "Escalate Stage",
        "mellea_like.sampling.strategies": (
            "MultiTurnStrategy RejectionSamplingStrategy RepairTemplateStrategy"
        ),
        "mellea_like.sampling.sync": "SyncSampler",
        "mellea_like.scoring": "judge_score",
        "mellea_like.selections": "BestOf Collect Vote",
        "mellea_like.version": "__version__",
    },
    moved={
        "mellea_like.coalescing": "ChatDispatcher RerunGate SamplingCoordinator",
        "mellea_like.core": (
            "Action Audio File Options StopReason Text ToolCall Usage Verdict current_iteration"
        ),
        "mellea_like.errors": "Blocked HookError RequirementError",
        "mellea_like.hooks": "HookMode HookType Plugin PluginSet hook register unregister",
        "mellea_like.limits": (
            "AdaptiveLimiter ConcurrencyLimiter FallbackBackend LimitedBackend RateLimiter Retry"
        ),
        "mellea_like.selections": "Consensus First Ordered Tournament",
        "mellea_like.telemetry": "Telemetry",
    },
)
