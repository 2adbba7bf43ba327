"""Checks of the tools that a draw calls."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Unpack, cast

from mellea_like.core.argument_checks import check_plain
from mellea_like.core.display import bounded, shown
from mellea_like.core.requirement import Requirement, or_else, ready_made
from mellea_like.core.tools import as_json, read_arguments
from mellea_like.core.validation import ValidationResult
from mellea_like.requirements.checks_common import CheckSettings, check, given_texts

if TYPE_CHECKING:
    from mellea_like.core.tools import ToolCall
    from mellea_like.core.validation import Candidate


@ready_made
def calls_tool(tool: str, /, **where: Any) -> Requirement:
    """Require a call of a tool, with certain arguments if any are given.

    Calls in the reply count, and so do calls of ``read_only`` tools during the draw.

    Args:
        tool: the tool's name.
        **where: for each required argument, either its value or a function, as in
            ``calls_tool("book", city="Oslo", nights=lambda n: n < 4)``. A value must equal the
            argument that the tool's function gets, or be the same when both are written as JSON.
            If the library doesn't know the tool, as in ``check``, it is what the JSON says.
            A plain function given here is called inline with the argument, and returns whether
            the argument is right.

    Returns:
        The requirement. Its reason names the tools that are called instead, or the wrong
        arguments.

    Raises:
        TypeError: a function is async or a generator, or the tool's name isn't a text.
    """
    given_texts("calls_tool", (tool,))
    for name, value in where.items():
        if callable(value):
            check_plain(f"calls_tool: {name}", value)
    wanted = ", ".join(
        f"{name}={'...' if callable(value) else shown(value)}" for name, value in where.items()
    )

    def validate(candidate: Candidate) -> ValidationResult:
        earlier = [call for message in candidate.rounds for call in message.tool_calls]
        calls = [*earlier, *candidate.tool_calls]
        named = [call for call in calls if call.name == tool]
        if not named:
            names = ", ".join(dict.fromkeys(call.name for call in calls))
            what = f"it calls {names} only" if names else "it calls no tool"
            return ValidationResult(False, f"{what}; call {tool}", 0.0)
        wrong = [_wrong(call, where) for call in named]
        if not all(wrong):
            return ValidationResult(True, f"it calls {tool}", 1.0)
        fewest = min(wrong, key=len)
        reason = f"it calls {tool}, but {'; '.join(fewest)}"
        return ValidationResult(False, reason, 1 - len(fewest) / (len(where) + 1))

    description = f"calls the tool {tool}" + (f" with {wanted}" if wanted else "")
    return check("calls_tool", description, validate, {})


@ready_made
def no_tool_calls(**settings: Unpack[CheckSettings]) -> Requirement:
    """Require an answer, that is, a reply that calls no tool.

    Calls of ``read_only`` tools during the draw don't count.

    Args:
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement.
    """

    def validate(candidate: Candidate) -> ValidationResult:
        names = ", ".join(dict.fromkeys(call.name for call in candidate.tool_calls))
        if names:
            return ValidationResult(False, f"it calls {names}; answer with text instead", 0.0)
        return ValidationResult(True, "it calls no tool", 1.0)

    return check("no_tool_calls", "answers without calling a tool", validate, settings)


_CALLS = Requirement("calls a tool", lambda candidate: bool(candidate.tool_calls), inline=True)


@ready_made
def unless_it_calls(requirement: Requirement | str, /) -> Requirement:
    """Require something only of answers, and not of replies that call tools.

    Use it for requirements about the text or the value, which a reply that calls a tool doesn't
    have yet.

    Args:
        requirement: the requirement that answers must meet. If it is a text, a judge decides it.

    Returns:
        The requirement.

    Raises:
        TypeError: ``requirement`` is neither a `Requirement` nor a str.
    """
    made = Requirement(requirement) if isinstance(requirement, str) else requirement
    if not isinstance(made, Requirement):
        msg = f"unless_it_calls needs a Requirement or a text, not {made!r}"
        raise TypeError(msg)
    return or_else(_CALLS, made)


def _wrong(call: ToolCall, where: Mapping[str, Any]) -> list[str]:
    """Return one message for each wrong or missing argument of a call."""
    told = read_arguments(call)  # A given reply's calls were not checked against their tools.
    given = cast("Mapping[str, Any]", told if isinstance(told, Mapping) else {})
    wrong: list[str] = []
    for name, wanted in where.items():
        value = given.get(name)
        if name not in given:
            wrong.append(f"without {name}")
        elif callable(wanted):
            if not _is_right(name, wanted(value)):
                wrong.append(f"{name} may not be {bounded(shown(value), 100)}")
        elif value != wanted and as_json(value, sort=True) != as_json(wanted, sort=True):
            wrong.append(f"{name} is {bounded(shown(value), 100)}, not {shown(wanted)}")
    return wrong


def _is_right(name: str, answer: object) -> bool:
    """Return the answer of the function for an argument, which must be a truth value."""
    # A tuple such as (False, "too many nights") and an awaitable would always count as true.
    if isinstance(answer, tuple | Awaitable):
        msg = f"calls_tool: the function for {name} must return True or False, not {answer!r}"
        raise TypeError(msg)
    return bool(answer)
