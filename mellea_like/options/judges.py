"""Lets scorers and validators ask judges as the call does: with its retries, hooks and budgets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mellea_like.core.backend import JUDGING, Judging
from mellea_like.kernel.ports import Option

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mellea_like.core.requirement import Requirement
    from mellea_like.core.validation import Candidate
    from mellea_like.kernel.draw import Draw
    from mellea_like.kernel.ports import Checked

__all__ = ["Judges"]


class Judges(Option):
    """Sets `JUDGING` while a candidate is checked and scored."""

    async def check(
        self,
        draw: Draw,
        candidate: Candidate,
        wanted: tuple[Requirement, ...],
        go: Callable[..., Awaitable[Checked]],
    ) -> Checked:
        """Check a candidate; a judge that it asks belongs to the draw."""
        call, ask = self.call, draw.ask
        wrapped = partial(call.judging, ask=ask)
        inside = JUDGING.set(Judging(wrapped, call.rules.judge_options, ask.spec.options.seed))
        try:
            return await go(draw, candidate, wanted)
        finally:
            JUDGING.reset(inside)
