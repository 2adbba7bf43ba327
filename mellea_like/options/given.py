"""A draw whose reply already exists: no request is sent, and it costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.core.backend import BackendWrapper
from mellea_like.kernel.ports import Option

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation
    from mellea_like.kernel.ports import Sent

__all__ = ["Given"]


class Given(Option):
    """Answers with the action's reply. It is outermost, so no other option sees a request."""

    def request(self, inner: Backend, sent: Sent) -> Backend:
        """Wrap the backend that would generate; judges are asked as usual."""
        if sent.purpose != "generate":
            return inner
        return _Given(inner, sent.spec.action.reply)


class _Given(BackendWrapper):
    def __init__(self, inner: Backend, reply: Generation) -> None:
        super().__init__(inner)
        self._reply = reply

    async def generate(self, request: Request) -> Generation:
        """Return the reply."""
        request.meter.sent_nothing()
        return self._reply
