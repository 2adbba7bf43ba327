"""The result of a call."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, fields
from enum import StrEnum
from importlib import import_module
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

from mellea_like.core.conversation import Context, reply_message
from mellea_like.core.display import attempt_names, bounded, plural
from mellea_like.core.generation import Usage
from mellea_like.errors import SamplingFailed, UnansweredToolCalls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from typing_extensions import TypeForm

    from mellea_like.core.conversation import Message
    from mellea_like.core.decision import Decision
    from mellea_like.core.ledger import Ledger
    from mellea_like.core.prices import Price
    from mellea_like.core.slice import Outcome, Slice
    from mellea_like.core.tools import ToolCall, ToolSource

__all__ = ["SamplingResult", "StopReason"]

T = TypeVar("T")
V = TypeVar("V")


class StopReason(StrEnum):
    """Why a call stopped. Compares equal to its text: ``result.stop_reason == "timeout"``.

    Whether there is an answer is another question: see `SamplingResult.success`.
    """

    PASSED = "passed"
    """Enough draws met every requirement: one, or as many as the selection needs."""
    EXHAUSTED = "exhausted"
    """All attempts are spent, and no error ended a lane."""
    TIMEOUT = "timeout"
    """The call's time was up."""
    BUDGET = "budget"
    """A budget of requests, tokens, cost or time is spent."""
    HOPELESS = "hopeless"
    """Further draws would not help.

    A requirement fails too often (``give_up=``), its validator raises the same error for every
    reply, or no answer can reach a vote's ``at_least`` any more.
    """
    ERROR = "error"
    """An error ended the call, or one of its lanes, or the comparisons of a `Tournament`."""
    HOOK = "hook"
    """A plugin failed, or stopped the call."""
    CANCELLED = "cancelled"
    """The caller was cancelled before there was an answer."""


