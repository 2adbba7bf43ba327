"""Extra fields of a streamed reply of OpenAI's chat protocol, assembled from its pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from mellea_like.core.extra import NO_EXTRA, Extra

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KNOWN: Mapping[str, frozenset[str]] = {
    "reply": frozenset(
        # Padding that hides the length of pieces isn't part of a reply.
        {"id", "object", "created", "model", "choices", "usage", "error", "obfuscation"}
    ),
    "choice": frozenset({"index", "delta", "message", "text", "finish_reason", "logprobs"}),
    "message": frozenset(
        {
            *("role", "content", "refusal", "tool_calls", "function_call"),
            *("reasoning", "reasoning_content"),
        }
    ),
    "call": frozenset({"index", "id", "type", "function"}),
    "function": frozenset({"name", "arguments"}),
    "usage": frozenset({"prompt_tokens", "completion_tokens", "total_tokens"}),
}
"""The fields that other modules read, by the kind of object that contains them."""

NAMES = frozenset({"id", "index", "type", "format", "name", "role", "mime_type"})
"""Fields whose text is complete in each piece. The text of a later piece replaces the earlier text,
instead of being joined to it."""


class FurtherFields:
    """Collects the fields in a reply that are read by no other module."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Any]] = {}

    def take(self, place: str, given: Mapping[str, Any]) -> None:
        """Keep the extra fields of an object or a piece of it; ``place`` is the object's kind."""
        known = KNOWN[place]
        if given.keys() <= known:
            return
        further = {n: v for n, v in given.items() if n not in known and v is not None}
        found = self._found.setdefault(place, {})
        if place in ("reply", "choice", "usage"):
            for name, value in further.items():
                before = found.get(name)
                if place == "choice" and isinstance(value, list):
                    # Token ids are an example.
                    found[name] = before if isinstance(before, list) else []
                    found[name] += value
                else:
                    found[name] = value
        else:
            _grow(found, further)

    @property
    def extra(self) -> Mapping[str, Any]:
        """The extra fields received so far, by the kind of object that contains them."""
        return Extra(_settled(self._found)) if any(self._found.values()) else NO_EXTRA


# Pieces are put together as in the official SDK (`accumulate_delta` in
# openai.lib.streaming._deltas), except that numbers and names are replaced, not added up.


class _Text(list[str]):
    """A text in pieces, to be joined at the end: repeated joining would take quadratic time."""


def _grow(found: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        if value is not None:
            found[name] = _grown(name, found.get(name), value)


def _grown(name: str, before: Any, more: Any) -> Any:
    """Return the value ``before`` extended by its next piece ``more``."""
    if isinstance(more, str) and name not in NAMES:
        text = before if isinstance(before, _Text) else _Text()
        text.append(more)
        return text
    if isinstance(more, dict):
        inside: dict[str, Any] = cast("Any", before) if isinstance(before, dict) else {}
        _grow(inside, cast("dict[str, Any]", more))
        return inside
    if isinstance(more, list):
        items: list[Any] = cast("Any", before) if type(before) is list else []
        for item in cast("Sequence[Any]", more):
            _add_item(items, item)
        return items
    return more


def _add_item(items: list[Any], item: Any) -> None:
    """Add an item to a list, or extend the earlier item that has the same index."""
    if not isinstance(item, dict):
        items.append(item)
        return
    given = cast("dict[str, Any]", item)
    index = given.get("index")
    for old in reversed(items) if index is not None else ():
        if isinstance(old, dict) and cast("dict[str, Any]", old).get("index") == index:
            _grow(cast("dict[str, Any]", old), given)
            return
    items.append(_grown("", None, given))


def _settled(value: Any) -> Any:
    if isinstance(value, _Text):
        return "".join(value)
    if isinstance(value, dict):
        return {name: _settled(part) for name, part in cast("dict[str, Any]", value).items()}
    if type(value) is not list:
        return value
    return [_settled(part) for part in cast("Sequence[Any]", value)]
