"""Read a typed reply as it arrives, until a field can no longer be right.

A watch never rejects a reply that `parse_reply` might still accept. So it reads only replies that
begin with their value (after white space, a ``<think>`` block, or the line that opens a code
fence). In other replies, it can't know yet which bracket begins the value. A watch gives pydantic
only complete values that depend on nothing else. Validators that run before an object's fields are
read, or that see other fields, wait for the end of that object. The members of a union wait for
the end of the union.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, cast

from mellea_like.core.display import bounded
from mellea_like.core.format import format_of, problems, why_broken

if TYPE_CHECKING:
    from collections.abc import Generator

    from mellea_like.core.format import Format

_TAG = re.compile(r"<(think|thinking|thought|reasoning)>", re.IGNORECASE)
_LONGEST_TAG = 12
FENCE_LINE = re.compile(r"```[A-Za-z0-9_-]*[ \t]*\r?\n")
LONGEST_LINE = 100
SPACE = re.compile(r"\s*")
_JSON_SPACE = re.compile(r"[ \t\n\r]*")
_IN_STRING = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_SCALAR = re.compile(r"[^\s,:\[\]{}\"`]*+")

_DATA = ("metadata", "serialization", "config")
"""Keys in pydantic's schemas that don't affect validation."""


def format_watch(format: Any) -> JsonWatch:
    """Return a watch for one arriving reply of a type."""
    known = _type_of(format_of(format))
    return JsonWatch(known.root, known.format.brackets)


class ArrivingText(ABC):
    """A text that is checked while it arrives, by generators that yield if they need more of it."""

    def __init__(self) -> None:
        self._text = ""
        self._reading = self._read()

    def feed(self, text: str) -> str | None:
        """Check the text so far; return why it can't become valid, or None if it still can."""
        self._text = text
        try:
            next(self._reading, None)
        except BrokenError as exc:
            return str(exc)
        except Exception:  # noqa: BLE001 (a user's validator: the whole reply decides)
            return None
        return None

    @abstractmethod
    def _read(self) -> Generator[None]: ...

    def _skip(self, space: re.Pattern[str], at: int) -> Generator[None, None, int]:
        while (at := cast("re.Match[str]", space.match(self._text, at)).end()) == len(self._text):
            yield
        return at


class JsonWatch(ArrivingText):
    """Checks the value in an arriving reply by rules, if it begins with one of ``brackets``."""

    def __init__(self, root: Node | None, brackets: str) -> None:
        self._root = root
        self._brackets = brackets
        super().__init__()

    # The following generators return their position.

    def _read(self) -> Generator[None]:
        start = yield from self._start()
        if self._text[start] in self._brackets:
            yield from self._value(start, self._root, ())

    def _start(self) -> Generator[None, None, int]:
        """Skip spaces, thoughts and the line of a fence; return where the value should begin."""
        at = yield from self._skip(SPACE, 0)
        if self._text[at] == "<":
            while len(self._text) < at + _LONGEST_TAG and ">" not in self._text[at:]:
                yield
            if not (tag := _TAG.match(self._text, at)):
                return at
            end = re.compile(f"</{tag[1]}>", re.IGNORECASE)
            seen = tag.end()
            while not (closing := end.search(self._text, seen)):
                seen = max(seen, len(self._text) - _LONGEST_TAG)
                yield
            at = yield from self._skip(SPACE, closing.end())
        if self._text[at] == "`":
            while len(self._text) < at + LONGEST_LINE and "\n" not in self._text[at:]:
                yield
            if not (line := FENCE_LINE.match(self._text, at)):
                return at
            at = yield from self._skip(SPACE, line.end())
        return at

    def _value(
        self, at: int, node: Node | None, place: tuple[object, ...]
    ) -> Generator[None, None, int]:
        start = at = yield from self._skip(_JSON_SPACE, at)
        if node is not None:
            node.begin(self._text[at], place)
        match self._text[at]:
            case "{":
                at = yield from self._object(at + 1, node, place)
            case "[":
                at = yield from self._array(at + 1, node, place)
            case '"':
                at = yield from self._string(at)
            case _:
                at = yield from self._scalar(at)
        if node is not None and place:
            node.check(self._text[start:at], place)
        return at

    def _object(
        self, at: int, node: Node | None, place: tuple[object, ...]
    ) -> Generator[None, None, int]:
        at = yield from self._skip(_JSON_SPACE, at)
        if self._text[at] == "}":
            return at + 1
        while True:
            if self._text[at] != '"':
                self._no_json("a key in double quotes", at)
            end = yield from self._string(at)
            key = _key(self._text[at:end])
            at = yield from self._skip(_JSON_SPACE, end)
            if self._text[at] != ":":
                self._no_json("a colon", at)
            child = None if node is None else node.field(key, place)
            at = yield from self._value(at + 1, child, (*place, key))
            at = yield from self._skip(_JSON_SPACE, at)
            if self._text[at] == "}":
                return at + 1
            if self._text[at] != ",":
                self._no_json("a comma or a closing brace", at)
            at = yield from self._skip(_JSON_SPACE, at + 1)

    def _array(
        self, at: int, node: Node | None, place: tuple[object, ...]
    ) -> Generator[None, None, int]:
        at = yield from self._skip(_JSON_SPACE, at)
        if self._text[at] == "]":
            return at + 1
        index = 0
        while True:
            child = None if node is None else node.item(index, place)
            at = yield from self._value(at, child, (*place, index))
            at = yield from self._skip(_JSON_SPACE, at)
            if self._text[at] == "]":
                return at + 1
            if self._text[at] != ",":
                self._no_json("a comma or a closing bracket", at)
            at += 1
            index += 1

    def _scalar(self, start: int) -> Generator[None, None, int]:
        at = start
        while (at := cast("re.Match[str]", _SCALAR.match(self._text, at)).end()) == len(self._text):
            self._check_scalar(start, at, ended=False)
            yield
        self._check_scalar(start, at, ended=True)
        return at

    def _check_scalar(self, start: int, end: int, *, ended: bool) -> None:
        """Refuse a scalar, or the beginning of one if it has not ended yet."""
        if ended and start == end:
            self._no_json("a value", start)

    def _string(self, at: int) -> Generator[None, None, int]:
        at += 1
        while True:
            at = cast("re.Match[str]", _IN_STRING.match(self._text, at)).end()
            if self._text[at : at + 1] == '"':
                return at + 1
            yield  # The text ends here, perhaps within an escape.

    def _no_json(self, expected: str, at: int) -> NoReturn:
        found = ascii(self._text[at : at + 20])
        msg = f"the reply does not parse: expected {expected} at character {at + 1}, not {found}"
        raise BrokenError(msg)


