"""Show a draw's text once the draw is certain to pass; from then on, no other draw can win."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

from mellea_like.core.backend import BackendWrapper, CallPiece
from mellea_like.core.slice import Outcome
from mellea_like.errors import BackendError
from mellea_like.kernel.ports import Choice, Option, Ruling
from mellea_like.requirements.early_rejection import EarlyWatch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation
    from mellea_like.core.slice import Slice
    from mellea_like.kernel.draw import Draw
    from mellea_like.kernel.ports import Ask, Facts, Sent


class Shown(Option):
    """Shows the text of the first draw that is certain to pass, and makes that draw win.

    It replaces the option `First`, which would let the first draw to pass win.
    """

    iteration: int | None = None
    """The id of the draw whose text is shown; None before any text is shown."""
    hears = Outcome.PASSED

    def __init__(self, show: Callable[[str], None]) -> None:
        self.show = show

    def begin(self, iteration: int | None) -> bool:
        """Let only one draw win from now on; return False if the call is already decided."""
        race = self.call.race
        if race.stopped or race.fatal is not None:
            return False
        self.iteration = iteration

        def others(ask: Ask) -> bool:
            return ask.iteration != iteration

        self.call.rule(Ruling(stop=True, drop=others))
        return True

    def request(self, inner: Backend, sent: Sent) -> Backend:
        """Wrap a backend that generates and can stream, so that its replies can be shown."""
        if sent.purpose != "generate" or not hasattr(inner, "stream"):
            return inner
        return _ShownReplies(inner, self)

    async def draw(self, draw: Draw, go: Callable[[Draw], Awaitable[None]]) -> None:
        """Run a draw; if it passes while another draw is shown, count it as cancelled."""
        await go(draw)
        if self.iteration not in {None, draw.meta.iteration} and draw.outcome is Outcome.PASSED:
            draw.outcome = Outcome.CANCELLED

    def hear(self, slice_: Slice) -> Ruling | None:
        """This draw has passed: end the call, unless a different draw is shown."""
        return Ruling(over=True) if self.iteration in {None, slice_.iteration} else None

    def choose(self, facts: Facts) -> Choice | None:
        """Choose the draw that is shown, even if other draws have passed."""
        if self.iteration is None:
            return None
        won = (i for i, s in enumerate(facts.slices) if s.passed and s.iteration == self.iteration)
        return Choice(next(won, None), facts.won)


class _ShownReplies(BackendWrapper):
    def __init__(self, inner: Backend, option: Shown) -> None:
        super().__init__(inner)
        self._option = option

    async def generate(self, request: Request) -> Generation:
        """Answer one request through the backend's stream, even if the caller doesn't stream."""
        return await self._whole(request)

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        async with (
            super()._stream(request) as pieces,
            aclosing(self._watched(pieces, request)) as watched,
        ):
            yield watched

    async def _watched(
        self, pieces: AsyncIterator[str | Generation], request: Request
    ) -> AsyncGenerator[str | Generation]:
        option, iteration = self._option, request.meta.iteration
        watch = EarlyWatch(option.call.draw_of(request).ask.spec.requirements)
        text, shown = "", False
        try:
            async for piece in pieces:
                if isinstance(piece, str) and not isinstance(piece, CallPiece):
                    text += piece
                    if shown:
                        option.show(piece)
                    elif _certain(watch, text, piece) and option.begin(iteration):
                        shown = True
                        option.show(text)
                yield piece
        except BackendError as exc:
            if shown:
                exc.retryable = False  # Another reply can't continue the text of this one.
            raise


def _certain(watch: EarlyWatch, text: str, piece: str) -> bool:
    """Return whether a reply that begins with ``text`` will pass, however it continues."""
    try:
        watch.feed(text, piece)
    except Exception:  # noqa: BLE001 (the check of the whole reply asks once more, and raises it)
        return False
    return watch.certain and not (not text or text.isspace())  # The reply may still end empty.
