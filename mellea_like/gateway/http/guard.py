"""The checks that every request must pass before the gateway processes it."""

from __future__ import annotations

import hmac
import logging
import os
import re
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import anyio
from starlette.exceptions import HTTPException

from mellea_like.errors import ClientDisconnected, StoreError
from mellea_like.gateway.config.gateway_config import ANONYMOUS
from mellea_like.gateway.config.tokens import METRICS_KEY, Tokens, digest
from mellea_like.gateway.current_request import (
    CURRENT,
    REQUEST_ID,
    CurrentRequest,
    request_id_of,
)
from mellea_like.gateway.http.body import BodyMemory, check_headers, parse, read_body
from mellea_like.gateway.redaction import without_text
from mellea_like.gateway.refusal import Refusal, encoded, retry_after
from mellea_like.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from starlette.types import ASGIApp as App
    from starlette.types import Message, Receive, Scope, Send

    from mellea_like.gateway.config.gateway_config import KeyConfig, KeyLimits, ServerConfig
    from mellea_like.gateway.http.body import Take
    from mellea_like.gateway.http.key_state import KeyState
    from mellea_like.gateway.metrics import Metrics

    Headers = Iterable[tuple[bytes, bytes]]

logger = logging.getLogger("mellea_like.gateway")

_TELEMETRY = Telemetry()

HEALTH_PATH = "/healthz"
"""The path that is answered without a key, because the answer reveals nothing."""

METRICS_PATH = "/metrics"

METHODS = ("GET", "HEAD", "POST")
PATHS = (
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/models",
    "/v1/models/...",
    HEALTH_PATH,
    METRICS_PATH,
)
"""The paths that the log shows. Any other path is logged as ``other``."""

UNROUTED = {
    404: ("there is nothing at this path", "not_found"),
    405: ("this path does not support this method", "method_not_allowed"),
}

VERSIONS = ("1.0", "1.1", "2", "3")
"""The accepted HTTP versions, as ASGI writes them. The HTTP parser also lets others through."""

CALLER_LEFT = 499
"""The status in metrics and logs if the caller left before the answer began, as in nginx."""

TOO_SLOW = 408

STORE_SECONDS = 5.0
"""The Retry-After, in seconds, when the store of the keys' spending fails."""

LINGER_SECONDS = 2.0
"""The seconds for which a refused body's rest is read, so that the caller gets the answer."""

ALWAYS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))

HOST_AND_PORT = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::[0-9]*)?")

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class Connection:
    """Learns how far its request is. The gateway's own server overrides the methods."""

    closing = False
    last_answer = False
    """Whether the connection must be closed after this answer."""

    def request_began(self) -> None:
        """Take note that a request's head is complete."""

    def owner_known(self) -> None:
        """Take note that the caller's key is known, so new connections don't displace this one."""

    def body_read(self) -> None:
        """Take note that the request has arrived completely, with its body."""

    def answer_ended(self) -> None:
        """Take note that the request's answer has ended."""


CONNECTION: ContextVar[Connection] = ContextVar("connection", default=Connection())  # noqa: B039 (it has no state)
"""The connection of the current request."""


class Guard:
    """An ASGI app that passes allowed requests on to another app, and refuses all others."""

    # The app inside gets what it needs from `CURRENT`, and reads no body. After the guard,
    # ``receive`` only waits for the caller to leave.
    def __init__(
        self,
        app: App,
        server: ServerConfig,
        keys: Mapping[str, KeyConfig],
        *,
        metrics: Metrics,
        make_key: Callable[[str, KeyLimits], KeyState],
    ) -> None:
        self.app = app
        self.server = server
        self.metrics = metrics
        self._tokens = Tokens(keys, server.metrics_key, os.environ)
        if self._tokens.problems:
            raise ValueError(self._tokens.problems[0].what)
        limits: Mapping[str, KeyLimits] = keys or {ANONYMOUS: server.limits}
        self.keys = {name: make_key(name, each) for name, each in limits.items()}
        self.bodies = BodyMemory(server.max_bodies)

    def take_over(self, before: Guard) -> None:
        """Take over another guard's counts for keys and bodies, but keep this guard's limits."""
        for name, key in self.keys.items():
            if name in before.keys:
                before.keys[name].change(key)
                self.keys[name] = before.keys[name]
        before.bodies.most = self.bodies.most
        self.bodies = before.bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        if scope["type"] == "http":
            await _Exchange(self, scope, receive, send).run()
        else:
            await send({"type": "websocket.close", "code": 1008})

    def authorize(self, scope: Scope) -> KeyState | None:
        """Return a request's key, or None for the metrics key; refuse a request without one."""
        headers, tokens = scope["headers"], self._tokens
        if not tokens.owners:
            check_host(headers, self.server)
        if tokens.metrics is not None and scope["path"] == METRICS_PATH and _asks(scope):
            owner_of(headers, {tokens.metrics: METRICS_KEY})
            return None
        return self.keys[owner_of(headers, tokens.owners)]


