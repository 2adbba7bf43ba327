"""The base class of all sections of a specification, and the wording of their errors."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from pydantic_core import ErrorDetails

RENAMED = {
    "loop": "attempts",
    "turns": "attempts",
    "concurrency": "lanes",
    "ordered": "in-order",
    "order": "breadth-first",
    "parallel": "workers",
    "workers": "processes",
}
"""Maps old names of fields and options to the new names."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A number over 0."""

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
"""A length of time in seconds, at most a day."""


def _read_digits(given: object) -> object:
    """Return digits as a number: the value of an environment variable is a text."""
    if isinstance(given, str) and given.isascii() and given.isdecimal():
        return int(given)
    return given


Digits = BeforeValidator(_read_digits)
"""Lets an integer be written as a text. It follows the bounds, which a JSON Schema then shows."""

Whole = Annotated[int, Field(ge=1, strict=True), Digits]
"""A whole number, at least 1."""

Text = Annotated[str, Field(min_length=1, strict=True)]
"""A text that isn't empty."""


Name = Annotated[str, StringConstraints(min_length=1, strict=True, strip_whitespace=True)]
"""A text that isn't blank."""


class Section(BaseModel):
    """The base class of a specification's sections, which are frozen and refuse unknown fields.

    Errors don't show values, which may be API keys.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True
    )
    _options: dict[str, str] = PrivateAttr(default_factory=dict[str, str])
    """Maps fields to the command-line options they were read from; empty for fields from a file."""

    def model_post_init(self, context: dict[str, Any] | None, /) -> None:  # noqa: D102 (pydantic's)
        self._options = (context or {}).get("options", {})

    def written(self, field: str, value: object = None) -> str:
        """Return a field for an error message, as the user wrote it: in YAML, or as an option."""
        name = self._options.get(field, field)
        colon = "" if field in self._options else ":"
        return name if value is None else f"{name}{colon} {value}"

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any) -> Any:
        if isinstance(data, dict):
            given = [str(name) for name in cast("Mapping[Any, Any]", data)]
            if wrong := cls._wrong_names(given):
                # With a ValueError, pydantic would report the whole input, and so API keys.
                error = PydanticCustomError("misnamed", "{told}", {"told": "\n".join(wrong)})
                found: InitErrorDetails = {"type": error, "input": None}
                raise ValidationError.from_exception_data(cls.__name__, [found], hide_input=True)
        return cast("Any", data)

    @classmethod
    def _wrong_names(cls, given: list[str]) -> list[str]:
        known = cls.model_fields
        wrong: list[str] = []
        for name in given:
            if renamed := why_renamed(name, known):
                wrong.append(renamed)
            elif name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {close[0]}?" if close else "."
                wrong.append(f"there is no {name!r}{hint} Allowed: {', '.join(known)}")
        for name, field in known.items():
            if field.is_required() and name not in given:
                example = (field.examples or ["..."])[0]
                wrong.append(f"{name} is missing: write {name}: {example}")
        return wrong


def why_renamed(name: str, known: Container[str]) -> str | None:
    """Return an error message if something in ``known`` was once called ``name``, or else None."""
    now = RENAMED.get(name, "")
    return f"{name} is now called {now}" if now in known else None


_MESSAGES = {
    "bool": "must be true or false",
    "dict": "must be a mapping of names to values",
    "finite": "must be a finite number (leave it out for no limit)",
    "float": "must be a number",
    "greater_than": "must be a number above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "int": "must be an integer",
    "less_than_equal": "must be at most {le:g}",
    "list": "must be a list",
    "literal": "must be {expected}",
    "model": "must be a mapping of names to values",
    "path": "must be the name of a file",
    "string_pattern": "must be a string of the form {pattern}",
    "string_too_long": "must be at most {max_length} characters long",
    "string_too_short": "must be a string that isn't empty",
    "string": "must be a string",
    "too_short": "needs at least one entry",
    "tuple": "must be a list",
    "union_tag_invalid": "kind must be one of {expected_tags}",
    "union_tag_not_found": (
        "kind is missing: write kind: openai, llama, pydantic-ai or python; kind: markov, which"
        " understands nothing, is for trying things out"
    ),
}
"""Maps prefixes of pydantic's error types to messages. The longest prefix that matches applies."""


def message_of(error: ErrorDetails) -> str:
    """Return our message for one of pydantic's errors, or else pydantic's own."""
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    kinds = [kind for kind in _MESSAGES if error["type"].startswith(kind)]
    if not kinds:
        return error["msg"]
    return _MESSAGES[max(kinds, key=len)].format(**error.get("ctx", {}))
