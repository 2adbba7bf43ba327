"""Files of batch jobs: uploads that stream from the disk, downloads that are read line by line."""

from __future__ import annotations

import json
import mmap
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic_core import PydanticSerializationError, from_json, to_jsonable_python

from mellea_like.errors import InvalidRequest
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator, Mapping
    from pathlib import Path

__all__ = [
    "JSON_LINES",
    "BrokenLineError",
    "JoinedLines",
    "json_lines",
    "mapped",
    "plain",
    "write_line",
]

JSON_LINES = "application/jsonl"
"""The type of a file. To guess it from its name, Python would read the system's list of types."""

CHUNK = 2**16
"""Bytes that are sent of a file at a time."""


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


class Mapped(mmap.mmap):
    """A file in memory whose size the HTTP library can learn as it does from any file."""

    def seek(self, pos: int, whence: Literal[0, 1, 2, 3, 4] = 0) -> int:  # type: ignore[override]
        """Move, and return the place, which Python's own does only from 3.13 on."""
        super().seek(pos, whence)
        return self.tell()


def _map(path: Path) -> Mapped:
    with path.open("rb") as file:
        return Mapped(file.fileno(), 0, access=mmap.ACCESS_READ)


@asynccontextmanager
async def mapped(path: Path) -> AsyncGenerator[Mapped]:
    """Open a file to be sent, of which only what is being sent needs memory.

    Args:
        path: the file, which isn't empty.

    Yields:
        The file. Its ``read`` copies memory, so that no thread is needed for each part.
    """
    opened = await run_in_thread(_map, path)
    try:
        yield opened
    finally:
        opened.close()


class JoinedLines:
    """The lines of a file with commas between them, and more before and after.

    Args:
        file: the lines; what is behind the last newline is one, too.
        before: bytes to send before them.
        after: bytes to send after them.

    Attributes:
        length: the number of bytes.
    """

    # It is no generator: the HTTP library would leave that suspended if the request is cancelled.

    def __init__(self, file: mmap.mmap, before: bytes, after: bytes) -> None:
        size = len(file)
        size -= file[size - 1 : size] == b"\n"
        self._file = file
        self._parts = iter([(before, 0, 0), *_parts(size), (after, 0, 0)])
        self.length = len(before) + size + len(after)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for given, start, end in self._parts:
            return given or self._file[start:end].replace(b"\n", b",")
        raise StopAsyncIteration


def _parts(size: int) -> Iterator[tuple[bytes, int, int]]:
    for start in range(0, size, CHUNK):
        yield b"", start, min(start + CHUNK, size)


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
