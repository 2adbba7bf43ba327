"""Concurrent rejection sampling: results from language models that meet stated requirements."""

from mellea_like.core.action import Action, Instruction
from mellea_like.core.backend import Backend, Request
from mellea_like.core.context import Context
from mellea_like.core.current import current_iteration
from mellea_like.core.generation import Generation, Usage
from mellea_like.core.message import Message
from mellea_like.core.options import Options
from mellea_like.core.requirement import Candidate, Requirement, ValidationResult, requirement
from mellea_like.core.result import SamplingResult, StopReason
from mellea_like.core.slice import Outcome, Slice

__all__ = [
    "Action",
    "Backend",
    "Candidate",
    "Context",
    "Generation",
    "Instruction",
    "Message",
    "Options",
    "Outcome",
    "Request",
    "Requirement",
    "SamplingResult",
    "Slice",
    "StopReason",
    "Usage",
    "ValidationResult",
    "current_iteration",
    "requirement",
]
