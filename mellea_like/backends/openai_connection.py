"""The SDK's side of `OpenAIBackend`: what has been sent, and bodies that aren't replies."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from mellea_like.backends.openai_incoming import close
from mellea_like.core.backend import estimate_input_tokens
from mellea_like.errors import BackendError, BackendTimeout, MalformedResponse

if TYPE_CHECKING:
    import openai

    from mellea_like.core.backend import Request
    from mellea_like.core.generation import RequestMeter

__all__ = [
    "SENDING",
    "Sending",
    "bound_body",
    "tell_when_sent",
]

# --- what has been sent ---------------------------------------------------------------------------

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


def tell_when_sent(client: openai.AsyncOpenAI) -> None:
    """Have a client tell `SENDING` when it has sent a request."""
    transport: Any = getattr(client._client, "_transport", None)  # pyright: ignore[reportPrivateUsage]
    tells = any(kind.__name__ == TRACING for kind in type(transport).__mro__)
    prepare = client._prepare_request  # pyright: ignore[reportPrivateUsage]

    async def prepared(request: Any) -> None:
        await prepare(request)
        sending = SENDING.get()
        if sending is None:
            return
        if tells:
            request.extensions["trace"] = sending.trace
        else:
            sending.sent()

    # The SDK's own place for what is to be done with each request.
    client._prepare_request = prepared  # type: ignore[method-assign]  # pyright: ignore[reportPrivateUsage]


# --- bodies ---------------------------------------------------------------------------------------

MAX_OTHER_BODY = 2**20
"""Bytes that are read of an answer that isn't a reply: an error, or a list of models."""

OK = 200


async def bound_body(response: Any) -> None:
    """Response hook: read only a bounded part of what isn't a reply; the SDK would read it all."""
    if response.status_code == OK and response.request.method == "POST":
        return
    body = b""
    chunks = response.aiter_bytes()
    try:
        while len(body) < MAX_OTHER_BODY and (chunk := await anext(chunks, None)) is not None:
            body += chunk
    finally:
        await close(response, chunks)
    response._content = body[:MAX_OTHER_BODY]  # What the library takes for the whole body.
