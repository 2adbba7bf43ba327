"""A call's tools: their definitions, the checks of tool calls, and running them.

In a draw only tools that are ``read_only`` run. The others run only for the winner, when
`SamplingResult.run_tools` is called.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal

from mellea_like.core.argument_checks import is_async, whole_number
from mellea_like.core.conversation import Message
from mellea_like.core.display import bounded, error_text, shown
from mellea_like.core.format import refuse_repeated_keys
from mellea_like.core.generation import CALLS, CALLS_NONE
from mellea_like.core.tools import Tool, as_json
from mellea_like.errors import LimitExceeded, ToolError
from mellea_like.runtime.event_loops import foreign
from mellea_like.runtime.gather import gather
from mellea_like.runtime.logs import warn
from mellea_like.runtime.threads import run_in_thread
from mellea_like.telemetry.names import TOOL_RESULT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mellea_like.core.generation import Generation
    from mellea_like.core.result import SamplingResult
    from mellea_like.core.tools import CallWatch, ToolCall, ToolSource
    from mellea_like.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of one call; see `BaseSamplingStrategy.sample` for the fields."""

    tools: tuple[Tool, ...]
    choice: str | None
    rounds: int
    telemetry: Telemetry

    def described(self) -> dict[str, Any]:
        """Return the tools and their settings as plain data, for comparing batch runs."""
        tools = {t.name: {**t.as_dict()["function"], "read_only": t.read_only} for t in self.tools}
        told = {"tools": tools, "choice": self.choice, "rounds": self.rounds}
        plain: dict[str, Any] = json.loads(json.dumps(told, default=repr))
        return plain

    @property
    def run_in_draws(self) -> bool:
        """Whether any of the tools may run in draws."""
        return self.rounds > 0 and self.choice != "none" and any(t.read_only for t in self.tools)

    @property
    def leaves_texts(self) -> bool:
        """Whether a draw's text is final as soon as it arrives, even if tool calls follow it."""
        return not self.run_in_draws and self.choice in {None, "auto", "none"}

    def runs(self, calls: Sequence[ToolCall]) -> bool:
        """Return whether a draw itself runs these calls: only if all their tools are read-only."""
        return self.run_in_draws and bool(calls) and all(self[c.name].read_only for c in calls)

    def watches(self, *, every: bool) -> dict[str, CallWatch]:
        """Return, by tool name, the checks that run on a call's arguments while they arrive."""
        found = {tool.name: _watch(tool, every=every) for tool in self.tools}
        return {name: watch for name, watch in found.items() if watch is not None}

    def __getitem__(self, name: str) -> Tool:
        return next(tool for tool in self.tools if tool.name == name)

    def checked(self, reply: Generation, rounds: int) -> Generation:
        """Return a reply with its tool calls parsed, or raise ``ValueError`` if one is wrong.

        ``rounds`` is how many times tools have already run in the draw.
        """
        calls = reply.tool_calls
        if self.choice == "none" and calls:
            msg = f"the reply calls {_names(calls)}, and no tool may be called: answer with text"
            raise ValueError(msg)
        if not calls and reply.finish_reason in CALLS:
            raise ValueError(CALLS_NONE)
        if rounds == 0 and self.choice == "required" and not calls:
            msg = f"the reply calls no tool: call one of {_names(self.tools)}"
            raise ValueError(msg)
        if rounds == 0 and self.choice not in {None, "auto", "none", "required"}:
            if self.choice not in {call.name for call in calls}:
                msg = f"the reply does not call {self.choice}: call it"
                raise ValueError(msg)
            if others := [call for call in calls if call.name != self.choice]:
                msg = f"the reply calls {_names(others)}: call {self.choice} and no other tool"
                raise ValueError(msg)
        if not calls:
            return reply
        return replace(reply, tool_calls=tuple(map(self._read, calls)))

    def _read(self, call: ToolCall) -> ToolCall:
        if call.name not in {tool.name for tool in self.tools}:
            msg = f"there is no tool {bounded(call.name, 100)}: the tools are {_names(self.tools)}"
            raise ValueError(msg)
        try:
            value = _reader(self[call.name])(call.arguments)
            refuse_repeated_keys(call.arguments)
        except ValueError as exc:
            msg = f"the call of {call.name} can't be made: {exc}"
            raise ValueError(msg) from exc
        return replace(call, value=value)

    def known_again(self, result: SamplingResult[Any]) -> SamplingResult[Any]:
        """Attach these tools to a result that was read from a record; parse its tool calls."""
        slices = {s.iteration: s for s in result.slices}
        for winner in result.winners:
            reply = winner.generation
            if reply is not None and reply.tool_calls:
                with suppress(ValueError):  # The tool's parameters may have changed since.
                    again = replace(reply, tool_calls=tuple(map(self._read, reply.tool_calls)))
                    slices[winner.iteration] = replace(winner, generation=again)
        return replace(result, slices=tuple(slices.values()), toolbox=self)

    async def answers(self, calls: Sequence[ToolCall]) -> tuple[Message, ...]:
        """Run a draw's calls side by side, and return the messages that answer them.

        If a tool raises a ``ValueError``, the model is told. Any other exception is raised, as the
        cause of a `ToolError`.
        """
        if len(calls) == 1:  # In the draw's own task, so that context variables last.
            return (await self._answer(calls[0]),)
        return tuple(await gather(calls, len(calls), self._answer))

    async def _answer(self, call: ToolCall) -> Message:
        try:
            return _message(call, await self.run(call))
        except ToolError as exc:
            raised = exc.__cause__
            if isinstance(raised, ValueError):
                return _message(call, _error(raised))
            if not isinstance(raised, LimitExceeded):
                raise
        raise raised  # Of a call inside the tool: a budget that may be this call's, too.

    async def run(self, call: ToolCall) -> str:
        """Run one tool call that was checked, and return the text for the model."""
        tool = self[call.name]
        function: Any = tool.function
        # Parsed again, because a tool may change its arguments.
        arguments = _reader(tool)(call.arguments)
        try:
            with (
                self.telemetry.tool(tool.name, call.id, call.arguments) as span,
                foreign("it"),
            ):
                if is_async(function):
                    answer = await function(**arguments)
                else:
                    answer = await run_in_thread(partial(function, **arguments))
                    answer = await answer if isawaitable(answer) else answer
                text = _text(answer)
                if span is not None and self.telemetry.capture_content:
                    span.set({TOOL_RESULT: text})
                return text
        except Exception as raised:
            what = f"{type(raised).__name__}: {bounded(error_text(raised))}"
            msg = f"the tool {tool.name} raised {what}"
            raise ToolError(msg, tool=tool.name) from raised


