"""Files of batch jobs: uploads that stream from the disk, downloads that are read line by line."""

from __future__ import annotations

import json
import secrets
from contextlib import asynccontextmanager
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import anyio
from pydantic_core import PydanticSerializationError, from_json, to_jsonable_python

from mellea_like.errors import InvalidRequest
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
    from pathlib import Path

__all__ = ["BrokenLineError", "Upload", "json_lines", "multipart", "plain", "upload", "write_line"]

CHUNK = 2**20
"""Bytes that are read of a file at a time."""


# --- what is sent ---------------------------------------------------------------------------------


def plain(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body as plain data.

    Raises:
        InvalidRequest: it can't be written as JSON.
    """
    try:
        try:
            json.dumps(body, allow_nan=False)
        except TypeError:  # It may hold a model of pydantic's, or a date.
            body = to_jsonable_python(body, by_alias=True)
            json.dumps(body, allow_nan=False)
    except (TypeError, ValueError, RecursionError, PydanticSerializationError) as exc:
        msg = f"the request can't be written as JSON: {exc}"
        raise InvalidRequest(msg) from None
    return body


def write_line(fields: Mapping[str, Any]) -> str:
    """Write an object as a line of JSON, in which each character can be encoded."""
    line = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    try:
        line.encode()
    except UnicodeEncodeError:  # Half of a surrogate pair.
        return json.dumps(fields, separators=(",", ":"))
    return line


class _Beginning(NamedTuple):
    file: IO[bytes]
    size: int
    first: bytes


def _open(path: Path) -> _Beginning:
    """Open a file; a newline at its end doesn't count."""
    file = path.open("rb")
    size = path.stat().st_size
    if size:
        file.seek(size - 1)
        size -= file.read(1) == b"\n"
        file.seek(0)
    return _Beginning(file, size, file.read(min(size, CHUNK)))


class Upload:
    """The bytes of a file, with more before and after it; to be iterated once.

    Attributes:
        length: the number of bytes.
    """

    # It is no generator: the HTTP library would leave that suspended if the request is cancelled.

    def __init__(self, opened: _Beginning, before: bytes, after: bytes, between: bytes) -> None:
        self._file, self._left, self._first = opened
        self._before: bytes | None = before
        self._after: bytes | None = after
        self._between = between
        self.length = len(before) + self._left + len(after)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._before is not None:
            before, self._before = self._before, None
            return before + self._take(self._first)
        if self._left:
            return self._take(await run_in_thread(self._file.read, min(CHUNK, self._left)))
        if self._after is not None:
            after, self._after = self._after, None
            return after
        raise StopAsyncIteration

    def _take(self, chunk: bytes) -> bytes:
        if not chunk and self._left:
            msg = "the file has become shorter"
            raise OSError(msg)
        self._left -= len(chunk)
        return chunk if self._between == b"\n" else chunk.replace(b"\n", self._between)


@asynccontextmanager
async def upload(
    path: Path, before: bytes = b"", after: bytes = b"", *, between: bytes = b"\n"
) -> AsyncGenerator[Upload]:
    """Open a file of lines to be sent, a part at a time.

    Args:
        path: the file.
        before: what is sent before it.
        after: what is sent after it.
        between: one byte in place of the newline between two lines.

    Yields:
        What to send.
    """
    opened = await run_in_thread(_open, path)
    try:
        yield Upload(opened, before, after, between)
    finally:
        with anyio.CancelScope(shield=True):
            await run_in_thread(opened.file.close)


def multipart(name: str, **fields: str) -> tuple[bytes, bytes, str]:
    """Frame a file as a form, as RFC 7578 has it.

    Args:
        name: the file's name.
        **fields: the form's other fields.

    Returns:
        What goes before the file, what goes after it, and the content type.
    """
    boundary = secrets.token_hex(16)
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
        for field, value in fields.items()
    ]
    parts.append(
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    kind = f"multipart/form-data; boundary={boundary}"
    return "".join(parts).encode(), f"\r\n--{boundary}--\r\n".encode(), kind


# --- what comes -----------------------------------------------------------------------------------


class BrokenLineError(ValueError):
    """A line of a download isn't a JSON object."""


async def json_lines(chunks: AsyncIterable[bytes]) -> AsyncGenerator[dict[str, Any]]:
    """Read a body of JSON objects, a line each.

    Yields:
        The objects.

    Raises:
        BrokenLineError: a line isn't one: the body was cut, or is something else.
    """
    # The HTTP libraries' own readers of lines also cut at U+2028 and the like, inside of texts.
    parts: list[bytes] = []
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        parts.append(first)
        for more in others:
            line, parts = b"".join(parts), [more]
            if line.strip():
                yield _object(line)
    if (line := b"".join(parts)).strip():
        yield _object(line)


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = from_json(line)
    except ValueError:
        try:
            found = json.loads(line)  # It takes lone halves of surrogate pairs, too.
        except (ValueError, RecursionError):
            found = None
    if not isinstance(found, dict):
        start = line[:100].decode("utf-8", "replace")
        msg = f"a line that isn't a JSON object: {start}"
        raise BrokenLineError(msg)
    return cast("dict[str, Any]", found)
