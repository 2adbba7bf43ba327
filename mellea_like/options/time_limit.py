"""``iteration_timeout=``: a draw that takes too long counts as errored; its lane continues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from mellea_like.core.slice import Outcome
from mellea_like.errors import BackendTimeout, RequirementError, ToolError
from mellea_like.kernel.ports import Option

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mellea_like.kernel.draw import Draw


class TimeLimit(Option):
    """Limits the seconds that each draw may take."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def draw(self, draw: Draw, go: Callable[[Draw], Awaitable[None]]) -> None:
        """Run a draw, and cancel it when its time is up, so that it counts as errored."""
        scope = anyio.CancelScope(deadline=anyio.current_time() + self._seconds)
        try:
            with scope:
                await go(draw)
        except anyio.get_cancelled_exc_class():
            # A backend may raise a cancellation other than its own, which no scope absorbs. The
            # time was up all the same.
            if self.call.race.asked_to_stop() or not scope.cancel_called:
                raise
        # A sibling's win takes precedence.
        if (
            scope.cancel_called
            and draw.outcome is Outcome.CANCELLED
            and not self.call.race.asked_to_stop()
        ):
            draw.outcome, draw.error = Outcome.ERRORED, self._error(draw)

    def _error(self, draw: Draw) -> Exception:
        what = f"the draw took longer than {self._seconds:g} s"
        if draw.generation is None:
            error = BackendTimeout(f"{what}: no reply by then")
            # The error that the request was being retried for would be lost otherwise.
            error.__cause__ = draw.tried
            return error
        if draw.checking:
            return RequirementError(f"{what}: its validation had not ended by then")
        names = ", ".join(call.name for call in draw.generation.tool_calls)
        why = f"{what}: the tools it called had not answered by then ({names})"
        return ToolError(why, tool=names)
