"""Lets requirements, scorers and comparisons ask judges with the call's retries and budgets."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from mellea_like.core.backend import JUDGING, Judging
from mellea_like.kernel.ports import Option, Sent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from mellea_like.core.backend import Backend, Options
    from mellea_like.core.conversation import Message
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.spec import Spec
    from mellea_like.core.validation import Candidate
    from mellea_like.kernel.draw import Draw
    from mellea_like.kernel.ports import Checked


class Judges(Option):
    """Sets `JUDGING` while a candidate is checked and scored, and while draws are compared."""

    def __init__(self, inputs: Spec, options: Options) -> None:
        self._inputs = inputs
        self._options = options
        self._known: list[tuple[Backend, int | None, Backend]] = []
        """The judges so far, with their stages and with the options' wrappers around them."""

    async def check(
        self,
        draw: Draw,
        candidate: Candidate,
        wanted: tuple[Requirement, ...],
        go: Callable[..., Awaitable[Checked]],
    ) -> Checked:
        """Check a candidate; a judge that it asks belongs to the draw."""
        spec, stage = draw.ask.spec, draw.ask.stage
        # The messages that were sent: an action may render others the next time.
        asked = draw.messages if spec.validation_context is None else ()
        with self._judging(spec, stage, asked):
            return await go(draw, candidate, wanted)

    async def settle(self, go: Callable[[], Awaitable[None]]) -> None:
        """Settle the call; a judge that is asked belongs to the call."""
        with self._judging(self._inputs):
            await go()

    @contextmanager
    def _judging(
        self, spec: Spec, stage: int | None = None, asked: tuple[Message, ...] = ()
    ) -> Generator[None]:
        wrapped, seed = partial(self._wrapped, spec, stage), spec.options.seed
        inside = JUDGING.set(Judging(wrapped, self._options, seed, spec.judge, asked))
        try:
            yield
        finally:
            JUDGING.reset(inside)

    def _wrapped(self, spec: Spec, stage: int | None, judge: Backend) -> Backend:
        """Return a judge with the options' wrappers around it."""
        for known, its, surrounded in self._known:
            if known is judge and its == stage:
                return surrounded
        surrounded = self.call.surrounded(Sent(judge, "judge", spec, stage))
        self._known.append((judge, stage, surrounded))
        return surrounded