class BrokenError(Exception):
    """A reply can no longer become valid. The message explains why."""


def _key(text: str) -> str:
    try:
        return str(json.loads(text))  # Unlike pydantic, it accepts halves of surrogate pairs.
    except ValueError as exc:
        msg = f"the reply does not parse: the key {bounded(text, 60)} isn't JSON: {exc}"
        raise BrokenError(msg) from None


class Node(Protocol):
    """The rules for a value. Methods raise `BrokenError` if the reply can't become valid."""

    def begin(self, character: str, place: tuple[object, ...], /) -> None:
        """Check a value's first character."""

    def check(self, text: str, place: tuple[object, ...], /) -> None:
        """Check a complete value that is inside another value."""

    def field(self, key: str, place: tuple[object, ...], /) -> Node | None:
        """Return the rules for a key's value; None if the value can't be checked by itself."""
        ...

    def item(self, index: int, place: tuple[object, ...], /) -> Node | None:
        """Return the rules for an item of an array; None if it can't be checked by itself."""
        ...


# --- types ----------------------------------------------------------------------------------------


class _Type:
    def __init__(self, format: Format) -> None:
        adapter: Any = format.adapter
        self.format = format
        self.definitions: dict[str, Any] = {}
        self.title = str(adapter.validator.title)
        self.root = _Node(self, adapter.core_schema, None)


_type_of = lru_cache(maxsize=256)(_Type)


