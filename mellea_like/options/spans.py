"""Telemetry: a span around each draw, check and request, and metrics of draws and requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from mellea_like.core.backend import BackendWrapper, checked_reply
from mellea_like.core.generation import cost_of
from mellea_like.kernel.ports import Option

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.validation import Candidate
    from mellea_like.kernel.draw import Draw
    from mellea_like.kernel.ports import Checked, Sent
    from mellea_like.telemetry.call import CallTelemetry


class DrawSpans(Option):
    """Puts a span around each draw, and counts draws by outcome."""

    def __init__(self, telemetry: CallTelemetry) -> None:
        self._telemetry = telemetry

    async def draw(self, draw: Draw, go: Callable[[Draw], Awaitable[None]]) -> None:
        """Run a draw inside its span."""
        ask = draw.ask
        span = self._telemetry.iteration(ask.iteration, ask.subsample, ask.depth).open()
        try:
            await go(draw)
        finally:
            self._telemetry.ended(span, draw.record(self.call.now))


class CheckSpans(Option):
    """Puts a span around each check."""

    def __init__(self, telemetry: CallTelemetry) -> None:
        self._telemetry = telemetry

    async def check(
        self,
        draw: Draw,
        candidate: Candidate,
        wanted: tuple[Requirement, ...],
        go: Callable[..., Awaitable[Checked]],
    ) -> Checked:
        """Wrap the check of a draw in a span."""
        with self._telemetry.validation():
            return await go(draw, candidate, wanted)


class RequestSpans(Option):
    """Puts a span around each request, and records the request's cost."""

    def __init__(self, telemetry: CallTelemetry) -> None:
        self._telemetry = telemetry

    def request(self, inner: Backend, sent: Sent) -> Backend:
        """Wrap a backend so that each request has a span."""
        del sent
        return _Traced(inner, self._telemetry)


class _Traced(BackendWrapper):
    def __init__(self, inner: Backend, telemetry: CallTelemetry) -> None:
        super().__init__(inner)
        self._telemetry = telemetry

    async def generate(self, request: Request) -> Generation:
        """Answer one request inside a span, and record its cost."""
        telemetry, started = self._telemetry, anyio.current_time()
        error: BaseException | None = None
        generation: Generation | None = None
        with telemetry.chat(self.inner, request) as span:
            try:
                generation = checked_reply(self.inner, await self.inner.generate(request))
                telemetry.answered(span, generation)
                return generation  # noqa: TRY300 (here it is no longer None)
            except BaseException as exc:
                error = exc
                raise
            finally:
                usage = cost_of(request.meter, generation)
                duration = anyio.current_time() - started
                telemetry.requested(span, self.inner, request, usage, duration, error)
                error = None  # Break the cycle between frame and exception.
