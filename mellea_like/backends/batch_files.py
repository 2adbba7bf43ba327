"""Files of batch jobs: uploads streamed from disk, and downloads read line by line."""

from __future__ import annotations

import json
import mmap
from contextlib import asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from mellea_like.backends.openai_events import from_event
from mellea_like.errors import InvalidRequest
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator, Mapping
    from pathlib import Path

JSON_LINES = "application/jsonl"
"""The media type of an uploaded file. Python would have to read a system file to guess it."""

CHUNK = 2**16
"""The number of bytes of a file that are sent at a time."""


# --- what is sent ---------------------------------------------------------------------------------


def plain(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body as plain data; raise `InvalidRequest` if JSON can't express it."""
    try:
        body = to_jsonable_python(body, by_alias=True)
        json.dumps(body, allow_nan=False)
    except (TypeError, ValueError, RecursionError, PydanticSerializationError) as exc:
        msg = f"the request can't be encoded as JSON: {exc}"
        raise InvalidRequest(msg) from None
    return body


def write_line(fields: Mapping[str, Any]) -> str:
    """Return an object as a line of JSON that can always be encoded as UTF-8."""
    line = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    try:
        line.encode()
    except UnicodeEncodeError:  # Half of a surrogate pair.
        return json.dumps(fields, separators=(",", ":"))
    return line


class Mapped(mmap.mmap):
    """A memory-mapped file whose size an HTTP library can find with ``seek``."""

    def seek(self, pos: int, whence: Literal[0, 1, 2, 3, 4] = 0) -> int:  # type: ignore[override]
        """Move to a position, and return it. Before Python 3.13, `mmap.mmap.seek` returns None."""
        super().seek(pos, whence)
        return self.tell()


def _map(path: Path) -> Mapped:
    with path.open("rb") as file:
        return Mapped(file.fileno(), 0, access=mmap.ACCESS_READ)


@asynccontextmanager
async def mapped(path: Path) -> AsyncGenerator[Mapped]:
    """Map a file into memory for sending: reading a part of it just copies memory."""
    opened = await run_in_thread(_map, path)
    try:
        yield opened
    finally:
        opened.close()


class JoinedLines:
    """Iterates over the parts of a request body: the lines of a file, joined with commas."""

    # It is no generator: the HTTP library would leave that suspended if the request is cancelled.

    def __init__(self, file: mmap.mmap, before: bytes, after: bytes) -> None:
        size = len(file)
        size -= file[size - 1 : size] == b"\n"
        self._parts = chain([before], _joined(file, size), [after])
        self.length = len(before) + size + len(after)  # In bytes.

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for part in self._parts:
            return part
        raise StopAsyncIteration


def _joined(file: mmap.mmap, size: int) -> Iterator[bytes]:
    for start in range(0, size, CHUNK):
        yield file[start : min(start + CHUNK, size)].replace(b"\n", b",")


# --- what comes -----------------------------------------------------------------------------------


class BrokenLineError(ValueError):
    """A line of a download isn't a JSON object."""


async def json_lines(chunks: AsyncIterable[bytes]) -> AsyncGenerator[dict[str, Any]]:
    """Yield the JSON objects of a body with one on each line, or raise `BrokenLineError`."""
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
        found = from_event(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        start = line[:100].decode("utf-8", "replace")
        msg = f"a line that isn't a JSON object: {start}"
        raise BrokenLineError(msg)
    return cast("dict[str, Any]", found)
