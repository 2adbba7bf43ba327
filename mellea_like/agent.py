"""Agents: sample, run the tools that the winner calls, and sample again until there is an answer.

Any program can do the same with `BaseSamplingStrategy.sample`, `SamplingResult.run_tools` and
`SamplingResult.context`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from mellea_like.core.argument_checks import whole_number
from mellea_like.core.backend import CURRENT
from mellea_like.core.conversation import as_action
from mellea_like.core.display import add_note, bounded, plural
from mellea_like.core.generation import Meter, Usage
from mellea_like.core.tools import TOOL_ROUNDS
from mellea_like.errors import UnansweredToolCalls
from mellea_like.requirements.merging import check_requirements
from mellea_like.sampling.base import BaseSamplingStrategy
from mellea_like.sampling.exclusions import check_together, features_of
from mellea_like.sampling.prepare import backends_of
from mellea_like.sampling.strategies import FollowUp
from mellea_like.sampling.sync import run_once
from mellea_like.sampling.tools import check_on_error, checked_tools

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from typing_extensions import TypeForm

    from mellea_like.core.conversation import Asked, Context, Parsed
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.result import SamplingResult
    from mellea_like.core.tools import ToolSource
    from mellea_like.sampling.arguments import Arguments

    class AgentArguments(Arguments, total=False):
        """The arguments of `run_agent`, including those of ``sample``."""

        max_rounds: int
        on_error: Literal["tell", "raise"]


__all__ = ["AgentResult", "run_agent", "run_agent_sync"]

T = TypeVar("T")
F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class AgentResult(Generic[T]):
    """All rounds of an agent, and its answer; ``bool(result)`` is `success`.

    Args:
        results: the result of each call of ``sample``, in order. The tools that a winner calls
            were run before the next call of ``sample``.
        tools_usage: the cost of the model calls made inside those tools.
    """

    results: tuple[SamplingResult[T], ...]
    tools_usage: Usage = Usage()

    @property
    def final(self) -> SamplingResult[T]:
        """The result of the last round, which has the answer if there is one."""
        return self.results[-1]

    @property
    def success(self) -> bool:
        """Whether there is an answer: the last round's winner calls no tool."""
        return self.final.success and not self.final.tool_calls

    def __bool__(self) -> bool:
        return self.success

    @property
    def value(self) -> T | None:
        """The answer's parsed value, or None if there is no answer. A value can be None, too."""
        return self.final.value

    @property
    def context(self) -> Context:
        """The whole conversation, with all rounds of tools, to continue from.

        See `SamplingResult.context`.

        Raises:
            SamplingFailed: no draw of the last round passed.
        """
        return self.final.context

    @property
    def usage(self) -> Usage:
        """The cost of all requests in all rounds: draws, judges and calls inside tools."""
        return sum((result.usage for result in self.results), self.tools_usage)

    @property
    def errors(self) -> tuple[BaseException, ...]:
        """The errors of all draws of all rounds, in the order they happened."""
        return tuple(error for result in self.results for error in result.errors)

    def unwrap(self) -> T:
        """Return the answer's parsed value.

        Returns:
            The value.

        Raises:
            SamplingFailed: no draw of the last round passed.
        """
        return self.final.unwrap()


