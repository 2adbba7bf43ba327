"""Have a judge compare passing draws two at a time, for a selection that asks for pairs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.core.backend import CURRENT, RequestMeta
from mellea_like.core.conversation import reply_message
from mellea_like.core.generation import cost_of
from mellea_like.errors import (
    BackendError,
    BackendTimeout,
    HookError,
    InvalidRequest,
    LimitExceeded,
    SamplingTimeout,
)
from mellea_like.requirements.judge import Question, comparison_messages, read_comparison
from mellea_like.runtime.event_loops import first_in, foreign, split_cancellation
from mellea_like.runtime.logs import warn
from mellea_like.runtime.task_scope import run_together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.slice import Slice
    from mellea_like.core.spec import Spec
    from mellea_like.kernel.call import Call
    from mellea_like.selections.base import SelectionState

__all__ = ["Comparisons"]

NOT_FOUND = 404
"""The HTTP status for an unknown model, or for a server without a chat protocol."""


class Comparisons:
    """Has a judge compare the draws of one call, and reports the results to the selection.

    A comparison that failed counts as a tie. No further one starts when the time is up, a budget is
    spent, a plugin has failed, or the judge has a permanent error. The cost of comparisons isn't
    part of any slice.
    """

    def __init__(self, call: Call, selection: SelectionState, inputs: Spec, settings: Any) -> None:
        self._call = call
        self._selection = selection
        self._judge = inputs.judge if selection.judge is None else selection.judge
        self._seed = inputs.options.seed
        self._lanes: int = settings.concurrency_budget
        self._seconds: float | None = settings.iteration_timeout
        self._won: dict[tuple[int, int], float] = {}
        """Maps pairs of draws, in the order shown to the judge, to the points of the first one."""
        self._halted: Exception | None = None

    async def run(self) -> Exception | None:
        """Compare pairs until the selection asks for no more; return the error that stopped it."""
        call, selection = self._call, self._selection
        if call.race.late:
            self._out_of_time()
        elif (stopped := call.race.why) is not None and stopped.error is not None:
            self._halt(stopped.error)
        while self._halted is None and call.fatal is None and (pairs := selection.pairs()):
            await self._compare_all(pairs)
        if errors := selection.errors:
            warn(
                "%d comparisons failed; the first: %s: %s",
                len(errors),
                type(errors[0]).__name__,
                errors[0],
                sampling_id=call.id,
            )
        return self._halted

    async def _compare_all(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Compare pairs in both orders, concurrently, and report the results to the selection."""
        call, won = self._call, self._won
        orders = iter([order for a, b in pairs for order in ((a, b), (b, a))])

        async def lane() -> None:
            while self._halted is None and (order := next(orders, None)) is not None:
                await self._compare(order)

        lanes = [lane] * min(2 * len(pairs), self._lanes)
        deadline = math.inf if call.deadline is None else call.deadline
        with anyio.CancelScope(deadline=deadline) as due:
            await run_together(lanes, call.id, "comparison", call.rules.cancel_grace)
        if due.cancelled_caught:
            self._out_of_time()
        for a, b in pairs:
            if (a, b) in won and (b, a) in won:
                self._selection.compared((a, b), (won[a, b] + 1 - won[b, a]) / 2)

    def _out_of_time(self) -> None:
        late = f"sampling {self._call.id}: time ran out before all comparisons were made"
        self._halt(SamplingTimeout(late))

    def _halt(self, why: Exception) -> None:
        if self._halted is None:
            self._halted = why
            self._selection.errors.append(why)

    async def _compare(self, order: tuple[int, int]) -> None:
        try:
            with foreign("the judge"):
                self._won[order] = await self._points(order)
        except BaseException as exc:
            cancellation, error = split_cancellation(exc)
            if cancellation is not None:
                raise first_in(cancellation) from None
            if not isinstance(error, Exception):
                raise
            if _lasting(error):
                self._halt(error)
            else:
                self._selection.errors.append(error)
            if self._halted is None:
                self._won[order] = 0.5

    async def _points(self, order: tuple[int, int]) -> float:
        """Ask the judge to compare two draws, and return the points of the first one."""
        call, selection = self._call, self._selection
        one, other = (selection.passed[i] for i in order)
        meta = RequestMeta(
            call.id, one.iteration, one.subsample, call_started=call.started, deadline=call.deadline
        )
        messages = comparison_messages(selection.criterion, one.messages, _said(one), _said(other))
        options, purpose = call.rules.judge_options, f"against {other.iteration}"
        question = Question(self._judge, messages, options, self._seed, purpose, meta)
        CURRENT.set((meta, question.meter))
        try:
            with anyio.move_on_after(self._seconds):
                reply = await question.ask(call.judging(self._judge))
                selection.model = reply.model or selection.model
                return read_comparison(reply.text)
        finally:
            selection.usage += cost_of(question.meter, question.reply)
        msg = f"comparing two draws took longer than {self._seconds:g} s"
        raise BackendTimeout(msg)


def _lasting(error: Exception) -> bool:
    """Return whether, after this error, every further comparison would fail, too."""
    if isinstance(error, LimitExceeded):
        return error.result is None  # Otherwise it has ended a call inside the judge.
    if isinstance(error, InvalidRequest):
        return not error.retryable and error.status == NOT_FOUND
    if isinstance(error, BackendError):
        return not error.retryable
    return isinstance(error, HookError)


def _said(slice_: Slice) -> str:
    return "" if slice_.generation is None else reply_message(slice_.generation).text
