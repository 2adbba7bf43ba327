"""What every request goes through before anything is done for it."""

from __future__ import annotations

import logging
import time
import traceback
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.errors import ClientDisconnected
from mellea_like.gateway.config.gateway_config import ANONYMOUS
from mellea_like.gateway.http.admission import IN_SCOPE, IS_KNOWN, Admitted, KeyState
from mellea_like.gateway.http.auth import Keys, check_host
from mellea_like.gateway.http.body import check_headers, parse, read_body
from mellea_like.gateway.refusal import Refusal
from mellea_like.web import while_here

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping

    from mellea_like.gateway.config.gateway_config import KeyConfig, KeyLimits, ServerConfig
    from mellea_like.gateway.http.metrics import Metrics

    Message = MutableMapping[str, Any]
    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

__all__ = ["Guard"]

logger = logging.getLogger("mellea_like.gateway")

OPEN_PATHS = ("/healthz",)
"""Answered without a key: they tell nothing."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
PATHS = ("/v1/chat/completions", "/v1/models", "/v1/models/...", "/healthz", "/metrics")
"""What the log names; the rest is ``other``."""

VERSIONS = ("1.0", "1.1", "2", "3")
"""As ASGI writes them; the parser lets others through."""

CALLER_LEFT = 499
"""nginx's status for it, for the metrics; nobody is there to get it."""

TOO_SLOW = 408

LINGER_SECONDS = 2.0
"""How long the rest of a refused body is read, so that the caller can read the answer."""

IDLE_SECONDS = 0.5
"""How long that waits for some of it."""

MOST_DRAINED = 16
"""Drain at most this many times `max_body`."""

ALWAYS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


class Guard:
    """An ASGI app around another: it lets through what may pass and answers the rest itself."""

    # The app inside finds what it needs in `admitted`, and reads no body: after the guard,
    # ``receive`` waits for the caller to leave.
    def __init__(
        self,
        app: App,
        server: ServerConfig,
        keys: Mapping[str, KeyConfig],
        *,
        metrics: Metrics,
    ) -> None:
        self.app = app
        self.server = server
        self.metrics = metrics
        self._tokens = Keys(keys)
        limits: Mapping[str, KeyLimits] = keys or {ANONYMOUS: server.limits}
        self.keys = {name: KeyState(name, each) for name, each in limits.items()}
        for name, key in self.keys.items():
            metrics.watch(name, key.queue)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI wants it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await _Exchange(self, scope, receive, send).run()
        else:
            await send({"type": "websocket.close", "code": 1008})

    def authorize(self, scope: Scope) -> KeyState:
        """Find whose request it is, by its headers alone."""
        if not self._tokens:
            check_host(scope["headers"], self.server)
        return self.keys[self._tokens.owner(scope["headers"])]


def _shown(scope: Scope) -> str:
    """A request's method and path, without any text of the caller's."""
    method, path = scope["method"], scope["path"]
    if path.startswith("/v1/models/"):
        path = "/v1/models/..."
    method = method if method in METHODS else "other"
    return f"{method} {path if path in PATHS else 'other'}"