def toolbox_of(
    tools: Sequence[ToolSource],
    choice: str | None,
    rounds: int,
    telemetry: Telemetry,
) -> Toolbox | None:
    """Check the tools of a call and return them as a toolbox, or None if there are none."""
    whole_number("tool_rounds", rounds, least=0)
    made = checked_tools(tools)
    names = [tool.name for tool in made]
    if choice is not None and choice not in ("auto", "none", "required", *names):
        msg = (
            "tool_choice is 'auto', 'required', 'none' or a tool's name"
            f"{' (' + ', '.join(names) + ')' if names else ''}, not {shown(choice)}"
        )
        raise ValueError(msg)
    if choice == "required" and not made:
        msg = "tool_choice='required', and there are no tools: give tools=[...]"
        raise ValueError(msg)
    return Toolbox(made, choice, rounds, telemetry) if made else None


def checked_tools(tools: Sequence[ToolSource]) -> tuple[Tool, ...]:
    """Make tools from the argument ``tools``, and check their names and schemas."""
    if isinstance(tools, str | Tool) or callable(tools) or hasattr(tools, "keys"):
        msg = f"tools must be a list of functions and tools, not a single one: [{tools!r}]"
        raise TypeError(msg)
    made = tuple(map(Tool.of, tools))
    names = [tool.name for tool in made]
    for tool in made:
        if names.count(tool.name) > 1:
            msg = f"two tools are named {tool.name}: give one another by Tool.of(..., name=...)"
            raise ValueError(msg)
        _reader(tool)
    return made


