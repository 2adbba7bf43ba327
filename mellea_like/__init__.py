"""Concurrent rejection sampling: results from language models that meet stated requirements."""

from mellea_like.core.action import Action, Instruction
from mellea_like.core.backend import Backend, Request
from mellea_like.core.context import Context
from mellea_like.core.current import current_iteration
from mellea_like.core.generation import Generation, Usage
from mellea_like.core.message import Message
from mellea_like.core.options import Options
from mellea_like.core.requirement import Requirement, requirement
from mellea_like.core.result import SamplingResult, StopReason
from mellea_like.core.slice import Outcome, Slice
from mellea_like.core.streaming import Verdict
from mellea_like.core.validation import Candidate, ValidationResult
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
from mellea_like.hooks.registry import Plugin, PluginSet, hook, register, unregister
from mellea_like.hooks.types import HookMode, HookType
from mellea_like.sampling.base import BaseSamplingStrategy
from mellea_like.sampling.strategies import (
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
)
from mellea_like.sampling.sync import SyncSampler
from mellea_like.telemetry import Telemetry

__all__ = [
    "Action",
    "Backend",
    "BackendError",
    "BaseSamplingStrategy",
    "Blocked",
    "Candidate",
    "Context",
    "Generation",
    "HookError",
    "HookMode",
    "HookType",
    "Instruction",
    "LimitExceeded",
    "MelleaError",
    "Message",
    "MultiTurnStrategy",
    "Options",
    "Outcome",
    "Plugin",
    "PluginSet",
    "RejectionSamplingStrategy",
    "RepairTemplateStrategy",
    "Request",
    "Requirement",
    "RequirementError",
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
    "current_iteration",
    "hook",
    "register",
    "requirement",
    "unregister",
]
