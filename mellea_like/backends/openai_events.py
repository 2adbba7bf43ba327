"""Server-sent events: splitting the body of a reply into events, and reading them.

Nothing here waits or needs the SDK. The SDK's own stream would take twice the time, and leaves its
generators suspended when it sees ``[DONE]``. Each request would then leave a task behind on
asyncio, or a ``ResourceWarning`` on trio.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from typing import Any, cast

from pydantic_core import from_json

MAX_EVENT = 2**20
"""The maximum size of one event in bytes. A longer event can't be part of a reply."""

HEAD = 1000


class EventDecoder:
    """Splits a response's body into server-sent events, as defined in HTML's standard."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._after_cr = False
        self._failed = False
        self.head = b""
        """The beginning of the body, for the error message if the body isn't a reply."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Read the next part of the body; return the data of the events that end in this part."""
        if len(self.head) < HEAD:
            self.head += chunk[:HEAD]
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")  # The second half of a line end.
            self._after_cr = False
        if (
            chunk.startswith(b"data: ")
            and chunk.endswith(b"\n\n")
            and chunk.count(b"\n") == len(b"\n\n")
            and b"\r" not in chunk
            and not (self._line or self._data or self._failed)
            and len(chunk) <= MAX_EVENT
        ):
            return [chunk[6:-2]]  # This is the usual case: a part of the body is exactly one event.
        lines = chunk.splitlines(keepends=True)
        if not lines:
            return []
        rest = b"" if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        self._after_cr = not rest and lines[-1].endswith(b"\r")
        found: list[bytes] = []
        for line in lines:
            if self._line:
                self._line += line
                line = bytes(self._line)  # noqa: PLW2901 (with what came of it before)
                self._line.clear()
            self._read(line.rstrip(b"\r\n"), found)
        self._line += rest
        if len(self._line) + sum(map(len, self._data)) > MAX_EVENT:
            msg = f"it is longer than {MAX_EVENT} bytes"
            raise ValueError(msg)
        return found

    def finish(self) -> list[bytes]:
        """Handle the end of the body; return the last event's data if no blank line followed it."""
        found: list[bytes] = []
        for line in (bytes(self._line), b""):
            self._read(line, found)
        self._line.clear()
        return found

    def _read(self, line: bytes, found: list[bytes]) -> None:
        if line.startswith(b"data: "):
            self._data.append(line[6:])
        elif line:
            name, _, value = line.partition(b":")
            name, value = name.removeprefix(BOM_UTF8), value.removeprefix(b" ")
            if name in (b"data", b"error"):  # Some servers send "error: {...}" as an event.
                self._data.append(value)
            self._failed |= name == b"error" or (name == b"event" and value == b"error")
        else:
            if self._data:
                data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                found.append(b'{"error": %b}' % data if self._failed else data)
                self._data = []
            self._failed = False


def from_event(data: bytes) -> Any:
    """Parse an event's data, which is JSON."""
    try:
        return from_json(data)
    except ValueError:
        return json.loads(data)  # It also accepts lone halves of surrogate pairs.


class ReplyTooLongError(Exception):
    """A reply exceeds the allowed length."""


class ServerError(Exception):
    """The server reported an error in the middle of a reply."""

    def __init__(self, error: object) -> None:
        super().__init__("the server reported an error")
        fields = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": error}
        if isinstance(fields.get("error"), dict):
            fields = cast("dict[str, Any]", fields["error"])
        self.message = str(fields.get("message") or fields) + providers_reason(fields)
        self.code = fields.get("code")
        self.kind = str(fields.get("type") or "")


def providers_reason(error: dict[str, Any]) -> str:
    """Return what the provider behind OpenRouter said, to add to OpenRouter's own message."""
    metadata = error.get("metadata")
    raw = cast("dict[str, Any]", metadata).get("raw") if isinstance(metadata, dict) else None
    return f": {raw}" if raw else ""
