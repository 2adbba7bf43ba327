"""A draw whose reply already exists, so that no request for it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.core.backend import BackendWrapper
from mellea_like.kernel.ports import Option

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation
    from mellea_like.kernel.ports import Sent


class Given(Option):
    """Answers a draw's request with a given reply. No other option sees the request."""

    def __init__(self, reply: Generation) -> None:
        self._reply = reply

    def request(self, inner: Backend, sent: Sent) -> Backend:
        """Replace a generating backend by one that returns the given reply; don't wrap a judge."""
        return _Given(inner, self._reply) if sent.purpose == "generate" else inner


class _Given(BackendWrapper):
    def __init__(self, inner: Backend, reply: Generation) -> None:
        super().__init__(inner)
        self._reply = reply

    async def generate(self, request: Request) -> Generation:
        """Return the given reply without sending the request."""
        request.meter.sent_nothing()
        return self._reply
