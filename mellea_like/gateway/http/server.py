"""The server: uvicorn on our own socket, with connection limits that uvicorn itself lacks."""

from __future__ import annotations

import asyncio  # noqa: TID251 (uvicorn runs on nothing else)
import contextlib
import ipaddress
import signal
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from mellea_like.gateway.http.guard import CONNECTION, Connection
from mellea_like.gateway.http.hangup import Terminal, signals_to_handle
from mellea_like.gateway.redaction import redacted_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractContextManager

    from starlette.types import ASGIApp as App

    from mellea_like.gateway.config.gateway_config import ServerConfig

__all__ = ["listen", "serve"]

BACKLOG = 512

LOOK_SECONDS = 0.02
"""The polling interval, in seconds, for startup and shutdown."""

CUT_SECONDS = 2.0
"""How long to wait for requests to end after they are cut off, in seconds."""

STRANGERS = 2
"""Callers that have shown no key may hold ``max_connections // STRANGERS`` connections at most."""

TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n"
    b"retry-after: 1\r\ncontent-length: 0\r\n\r\n"
)


def listen(server: ServerConfig, *, has_keys: bool) -> socket.socket:
    """Open the socket to listen on.

    Args:
        server: the configuration.
        has_keys: whether callers need a token. If not, the address must be the loopback.

    Returns:
        The socket, bound and listening.

    Raises:
        ValueError: the host doesn't resolve, or other machines could use it without a token.
        OSError: the address can't be used. Another program may have the port.
    """
    family, address = listening_address(server, has_keys=has_keys)
    opened = socket.create_server(address, family=family, backlog=BACKLOG)
    # Without a named protocol, asyncio would leave Nagle's algorithm on, which costs 40 ms.
    named = socket.socket(fileno=opened.detach())
    named.setblocking(False)
    return named


async def serve(
    app: App,
    server: ServerConfig,
    listening: socket.socket,
    *,
    on_ready: Callable[[], object] | None = None,
    on_stop: Callable[[int], object] | None = None,
    on_hangup: Callable[[], Coroutine[Any, Any, object]] | None = None,
    stop: anyio.Event | None = None,
    cut: anyio.Event | None = None,
    quiet: bool = False,
) -> signal.Signals | None:
    """Answer requests until SIGTERM or SIGINT comes, or ``stop`` is set.

    Running requests then have ``stop_seconds`` to finish; after that, they are cut off. A second
    signal cuts them off immediately. The server runs on asyncio. It handles signals only in the
    main thread.

    Args:
        app: the app, including its guard.
        server: the configuration.
        listening: the socket from `listen`, which is closed at the end.
        on_ready: called when requests are being answered.
        on_stop: called at the first signal with the number of requests under way.
        on_hangup: an async function that runs at each SIGHUP, while requests are answered. Without
            it, SIGHUP isn't handled. If SIGHUP comes because the terminal was closed, it ends the
            server like SIGTERM.
        stop: an event that, when set, ends the server as a signal would.
        cut: an event that cuts off running requests when it is set after ``stop``.
        quiet: whether to keep prompts, replies and keys out of the whole process's logs while the
            server runs, as ``mellea-like serve`` does. If not, no logger is changed.

    Returns:
        The signal that ended the server, or None if ``stop`` ended it.

    Raises:
        RuntimeError: the app's lifespan did not start.
    """
    runner = _Server(_settings(app, server))
    ended_by: list[signal.Signals] = []
    stop, cut = stop or anyio.Event(), cut or anyio.Event()

    async def watch() -> None:
        while not runner.started:  # noqa: ASYNC110 (uvicorn has no event for it)
            await anyio.sleep(LOOK_SECONDS)
        if on_ready is not None:
            on_ready()
        await stop.wait()
        runner.should_exit = True
        await cut.wait()
        runner.force_exit = True
        # Since Python 3.12, uvicorn waits until all connections are closed.
        runner.break_off()

    def end(received: signal.Signals) -> None:
        ended_by.append(received)
        if stop.is_set():
            cut.set()
            return
        stop.set()
        if on_stop is not None:
            on_stop(len(runner.server_state.tasks))

    async with anyio.create_task_group() as group:
        if threading.current_thread() is threading.main_thread():
            hung_up = None if on_hangup is None else partial(group.start_soon, on_hangup)
            group.start_soon(_watch_signals, end, hung_up)
        group.start_soon(watch)
        with redacted_logs() if quiet else contextlib.nullcontext():
            try:
                await runner.serve(sockets=[listening])
            except SystemExit:
                pass  # This is how uvicorn reports that the app did not start.
            finally:
                listening.close()
                with anyio.CancelScope(shield=True):
                    await runner.cut()
                group.cancel_scope.cancel()
    if not runner.started:
        msg = "the gateway's application did not start: see the log of uvicorn.error"
        raise RuntimeError(msg)
    return ended_by[0] if ended_by else None


