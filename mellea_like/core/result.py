"""What a call comes back with."""

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
    """A draw met every requirement, or as many did as the selection needs."""
    EXHAUSTED = "exhausted"
    """All attempts are spent, and no error ended a lane."""
    TIMEOUT = "timeout"
    """The call's time was up."""
    BUDGET = "budget"
    """A budget of requests, tokens, cost or time is spent."""
    HOPELESS = "hopeless"
    """Further draws would not help: a requirement fails too often (``give_up=``), its validator
    raises the same error with every reply, or no answer can reach a vote's ``at_least`` now."""
    ERROR = "error"
    """An error ended the call, or one of its lanes, or the comparisons of a `Tournament`."""
    HOOK = "hook"
    """A plugin failed, or stopped the call."""
    CANCELLED = "cancelled"
    """The caller left before there was an answer."""


@dataclass(frozen=True, slots=True)
class SamplingResult(Generic[T]):
    """All that happened in one call, and the best of it. Generic in the parsed value.

    It pickles: an action, a requirement or an error that does not is described in the copy, as in
    one that `from_dict` reads. The parsed values have to pickle.

    It is true if it is a `success`.

    Args:
        slices: the record of each draw that started, in the order they ended.
        best_index: where in ``slices`` the winner stands, else the best failure; None where no
            draw was judged, or none had won yet (in the record of a call that raised).
        stop_reason: why the call stopped.
        sampling_id: the call's id, as in logs, spans and hook payloads.
        started: when the call began (UTC).
        elapsed: how long it took, in seconds on the event loop's clock.
        undelivered: how many draws could not be handed to hooks and ``on_slice`` before the time
            for that was up.
        stop_detail: the stop reason in words, where there is more to say: which budget is spent,
            or which requirement is hopeless.
        decision: what the selection decided and on what; None with ``"first"`` and ``"ordered"``.
        toolbox: the call's tools, for `run_tools`; None where it had none, and in copies that were
            pickled or read.
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
        """Whether there is an answer: a draw passed, and a selection's decision is complete.

        Why the call stopped is in ``stop_reason``: a `BestOf` that a budget cut short has an
        answer. In a call with ``tools``, one that calls tools may have passed: then `tool_calls`
        has what it calls, and there is no answer yet.
        """
        passed = self.best_index is not None and self.slices[self.best_index].passed
        return passed and (self.decision is None or self.decision.complete)

    def __bool__(self) -> bool:
        return self.success

    @property
    def best(self) -> Slice:
        """The winner, else the best failure.

        Raises:
            ValueError: no draw was judged. Never so for a result that ``sample`` returned; the
                record that an error carries can lack one.
        """
        if self.best_index is None:
            msg = f"sampling {self.sampling_id}: no draw was judged, so there is no best one"
            raise ValueError(msg)
        return self.slices[self.best_index]

    @property
    def value(self) -> T | None:
        """The winner's parsed value, which may be None.

        None too unless a draw passed, and for a winner that calls tools: it is no answer yet.
        """
        return cast("T", self.best.value) if self.success else None

    @property
    def text(self) -> str | None:
        """The winner's text; None unless a draw passed, as with `value`.

        ``best.text`` is there beside a failure, too: it is the best failure's then.
        """
        return self.best.text if self.success else None

    @property
    def context(self) -> Context:
        """The conversation to continue: ``strategy.sample(..., context=result.context)``.

        It has the first attempt's prompt, the winner's rounds of ``read_only`` tools, and its
        reply. The words of repairs and rejected replies are left out: ``best.context_after`` is the
        conversation as it was drawn, with all of them.

        Raises:
            SamplingFailed: no draw passed.
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
            if before[: len(s.messages)] == s.messages  # The winner continued its conversation.
            for message in s.rounds
        ]
        return Context((*asked, *rounds, *won.rounds, reply_message(won.generation)))

    @property
    def candidates(self) -> tuple[Slice, ...]:
        """The draws that passed, in the order they ended: what the winner was chosen from."""
        return tuple(s for s in self.slices if s.passed)

    @property
    def winners(self) -> tuple[Slice, ...]:
        """The draws that won, the best first: k with ``Collect(k)``, else one.

        Empty where no draw passed; where fewer than k did, those.
        """
        if self.decision is None:
            return (self.best,) if self.success else ()
        chosen = {s.iteration: s for s in self.slices}
        return tuple(chosen[winner] for winner in self.decision.winners)

    @property
    def values(self) -> tuple[T, ...]:
        """The values of all `winners`; None for one that calls tools."""
        return tuple(cast("T", s.value) for s in self.winners)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tools that the winner calls, with their arguments read; empty unless a draw passed.

        None of them has run: `run_tools` runs them.
        """
        return self.best.tool_calls if self.success else ()

    async def run_tools(
        self,
        tools: Sequence[ToolSource] | None = None,
        *,
        on_error: Literal["tell", "raise"] = "tell",
    ) -> tuple[Message, ...]:
        """Run what the winner calls, one after the other, in the model's order.

        The messages go into the next call, which asks for the reply to them::

            answers = await result.run_tools()
            result = await strategy.sample(answers, context=result.context, tools=tools)

        `mellea_like.agent.run_agent` does both until there is an answer.

        A plain function runs in a thread. Where the caller is cancelled, an async one is too, a
        plain one goes on to its end without being waited for, and no further one begins. Each call
        of this method runs them again, with a copy of the arguments: `tool_calls` stays as it is.

        Args:
            tools: what the names stand for; by default the tools of the call.
            on_error: what an exception in a tool means. ``"tell"``: the model is told, by a message
                that begins with ``error:``, it is logged, and the others run. ``"raise"``: a
                `ToolError` is raised, whose ``answers`` are the messages so far, and no further one
                runs.

        Returns:
            A message of the role ``"tool"`` for each call; empty where it calls none. What a tool
            returns is told as it is where it is a ``str``, else as JSON.

        Raises:
            SamplingFailed: no draw passed.
            ToolError: a tool raised, and ``on_error`` is ``"raise"``.
            ValueError: a tool has no function; or this result is a copy that does not know its
                tools, and they aren't given, or not all. Then none has run.
        """
        # As for notebooks below: what runs functions stands above the core.
        running = import_module("mellea_like.sampling.tools")
        answers: tuple[Message, ...] = await running.run_tools(self, tools, on_error)
        return answers

    def unwrap(self) -> T:
        """Return the winner's parsed value.

        Returns:
            The value.

        Raises:
            SamplingFailed: no draw passed; its message says what the best failure lacked and how
                many ended in an error, and its cause is the first error, if there was any.
            UnansweredToolCalls: the winner calls tools, which is no answer yet. It is a
                `SamplingFailed`, too.
        """
        won = self._winner()
        if won.tool_calls and won.value is None:
            names = ", ".join(dict.fromkeys(call.name for call in won.tool_calls))
            msg = (
                f"the winner calls {names}, which is no answer yet. `await result.run_tools()` runs"
                " the calls, and mellea_like.agent.run_agent(...) continues until there is an"
                " answer. A tool that changes nothing can run inside draws:"
                " Tool.of(function, read_only=True)"
            )
            raise UnansweredToolCalls(msg, self)
        return cast("T", won.value)

    @property
    def errors(self) -> tuple[BaseException, ...]:
        """The errors of all draws, in the order they happened; beside a success too.

        An error that a retry mended is none of them: it cost a request, and no attempt.
        """
        return tuple(s.error for s in self.slices if s.error is not None)

    @property
    def usage(self) -> Usage:
        """What all requests of the call cost, judges and losers included."""
        compared = Usage() if self.decision is None else self.decision.usage
        return sum((s.usage for s in self.slices), compared)

    def count(self, outcome: Outcome) -> int:
        """Count the draws with one outcome.

        Args:
            outcome: which.

        Returns:
            How many.
        """
        return sum(s.outcome is outcome for s in self.slices)

    def ledger(self, prices: Mapping[str, Price] | None = None) -> Ledger:
        """Say what each draw cost, what of it was wasted, and what comparisons cost.

        Its total is `usage`.

        Args:
            prices: the price of each model by its name, judges too; None leaves money out. What a
                judge without a price spent is left out of the cost, which then has a ``≥``.

        Returns:
            The ledger: ``print`` shows it as a table.
        """
        from mellea_like.core.ledger import ledger  # noqa: PLC0415 (few programs need it)

        winner = self.best_index if self.success else None
        return ledger(self.slices, winner, prices, self.decision)

    def to_dict(self) -> dict[str, Any]:
        """Write the record as plain data, for a file, a database or a report.

        Returns:
            What `json.dumps` takes; `mellea_like.core.serialization` describes it, and
            ``mellea_like.core.prompts`` how conversations are written.
        """
        from mellea_like.core.serialization import to_dict  # noqa: PLC0415 (few programs need it)

        return to_dict(self)

    @overload
    @staticmethod
    def from_dict(data: Mapping[str, Any], format: type[V]) -> SamplingResult[V]: ...
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
            format: the type of the parsed values; None leaves them as JSON has them.

        Returns:
            The result. What can't be written down is described: its actions are
            `mellea_like.core.serialization.RecordedAction`, its requirements can't be checked
            again, and errors of foreign types are `mellea_like.core.serialization.RecordedError`.

        Raises:
            ValueError: it isn't such a record, or its values aren't of the format.
        """
        from mellea_like.core.serialization import from_dict  # noqa: PLC0415 (few programs need it)

        def made(stop_reason: str, **fields: Any) -> SamplingResult[Any]:
            return SamplingResult(stop_reason=StopReason(stop_reason), **fields)

        return from_dict(data, format, made)

    def __reduce__(self) -> tuple[Any, ...]:
        from mellea_like.core.recorded import picklable  # noqa: PLC0415 (few programs need it)

        left = {"slices", "toolbox"}  # Tools may be functions of a function, which don't pickle.
        given = (getattr(self, f.name) for f in fields(self) if f.name not in left)
        slices, causes = picklable(self.slices)
        return _unpickled, (causes, slices, *given)

    def __copy__(self) -> SamplingResult[T]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SamplingResult[T]:
        for s in self.slices:  # An exception's class need not know how to make a second one.
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
        """Show a notebook the waterfall of the call."""
        # A notebook asks the object itself, and no layer above stands between the two: so this one
        # place looks up by its name what stands above the core.
        return str(import_module("mellea_like.report.notebook").cell(self.to_dict()))

    def __repr__(self) -> str:
        how = "success" if self.success else f"no success ({self.stop_reason})"
        if (decided := self.decision) is not None:
            how += f", {decided.kind} chose {len(decided.winners)} of {len(self.candidates)}"
        drawn = f"{plural(len(self.slices), 'draw')}, {len(self.candidates)} passed"
        return f"<SamplingResult: {how}, {drawn}, {self.usage}>"


def _unpickled(
    causes: Sequence[tuple[BaseException, BaseException]], *given: Any
) -> SamplingResult[Any]:
    """Make a result again whose errors have their causes."""
    for error, cause in causes:
        error.__cause__ = cause
    return SamplingResult(*given)
