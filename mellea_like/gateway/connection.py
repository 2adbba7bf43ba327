"""One connection: uvicorn's, with limits on what a caller may do with it before it has a request.

uvicorn waits for ever for the end of a request's head, for a caller that does not read its answer,
and for one that sends the next request while it waits for the answer to the first: it stops reading
then, and can't notice any more that the caller leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

try:
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as exc:  # pragma: no cover
    msg = "the gateway needs starlette, uvicorn and more: pip install 'mellea-like[serve]'"
    raise ImportError(msg) from exc

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport  # noqa: TID251 (uvicorn runs on nothing else)

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

    from mellea_like.gateway.config_server import ServerConfig

__all__ = ["connection_class"]

CLOSE = (b"connection", b"close")

TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n"
    b"retry-after: 1\r\ncontent-length: 0\r\n\r\n"
)


def connection_class(server: ServerConfig) -> type[H11Protocol]:
    """Make the class of connections that keeps a configuration's limits.

    Args:
        server: the configuration.

    Returns:
        The class, for uvicorn.
    """

    class Connection(_Connection):
        limits = server

    return Connection


class _Connection(H11Protocol):
    limits: ServerConfig

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._head: TimerHandle | None = None
        self._stuck: TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.limits.max_connections:
            self._refused = True
            transport.write(TOO_MANY)
            transport.close()
            return
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._refused:
            return
        for timer in (self._head, self._stuck):
            if timer is not None:
                timer.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        if self._answering():
            self._close_after_answer()
            return
        super().data_received(data)
        if self._answering() and self.conn.trailing_data[0]:
            self._close_after_answer()
            self.flow.resume_reading()
        self._watch_head()

    def handle_events(self) -> None:
        try:
            super().handle_events()
        except h11.LocalProtocolError:
            self.transport.abort()  # Nonsense amid an answer: there is no saying so any more.
        self._watch_end()

    def send_400_response(self, msg: str) -> None:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            # Nonsense amid a body: the app may be about to answer, and this answer comes first.
            cycle.disconnected = True
            cycle.message_event.set()
        super().send_400_response(msg)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_end()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(self.limits.body_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None and not self.transport.is_closing():
            self._stuck.cancel()
            self._stuck = None

    def _answering(self) -> bool:
        """Tell whether a request is complete and its answer is not."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return (
            cycle is not None
            and not cycle.response_complete
            and self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        )

    def _close_after_answer(self) -> None:
        # The next request came before the answer (pipelining, which no client of today does). It is
        # dropped: HTTP lets a server close after any answer, and the caller ask again.
        self.cycle.keep_alive = False
        if CLOSE not in self.cycle.scope["headers"]:
            self.cycle.scope["headers"] = [*self.cycle.scope["headers"], CLOSE]

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            if self._head is not None:
                self._head.cancel()
                self._head = None
        elif self._head is None:
            self._head = self.loop.call_later(self.limits.header_seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._head = None
        if not self.transport.is_closing():
            self.transport.write(TOO_SLOW)
            self.transport.close()
            self._watch_end()

    def _watch_end(self) -> None:
        # A transport that closes waits until all is sent, however long the caller takes to read.
        if self.transport.is_closing() and self._stuck is None:
            self._stuck = self.loop.call_later(self.limits.body_seconds, self.transport.abort)