class _Exchange:
    """One request and its answer."""

    def __init__(self, guard: Guard, scope: Scope, receive: Receive, send: Send) -> None:
        self._guard = guard
        self._scope = scope
        self._receive = receive
        self._plain_send = send
        self._key: KeyState | None = None
        self._model: object = None
        self._status: int | None = None
        self._unread = _has_body(scope["headers"])

    async def run(self) -> None:
        """Let the request through, or answer it."""
        began = time.perf_counter()
        try:
            await self._handle()
        except ClientDisconnected:
            pass
        except Exception as exc:  # noqa: BLE001 (a caller gets an answer, whatever happens)
            await self._answer(_innermost(exc))
        finally:
            seconds = time.perf_counter() - began
            name = None if self._key is None else self._key.name
            status = CALLER_LEFT if self._status is None else self._status
            self._guard.metrics.requested(self._model, name, status, seconds)
            what = _shown(self._scope)
            if self._model is not None:
                what += f", model {self._guard.metrics.model_name(self._model)}"
            shown = (what, status, name or "-", seconds)
            logger.info("%s: answered %d to key %s in %.3f s", *shown)

    async def _handle(self) -> None:
        scope, guard = self._scope, self._guard
        if scope["http_version"] not in VERSIONS:
            raise Refusal(505, "this gateway speaks HTTP/1.1", code="http_version")
        if _head_size(scope) > guard.server.max_header_bytes:
            # The parser counts what it has to keep, not what comes in one piece.
            raise Refusal(431, "the headers are too long", code="headers_too_large")
        asks = scope["method"] in ("GET", "HEAD")
        if asks and scope["path"] in OPEN_PATHS:
            await guard.app(scope, self._receive, self._send)
            return
        self._key = key = guard.authorize(scope)
        if IS_KNOWN in scope:  # Another server than ours has no such thing.
            scope[IS_KNOWN]()
        if not asks and scope["method"] != "POST":
            raise Refusal(
                405,
                "this gateway knows GET, HEAD and POST",
                code="method_not_allowed",
                headers={"allow": "GET, HEAD, POST"},
            )
        if asks:
            scope[IN_SCOPE] = Admitted(key.name, key.limits)
            await guard.app(scope, self._receive, self._send)
            return
        key.check_budget()
        with key.queue.reading():
            body = await self._read()
        self._model = body.get("model")
        scope[IN_SCOPE] = key.admit(body)
        with key.queue.slot() as slot:
            if not slot.admitted:
                await while_here(self._receive, lambda: key.queue.wait(slot))
            await guard.app(scope, self._receive, self._send)

    async def _read(self) -> dict[str, Any]:
        server = self._guard.server
        check_headers(self._scope["headers"], server)
        data = await read_body(self._receive, server)
        self._unread = False
        return parse(data, server.max_depth)

    async def _answer(self, problem: BaseException) -> None:
        if isinstance(problem, Refusal):
            refusal = problem
        else:
            # Its text may be anyone's: where it happened says enough.
            last = traceback.extract_tb(problem.__traceback__)[-1]
            where = f"{last.filename}:{last.lineno}"
            logger.error("a request failed with %s at %s", type(problem).__name__, where)
            refusal = Refusal(500, "the gateway failed: its log says where", kind="server_error")
        if self._status is not None:
            return  # The answer has begun: the server breaks it off.
        start = {"status": refusal.status, "headers": refusal.raw_headers()}
        await self._send({"type": "http.response.start", **start})
        body = b"" if self._scope["method"] == "HEAD" else refusal.body()
        await self._send({"type": "http.response.body", "body": body, "more_body": self._unread})
        if self._unread and refusal.status != TOO_SLOW:
            # Closing now would reset the connection, and the caller might lose the answer.
            await self._drain()
        if self._unread:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _drain(self) -> None:
        left = MOST_DRAINED * self._guard.server.max_body
        if any(name == b"expect" for name, _ in self._scope["headers"]):
            return
        with anyio.move_on_after(LINGER_SECONDS):
            more = True
            while more and left > 0:
                more = False
                with anyio.move_on_after(IDLE_SECONDS):
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    more = message.get("more_body", False)

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            headers += [(name, value) for name, value in ALWAYS if name not in names]
            if self._unread:
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        await self._plain_send(message)


def _head_size(scope: Scope) -> int:
    line = len(scope["path"]) + len(scope["query_string"])
    return line + sum(len(name) + len(value) + 4 for name, value in scope["headers"])


def _has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    fields = dict(headers)
    return b"transfer-encoding" in fields or fields.get(b"content-length", b"0").strip() != b"0"


def _innermost(exc: BaseException) -> BaseException:
    # A task group wraps what one of its tasks raised.
    inside: tuple[BaseException, ...] = getattr(exc, "exceptions", ())
    return _innermost(inside[0]) if len(inside) == 1 else exc
