"""Have a judge compare passing draws two at a time, for a selection that asks for pairs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import anyio

from mellea_like.core.backend import CURRENT
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

    from mellea_like.core.backend import Backend, Options, RequestMeta
    from mellea_like.core.slice import Slice
    from mellea_like.selections.base import SelectionState

__all__ = ["Comparisons", "Judging"]

NOT_FOUND = 404
"""The HTTP status for an unknown model, or for a server without a chat protocol."""


class Judging(NamedTuple):
    """The judge that compares a call's draws, and the settings of its requests."""

    judge: Backend
    """The judge as the user gave it."""
    backend: Backend
    """The judge, wrapped in the call's options, such as retries and budgets."""
    options: Options
    seed: int | None
    meta: RequestMeta
    """The call's id, start and deadline, which each request names."""
    lanes: int
    """How many comparisons may run at the same time."""
    seconds: float | None
    """The longest that a comparison may take; None for no limit."""
    grace: float
    """The seconds after which a judge that ignores its cancellation is logged."""


class Comparisons:
    """Has a judge compare the draws of one call, and reports the results to the selection.

    A comparison that failed counts as a tie. No further one starts when the time is up, a budget is
    spent, a plugin has failed, or the judge has a permanent error. The cost of comparisons isn't
    part of any slice.
    """

    def __init__(self, selection: SelectionState, judging: Judging) -> None:
        self._selection = selection
        self._judging = judging
        self._won: dict[tuple[int, int], float] = {}
        """Maps pairs of draws, in the order shown to the judge, to the points of the first one."""
        self.halted: Exception | None = None
        """The error because of which no further comparison starts; None if there is none."""

    async def run(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Compare pairs in both orders, concurrently, and report the results to the selection."""
        judging, won = self._judging, self._won
        orders = iter([order for a, b in pairs for order in ((a, b), (b, a))])

        async def lane() -> None:
            while self.halted is None and (order := next(orders, None)) is not None:
                await self._compare(order)

        lanes = [lane] * min(2 * len(pairs), judging.lanes)
        sampling_id, deadline = judging.meta.sampling_id, judging.meta.deadline
        with anyio.CancelScope(deadline=math.inf if deadline is None else deadline) as due:
            await run_together(lanes, sampling_id, "comparison", judging.grace)
        if due.cancelled_caught:
            self.halt(out_of_time(sampling_id))
        for a, b in pairs:
            if (a, b) in won and (b, a) in won:
                self._selection.compared((a, b), (won[a, b] + 1 - won[b, a]) / 2)

    def halt(self, why: Exception) -> None:
        """Prevent further comparisons, and add the reason to the selection's errors."""
        if self.halted is None:
            self.halted = why
            self._selection.errors.append(why)

    def log_errors(self) -> None:
        """Log how many comparisons failed, and the first error."""
        if errors := self._selection.errors:
            warn(
                "%d comparisons failed; the first: %s: %s",
                len(errors),
                type(errors[0]).__name__,
                errors[0],
                sampling_id=self._judging.meta.sampling_id,
            )

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
                self.halt(error)
            else:
                self._selection.errors.append(error)
            if self.halted is None:
                self._won[order] = 0.5

    async def _points(self, order: tuple[int, int]) -> float:
        """Ask the judge to compare two draws, and return the points of the first one."""
        selection, judging = self._selection, self._judging
        one, other = (selection.passed[i] for i in order)
        meta = replace(judging.meta, iteration=one.iteration, subsample=one.subsample)
        messages = comparison_messages(selection.criterion, one.messages, _said(one), _said(other))
        purpose = f"against {other.iteration}"
        question = Question(judging.judge, messages, judging.options, judging.seed, purpose, meta)
        CURRENT.set((meta, question.meter))
        try:
            with anyio.move_on_after(judging.seconds):
                reply = await question.ask(judging.backend)
                selection.model = reply.model or selection.model
                return read_comparison(reply.text)
        finally:
            selection.usage += cost_of(question.meter, question.reply)
        msg = f"comparing two draws took longer than {judging.seconds:g} s"
        raise BackendTimeout(msg)


def out_of_time(sampling_id: str) -> SamplingTimeout:
    """Return the error for a call whose time is up before all pairs were compared."""
    return SamplingTimeout(f"sampling {sampling_id}: time ran out before all comparisons were made")


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