def _asks(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD")


def _shown(scope: Scope) -> str:
    """Return a request's method and path for logs. An unknown method or path becomes ``other``."""
    method, path = scope["method"], scope["path"]
    if path.startswith("/v1/models/"):
        path = "/v1/models/..."
    method = method if method in METHODS else "other"
    return f"{method} {path if path in PATHS else 'other'}"


class _Exchange:
    """Handles one request until its answer has ended."""

    def __init__(self, guard: Guard, scope: Scope, receive: Receive, send: Send) -> None:
        self._guard = guard
        self._scope = scope
        self._receive = receive
        self._plain_send = send
        self._key: KeyState | None = None
        self._current = CurrentRequest(request_id_of(scope["headers"]))
        self._status: int | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._unread = _has_body(scope["headers"])
        self._connection = CONNECTION.get()
        self._ended = False

    async def run(self) -> None:
        """Pass the request on, or answer it with a refusal."""
        began = time.perf_counter()
        here = CURRENT.set(self._current)
        self._connection.request_began()
        if not self._unread:
            self._connection.body_read()
        span = _TELEMETRY.server(_shown(self._scope), self._scope["headers"])
        try:
            await self._handle()
        except ClientDisconnected:
            pass
        except Exception as exc:  # noqa: BLE001 (a caller gets an answer, whatever happens)
            await self._answer(_innermost(exc))
        finally:
            status = CALLER_LEFT if self._status is None else self._status
            if span is not None:
                span.set(self._told(status))
                span.close()
            CURRENT.reset(here)
            self._end()
            self._count(status, time.perf_counter() - began)

    def _count(self, status: int, seconds: float) -> None:
        model, metrics = self._current.model, self._guard.metrics
        metrics.requested(model, self._current.key, status, seconds)
        what = _shown(self._scope)
        if model is not None:
            what += f", model {metrics.model_name(model)}"
        ids = [f"request {self._current.id}"]
        ids += [f"sampling {sampling_id}" for sampling_id in self._current.sampling_ids]
        shown = (what, status, self._current.key or "-", seconds, ", ".join(ids))
        logger.info("%s: answered %d to key %s in %.3f s (%s)", *shown)

    def _told(self, status: int) -> dict[str, str | int]:
        current = self._current
        told: dict[str, str | int] = {"http.response.status_code": status}
        told["mellea_like.request_id"] = current.id
        told["mellea_like.gateway.key"] = current.key or "-"
        if current.model is not None:
            told["mellea_like.gateway.model"] = self._guard.metrics.model_name(current.model)
        return told

    async def _handle(self) -> None:
        scope, guard = self._scope, self._guard
        if scope["http_version"] not in VERSIONS:
            raise Refusal(505, "this gateway speaks HTTP/1.1", code="http_version")
        if _head_size(scope) > guard.server.max_header_bytes:
            # The parser counts only what it buffers, not what arrives in one piece.
            raise Refusal(431, "the headers are too long", code="headers_too_large")
        scope["app"] = guard.app  # This makes starlette's router raise its errors.
        if _asks(scope) and scope["path"] == HEALTH_PATH:
            await guard.app(scope, self._receive, self._send)
            return
        self._key = key = guard.authorize(scope)
        self._connection.owner_known()
        if key is None:
            self._current.key = METRICS_KEY
        else:
            self._current.key, self._current.limits = key.name, key.limits
        if key is None or _asks(scope):
            await guard.app(scope, self._receive, self._send)
        elif scope["method"] == "POST":
            await self._handle_post(key)
        else:
            raise HTTPException(405, headers={"allow": "GET, HEAD, POST"})

    async def _handle_post(self, key: KeyState) -> None:
        guard, current = self._guard, self._current
        key.check_budget()
        with key.queued(), guard.bodies.share() as take:
            body = await self._read(take)
            current.model = body.get("model")
            charge = await key.take_rates(body)
            try:
                await key.count()
                self._headers = encoded(charge.told)
                current.body, current.budget = body, key.budget
                async with key.turn(self._receive):
                    await guard.app(self._scope, self._receive, self._send)
            finally:
                current.body = {}  # An upstream's connection may keep the current request.
                charge.settle(current.tokens)

    async def _read(self, take: Take) -> dict[str, Any]:
        server = self._guard.server
        self._guard.bodies.check_room(check_headers(self._scope["headers"], server))
        data = await read_body(self._receive, server, take)
        self._unread = False
        self._connection.body_read()
        return parse(data, server.max_depth)

    async def _answer(self, problem: BaseException) -> None:
        refusal = _refusal_of(problem)
        if self._status is not None:
            return  # The answer has begun, so the server aborts it.
        if refusal.until_reset and self._key is not None:
            wait = retry_after(self._key.seconds_to_reset())
            refusal.headers = {**refusal.headers, **wait}
        start = {"status": refusal.status, "headers": refusal.raw_headers()}
        await self._send({"type": "http.response.start", **start})
        body = b"" if self._scope["method"] == "HEAD" else refusal.body()
        await self._send({"type": "http.response.body", "body": body, "more_body": self._unread})
        if self._unread and refusal.status != TOO_SLOW:
            # Closing now would reset the connection, and the caller might lose the answer.
            with anyio.move_on_after(LINGER_SECONDS):
                while (await self._receive()).get("more_body"):
                    pass
        if self._unread:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, message: Message) -> None:
        if self._connection.closing:
            return  # Uvicorn has answered an invalid body.
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            headers += [(name, value) for name, value in ALWAYS if name not in names]
            headers += self._headers
            headers.append((REQUEST_ID, self._current.id.encode("ascii")))
            if self._unread or self._connection.last_answer:
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        await self._plain_send(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._end()  # The next request may follow immediately.

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._connection.answer_ended()


def _refusal_of(problem: BaseException) -> Refusal:
    match problem:
        case Refusal():
            return problem
        case StoreError():
            logger.error("can't record the spending of keys: %s", problem)
            message = "the gateway can't record this key's spending at the moment"
            headers = retry_after(STORE_SECONDS)
            code = "store_unavailable"
            return Refusal(503, message, kind="server_error", code=code, headers=headers)
        case HTTPException(status_code=status, headers=headers):
            message, code = UNROUTED[status]
            return Refusal(status, message, code=code, headers=headers or {})
        case _:
            logger.error("a request failed with %s", without_text(problem))
            return Refusal(500, "internal error: see the gateway's log", kind="server_error")


def _head_size(scope: Scope) -> int:
    line = len(scope["path"]) + len(scope["query_string"])
    return line + sum(len(name) + len(value) + 4 for name, value in scope["headers"])


def _has_body(headers: Headers) -> bool:
    fields = dict(headers)
    return b"transfer-encoding" in fields or fields.get(b"content-length", b"0").strip() != b"0"


def _innermost(exc: BaseException) -> BaseException:
    # A task group wraps the errors of its tasks.
    inside: tuple[BaseException, ...] = getattr(exc, "exceptions", ())
    return _innermost(inside[0]) if len(inside) == 1 else exc


# --- who asks ------------------------------------------------------------------------------------


def owner_of(headers: Headers, owners: Mapping[bytes, str]) -> str:
    """Return the owner of a request's token, or `ANONYMOUS` if ``owners`` is empty."""
    if not owners:
        return ANONYMOUS
    given = [value for name, value in headers if name == b"authorization"]
    scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
    presented = digest(token.strip()) if scheme.lower() == b"bearer" else b""
    # Compare equal-length digests, always with every key: constant time.
    found = [owners[known] for known in owners if hmac.compare_digest(presented, known)]
    if found:
        return found[0]
    if len(given) > 1:
        message = "there is more than one Authorization header: send one"
    elif not given:
        message = "no API key: send it in the header Authorization: Bearer <key>"
    else:
        message = "the API key is not one of this gateway's keys"
    raise Refusal(
        401,
        message,
        kind="authentication_error",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )


# --- DNS rebinding -------------------------------------------------------------------------------


def check_host(headers: Headers, server: ServerConfig) -> None:
    """Refuse a request whose ``Host`` isn't a loopback name, ``host`` or in ``allowed_hosts``."""
    # Without keys, a page in a browser on this machine could send requests under its own site's
    # name, if that name resolves to 127.0.0.1 (DNS rebinding). Its requests carry that name.
    hosts = [value for name, value in headers if name == b"host"]
    name = _without_port(hosts[0].decode("latin-1")) if len(hosts) == 1 else ""
    ours = {*LOOPBACK_NAMES, server.host, *server.allowed_hosts}
    if not name or name not in {_without_port(host) for host in ours}:
        raise Refusal(
            403,
            "the Host header doesn't name this gateway: if no keys are configured, it answers only"
            " to the loopback's names, server.host and server.allowed_hosts",
            kind="permission_error",
            code="host_not_allowed",
        )


def _without_port(host: str) -> str:
    host = host.strip().lower()
    if host.count(":") > 1 and not host.startswith("["):
        return host  # A bare IPv6 address, as in the configuration.
    parts = HOST_AND_PORT.fullmatch(host)
    return (parts[1] or parts[2]).rstrip(".") if parts is not None else ""
