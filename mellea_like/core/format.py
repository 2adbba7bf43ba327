"""Reading a reply as JSON of a given type."""

from __future__ import annotations

import re
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from mellea_like.core.display import bounded, error_text, first_few

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

__all__ = ["check_format", "json_schema", "parse_json", "parse_value", "strip_fence", "why_unread"]

_FENCE = re.compile(r"\A\s*```[A-Za-z0-9_-]*[ \t]*\r?\n(.*?)\r?\n?```\s*\Z", re.DOTALL)


class _Known:
    """A format as the key of a cache: ``P | Q`` equals ``Q | P``, and reads other values."""

    __slots__ = ("format", "parts")

    def __init__(self, format: Any) -> None:
        self.format = format
        self.parts = _parts(format)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)


def _parts(format: Any) -> object:
    inside: tuple[object, ...] = get_args(format)
    if not inside:
        return id(format)
    origin = get_origin(format)
    if origin is Literal:
        return origin, tuple((type(word), word) for word in inside)
    return origin, tuple(map(_parts, inside))


def _adapter(format: Any) -> TypeAdapter[Any]:
    return _adapter_of(format if isinstance(format, type) else _Known(format))


@lru_cache(maxsize=256)
def _adapter_of(known: type | _Known) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # noqa: PLC0415 (half of this package's import time)

    return TypeAdapter(known.format if isinstance(known, _Known) else known)


def check_format(format: Any) -> None:
    """Make sure that a format is a type that JSON can be read into."""
    try:
        if isinstance(format, BuiltinFunctionType | FunctionType | MethodType):
            msg = "it is a function: to read replies with it, give an action with this parse method"
            raise TypeError(msg)
        json_schema(format)
    except Exception as exc:
        msg = (
            "format takes a pydantic model or another type that JSON can be validated against,"
            f" not {format!r}: {str(exc).splitlines()[0]}"
        )
        raise TypeError(msg) from exc


def json_schema(format: Any) -> dict[str, Any]:
    """Return the JSON Schema of a format.

    Args:
        format: the type.

    Returns:
        The schema (draft 2020-12); shared, not to be changed.
    """
    return _schema_of(_Known(format))


@lru_cache(maxsize=256)
def _schema_of(known: _Known) -> dict[str, Any]:
    return _adapter_of(known).json_schema()


def strip_fence(text: str) -> str:
    """Take away one Markdown code fence around a whole text."""
    fenced = _FENCE.match(text)
    return fenced[1] if fenced else text.strip()


def parse_json(format: Any, text: str) -> Any:
    """Read a text as JSON of a type; one Markdown fence around it is tolerated.

    Args:
        format: the type.
        text: what a model wrote.

    Returns:
        The value.

    Raises:
        ValueError: the text isn't JSON, or not of that type; says which fields are wrong.
    """
    return _validated(_adapter(format).validate_json, strip_fence(text))


def parse_value(format: Any, value: object) -> Any:
    """Read a Python value as a type.

    Args:
        format: the type.
        value: what a backend produced.

    Returns:
        The value, converted where that loses nothing.

    Raises:
        ValueError: it is not of that type.
    """
    return _validated(_adapter(format).validate_python, value)


def _validated(validate: Any, value: object) -> Any:
    from pydantic import ValidationError  # noqa: PLC0415

    try:
        return validate(value)
    except ValidationError as exc:
        raise ValueError(_problems(exc)) from exc


def _problems(error: ValidationError) -> str:
    """Name the fields and rules that a value breaks: of many the first."""
    problems = (
        ": ".join(filter(None, (".".join(map(str, e["loc"])), e["msg"])))
        for e in error.errors(include_url=False, include_context=False, include_input=False)
    )
    return "; ".join(first_few(problems))


def why_unread(error: ValueError) -> str:
    """Say why a reply could not be read, for people and for the model."""
    from pydantic import ValidationError  # noqa: PLC0415

    broken = error.__cause__ if isinstance(error.__cause__, ValidationError) else error
    if isinstance(broken, ValidationError) and not _no_json(broken):
        return f"the reply isn't a valid {bounded(broken.title, 100)}: {_problems(broken)}"
    why = _problems(broken) if isinstance(broken, ValidationError) else error_text(error)
    return f"the reply does not parse: {bounded(why or type(error).__name__)}"


def _no_json(error: ValidationError) -> bool:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return first["type"] == "json_invalid" and not first["loc"]
