"""One connection: uvicorn's, with limits on what a caller may do with it before it has a request.

uvicorn waits forever for the end of a request's head, for a caller that doesn't read its answer,
and for one that sends the next request while it waits for the answer to the first: it stops reading
then, and can no longer notice that the caller leaves. And it takes a caller that has sent all it
will send for one that has left. Its options bound only the time between two requests.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

try:
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as exc:  # pragma: no cover
    msg = "the gateway needs starlette, uvicorn and more: pip install 'mellea-like[serve]'"
    raise ImportError(msg) from exc

from mellea_like.gateway.http.admission import IS_KNOWN

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport  # noqa: TID251 (uvicorn runs on nothing else)

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

    from mellea_like.gateway.config.gateway_config import ServerConfig

__all__ = ["connection_class"]

CLOSE = (b"connection", b"close")

STRANGERS = 4
"""Connections whose owner isn't known may be one in so many of all; then the oldest of them makes
room for a new one. A caller with a key shows it at once."""

STILL_THERE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Clients skip it. The system answers it with a reset where a caller has closed its connection."""

LOOK_SECONDS = 0.02
"""How often to look for that reset."""

LOOKS = 50
"""After so many, the caller is asked again."""

TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n"
    b"retry-after: 1\r\ncontent-length: 0\r\n\r\n"
)


def connection_class(server: ServerConfig) -> type[H11Protocol]:
    """Make the class of connections that keeps a configuration's limits, for uvicorn."""

    class Connection(_Connection):
        limits = server
        strangers: ClassVar[dict[_Connection, None]] = {}

    return Connection


class _Connection(H11Protocol):
    limits: ClassVar[ServerConfig]
    strangers: ClassVar[dict[_Connection, None]]
    """Those of which nobody knows whose they are, the oldest first."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.access_log = False  # It shows query strings.
        self._half_closed: TimerHandle | None = None
        self._head: TimerHandle | None = None
        self._stuck: TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        most = self.limits.max_connections
        full = len(self.connections) >= most or len(self.strangers) >= max(1, most // STRANGERS)
        oldest = next(iter(self.strangers), self) if full else None
        if oldest is not None:
            oldest.make_room(transport if oldest is self else oldest.transport)
        if oldest is self:
            self._refused = True
            return
        self.strangers[self] = None
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._refused:
            return
        self.is_known()
        for timer in (self._head, self._stuck, self._half_closed):
            if timer is not None:
                timer.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def make_room(self, transport: Transport) -> None:
        """Close the connection for another one's sake."""
        self.is_known()
        if not transport.is_closing():
            transport.write(TOO_MANY)
            transport.close()

    def is_known(self) -> None:
        """Keep the connection, whatever others come."""
        self.strangers.pop(self, None)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Go on where the caller may be waiting: it has sent a request, and no answer has begun."""
        if not self._answering() or self.cycle.response_started:
            return None
        if self.cycle.scope["http_version"] == "1.0":
            return None  # It can't be asked.
        self._close_after_answer()
        self._look_for_caller(LOOKS)
        return True

    def _look_for_caller(self, looks: int) -> None:
        opened: socket.socket = self.transport.get_extra_info("socket")
        if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        if self.cycle.response_started:
            return
        if looks == LOOKS:
            self.transport.write(STILL_THERE)
        again = partial(self._look_for_caller, looks - 1 or LOOKS)
        self._half_closed = self.loop.call_later(LOOK_SECONDS, again)

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
            self.transport.abort()  # Nonsense amid an answer: there is no way to say so any more.
        scope = cast("dict[str, Any] | None", self.scope)
        if scope is not None:
            scope[IS_KNOWN] = self.is_known
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