class _Server(uvicorn.Server):
    """Uvicorn's server without its signal handlers, which would raise signals again at the end."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()

    def break_off(self) -> None:
        """Abort all connections and cancel all requests, without waiting for their end."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in list(self.server_state.tasks):
            task.cancel()

    async def cut(self) -> None:
        """Cut off all requests that are still under way, and wait a short time for their end."""
        self.break_off()
        with anyio.move_on_after(CUT_SECONDS):
            while self.server_state.tasks:  # noqa: ASYNC110 (nor for this)
                await anyio.sleep(LOOK_SECONDS)
        if self.force_exit and self.started:
            # Uvicorn leaves it open, and asyncio would abort it with a traceback.
            with anyio.move_on_after(CUT_SECONDS):
                await self.lifespan.shutdown()


async def _watch_signals(
    end: Callable[[signal.Signals], object], hung_up: Callable[[], object] | None
) -> None:
    watched = [signal.SIGTERM, signal.SIGINT]
    if hung_up is not None:
        watched.append(signal.SIGHUP)
    terminal = Terminal()
    before = {number: signal.getsignal(number) for number in signals_to_handle(watched)}
    try:
        with anyio.open_signal_receiver(*before) as signals:
            async for received in signals:
                if received == signal.SIGHUP and hung_up and not terminal.was_closed():
                    hung_up()
                    continue
                end(received)
    finally:
        for number, handler in before.items():  # The event loop sets Python's own handlers.
            signal.signal(number, handler)


def _settings(app: App, server: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=connection_factory(server),  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        loop="none",
        log_config=None,  # The loggers belong to the process.
        server_header=False,
        proxy_headers=False,  # Nothing here uses the caller's address.
        h11_max_incomplete_event_size=server.max_header_bytes,
        timeout_keep_alive=server.keep_alive_seconds,  # type: ignore[arg-type]
        timeout_graceful_shutdown=server.stop_seconds,  # type: ignore[arg-type]
    )


# --- where to listen -----------------------------------------------------------------------------


def listening_address(server: ServerConfig, *, has_keys: bool) -> tuple[int, Any]:
    """Return the socket family and the address; without keys, it must be the loopback's."""
    # A name is judged by all addresses that it resolves to, not by its spelling.
    host = server.host.removeprefix("[").removesuffix("]")
    try:
        resolved = socket.getaddrinfo(host, server.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        resolved = []
    internet = (socket.AF_INET, socket.AF_INET6)
    found = [(family, address) for family, *_, address in resolved if family in internet]
    if not found:
        msg = f"server.host {server.host!r} isn't an address of this machine: it doesn't resolve"
        raise ValueError(msg)
    open_to_others = [str(address[0]) for _, address in found if not _is_loopback(str(address[0]))]
    if open_to_others and not has_keys:
        msg = (
            f"server.host {server.host!r} ({open_to_others[0]}) can be reached from other machines,"
            " and no keys are configured, so anyone could use the keys of the upstreams: configure"
            " a key under keys, or listen on 127.0.0.1"
        )
        raise ValueError(msg)
    return min(found, key=lambda each: internet.index(each[0]))


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


# --- connections ---------------------------------------------------------------------------------

# uvicorn waits forever for the end of a request's head, and for a caller that doesn't read its
# answer. If a caller sends the next request before the answer, uvicorn stops reading, and can't
# notice that the caller leaves. So a protocol around uvicorn's own enforces the limits, and the
# guard tells it how far a request is.


def connection_factory(server: ServerConfig) -> partial[_Limited]:
    """Return a factory that makes uvicorn's connections, which enforce the limits of ``server``."""
    return partial(_Limited, server, {})


class _Limited(asyncio.Protocol, Connection):
    """Wraps uvicorn's protocol of one connection, and enforces the limits in `ServerConfig`."""

    def __init__(
        self, limits: ServerConfig, strangers: dict[_Limited, None], **uvicorns: Any
    ) -> None:
        self.inner = H11Protocol(**uvicorns)
        self.inner.access_log = False  # The log would show query strings.
        self._limits = limits
        self._strangers = strangers  # The oldest first.
        self._loop = asyncio.get_running_loop()
        self._refused = self._complete = self._began = False
        self._head: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

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
        for timer in (self._head, self._stuck):
            if timer is not None:
                timer.cancel()
        self.inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.closing:
            return
        if self._complete:  # It belongs to the next request (pipelining), which a server may drop.
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
        """Whether the connection is closing, so that answers are dropped."""
        return self._transport.is_closing()

    def request_began(self) -> None:
        self._began = True
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def owner_known(self) -> None:
        self._strangers.pop(self, None)

    def body_read(self) -> None:
        self._complete = True
        if self.inner.conn.trailing_data[0] and not self.closing:
            # The next request arrived together with this one, and uvicorn has stopped reading.
            self.last_answer = True
            self._transport.resume_reading()

    def answer_ended(self) -> None:
        self._complete = self._began = False
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
        if self._head is None and not self._began:
            self._head = self._loop.call_later(self._limits.header_seconds, self._too_slow)

    def _too_slow(self) -> None:
        if not self.closing:
            self._transport.write(TOO_SLOW)
            self._transport.close()
            self._watch_end()

    def _watch_end(self) -> None:
        if self.closing:  # It waits until everything is sent, however slowly the caller reads.
            self._limit_end()

    def _limit_end(self) -> None:
        if self._stuck is None:
            seconds = self._limits.body_seconds
            self._stuck = self._loop.call_later(seconds, self._transport.abort)
