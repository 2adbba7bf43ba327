"""The checked inputs of a call, and the rules for its draws."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mellea_like.core.backend import Options, innermost
from mellea_like.core.extra import NO_EXTRA
from mellea_like.core.format import parse_reply, parse_value

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend
    from mellea_like.core.conversation import Action, Context
    from mellea_like.core.generation import Generation
    from mellea_like.core.requirement import Requirement

DECIDES = {"left_out": None}
"""Marks a setting that decides which draws are made or which one wins.

So the setting is part of a batch's identity, unless it has the value that is given here.
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

    @property
    def offers_tools(self) -> bool:
        """Whether requests offer tools, either those of the call or those in ``extra`` options."""
        if self.tools is not None:
            return True
        asked = (self.options, getattr(innermost(self.backend), "defaults", None))
        extras = [o.extra for o in asked if isinstance(o, Options) and o.extra is not NO_EXTRA]
        return any(extra.get("tools") or extra.get("functions") for extra in extras)

    def value_of(self, reply: Generation, action: Action[Any]) -> Any:
        """Return a reply's parsed value, or raise ``ValueError``; None if it calls tools."""
        if reply.tool_calls:
            typed = self.format is not None and self.offers_tools
            if typed or self.tools is not None:
                return None  # It isn't an answer yet.
        if reply.has_value:
            return reply.value if self.format is None else parse_value(self.format, reply.value)
        if self.format is None:
            return action.parse(reply.text)
        return parse_reply(self.format, reply.text)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for every draw of a call."""

    check_all: bool
    """Whether all requirements are checked, even after one has failed."""
    accept_incomplete: bool = field(metadata=DECIDES_IF_TRUE)
    cancel_grace: float