def check_on_error(on_error: object) -> None:
    """Make sure that ``on_error`` is ``"tell"`` or ``"raise"``."""
    if on_error not in ("tell", "raise"):
        msg = f"on_error is 'tell' or 'raise', not {on_error!r}"
        raise ValueError(msg)


def _reader(tool: Tool) -> Callable[[str], Mapping[str, Any]]:
    own: Callable[[str], Mapping[str, Any]] | None = getattr(tool, "read", None)
    if own is not None:
        return own
    if tool.hinted:
        from mellea_like.core.tool_functions import function_tool  # noqa: PLC0415 (pydantic)

        return function_tool(tool.function).read
    return _of_schema(json.dumps(dict(tool.parameters), sort_keys=True))[0]


def _watch(tool: Tool, *, every: bool) -> CallWatch | None:
    own: CallWatch | None = getattr(tool, "watch", None)
    if own is not None or every or hasattr(tool, "read"):
        return own
    if tool.hinted:
        from mellea_like.core.tool_functions import function_tool  # noqa: PLC0415 (pydantic)

        return function_tool(tool.function).watch
    return _of_schema(json.dumps(dict(tool.parameters), sort_keys=True))[1]


@lru_cache(maxsize=256)
def _of_schema(schema: str) -> tuple[Callable[[str], Mapping[str, Any]], CallWatch]:
    """Return the functions that read a call's arguments, and watch them as they arrive."""
    from mellea_like.requirements.checks_json import reader_of, watch_of  # noqa: PLC0415 (an extra)

    of_object = {"type": "object", **json.loads(schema)}
    return reader_of(of_object), watch_of(of_object)


def _names(named: Sequence[Any]) -> str:
    return ", ".join(dict.fromkeys(each.name for each in named))


def _message(call: ToolCall, text: str) -> Message:
    return Message("tool", text, tool_call_id=call.id)


def _error(exc: BaseException | None) -> str:
    """Return the text that tells a model about a tool's exception."""
    told = "" if exc is None else error_text(exc)
    return f"error: {told or type(exc).__name__}"


def _text(answer: object) -> str:
    if isinstance(answer, str):
        return answer
    try:
        return as_json(answer)
    except Exception as exc:
        msg = (
            f"it returned an object of type {type(answer).__name__}, which can't be written as JSON"
            f" ({bounded(error_text(exc), 200)}): return a text, or what JSON can hold"
        )
        raise TypeError(msg) from exc


async def run_tools(
    result: SamplingResult[Any],
    tools: Sequence[ToolSource] | None,
    on_error: Literal["tell", "raise"],
) -> tuple[Message, ...]:
    """Run the calls of a result's winner; see `SamplingResult.run_tools`."""
    check_on_error(on_error)
    if not result.tool_calls:
        result.unwrap()  # It raises if no draw passed.
        return ()
    calls, box = _known(result, tools)
    answers: list[Message] = []
    for call in calls:
        try:
            answers.append(_message(call, await box.run(call)))
        except ToolError as exc:
            answers.append(_message(call, _error(exc.__cause__)))
            if on_error == "raise":
                exc.answers = tuple(answers)
                raise
            warn("%s; the model is told", exc, sampling_id=result.sampling_id)
    return tuple(answers)


def _known(
    result: SamplingResult[Any], tools: Sequence[ToolSource] | None
) -> tuple[tuple[ToolCall, ...], Toolbox]:
    """Return the winner's tool calls, and their tools; raise ``ValueError`` if a call can't run."""
    known: Toolbox | None = result.toolbox
    if tools is not None:
        from mellea_like.telemetry import Telemetry  # noqa: PLC0415 (beside the call's)

        box = Toolbox(
            checked_tools(tools), None, 0, Telemetry() if known is None else known.telemetry
        )
        won: Any = result.best.generation
        calls = box.checked(won, 0).tool_calls
    elif known is not None:
        box, calls = known, result.tool_calls
    else:
        msg = "this result does not know its tools, for it was read or copied: run_tools([...])"
        raise ValueError(msg)
    for call in calls:
        if box[call.name].function is None:
            msg = (
                f"the tool {call.name} has no function: run it yourself, and answer with"
                f" Message('tool', ..., tool_call_id={call.id!r})"
            )
            raise ValueError(msg)
    return calls, box
