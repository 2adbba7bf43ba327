"""Convert a request's tools to `CallersTool` objects, and check calls of these tools."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from mellea_like.core.requirement import Requirement
from mellea_like.core.tools import Tool
from mellea_like.core.validation import ValidationResult, Verdict
from mellea_like.gateway.chat.caller_checks import Deferred
from mellea_like.requirements.checks import ForeignSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mellea_like.core.tools import CallWatch, ToolCall
    from mellea_like.core.validation import Candidate
    from mellea_like.gateway.chat.caller_checks import CallersChecks
    from mellea_like.gateway.chat.request import ChatRequest


@dataclass(frozen=True, slots=True)
class CallersTool(Tool):
    """A tool that the caller runs. Another process checks calls against the tool's schema."""

    sent: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, kw_only=True)
    watch: CallWatch | None = field(default=None, repr=False, compare=False, kw_only=True)
    """Checks a call's arguments while they arrive. None if only complete calls are checked."""

    def as_dict(self) -> dict[str, Any]:
        """Return the tool as it was sent, including fields that only OpenAI's protocol has."""
        return dict(self.sent)

    def read(self, arguments: str) -> dict[str, Any]:
        """Parse a call's arguments. `check_calls` checks them against the tool's schema."""
        try:
            value: Any = json.loads(arguments or "{}")
        except RecursionError:
            value = None
        if not isinstance(value, dict):
            msg = "its arguments aren't a JSON object"
            raise ValueError(msg)  # noqa: TRY004 (of what a model wrote)
        return cast("dict[str, Any]", value)


def tools_of(request: ChatRequest, *, early: bool = False) -> tuple[CallersTool, ...]:
    """Make the tools that a reply may call. With ``early``, calls are checked while they arrive."""
    return tuple(
        CallersTool(
            function.name,
            function.sent["function"].get("description", ""),
            function.parameters,
            sent=function.sent,
            watch=partial(_watch, function.parameters) if early else None,
        )
        for function in request.functions
    )


def _watch(parameters: Mapping[str, Any]) -> Callable[[str], str | None]:
    return ForeignSchema(parameters).watch()()


async def check_calls(request: ChatRequest, checks: CallersChecks) -> Requirement:
    """Return the requirement that a reply's calls fit the tools' schemas; refuse invalid ones."""
    schemas: dict[str, dict[str, Any]] = {}
    for function in request.functions:
        schema = schemas[function.name] = function.parameters
        await checks.accept(f"tools.{function.place}.parameters", schema)

    async def decide(calls: Sequence[ToolCall]) -> ValidationResult:
        if request.parallel_tool_calls is False and len(calls) > 1:
            what = f"the reply makes {len(calls)} calls at a time: make one"
            return ValidationResult(False, what, 0.0)
        for call in calls:
            answer = await checks.ask(schemas[call.name], call.arguments or "{}", call=True)
            passed, reason, score = answer["verdict"]
            if not passed:
                return ValidationResult(False, f"the call of {call.name}: {reason}", score)
        return ValidationResult(True, "its calls fit", 1.0)

    def validate(candidate: Candidate) -> Deferred:
        return Deferred(partial(decide, candidate.tool_calls))

    return Requirement(
        "its calls have arguments of the tools' schemas",
        validate,
        name="tool_calls",
        inline=True,
        check_only=True,
        on_error="raise",
        stream=_says_nothing_of_texts if request.stream else None,
    )


def _says_nothing_of_texts(text: str, delta: str) -> Verdict:  # noqa: ARG001
    return Verdict.PASS
