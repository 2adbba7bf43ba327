"""Which requests have left: those that were cancelled before cost nothing."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from mellea_like.core.token_estimate import estimate_input_tokens
from mellea_like.errors import BackendTimeout, MalformedResponse

if TYPE_CHECKING:
    from mellea_like.core.backend import Request
    from mellea_like.core.generation import RequestMeter
    from mellea_like.errors import BackendError

__all__ = ["SENDING", "Sending", "tells_when_sent"]

TRACING = "AsyncHTTPTransport"
"""The transport of httpx and httpx2 that tells how far a request is; others need not."""


class Sending:
    """The cost of one request, which counts from the moment that it has left."""

    meter: RequestMeter | None = None
    _posting = False

    def __init__(self, request: Request) -> None:
        self._request = request

    def sent(self) -> RequestMeter:
        """Count the request as sent, its prompt as it is estimated; return the count."""
        if self.meter is None:
            self.meter = self._request.meter.start()
            self.meter.update(input_tokens=estimate_input_tokens(self._request))
        return self.meter

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        """Hear from the HTTP library how far it is; see its ``trace`` extension."""
        if event.endswith("send_request_headers.started"):
            # A proxy is asked for a tunnel first.
            self._posting = info["request"].method == b"POST"
        elif self._posting and event.endswith("send_request_body.complete"):
            self.sent()

    def failed(self, error: BackendError) -> None:
        """Hear that there is no reply: what the server refuses to work on costs nothing."""
        meter = self.meter
        worked = isinstance(error, BackendTimeout | MalformedResponse)
        if meter is not None and not worked and not meter.output_tokens and not meter.settled:
            meter.update(input_tokens=0)

    def again(self) -> None:
        """Hear that the request was refused, unread, and that another is sent in its place."""
        if self.meter is not None:
            self.meter.settle(input_tokens=0, output_tokens=0)
        self.meter = None
        self._posting = False

    def ended(self) -> None:
        """Say that nothing was sent, if that is so."""
        if self.meter is None:
            self._request.meter.sent_nothing()


SENDING: ContextVar[Sending | None] = ContextVar("mellea_like_sending", default=None)
"""The request that the running task is about to send."""


def tells_when_sent(transport: object) -> bool:
    """Return whether an HTTP library's transport tells how far a request is."""
    return any(kind.__name__ == TRACING for kind in type(transport).__mro__)
