"""Have a judge compare passing draws two at a time, for a selection."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING

import anyio

from mellea_like.core.backend import CURRENT, JUDGING, RequestMeta
from mellea_like.core.conversation import reply_message
from mellea_like.errors import (
    BackendError,
    BackendTimeout,
    HookError,
    InvalidRequest,
    LimitExceeded,
    SamplingTimeout,
)
from mellea_like.requirements.judge import ask_judge, comparison_messages, read_comparison
from mellea_like.runtime.event_loops import first_in, foreign, split_cancellation
from mellea_like.runtime.task_scope import run_together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mellea_like.core.backend import Backend, Judging
    from mellea_like.core.slice import Slice

__all__ = ["Comparisons"]

NOT_FOUND = 404
"""The HTTP status for an unknown model, or for a server without a chat protocol."""


@dataclass(eq=False)
class Comparisons:
    """Has a judge compare the passing draws of one call, two at a time.

    A comparison that failed counts as a tie. No further one starts when the time is up, a budget is
    spent, a plugin has failed, or the judge has a permanent error. The cost of comparisons isn't
    part of any slice.

    Args:
        passed: the records of the draws that passed.
        lanes: the most comparisons that run at the same time.
        seconds: the most time for one comparison; None for no limit.
        grace: a judge that ignores its cancellation for this many seconds is logged.
        refused: why no comparison can be made, known from the start; None if they can be made.
        ended: returns whether the call has ended meanwhile, so that no further one may start.

    Attributes:
        errors: the errors of comparisons.
        error: the error that prevents further comparisons; None if there is none.
        model: the model that the judge last named in a reply.
    """

    passed: Sequence[Slice]
    _: KW_ONLY
    lanes: int
    seconds: float | None
    grace: float
    refused: Exception | None
    ended: Callable[[], bool]
    errors: list[Exception] = field(init=False, default_factory=list[Exception])
    error: Exception | None = field(init=False, default=None)
    model: str | None = field(init=False, default=None)

    @property
    def halted(self) -> bool:
        """Whether no further comparison can start."""
        return self.error is not None or self.ended()

    async def compare(
        self, pairs: Sequence[tuple[int, int]], criterion: str, judge: Backend | None = None
    ) -> dict[tuple[int, int], float]:
        """Have a judge compare pairs, each in both orders, as many at a time as there are lanes.

        Args:
            pairs: pairs of indices in `SelectionState.passed`.
            criterion: what makes a reply better, in words.
            judge: the backend to ask; None for the call's judge.

        Returns:
            The points of the first draw of each pair: 1.0, 0.75, 0.5 (no preference), 0.25 or 0.0.
            If comparisons had to stop, some or all pairs are missing.
        """
        if self.refused is not None:
            self._halt(self.refused)
        judging, (meta, _) = JUDGING.get(), CURRENT.get()
        # A selection settles as a part of its call.
        assert judging is not None and meta is not None  # noqa: S101, PT018
        asked = judging.judge if judge is None else judge
        orders = iter([order for a, b in pairs for order in ((a, b), (b, a))])
        won: dict[tuple[int, int], float] = {}

        async def lane() -> None:
            while not self.halted and (order := next(orders, None)) is not None:
                points = await self._compared(order, criterion, asked, judging)
                if points is not None:
                    won[order] = points

        lanes = [lane] * min(2 * len(pairs), self.lanes)
        deadline = math.inf if meta.deadline is None else meta.deadline
        with anyio.CancelScope(deadline=deadline) as due:
            await run_together(lanes, meta.sampling_id, "comparison", self.grace)
        if due.cancelled_caught:
            self._halt(out_of_time(meta.sampling_id))
        return {
            (a, b): (won[a, b] + 1 - won[b, a]) / 2
            for a, b in pairs
            if (a, b) in won and (b, a) in won
        }

    def _halt(self, why: Exception) -> None:
        if self.error is None:
            self.error = why
            self.errors.append(why)

    async def _compared(
        self, order: tuple[int, int], criterion: str, judge: Backend, judging: Judging
    ) -> float | None:
        """Return the points of the first of two draws; None if comparisons have to stop."""
        try:
            with foreign("the judge"):
                return await self._points(order, criterion, judge, judging)
        except BaseException as exc:
            cancellation, error = split_cancellation(exc)
            if cancellation is not None:
                raise first_in(cancellation) from None
            if not isinstance(error, Exception):
                raise
            if _lasting(error):
                self._halt(error)
            else:
                self.errors.append(error)
            return 0.5 if self.error is None else None

    async def _points(
        self, order: tuple[int, int], criterion: str, judge: Backend, judging: Judging
    ) -> float:
        """Ask the judge to compare two draws, and return the points of the first one."""
        one, other = (self.passed[i] for i in order)
        meta, meter = CURRENT.get()
        meta = replace(meta or RequestMeta(), iteration=one.iteration, subsample=one.subsample)
        CURRENT.set((meta, meter))
        messages = comparison_messages(criterion, one.messages, _said(one), _said(other))
        with anyio.move_on_after(self.seconds):
            reply = await ask_judge(judging, judge, messages, f"against {other.iteration}")
            self.model = reply.model or self.model
            return read_comparison(reply.text)
        msg = f"comparing two draws took longer than {self.seconds:g} s"
        raise BackendTimeout(msg)


def out_of_time(sampling_id: str) -> SamplingTimeout:
    """Return the error that halts a call's comparisons at its deadline."""
    late = f"sampling {sampling_id}: time ran out before all comparisons were made"
    return SamplingTimeout(late)


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
