"""Store the data of large message parts only once in a journal, and refer to it by its hash.

In OpenAI's chat protocol, such data is base64 in a text. A reference is a dict in place of that
text. It has the data's ``sha256``, its number of ``bytes``, and the text ``before`` the base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from mellea_like.core.parts import Text
from mellea_like.core.prompts import messages_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mellea_like.core.conversation import Message

LARGE = 1024
"""The number of bytes from which data counts as large."""

_PLACES = {"image_url": "url", "input_audio": "data", "file": "file_data"}
"""The key of the data, by a part's type: the data is at ``part[type][key]``."""

_REFERENCE = {"sha256", "bytes", "before"}


class LargeParts:
    """Replaces large data in messages and rows with references, and keeps the data by its hash."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self._hashes: dict[int, tuple[bytes, str]] = {}

    def message(self, message: Message) -> dict[str, Any]:
        """Return a message's ``as_dict()``, but with references in place of large data."""
        content = message.content
        if isinstance(content, str):
            return message.as_dict()
        written = replace(message, content="").as_dict()
        written["content"] = [self._part(part) for part in content]
        return written

    def _part(self, part: Any) -> dict[str, Any]:
        data: bytes | None = None if isinstance(part, Text) else getattr(part, "data", None)
        if data is None or len(data) < LARGE:
            return cast("dict[str, Any]", part.as_dict())
        written: dict[str, Any] = replace(part, data=b"").as_dict()
        kind: str = written["type"]
        inside = written[kind]
        inside[_PLACES[kind]] = self._reference(data, inside[_PLACES[kind]])
        return written

    def _reference(self, data: bytes, before: str) -> dict[str, Any]:
        # All conversations share the same object, so its hash is computed only once.
        _, sha256 = self._hashes.get(id(data)) or (data, hashlib.sha256(data).hexdigest())
        self._hashes[id(data)] = data, sha256
        self.data[sha256] = data
        return {"sha256": sha256, "bytes": len(data), "before": before}

    def row(self, data: Any) -> Any:
        """Return an input row with references in place of the large data in its messages."""
        if isinstance(data, list):
            return list(map(self.row, cast("list[object]", data)))
        if not isinstance(data, dict):
            return data
        row = {name: self.row(one) for name, one in cast("dict[str, Any]", data).items()}
        inside, name = _inside(row)
        if inside is not None and isinstance(text := inside.get(name), str):
            head, mark, rest = text.rpartition(",")
            with_type = head.startswith("data:") and head.endswith(";base64")
            if len(text) >= LARGE and (with_type or not mark):
                found = _decoded(rest)
                if found is not None:
                    row[row["type"]] = {**inside, name: self._reference(found, head + mark)}
        return row

    def used(self, prompts: Iterable[Any]) -> dict[str, bytes]:
        """Return the data that the conversations in ``prompts`` refer to, by hash."""
        references = filter(None, map(_reference_in, _parts_of(prompts)))
        return {one["sha256"]: self.data[one["sha256"]] for one in references}


def restored(plain: Any, data_of: Callable[[str], str]) -> Any:
    """Replace references with their data; ``data_of`` returns the base64 for a hash."""
    if isinstance(plain, list):
        several = cast("list[object]", plain)
        return [restored(one, data_of) for one in several]
    if not isinstance(plain, dict):
        return plain
    row = cast("dict[str, Any]", plain)
    if reference := _reference_in(row):
        kind = row["type"]
        whole = reference["before"] + data_of(reference["sha256"])
        return {**row, kind: {**row[kind], _PLACES[kind]: whole}}
    return {name: restored(one, data_of) for name, one in row.items()}


def _parts_of(prompts: Iterable[Any]) -> Iterable[dict[str, Any]]:
    for prompt in prompts:
        for message in messages_in(prompt):
            content = message.get("content")
            if isinstance(content, list):
                yield from cast("list[dict[str, Any]]", content)


def _inside(part: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Return the dict that holds a message part's data (or None), and the data's key in it."""
    kind = part.get("type")
    name = _PLACES.get(kind) if isinstance(kind, str) else None
    inside = None if name is None else part.get(cast("str", kind))
    return (cast("dict[str, Any]", inside) if isinstance(inside, dict) else None), name or ""


def _reference_in(part: dict[str, Any]) -> dict[str, Any] | None:
    inside, name = _inside(part)
    found = None if inside is None else inside.get(name)
    if isinstance(found, dict) and found.keys() == _REFERENCE:
        return cast("dict[str, Any]", found)
    return None


def _decoded(text: str) -> bytes | None:
    """Decode base64; return None if encoding it again would give a different text."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if base64.b64encode(data).decode("ascii") == text else None