class _Node:
    """The rules for a value inside a type, taken from pydantic's core schema."""

    def __init__(self, known: _Type, schema: dict[str, Any], config: Any) -> None:
        self._known = known
        self._schema = schema
        self._config = config

    def begin(self, character: str, place: tuple[object, ...]) -> None:
        """Accept any character, because pydantic may convert a value of one kind to another."""

    def check(self, text: str, place: tuple[object, ...]) -> None:
        from pydantic import ValidationError  # noqa: PLC0415

        if self._validator is None:
            return
        try:
            self._validator.validate_json(text)
        except ValidationError as exc:
            raise BrokenError(why_broken(self._known.title, problems(exc, place))) from exc

    def field(self, key: str, place: tuple[object, ...]) -> _Node | None:
        parts = self._parts
        if parts.closed and key not in parts.fields:
            self._wrong((*place, key), "Extra inputs are not permitted")
        return parts.values or parts.fields.get(key)

    def item(self, index: int, place: tuple[object, ...]) -> _Node | None:
        most = self._parts.longest
        if most is not None and index >= most:
            self._wrong(place, f"List should have at most {most} item{'' if most == 1 else 's'}")
        return self._parts.items

    def _wrong(self, place: tuple[object, ...], said: str) -> NoReturn:
        where = ".".join(map(str, place))
        raise BrokenError(why_broken(self._known.title, f"{where}: {said}" if where else said))

    @cached_property
    def _validator(self) -> Any:
        from pydantic_core import SchemaError, SchemaValidator  # noqa: PLC0415

        if self._needs_more(self._schema, set()):
            return None
        schema: Any = self._schema
        if definitions := list(self._known.definitions.values()):
            schema = {"type": "definitions", "schema": schema, "definitions": definitions}
        try:
            return SchemaValidator(schema, self._config)
        except SchemaError:  # The part isn't a schema by itself.
            return None

    def _needs_more(self, part: Any, seen: set[str]) -> bool:
        """Return whether any validator in a schema sees more than its own value."""
        if isinstance(part, list | tuple):
            return any(self._needs_more(each, seen) for each in cast("list[Any]", part))
        if not isinstance(part, dict):
            return False
        schema = cast("dict[str, Any]", part)
        if schema.get("type") == "with-info":
            return True
        if schema.get("type") in ("model-fields", "dataclass-args", "typed-dict"):
            return False  # Validators inside see only the fields of this value.
        if schema.get("type") == "definition-ref":
            name = str(schema["schema_ref"])
            if name in seen:
                return False
            seen.add(name)
            return self._needs_more(self._known.definitions[name], seen)
        return any(self._needs_more(v, seen) for k, v in schema.items() if k not in _DATA)

    @cached_property
    def _structure(self) -> tuple[dict[str, Any], Any]:
        """The schema and its config, without wrappers that don't change fields or items."""
        schema, config = self._schema, self._config
        while True:
            match schema["type"]:
                case "definitions":
                    self._known.definitions |= {d["ref"]: d for d in schema["definitions"]}
                case "definition-ref":
                    schema = {"schema": self._known.definitions[schema["schema_ref"]]}
                case "default" if schema.get("on_error", "raise") == "raise":
                    pass
                case "nullable" | "function-after":
                    pass
                case "model" | "dataclass" if not schema.get("custom_init"):
                    config = schema.get("config")
                case _:
                    return schema, config
            schema = schema["schema"]

    @cached_property
    def _parts(self) -> _Parts:
        schema, config = self._structure
        match schema["type"]:
            case "model-fields":
                return self._of_fields(schema, schema["fields"], config)
            case "dataclass-args":
                fields = {field["name"]: field for field in schema["fields"]}
                return self._of_fields(schema, fields, config)
            case "typed-dict" if not config:
                return self._of_fields(schema, schema["fields"], schema.get("config"))
            case "dict" if "values_schema" in schema:
                return _Parts(values=_Node(self._known, schema["values_schema"], config))
            case "list" | "set" | "frozenset" if "items_schema" in schema:
                items = _Node(self._known, schema["items_schema"], config)
                # A set drops repeated items.
                most = schema.get("max_length") if schema["type"] == "list" else None
                return _Parts(items=items, longest=most)
            case _:
                return _Parts()

    def _of_fields(self, schema: dict[str, Any], fields: dict[str, Any], config: Any) -> _Parts:
        settings: dict[str, Any] = config or {}
        by_name = settings.get("validate_by_name") or settings.get("populate_by_name")
        by_alias = settings.get("validate_by_alias") is not False
        behavior = schema.get("extra_behavior") or settings.get("extra_fields_behavior")
        closed = behavior == "forbid"
        found: dict[str, _Node | None] = {}
        for name, field in fields.items():
            alias = field.get("validation_alias", name)
            if not isinstance(alias, str):
                closed = False  # The value may come from keys that aren't listed here.
            elif alias != name and (by_name or not by_alias):
                found |= {name: None, alias: None}  # Each name counts only if the other is absent.
            elif field.get("init") is False:
                found[alias] = None
            else:
                found[alias] = _Node(self._known, field["schema"], config)
        return _Parts(fields=found, closed=closed)


class _Parts(NamedTuple):
    """The rules for the values inside an object or an array."""

    fields: dict[str, _Node | None] = {}  # noqa: RUF012 (never changed)
    closed: bool = False
    values: _Node | None = None
    items: _Node | None = None
    longest: int | None = None
