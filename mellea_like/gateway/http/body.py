"""Request bodies: strict JSON within limits of size, time, depth and shared memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, cast

import anyio

from mellea_like.core.strict_json import read_strict
from mellea_like.errors import ClientDisconnected
from mellea_like.gateway.refusal import Refusal, retry_after

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from starlette.types import Receive

    from mellea_like.gateway.config.gateway_config import ServerConfig

    Take = Callable[[int], None]
    """Counts bytes that have arrived, or refuses the body if there is no room for them."""

MOST_PARTS = 50_000
"""The maximum number of brackets and commas in a body. Many of them make JSON slow to parse."""

MOST_QUOTES = 2 * MOST_PARTS

MOST_DIGITS = 20
"""The most digits of a Content-Length. A longer number is refused without being parsed."""

ONCE = (b"content-encoding", b"content-length", b"content-type", b"transfer-encoding")

OTHERS = bytes(set(range(256)) - set(b"[]{},"))
BRACKETS = bytes.maketrans(b"[]{}", b"()()")

COME_BACK = 1.0
"""The Retry-After, in seconds, when the memory for bodies is full. It is only a guess."""


class BodyMemory:
    """Limits the memory for request bodies, each counted until its request is answered."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0

    @contextmanager
    def share(self) -> Generator[Take]:
        """Yield a function that counts bytes of one request; free them when the block ends."""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            self.check_room(size)
            self.used += size
            taken += size

        try:
            yield take
        finally:
            self.used -= taken

    def check_room(self, size: int) -> None:
        """Refuse a body of ``size`` bytes if there is no room for it now."""
        if self.used + size > self.most:
            message = "the bodies of other requests fill all the memory reserved for bodies"
            raise Refusal(
                503,
                f"{message}: try again later",
                kind="server_error",
                code="server_busy",
                headers=retry_after(COME_BACK),
            )


def check_headers(headers: Iterable[tuple[bytes, bytes]], server: ServerConfig) -> int:
    """Return a body's Content-Length, or 0; refuse a body whose headers rule it out."""
    fields: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in ONCE and name in fields:
            raise Refusal(400, f"there is more than one {name.decode('ascii').title()}")
        fields[name] = value
    if b"content-length" in fields and b"transfer-encoding" in fields:
        # If a proxy in front used the other header, one request could become two.
        raise Refusal(400, "the request has both Content-Length and Transfer-Encoding: send one")
    encoding = fields.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in (b"", b"identity"):
        msg = "compressed bodies are not supported: leave out Content-Encoding"
        raise Refusal(415, msg, code="unsupported_content_encoding")
    kind, *parameters = fields.get(b"content-type", b"").lower().split(b";")
    charset = {p.strip() for p in parameters if p.strip().startswith(b"charset=")}
    if kind.strip() != b"application/json" or charset - {b"charset=utf-8", b'charset="utf-8"'}:
        msg = "the body must be JSON in UTF-8: send Content-Type: application/json"
        raise Refusal(415, msg, code="unsupported_content_type")
    length = fields.get(b"content-length", b"0").strip()
    if not length.isdigit():
        raise Refusal(400, "Content-Length isn't a number")
    if len(length) > MOST_DIGITS or int(length) > server.max_body:
        raise _too_long(server)
    return int(length)


async def read_body(receive: Receive, server: ServerConfig, take: Take) -> bytes:
    """Read a whole body within the server's limits, and count its memory with ``take``."""
    parts: list[bytes] = []
    size = 0
    more = True
    with anyio.move_on_after(server.body_seconds) as scope:
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            part = message.get("body", b"")
            size += len(part)
            if size > server.max_body:
                raise _too_long(server)
            take(len(part))
            parts.append(part)
            more = message.get("more_body", False)
    if scope.cancelled_caught:
        msg = f"the body was not complete within {server.body_seconds:g} s"
        raise Refusal(408, msg, kind="timeout_error", code="body_timeout")
    return b"".join(parts)


def _too_long(server: ServerConfig) -> Refusal:
    msg = f"the body is longer than {server.max_body:,} bytes"
    return Refusal(413, msg, code="body_too_large")


def parse(data: bytes, most_depth: int) -> dict[str, Any]:
    """Parse a body, which must be an object in strict JSON. Errors don't show its text."""
    _check_structure(data, most_depth)
    value, why = None, "it isn't an object"
    try:
        value = read_strict(data)
    except ValueError as exc:
        why = str(exc)
    if not isinstance(value, dict):
        _malformed(why)
    return cast("dict[str, Any]", value)


def _check_structure(data: bytes, most_depth: int) -> None:
    # All of this runs in C, because a loop in Python over many MiB would hold up other requests.
    if b"\\" in data:
        data = data.replace(rb"\\", b"").replace(rb"\"", b"")
    if data.count(b'"') > MOST_QUOTES:
        _malformed(f"it has more than {MOST_PARTS:,} strings")
    outside = b"".join(data.split(b'"')[::2])
    structure = outside.translate(BRACKETS, OTHERS)
    if len(structure) > MOST_PARTS:
        _malformed(f"it has more than {MOST_PARTS:,} brackets and commas")
    structure = structure.replace(b",", b"")
    for _ in range(most_depth):
        if not structure:
            return
        structure = structure.replace(b"()", b"")
    if structure:
        _malformed(f"it is nested deeper than {most_depth} levels, or its brackets don't match")


def _malformed(why: str) -> NoReturn:
    raise Refusal(400, f"the body can't be read as JSON: {why}", code="invalid_json")