@overload
async def run_agent(
    strategy: BaseSamplingStrategy,
    action: Asked[Parsed],
    requirements: Sequence[Requirement | str] = (),
    *,
    format: None = None,
    **arguments: Unpack[AgentArguments],
) -> AgentResult[Parsed]: ...
@overload
async def run_agent(
    strategy: BaseSamplingStrategy,
    action: Asked[Any],
    requirements: Sequence[Requirement | str] = (),
    *,
    format: TypeForm[F],
    **arguments: Unpack[AgentArguments],
) -> AgentResult[F]: ...
async def run_agent(
    strategy: BaseSamplingStrategy,
    action: Asked[Any],
    requirements: Sequence[Requirement | str] = (),
    *,
    tools: Sequence[ToolSource] = (),
    max_rounds: int = TOOL_ROUNDS,
    on_error: Literal["tell", "raise"] = "tell",
    **arguments: Any,
) -> AgentResult[Any]:
    """Sample, run the tools that the winner calls, and repeat until a winner calls none.

    Each round is a call of ``sample`` with the same requirements, format and options. A tool with
    a side effect runs only if a winner calls it, so the reply that calls it has met every
    requirement. The next round continues the winner's conversation (`SamplingResult.context`),
    which contains no repairs. Tools that are ``read_only`` run inside draws, as in ``sample``.

    Requirements also apply to replies that call tools. To check the calls, a requirement reads
    ``candidate.tool_calls``, which is empty for an answer. If a requirement is about the text or
    the value, wrap it in `checks.unless_it_calls`.

    Args:
        strategy: how to sample.
        action: the task; see `BaseSamplingStrategy.sample`.
        requirements: conditions for each draw of each round, in addition to those of the strategy
            and the action.
        tools: the tools that the model may call; each must have a function.
        max_rounds: the maximum number of rounds in which the winner's tools run, at least 1.
        on_error: how an exception in a tool is handled; see `SamplingResult.run_tools`.
        **arguments: see `BaseSamplingStrategy.sample`. A ``budget`` is for all rounds together,
            but the strategy's ``timeout`` is for each round. ``tool_choice`` is for the first
            round only: once tools have run, the model may always answer.

    Returns:
        The results of all rounds. If no draw passes in a round, that round is the last one, and
        ``success`` is False.

    Raises:
        UnansweredToolCalls: tools have run in ``max_rounds`` rounds, and the model calls a tool
            again. The error has the last round's ``result``, and all rounds as ``agent``.
        ToolError: a tool raised, and ``on_error`` is ``"raise"``.
        TypeError: an argument is of the wrong type.
        ValueError: an argument is wrong, a tool has no function, or the strategy's selection is
            `Collect`, which selects several replies.
        Exception: the errors of ``sample``. If tools have run by then, a note names them.
    """
    whole_number("max_rounds", max_rounds)
    _check_strategy(strategy)
    check_on_error(on_error)
    wanted = check_requirements(requirements, "requirements")
    made = checked_tools(tools)
    for tool in made:
        if tool.function is None:
            msg = f"run_agent can't run the tool {tool.name}, which has no function: give it one"
            raise ValueError(msg)
    asked = first = as_action(action)
    spent, (ids, outer) = Meter(), CURRENT.get()
    if outer is not None:
        outer.add(spent)
    results: list[SamplingResult[Any]] = []
    try:
        while True:
            result = await strategy.sample(asked, wanted, tools=made, **arguments)
            results.append(result)
            if not result.tool_calls or len(results) > max_rounds:
                break
            within = CURRENT.set((ids, spent))
            try:
                answers = await result.run_tools(on_error=on_error)
            finally:
                CURRENT.reset(within)
            asked = FollowUp(answers, first)
            arguments["context"] = result.context
            if arguments.get("tool_choice") is not None:
                arguments["tool_choice"] = "auto"  # Otherwise it could never answer.
    except Exception as exc:
        if ran := [bounded(str(c), 100) for result in results for c in result.tool_calls]:
            add_note(exc, f"run_agent: these calls ran before, or began: {', '.join(ran)}")
        raise
    agent = AgentResult(tuple(results), spent.usage)
    if result.tool_calls:
        names = ", ".join(dict.fromkeys(call.name for call in result.tool_calls))
        msg = (
            f"the model calls {names} again after {plural(max_rounds, 'round')} of tools"
            f" (max_rounds={max_rounds}): allow more, or have it answer with what they said"
        )
        raise UnansweredToolCalls(msg, result, agent)
    return agent


@overload
def run_agent_sync(
    strategy: BaseSamplingStrategy,
    action: Asked[Parsed],
    requirements: Sequence[Requirement | str] = (),
    *,
    format: None = None,
    **arguments: Unpack[AgentArguments],
) -> AgentResult[Parsed]: ...
@overload
def run_agent_sync(
    strategy: BaseSamplingStrategy,
    action: Asked[Any],
    requirements: Sequence[Requirement | str] = (),
    *,
    format: TypeForm[F],
    **arguments: Unpack[AgentArguments],
) -> AgentResult[F]: ...
def run_agent_sync(
    strategy: BaseSamplingStrategy,
    action: Asked[Any],
    requirements: Sequence[Requirement | str] = (),
    **arguments: Any,
) -> AgentResult[Any]:
    """Run an agent without ``await``, in scripts and notebooks; see `run_agent`.

    Args:
        strategy: how to sample.
        action: see `run_agent`.
        requirements: see `run_agent`.
        **arguments: see `run_agent`.

    Returns:
        The results of all rounds.

    Raises:
        RuntimeError: a limiter or a budget is in use on another event loop.
        Exception: the errors of `run_agent`.
    """
    _check_strategy(strategy)
    wanted = check_requirements(requirements, "requirements")
    backends = backends_of(strategy.settings, action, wanted, arguments.get("backend"))
    return run_once(lambda: run_agent(strategy, action, wanted, **arguments), backends)


def _check_strategy(strategy: object) -> None:
    if not isinstance(strategy, BaseSamplingStrategy):
        msg = (
            f"run_agent needs a strategy, such as RejectionSamplingStrategy(...), not {strategy!r}"
        )
        raise TypeError(msg)
    check_together(features_of(strategy.settings), {"agent": "run_agent"})
