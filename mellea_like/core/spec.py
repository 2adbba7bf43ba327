"""The checked inputs of a call, and the rules for its draws."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend, Options
    from mellea_like.core.conversation import Action, Context
    from mellea_like.core.requirement import Requirement

__all__ = ["DECIDES", "DECIDES_IF_TRUE", "Rules", "Spec"]

DECIDES = {"left_out": None}
"""Metadata of settings that decide which draws are made or which one wins.

So they are part of a batch's identity, unless they have the value that is left out.
"""

DECIDES_IF_TRUE = {"left_out": False}
"""Like `DECIDES`, for a setting whose default is False."""


@dataclass(slots=True)
class Spec:
    """The inputs of a call, or of one of its stages: checked and complete."""

    action: Action[Any]
    context: Context
    requirements: tuple[Requirement, ...]
    backend: Backend
    judge: Backend
    format: Any
    options: Options
    validation_context: Context | None = None
    tools: Any = None
    """The call's `Toolbox`; None if the call has no tools."""

    @property
    def model(self) -> str | None:
        """The model that generates, if the options or the backend name one."""
        return self.options.model or getattr(self.backend, "model", None)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for every draw of a call."""

    judge_options: Options
    check_all: bool
    """Whether all requirements are checked, even after one has failed."""
    accept_incomplete: bool = field(metadata=DECIDES_IF_TRUE)
    cancel_grace: float