@dataclass(frozen=True, slots=True)
class SamplingResult(Generic[T]):
    """The record of one call with its best draw. Generic in the type of the parsed value.

    ``bool(result)`` is `success`. A result can be pickled if its parsed values can. Actions,
    requirements and errors that can't be pickled are only described in the copy, as after
    `from_dict`.

    Args:
        slices: the record of each draw that started, in the order they ended.
        best_index: the index of the winner in ``slices``, or else of the best failure. None if no
            draw was judged, or if none had won yet when the call raised.
        stop_reason: why the call stopped.
        sampling_id: the call's id in logs, spans and hook payloads.
        started: when the call began (UTC).
        elapsed: how long it took, in seconds on the event loop's clock.
        undelivered: the number of draws whose records did not reach hooks and ``on_slice`` in
            time.
        stop_detail: details of the stop reason, such as the budget that is spent or the
            requirement that is hopeless.
        decision: the decision of the selection; None with ``"first"`` and ``"ordered"``.
        toolbox: the call's tools, for `run_tools`. None if the call had no tools, or if the result
            was unpickled or read from a record.
    """

    slices: tuple[Slice, ...]
    best_index: int | None
    stop_reason: StopReason
    sampling_id: str
    started: datetime
    elapsed: float
    undelivered: int = 0
    stop_detail: str = ""
    decision: Decision | None = None
    toolbox: Any = field(default=None, repr=False, compare=False)

    @property
    def success(self) -> bool:
        """Whether there is a winner. With a selection, its decision must also be complete.

        A call may be stopped and still be a success: a `BestOf` that a budget cut short has chosen
        the best of the draws that passed. In a call with ``tools``, the winner may call tools
        instead of answering; see `tool_calls`.
        """
        passed = self.best_index is not None and self.slices[self.best_index].passed
        return passed and (self.decision is None or self.decision.complete)

    def __bool__(self) -> bool:
        return self.success

    @property
    def best(self) -> Slice:
        """The winner, else the best failure.

        Raises:
            ValueError: no draw was judged. This happens only in records that errors carry, never in
                results that ``sample`` returned.
        """
        if self.best_index is None:
            msg = f"sampling {self.sampling_id}: no draw was judged, so there is no best draw"
            raise ValueError(msg)
        return self.slices[self.best_index]

    @property
    def value(self) -> T | None:
        """The winner's parsed value, which may be None.

        It is also None if `success` is False, or if the winner calls tools instead of answering.
        """
        return cast("T", self.best.value) if self.success else None

    @property
    def text(self) -> str | None:
        """The winner's text, or None if `success` is False.

        After a failure, ``best.text`` has the text of the best failed draw.
        """
        return self.best.text if self.success else None

    @property
    def context(self) -> Context:
        """The conversation for the next call.

        Use it as ``strategy.sample(..., context=result.context)``. It has the first attempt's
        prompt, the winner's calls of ``read_only`` tools with their answers, and the winner's
        reply. It leaves out repairs and rejected replies; ``best.context_after`` has them all.

        Raises:
            SamplingFailed: `success` is False.
        """
        won = self._winner()
        lane = [s for s in self.slices if s.chain == won.chain and s.messages]
        if won.generation is None or not lane or lane[0] is won:
            return won.context_after
        first, before = lane[0].messages, won.context.messages
        asked = first[: len(first) - len(lane[0].rounds)]
        rounds = [
            message
            for s in takewhile(lambda s: s is not won, lane)
            if before[: len(s.messages)] == s.messages  # The winner continued this conversation.
            for message in s.rounds
        ]
        return Context((*asked, *rounds, *won.rounds, reply_message(won.generation)))

    @property
    def candidates(self) -> tuple[Slice, ...]:
        """The draws that passed, in the order they ended. The winner is one of them."""
        return tuple(s for s in self.slices if s.passed)

    @property
    def winners(self) -> tuple[Slice, ...]:
        """The draws that won, best first.

        With ``Collect(k)``, there are at most k; with other selections, at most one.
        """
        if self.decision is None:
            return (self.best,) if self.success else ()
        chosen = {s.iteration: s for s in self.slices}
        return tuple(chosen[winner] for winner in self.decision.winners)

    @property
    def values(self) -> tuple[T, ...]:
        """The values of all `winners`; a winner that calls tools has None."""
        return tuple(cast("T", s.value) for s in self.winners)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tools that the winner calls, with parsed arguments; empty if `success` is False.

        None of them has run; `run_tools` runs them.
        """
        return self.best.tool_calls if self.success else ()

    async def run_tools(
        self,
        tools: Sequence[ToolSource] | None = None,
        *,
        on_error: Literal["tell", "raise"] = "tell",
    ) -> tuple[Message, ...]:
        """Run the tools that the winner calls, one after the other, in the model's order.

        Pass the messages to the next call, which asks for the reply to them::

            answers = await result.run_tools()
            result = await strategy.sample(answers, context=result.context, tools=tools)

        `mellea_like.agent.run_agent` does both until there is an answer.

        Plain functions run in a thread. If the caller is cancelled, no more tools start; an async
        function is cancelled, and a plain one may finish in its thread. Each call of this method
        runs the tools again, with copies of the arguments.

        Args:
            tools: the tools in which to look up the called names; by default those of the call.
            on_error: the effect of an exception in a tool. With ``"tell"``, it is logged, the
                model gets a message that begins with ``error:``, and the other tools run. With
                ``"raise"``, no more tools run, and a `ToolError` is raised whose ``answers`` are
                the messages so far.

        Returns:
            A message with the role ``"tool"`` for each call. Its content is the tool's return
            value, as JSON unless it is a ``str``.

        Raises:
            SamplingFailed: `success` is False.
            ToolError: a tool raised, and ``on_error`` is ``"raise"``.
            ValueError: a tool has no function, or is in neither this result nor ``tools``. In that
                case, no tool has run.
        """
        # The module that runs functions is above the core, so it is looked up by its name.
        running = import_module("mellea_like.sampling.tools")
        answers: tuple[Message, ...] = await running.run_tools(self, tools, on_error)
        return answers

    def unwrap(self) -> T:
        """Return the winner's parsed value.

        Returns:
            The value.

        Raises:
            SamplingFailed: `success` is False. The message has the problems of the best failure and
                the number of errors; the cause is the first error, if there was any.
            UnansweredToolCalls: the winner calls tools instead of answering. This is also a
                `SamplingFailed`.
        """
        won = self._winner()
        if won.tool_calls and won.value is None:
            names = ", ".join(dict.fromkeys(call.name for call in won.tool_calls))
            msg = (
                f"the winner calls {names} and has no answer yet. `await result.run_tools()` runs"
                " the calls, and mellea_like.agent.run_agent(...) continues until there is an"
                " answer. A tool that changes nothing can run inside draws: pass"
                " Tool.of(function, read_only=True)"
            )
            raise UnansweredToolCalls(msg, self)
        return cast("T", won.value)

    @property
    def errors(self) -> tuple[BaseException, ...]:
        """The errors of all draws, in the order they happened, even after a success.

        Errors of requests that were retried successfully aren't included.
        """
        return tuple(s.error for s in self.slices if s.error is not None)

    @property
    def usage(self) -> Usage:
        """The cost of all requests of the call, including judges and losers."""
        compared = Usage() if self.decision is None else self.decision.usage
        return sum((s.usage for s in self.slices), compared)

    def count(self, outcome: Outcome) -> int:
        """Count the draws with one outcome.

        Args:
            outcome: the outcome, or its text, such as ``"passed"``.

        Returns:
            The number of draws.
        """
        return sum(s.outcome == outcome for s in self.slices)

    def ledger(self, prices: Mapping[str, Price] | None = None) -> Ledger:
        """Return the cost of each draw and of comparisons, and how much of it was wasted.

        The total is `usage`.

        Args:
            prices: the price of each model, including judges, by its name, or None to leave money
                out. If the model that a reply names has no price, the reply costs that of the model
                that was asked, as with the name of a deployment on Azure. If a judge has no price,
                the cost is only a lower bound, shown with a ``≥``.

        Returns:
            The ledger: ``print`` shows it as a table.

        Raises:
            TypeError: ``prices`` isn't a mapping of model names to `Price`.
            ValueError: the prices are in different currencies.
        """
        from mellea_like.core.ledger import ledger  # noqa: PLC0415 (few programs need it)

        winner = self.best_index if self.success else None
        return ledger(self.slices, winner, prices, self.decision)

    def to_dict(self) -> dict[str, Any]:
        """Write the record as plain data, for a file, a database or a report.

        Returns:
            Data for `json.dumps`. `mellea_like.core.serialization` describes it, and
            ``mellea_like.core.prompts`` describes how conversations are written.
        """
        from mellea_like.core.serialization import to_dict  # noqa: PLC0415 (few programs need it)

        return to_dict(self)

    @overload
    @staticmethod
    def from_dict(data: Mapping[str, Any], format: TypeForm[V]) -> SamplingResult[V]: ...
    @overload
    @staticmethod
    def from_dict(data: Mapping[str, Any], format: Any = None) -> SamplingResult[Any]: ...
    @staticmethod
    def from_dict(data: Mapping[str, Any], format: Any = None) -> SamplingResult[Any]:
        """Read a record that `to_dict` wrote.

        Args:
            data: the record as plain data.
            format: the type of the parsed values, or None to leave them as JSON has them.

        Returns:
            The result. Its actions are `mellea_like.core.serialization.RecordedAction`, its
            requirements can't be checked again, and errors of other libraries' types are
            `mellea_like.core.serialization.RecordedError`.

        Raises:
            ValueError: ``data`` isn't such a record, or its values don't match the format.
        """
        from mellea_like.core.serialization import from_dict  # noqa: PLC0415 (few programs need it)

        def made(stop_reason: str, **fields: Any) -> SamplingResult[Any]:
            return SamplingResult(stop_reason=StopReason(stop_reason), **fields)

        return from_dict(data, format, made)

    def __reduce__(self) -> tuple[Any, ...]:
        from mellea_like.core.recorded import picklable  # noqa: PLC0415 (few programs need it)

        left = {"slices", "toolbox"}  # Tools may be nested functions, which can't be pickled.
        given = (getattr(self, f.name) for f in fields(self) if f.name not in left)
        slices, causes = picklable(self.slices)
        return _unpickled, (causes, slices, *given)

    def __copy__(self) -> SamplingResult[T]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SamplingResult[T]:
        for s in self.slices:  # Not every exception can be pickled and made again.
            memo.update((id(e), e) for e in (s.error, *(v.error for v in s.verdicts)))
        memo[id(self.toolbox)] = self.toolbox
        return SamplingResult(*(deepcopy(getattr(self, f.name), memo) for f in fields(self)))

    def _winner(self) -> Slice:
        if self.success:
            return self.best
        raise SamplingFailed(self._why(), self) from next(iter(self.errors), None)

    def _why(self) -> str:
        tried = f"none of {plural(len(self.slices), 'draw')} passed (stopped: {self.stop_reason})"
        if self.best_index is not None and not self.best.passed:
            lacks = bounded("; ".join(self.best.problems))
            names = attempt_names((s.iteration, s.subsample, s.depth) for s in self.slices)
            tried += f"; the best, {names[self.best.iteration]}: {lacks}"
        elif self.best_index is not None and self.decision is not None:
            few = f"too few of {plural(len(self.slices), 'draw')} count"
            short = few if self.decision.winners else "no answer won"
            tried = f"{short}, {self.decision.reason} (stopped: {self.stop_reason})"
        if not (errors := self.errors):
            return tried
        first = bounded(str(errors[0]) or type(errors[0]).__name__)
        return f"{tried}; {len(errors)} ended in an error, the first: {first}"

    def _repr_html_(self) -> str:
        """Return HTML with a chart of the call's draws over time, for notebooks."""
        # Notebooks call this method. The module is above the core, so it is looked up by name.
        return str(import_module("mellea_like.report.call").cell(self.to_dict()))

    def __repr__(self) -> str:
        how = "success" if self.success else f"no success ({self.stop_reason})"
        if (decided := self.decision) is not None:
            how += f", {decided.kind} chose {len(decided.winners)} of {len(self.candidates)}"
        drawn = f"{plural(len(self.slices), 'draw')}, {len(self.candidates)} passed"
        return f"<SamplingResult: {how}, {drawn}, {self.usage}>"


def _unpickled(
    causes: Sequence[tuple[BaseException, BaseException]], *given: Any
) -> SamplingResult[Any]:
    """Make a result from its pickled fields, and restore the causes of its errors."""
    for error, cause in causes:
        error.__cause__ = cause
    return SamplingResult(*given)
