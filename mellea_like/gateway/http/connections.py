"""The limits on connections that uvicorn lacks, kept by a protocol around uvicorn's own.

uvicorn waits forever for the end of a request's head and for a caller that doesn't read its answer.
If a caller sends the next request before the answer, uvicorn stops reading, and can't notice that
the caller leaves. Here the guard tells the connection how far a request is.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 (uvicorn runs on nothing else)
import socket
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mellea_like.gateway.config.gateway_config import ServerConfig

__all__ = ["CONNECTION", "Connection", "connection_factory"]

STRANGERS = 2
"""At most one connection in so many may be of an unknown owner; then the oldest of those makes room
for a new one. A caller with a key shows it at once."""

STILL_THERE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Clients skip it. If the caller has closed its connection, its system answers with a reset."""

PROBE_SECONDS = 0.02
"""Polling interval for that reset."""

PROBES = 50
"""After so many, the caller is asked again."""

TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n"
    b"retry-after: 1\r\ncontent-length: 0\r\n\r\n"
)


class Connection:
    """The guard's view of a connection. This one is for other servers, and does nothing."""

    closing = False
    last_answer = False
    """Whether the connection must close after this answer."""

    def request_began(self, version: str) -> None:
        """Note that a request's head is complete."""

    def owner_known(self) -> None:
        """Keep the connection, however many others come."""

    def body_read(self) -> None:
        """Note that the request is complete."""

    def answer_began(self) -> None:
        """Note that the answer's head is sent."""

    def answer_ended(self) -> None:
        """Note that the request is over."""


CONNECTION: ContextVar[Connection] = ContextVar("connection", default=Connection())  # noqa: B039 (it has no state)
"""The connection of the request that the running code answers."""


def connection_factory(server: ServerConfig) -> partial[_Limited]:
    """Return a factory, for uvicorn, of connections that keep a configuration's limits."""
    return partial(_Limited, server, {})


class _Limited(asyncio.Protocol, Connection):
    """A connection with limits; uvicorn's protocol inside of it speaks HTTP."""

    def __init__(
        self, limits: ServerConfig, strangers: dict[_Limited, None], **uvicorns: Any
    ) -> None:
        from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415 (see server.py)

        self.inner = H11Protocol(**uvicorns)
        self.inner.access_log = False  # It shows query strings.
        self._limits = limits
        self._strangers = strangers  # The oldest first.
        self._loop = asyncio.get_running_loop()
        self._refused = self._complete = self._answered = False
        self._version = ""
        self._head: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self._probe: asyncio.TimerHandle | None = None

    # --- asyncio's side --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        most = self._limits.max_connections
        full = len(self.inner.connections) >= most
        if full or len(self._strangers) >= max(1, most // STRANGERS):
            oldest = next(iter(self._strangers), self)
            oldest._make_room()
            self._refused = oldest is self
        if not self._refused:
            self._strangers[self] = None
            self.inner.connection_made(transport)
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._refused:
            return
        self.owner_known()
        for timer in (self._head, self._stuck, self._probe):
            if timer is not None:
                timer.cancel()
        self.inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.closing:
            return
        if self._complete:  # Of the next request (pipelining). HTTP lets a server drop it.
            self.last_answer = True
            return
        self._expect_head()
        before = CONNECTION.set(self)  # For the task that uvicorn starts.
        try:
            self.inner.data_received(data)
        except Exception:  # noqa: BLE001 (h11's, of nonsense amid an answer)
            self._transport.abort()
        finally:
            CONNECTION.reset(before)
        self._watch_end()

    def eof_received(self) -> bool | None:
        """Continue if the caller may be waiting: it has sent a request, and no answer has begun."""
        if not self._complete or self._answered or self._version == "1.0":  # 1.0 has no 100.
            return None
        self.last_answer = True
        self._look_for_caller(PROBES)
        return True

    def pause_writing(self) -> None:
        self.inner.pause_writing()
        self._limit_end()

    def resume_writing(self) -> None:
        self.inner.resume_writing()
        if self._stuck is not None and not self.closing:
            self._stuck.cancel()
            self._stuck = None

    # --- the guard's side ------------------------------------------------------------------------

    @property
    def closing(self) -> bool:  # type: ignore[override]
        """Whether nothing can be sent any more."""
        return self._transport.is_closing()

    def request_began(self, version: str) -> None:
        self._version = version
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def owner_known(self) -> None:
        self._strangers.pop(self, None)

    def body_read(self) -> None:
        self._complete = True
        if self.inner.conn.trailing_data[0] and not self.closing:
            # The next request came in one piece with this one, and uvicorn has stopped reading.
            self.last_answer = True
            self._transport.resume_reading()

    def answer_began(self) -> None:
        self._answered = True

    def answer_ended(self) -> None:
        self._complete = self._answered = False
        self._version = ""
        if self.last_answer:
            self._transport.close()
        self._watch_end()

    # --- limits ----------------------------------------------------------------------------------

    def _make_room(self) -> None:
        self.owner_known()
        if not self.closing:
            self._transport.write(TOO_MANY)
            self._transport.close()

    def _expect_head(self) -> None:
        if self._head is None and not self._version:
            self._head = self._loop.call_later(self._limits.header_seconds, self._too_slow)

    def _too_slow(self) -> None:
        if not self.closing:
            self._transport.write(TOO_SLOW)
            self._transport.close()
            self._watch_end()

    def _watch_end(self) -> None:
        if self.closing:  # It waits until all is sent, however long the caller takes to read.
            self._limit_end()

    def _limit_end(self) -> None:
        if self._stuck is None:
            seconds = self._limits.body_seconds
            self._stuck = self._loop.call_later(seconds, self._transport.abort)

    def _look_for_caller(self, looks: int) -> None:
        opened: socket.socket = self._transport.get_extra_info("socket")
        if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()
        elif not self._answered:
            if looks == PROBES:
                self._transport.write(STILL_THERE)
            again = partial(self._look_for_caller, looks - 1 or PROBES)
            self._probe = self._loop.call_later(PROBE_SECONDS, again)
