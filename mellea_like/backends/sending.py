"""Find out which requests have been sent: a request cancelled before it is sent costs nothing."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from mellea_like.core.token_estimate import estimate_input_tokens
from mellea_like.errors import BackendTimeout, MalformedResponse

if TYPE_CHECKING:
    from collections.abc import Generator

    from mellea_like.core.backend import Request
    from mellea_like.core.generation import RequestMeter
    from mellea_like.errors import BackendError

TRACING = "AsyncHTTPTransport"
"""The class name of the transport of httpx and httpx2 that reports a request's progress. Other
transports may not report it."""


class Sending:
    """Records whether one request was sent, and counts its cost from then on."""

    meter: RequestMeter | None = None
    _posting = False

    def __init__(self, request: Request) -> None:
        self.request = request

    def sent(self) -> RequestMeter:
        """Count the request as sent, with estimated input tokens; return its meter."""
        if self.meter is None:
            self.meter = self.request.meter.start()
            self.meter.update(input_tokens=estimate_input_tokens(self.request))
        return self.meter

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        """Count the request as sent at the HTTP library's event that its body has been sent."""
        if event.endswith("send_request_headers.started"):
            # With a proxy, the first request asks for a tunnel.
            self._posting = info["request"].method == b"POST"
        elif self._posting and event.endswith("send_request_body.complete"):
            self.sent()

    @contextmanager
    def noticed(self) -> Generator[None]:
        """Let `notify_when_sent`'s hooks report the requests of this task to this object."""
        token = SENDING.set(self)
        try:
            yield
        finally:
            SENDING.reset(token)

    def failed(self, error: BackendError) -> None:
        """Record that the request failed. A request that the server refused costs no tokens."""
        meter = self.meter
        worked = isinstance(error, BackendTimeout | MalformedResponse)
        if meter is not None and not worked and not meter.output_tokens and not meter.settled:
            meter.update(input_tokens=0)

    def again(self) -> None:
        """Count the refused request without tokens, and prepare to send the request again."""
        if self.meter is not None:
            self.meter.settle(input_tokens=0, output_tokens=0)
        self.meter = None
        self._posting = False

    def ended(self) -> None:
        """Record that the request has ended; if it was never sent, it costs nothing."""
        if self.meter is None:
            self.request.meter.sent_nothing()


SENDING: ContextVar[Sending | None] = ContextVar("mellea_like_sending", default=None)
"""The request that the running task is about to send."""


def reports_progress(http_client: object) -> bool:
    """Return whether a client of httpx or httpx2 reports a request's progress."""
    transport = getattr(http_client, "_transport", None)
    return any(kind.__name__ == TRACING for kind in type(transport).__mro__)


def notify_when_sent(http_client: Any) -> None:
    """Add a hook to a client of httpx or httpx2, to notify the `Sending` in `SENDING`."""
    hook = _trace if reports_progress(http_client) else _begin
    if hook not in http_client.event_hooks["request"]:
        http_client.event_hooks["request"].append(hook)


async def _trace(request: Any) -> None:  # noqa: RUF029 (httpx awaits its hooks)
    if (sending := SENDING.get()) is not None:
        request.extensions["trace"] = sending.trace


async def _begin(_: object) -> None:  # noqa: RUF029
    if (sending := SENDING.get()) is not None:
        sending.sent()
