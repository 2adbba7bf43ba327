"""Read replies as values of a type, from JSON or from the bare text of a scalar."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import cached_property, lru_cache
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from mellea_like.core.display import bounded, error_text, first_few, safe_repr

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import TypeAdapter, ValidationError

__all__ = ["json_schema", "parse_reply", "problems"]

_BEGINS_JSON = re.compile(r'[{\["\d]')
_FENCE = re.compile(r"\A\s*```[A-Za-z0-9_-]*[ \t]*\r?\n(.*?)\r?\n?```\s*\Z", re.DOTALL)


class Format:
    """A type of replies, with everything that is derived from it on first use."""

    def __init__(self, kind: Any) -> None:
        self.type = kind
        # `P | Q` and `Q | P` are different formats, although the types are equal.
        self._parts = _parts(kind)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Format) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(self._parts)

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """Pydantic's adapter of the type."""
        from pydantic import TypeAdapter  # noqa: PLC0415 (half of this package's import time)

        return TypeAdapter(self.type)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The type's JSON Schema (draft 2020-12). It is shared, so don't change it."""
        return self.adapter.json_schema()

    @cached_property
    def brackets(self) -> str:
        """The brackets (``{``, ``[``) with which JSON of the type may begin."""
        kinds = {kind for part in _parts_of(self.schema) for kind in _kinds(part)}
        return "{" * ("object" in kinds) + "[" * ("array" in kinds)

    @cached_property
    def choices(self) -> frozenset[str] | None:
        """The texts that a scalar type lists as its values; None if it isn't a scalar type."""
        listed = list[Any]()
        for part in _parts_of(self.schema):
            values = part["enum"] if "enum" in part else [part["const"]] if "const" in part else []
            kinds = _kinds(part)
            nested = any(several in part for several in ("$ref", *_SEVERAL))
            if not (values or nested or kinds) or not _SCALARS.issuperset(kinds):
                return None
            listed += values
        return frozenset(value for value in listed if isinstance(value, str))


def format_of(kind: Any) -> Format:
    """Return the format of a type, which is made only once."""
    return _of_class(kind) if isinstance(kind, type) else _known(Format(kind))


_of_class = lru_cache(maxsize=256)(Format)  # A class is its own key, which takes less time.


@lru_cache(maxsize=256)
def _known(format: Format) -> Format:
    return format


def _parts(kind: Any) -> object:
    inside: tuple[object, ...] = get_args(kind)
    if not inside:
        return id(kind)
    origin = get_origin(kind)
    if origin is Literal:
        return origin, tuple((type(word), word) for word in inside)
    return origin, tuple(map(_parts, inside))


_SEVERAL = ("anyOf", "oneOf", "allOf")
_SCALARS = frozenset({"string", "number", "integer", "boolean", "null"})


def _parts_of(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Iterate over a schema, the members of its unions, and the schemas that it refers to."""
    definitions: dict[str, Any] = schema.get("$defs", {})
    pending: list[dict[str, Any]] = [schema]
    followed = set[str]()
    while pending:
        part = pending.pop()
        name = str(part.get("$ref", "")).removeprefix("#/$defs/")
        if name in definitions and name not in followed:
            followed.add(name)
            pending.append(definitions[name])
        for several in _SEVERAL:
            pending += part.get(several, ())
        yield part


def _kinds(part: dict[str, Any]) -> list[str]:
    types: Any = part.get("type", ())
    return [types] if isinstance(types, str) else list(types)


def check_format(format: Any) -> None:
    """Raise ``TypeError`` if JSON can't be read into a format."""
    try:
        if isinstance(format, BuiltinFunctionType | FunctionType | MethodType):
            msg = (
                "it is a function: to parse replies with it, pass an action that has it as its"
                " parse method"
            )
            raise TypeError(msg)
        json_schema(format)
    except Exception as exc:
        why = "it is a dict" if isinstance(format, dict) else str(exc).splitlines()[0]
        msg = (
            "format must be a pydantic model or another type that JSON can be validated against,"
            f" not {format!r}: {why}"
        )
        raise TypeError(msg) from exc


def json_schema(format: Any) -> dict[str, Any]:
    """Return a format's JSON Schema (draft 2020-12). It is shared, so don't change it."""
    return format_of(format).schema


def format_name(format: Any) -> str:
    """Return a format's name in characters that every server accepts."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", getattr(format, "__name__", "reply"))
    return name[:64] or "reply"


def strip_fence(text: str) -> str:
    """Remove a Markdown code fence around a whole text."""
    fenced = _FENCE.match(text)
    return fenced[1] if fenced else text.strip()


def parse_json(format: Any, text: str) -> Any:
    """Read a JSON text, with or without a Markdown fence around it, as a value of a type."""
    whole = strip_fence(text)
    value = _validated(format_of(format).adapter.validate_json, whole)
    refuse_repeated_keys(whole)
    return value


def parse_reply(format: Any, text: str) -> Any:
    """Read the one JSON value in a model's reply as a type.

    The value may be inside prose or a code fence, and may follow a ``<think>`` block. Nothing in it
    is repaired, and it must be unambiguous. If the type's JSON begins with a bracket (``{`` or
    ``[``), all values in the reply that begin with this bracket must be equal. Brackets
    elsewhere in the reply must be balanced, and no object in the value may have the same key twice.
    A value that is neither an object nor an array must be the whole reply, or the whole content of
    its only code fence.

    If the type is a scalar (a text, a number, a date, an enum, a literal, or a union of these),
    the quotes may be missing. A text that isn't JSON of the type is read as if it were a JSON
    string. Ambiguous texts are refused: empty ones, objects, arrays, ``null``, and texts in double
    quotes that aren't JSON. A text that could mean either of two choices is also refused. For
    example, with ``Literal["1", 1]``, the reply ``1`` may be the number, or the text without its
    quotes.

    Args:
        format: the type.
        text: the reply.

    Returns:
        The value.

    Raises:
        ValueError: there is no value, there are several that differ, or the value isn't of the
            type. The message names the fields and the rules that they break.
    """
    known = format_of(format)
    read = known.adapter.validate_json
    if known.choices is not None:
        return _scalar(read, text, known.choices)
    found: str | None = strip_fence(text)
    try:
        value = _validated(read, found)
    except ValueError as exc:
        if not _is_no_json(exc):
            raise
        found = _value_inside(text, known.brackets)
        if found is None:
            raise
        value = _validated(read, found)
    refuse_repeated_keys(str(found))
    return value


_THINKING = re.compile(
    r"\A\s*<(think|thinking|thought|reasoning)>(?:.*?(</\1>)|)", re.DOTALL | re.IGNORECASE
)
_THOUGHT = re.compile(r"\A\s*[^\s{\[`].*?</think>", re.DOTALL)
"""Matches a thought without its opening tag, which the chat template put into the prompt."""

_BLOCK = re.compile(r"```[A-Za-z0-9_-]*[ \t]*\r?\n(.*)```", re.DOTALL)
_BRACKET = re.compile(r"[{}\[\]]")
_INSIDE = re.compile(r'"(?:[^"\\]|\\.)*+"|["{}\[\]]', re.DOTALL)
_CLOSES = {"}": "{", "]": "["}


def _scalar(read: Any, text: str, choices: frozenset[str]) -> Any:
    """Read a reply as a scalar: as JSON, or else as its bare text."""
    rest = _after_thought(text)
    bare = [strip_fence(rest)]
    if (block := _only_block(rest)) is not None:
        bare.append(block.strip())
    if not any(bare):
        msg = "it is empty"
        raise ValueError(msg)
    wholes = dict.fromkeys((strip_fence(text), *bare))
    readings = [(whole, whole) for whole in wholes]
    readings += [(whole, json.dumps(whole)) for whole in bare if _may_be_bare(read, whole)]
    wrong = None
    for whole, source in readings:
        try:
            value = _validated(read, source)
        except ValueError as exc:
            if wrong is None and not _is_no_json(exc):
                wrong = source
            continue
        if source is whole and whole in choices:
            _refuse_two_readings(read, whole, value)
        return value
    # Raise the error of a broken rule, if there is one.
    return _validated(read, readings[0][1] if wrong is None else wrong)


def _may_be_bare(read: Any, text: str) -> bool:
    """Return whether a text may be a value without quotes, rather than broken JSON."""
    if not text or (text[0] == '"' and (text[-1] == '"' or text.count('"') == 1)):
        return False
    if text.lower() in {"none", "null"}:
        with suppress(ValueError):
            read("null")
            return False  # It could mean nothing, or the word "null".
    try:
        value: object = json.loads(text)
    except ValueError:
        return True
    except RecursionError:
        return False
    return isinstance(value, int | float)


def _refuse_two_readings(read: Any, text: str, value: object) -> None:
    """Raise ``ValueError`` if a bare choice can also be read as another value."""
    try:
        other = read(json.dumps(text))
    except ValueError:
        return
    if type(other) is not type(value) or other != value:
        msg = f"it may be {value!r} or {other!r}: put a text into double quotes"
        raise ValueError(msg)


def _after_thought(text: str) -> str:
    """Remove the model's thoughts before its reply; raise ``ValueError`` if they don't end."""
    thinking = _THINKING.match(text)
    if thinking and not thinking[2]:
        msg = "it ends in the middle of what the model thinks aloud"
        raise ValueError(msg)
    thought = thinking or _THOUGHT.match(text)
    return text[thought.end() :] if thought else text


def _only_block(text: str) -> str | None:
    """Return the content of a text's only code fence; None if it has none, or several."""
    block = _BLOCK.search(text) if text.count("```") == 2 else None  # noqa: PLR2004
    return block[1] if block else None


def _value_inside(text: str, kinds: str) -> str | None:
    """Find a reply's only JSON value that begins with a bracket in ``kinds``, or return None."""
    rest = _after_thought(text)
    if not kinds:  # The type has no bracket of its own.
        block = _only_block(rest)
        return rest if block is None and rest is not text else block
    found = _in_brackets(rest, kinds)
    if found is None and rest.lstrip()[:1] not in kinds:
        msg = "its brackets don't match"
        raise ValueError(msg)
    if not found:
        return None
    first = _canonical(found[0])
    if any(_canonical(value) != first for value in dict.fromkeys(found)):
        msg = f"it has {len(found)} values in brackets, and they differ: give one"
        raise ValueError(msg)
    return found[0]


def _in_brackets(text: str, kinds: str) -> list[str] | None:
    """Return the outermost bracketed texts opened by one of ``kinds``; None if unbalanced."""
    found: list[str] = []
    at = 0
    while (opening := _BRACKET.search(text, at)) is not None:
        stack: list[str] = []
        for mark in _INSIDE.finditer(text, opening.start()):
            if mark[0] in ("{", "["):
                stack.append(mark[0])
            elif mark[0] == '"':
                return None  # A string that does not end.
            elif mark[0] in _CLOSES:
                if not stack or stack.pop() != _CLOSES[mark[0]]:
                    return None
                if not stack:
                    at = mark.end()
                    break
        if stack:
            return None
        if opening[0] in kinds:
            found.append(text[opening.start() : at])
    return found


def _canonical(value: str) -> str:
    try:
        return json.dumps(json.loads(value), sort_keys=True)
    except (ValueError, RecursionError):
        return value  # It isn't JSON, and reading it will say why.


def refuse_repeated_keys(text: str) -> None:
    """Raise ``ValueError`` if any object of a JSON text has a key twice."""
    if "{" in text and not _as_many_colons(text):
        with suppress(RecursionError):
            _EACH_KEY_ONCE.decode(text)


def _as_many_colons(text: str) -> bool:
    """Return whether JSON has the same number of colons after parsing, so that no key was lost."""
    from pydantic_core import from_json, to_json  # noqa: PLC0415

    try:
        return "\\u003" not in text and to_json(from_json(text)).count(b":") == text.count(":")
    except ValueError:  # For example, it has half of a surrogate pair.
        return False


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dict; raise ``ValueError`` if a key occurs twice."""
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        twice = next(key for i, key in enumerate(keys) if key in keys[:i])
        msg = f"it says {json.dumps(bounded(twice, 60), ensure_ascii=False)} twice in one object"
        raise ValueError(msg)
    return dict(pairs)


_EACH_KEY_ONCE = json.JSONDecoder(object_pairs_hook=each_key_once, strict=False)


def parse_value(format: Any, value: object) -> Any:
    """Validate a Python value as a type; raise ``ValueError`` if it isn't of that type."""
    return _validated(format_of(format).adapter.validate_python, value)


def _validated(validate: Any, value: object) -> Any:
    from pydantic import ValidationError  # noqa: PLC0415

    try:
        return validate(value)
    except ValidationError as exc:
        raise ValueError(problems(exc)) from exc


def problems(error: ValidationError, inside: tuple[object, ...] = ()) -> str:
    """Name the first few wrong fields of a value, with the rules that they break.

    ``inside`` is the path of the value in the reply.
    """
    found = error.errors(include_url=False, include_context=False)
    return "; ".join(first_few(_problem((*inside, *e["loc"]), e) for e in found))


def _problem(place: tuple[object, ...], error: Mapping[str, Any]) -> str:
    # These are a validator's own words, without pydantic's prefix.
    broken = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    said = ": ".join(filter(None, (".".join(map(str, place)), broken)))
    if not place or error["type"] in ("missing", "json_invalid"):
        return said
    value = error["input"]
    try:
        shown = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        shown = safe_repr(value)
    return f"{said} (it is {bounded(shown, 80)})"


def why_unread(error: ValueError) -> str:
    """Explain why a reply could not be read, for people and for the model."""
    from pydantic import ValidationError  # noqa: PLC0415

    broken = error.__cause__ if isinstance(error.__cause__, ValidationError) else error
    if isinstance(broken, ValidationError) and not _no_json(broken):
        return why_broken(broken.title, problems(broken))
    if isinstance(broken, ValidationError):
        read = broken.errors(include_url=False, include_context=False)[0]["input"]
        nothing = isinstance(read, str) and not _BEGINS_JSON.search(read)
        why = "there is no JSON in it" if nothing else problems(broken)
    else:
        why = error_text(error)
    return f"the reply does not parse: {bounded(why or type(error).__name__)}"


def why_broken(title: str, said: str) -> str:
    """Return the message for a reply that is JSON, but not of the type called ``title``."""
    return f"the reply isn't a valid {bounded(title, 100)}: {said}"


def _is_no_json(error: ValueError) -> bool:
    from pydantic import ValidationError  # noqa: PLC0415

    return isinstance(error.__cause__, ValidationError) and _no_json(error.__cause__)


def _no_json(error: ValidationError) -> bool:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return first["type"] == "json_invalid" and not first["loc"]
