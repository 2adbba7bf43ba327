"""Convert a request's tools to `CallersTool` objects, and check calls of these tools."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from mellea_like.core.requirement import Requirement
from mellea_like.core.tools import Tool
from mellea_like.core.validation import ValidationResult, Verdict
from mellea_like.gateway.refusal import refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from mellea_like.core.tools import CallWatch
    from mellea_like.core.validation import Candidate
    from mellea_like.gateway.chat.caller_checks import CallersChecks
    from mellea_like.gateway.chat.request import ChatRequest

__all__ = ["CallersTool", "check_calls", "tools_of"]


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
    made: list[CallersTool] = []
    for position, tool in enumerate(request.tools):
        if tool not in request.allowed_tools:
            continue
        function = tool.function
        about = function.description or ""
        try:
            made.append(
                CallersTool(
                    function.name,
                    about,
                    function.parameters,
                    sent=tool.sent,
                    watch=_watch(function.parameters) if early else None,
                )
            )
        except ValueError as exc:
            problem = str(exc)
        else:
            continue
        refuse(f"tools.{position}.function.name", problem)
    return tuple(made)


def _watch(parameters: Mapping[str, Any]) -> CallWatch:
    def begin() -> Callable[[str], str | None]:
        from mellea_like.requirements.checks import ForeignSchema  # noqa: PLC0415 (few need it)

        return ForeignSchema(parameters).watch()()

    return begin


async def check_calls(request: ChatRequest, checks: CallersChecks) -> Requirement:
    """Return the requirement that a reply's tool calls fit the tools' schemas.

    A schema that is itself invalid is refused.
    """
    schemas = {tool.function.name: tool.function.parameters for tool in request.allowed_tools}
    for position, tool in enumerate(request.tools):
        if tool.function.name in schemas:
            await checks.accept(f"tools.{position}.function.parameters", tool.function.parameters)
    one_at_a_time = request.parallel_tool_calls is False

    def validate(candidate: Candidate) -> Any:
        return _Verdict(checks, schemas, candidate, one_at_a_time=one_at_a_time)

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


class _Verdict:
    """An awaitable that checks a reply's tool calls, and returns the verdict."""

    def __init__(
        self,
        checks: CallersChecks,
        schemas: Mapping[str, Mapping[str, Any]],
        candidate: Candidate,
        *,
        one_at_a_time: bool,
    ) -> None:
        self._checks = checks
        self._schemas = schemas
        self._calls = candidate.generation.tool_calls
        self._one_at_a_time = one_at_a_time

    def __await__(self) -> Generator[Any, Any, ValidationResult]:
        return self._decide().__await__()

    async def _decide(self) -> ValidationResult:
        if self._one_at_a_time and len(self._calls) > 1:
            what = f"the reply makes {len(self._calls)} calls at a time: make one"
            return ValidationResult(False, what, 0.0)
        for call in self._calls:
            schema, arguments = self._schemas[call.name], call.arguments or "{}"
            answer = await self._checks.ask(schema, arguments, call=True)
            passed, reason, score = answer["verdict"]
            if not passed:
                return ValidationResult(False, f"the call of {call.name}: {reason}", score)
        return ValidationResult(True, "its calls fit", 1.0)
