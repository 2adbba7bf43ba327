"""A selection object: several draws are to pass, and one of them wins, or some."""

from __future__ import annotations

from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from mellea_like.core.backend import BUDGETS, JUDGE_OPTIONS
from mellea_like.kernel.ports import Ask, Option, Ruling
from mellea_like.requirements.staged_validation import errored
from mellea_like.selections.base import unjudged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mellea_like.core.requirement import Requirement
    from mellea_like.core.slice import Slice
    from mellea_like.core.validation import Candidate
    from mellea_like.kernel.draw import Draw
    from mellea_like.kernel.ports import Checked, Next
    from mellea_like.limits.budget import Budget
    from mellea_like.selections.base import BaseSelection, SelectionState

__all__ = ["Selected"]


class Selected(Option):
    """The state of a selection hears each draw; its score or key of a candidate is a check.

    Args:
        selection: the configuration.
        state: its state in this call.
        budgets: those of the call, in which a scorer's requests have to fit, too.
    """

    def __init__(
        self, selection: BaseSelection, state: SelectionState, budgets: Sequence[Budget]
    ) -> None:
        self.state = state
        self._name = type(selection).__name__
        self._mark = selection.mark
        self._marks: dict[int, Any] = {}
        self._budgets = tuple(budgets)

    def next(self, lane: int, now: float, go: Callable[[int, float], Next]) -> Next:
        """Tell the selection of each draw that starts."""
        ask = go(lane, now)
        if isinstance(ask, Ask):
            self.state.start(ask.turn.iteration)
        return ask

    async def check(
        self,
        draw: Draw,
        candidate: Candidate,
        wanted: tuple[Requirement, ...],
        go: Callable[..., Any],
    ) -> Checked:
        """Mark a candidate that passes with its score or key."""
        requirements, verdicts = await go(draw, candidate, wanted)
        if self._mark is None or not all(verdicts):
            return requirements, verdicts
        try:
            self._marks[draw.ask.turn.iteration] = await self._marked(candidate)
        except Exception as exc:  # noqa: BLE001 (a scorer's)
            own = unjudged(self._name)
            return (*requirements, own), (*verdicts, errored(own, exc))
        return requirements, verdicts

    async def _marked(self, candidate: Candidate) -> Any:
        assert self._mark is not None  # noqa: S101 (asked before)
        answer: Any = self._mark(candidate)
        # Most are pairs, and asking whether they can be awaited costs a microsecond.
        if isinstance(answer, tuple) or not isawaitable(answer):
            return answer
        within = BUDGETS.set(self._budgets)
        asked = JUDGE_OPTIONS.set(self.call.rules.judge_options)
        try:
            return await answer
        finally:
            JUDGE_OPTIONS.reset(asked)
            BUDGETS.reset(within)

    def hear(self, slice_: Slice) -> Ruling | None:
        """Let the selection hear a draw; it may decide the call."""
        mark = self._marks.pop(slice_.iteration, None)
        return Ruling(over=True) if self.state.hear(slice_, mark) else None
