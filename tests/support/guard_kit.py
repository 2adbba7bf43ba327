"""A guard around a tiny app on a real socket, and callers that can send any bytes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import anyio
import anyio.lowlevel

from mellea_like.gateway.config.gateway_config import KeyConfig, ServerConfig
from mellea_like.gateway.current_request import CURRENT
from mellea_like.gateway.http.guard import Guard
from mellea_like.gateway.http.key_state import KeyState
from mellea_like.gateway.http.server import listen, serve
from mellea_like.gateway.metrics import Metrics

TOKEN = "test-token-0123456789"
OTHER_TOKEN = "other-token-0123456789"


def key(token: str = TOKEN, **limits: Any) -> KeyConfig:
    """Make a key from a token's digest."""
    return KeyConfig(sha256=hashlib.sha256(token.encode()).hexdigest(), **limits)


@dataclass
class TinyApp:
    """An app behind a guard, which answers with the name of the request's key."""

    calls: list[Mapping[str, Any]] = field(default_factory=list)
    left: int = 0  # How many callers left before the end of their answer.
    inside: int = 0
    release: threading.Event = field(default_factory=threading.Event)  # Paths with /wait wait.
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        known = CURRENT.get() if scope["path"] != "/healthz" else None
        self.calls.append(known.body if known is not None else {})
        self.inside += 1
        try:
            if scope["path"].startswith("/wait") and not await self._wait(receive):
                return
            if scope["path"] == "/fail":
                raise KeyError("a canary in an error")
            if scope["path"] == "/big":
                await self._send_for_ever(receive, send)
                return
            answer = json.dumps({"key": known and known.key}).encode()
            headers = [(b"content-length", str(len(answer)).encode()), *self.headers]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": answer})
        finally:
            self.inside -= 1

    async def _wait(self, receive: Any) -> bool:
        gone = anyio.Event()

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            gone.set()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            while not (self.release.is_set() or gone.is_set()):  # noqa: ASYNC110 (a thread sets it)
                await anyio.sleep(0.005)
            group.cancel_scope.cancel()
        self.left += gone.is_set()
        return not gone.is_set()

    async def _send_for_ever(self, receive: Any, send: Any) -> None:
        async def flood() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                # The server accepts any amount for a caller that has left.
                await anyio.lowlevel.checkpoint()
                await send({"type": "http.response.body", "body": b"x" * 2**16, "more_body": True})

        async with anyio.create_task_group() as group:
            group.start_soon(flood)
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()
            self.left += 1


@dataclass
class Running:
    """A server in a thread."""

    port: int
    app: Any
    guard: Guard
    metrics: Metrics

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> Caller:
        return Caller(self.port)

    def ask(self, data: bytes, seconds: float = 5.0) -> Answer:
        """Send bytes on a new connection, and return the first answer."""
        with self.connect() as caller:
            caller.send(data)
            return caller.answer(seconds)


@contextmanager
def running(
    app: Any = None, *, keys: Mapping[str, KeyConfig] | None = None, **server: Any
) -> Iterator[Running]:
    """Serve an app behind a guard on a free port of the loopback."""
    config = ServerConfig(**{"port": 0, "stop_seconds": 0.2, **server})
    inside = TinyApp() if app is None else app
    guard = guarded(inside, config, keys or {})

    async def server_app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await guard(scope, receive, send)
            return
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})

    with in_thread(server_app, config, has_keys=bool(keys)) as port:
        yield Running(port, inside, guard, guard.metrics)


def guarded(app: Any, server: ServerConfig, keys: Mapping[str, KeyConfig]) -> Guard:
    """Make a guard around an app, which counts one model, ``m``."""
    metrics = Metrics(["m"])
    make_key = partial(KeyState, changed=metrics.show)
    return Guard(app, server, keys, metrics=metrics, make_key=make_key)


@contextmanager
def in_thread(
    app: Any, config: ServerConfig, *, has_keys: bool, quiet: bool = True
) -> Iterator[int]:
    """Run the gateway's server in a thread with its own event loop, and yield its port."""
    listening = listen(config, has_keys=has_keys)
    port = listening.getsockname()[1]
    ready = threading.Event()
    stops: list[Callable[[], object]] = []
    failed: list[BaseException] = []

    async def main() -> None:
        stop = anyio.Event()
        loop = asyncio.get_running_loop()
        stops.append(lambda: loop.call_soon_threadsafe(stop.set))
        await serve(app, config, listening, on_ready=ready.set, stop=stop, quiet=quiet)

    def run() -> None:
        try:
            anyio.run(main)
        except BaseException as exc:  # noqa: BLE001 (raised again in the test's thread)
            failed.append(exc)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="gateway under test", daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        if not failed:
            yield port
    finally:
        if not failed:
            stops[0]()
        thread.join(10)
        assert not thread.is_alive(), "the server did not stop"
        if failed:
            raise failed[0]


@dataclass(frozen=True)
class Answer:
    """A raw answer; its ``status`` is 0 if the connection closed without an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    raw: bytes

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]


class Caller:
    """A raw connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        with suppress(OSError):  # The server may have answered and closed it already.
            self.socket.sendall(data)

    def answer(self, seconds: float = 5.0) -> Answer:
        """Read one answer with its body."""
        self._until(lambda: b"\r\n\r\n" in self._buffer, seconds)
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return Answer(0, {}, b"", self._buffer)
        first, *lines = head.decode("latin-1").split("\r\n")
        fields = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
        length = int(fields.get("content-length", "0"))
        start = len(self._buffer) - len(rest)
        self._until(lambda: len(self._buffer) >= start + length, seconds)
        body = self._buffer[start : start + length]
        self._buffer = self._buffer[start + length :]
        return Answer(int(first.split()[1]), fields, body, head + b"\r\n\r\n" + body)

    def closed_after(self, seconds: float = 5.0) -> float:
        """Wait until the server closes the connection, and return the seconds that this took."""
        begun = time.monotonic()
        self._until(lambda: False, seconds)
        taken = time.monotonic() - begun
        assert taken < seconds, "the server did not close the connection"
        return taken

    @property
    def received(self) -> bytes:
        """The received bytes that weren't read as an answer."""
        return self._buffer

    def _until(self, enough: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not enough():
            left = end - time.monotonic()
            if left <= 0:
                return
            self.socket.settimeout(left)
            try:
                more = self.socket.recv(2**16)
            except OSError:
                return
            if not more:
                return
            self._buffer += more


def request(
    path: str = "/v1/chat/completions",
    body: object = None,
    *,
    method: str | None = None,
    token: str | None = None,
    raw: bytes | None = None,
    host: str = "localhost",
    **headers: str,
) -> bytes:
    """Write an HTTP request; header names are given with underscores."""
    content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
    fields = {"Host": host}
    if body is not None or raw is not None:
        fields["Content-Type"] = "application/json"
        fields["Content-Length"] = str(len(content))
    if token is not None:
        fields["Authorization"] = f"Bearer {token}"
    for name, value in headers.items():
        fields[name.replace("_", "-").title()] = value
    verb = method or ("GET" if body is None and raw is None else "POST")
    lines = [f"{verb} {path} HTTP/1.1", *(f"{n}: {v}" for n, v in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content
