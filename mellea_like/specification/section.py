"""What all sections of a specification have in common, and how a mistake in one is worded."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

__all__ = ["Name", "Positive", "Seconds", "Section", "Text", "Whole", "message_of"]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""An amount of something."""

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
"""A length of time, in seconds: a day at most."""

Whole = Annotated[int, Field(ge=1, strict=True)]
"""A number of things, at least 1."""

Text = Annotated[str, Field(min_length=1, strict=True)]
"""A text that isn't empty."""


Name = Annotated[str, StringConstraints(min_length=1, strict=True, strip_whitespace=True)]
"""A text that isn't blank."""


class Section(BaseModel):
    """A frozen section: an unknown name in it is a mistake.

    No error shows a value, since it may be a key.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True
    )

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any) -> Any:
        given: object = data
        if isinstance(given, dict):
            cls._check_given([str(name) for name in cast("Mapping[Any, Any]", given)])
        return data

    @classmethod
    def _check_given(cls, given: list[str]) -> None:
        known = cls.model_fields
        unknown = [name for name in given if name not in known]
        if unknown:
            close = difflib.get_close_matches(unknown[0], known, n=1)
            hint = f"; did you mean {close[0]}?" if close else "."
            msg = f"there is no {unknown[0]!r}{hint} What may stand here: {', '.join(known)}"
            raise ValueError(msg)
        missing = [name for name, f in known.items() if f.is_required() and name not in given]
        if missing:
            example = (known[missing[0]].examples or ["..."])[0]
            msg = f"{missing[0]} is missing: write {missing[0]}: {example}"
            raise ValueError(msg)


_MESSAGES = {
    "bool": "takes true or false",
    "dict": "takes names with their values",
    "finite": "takes a finite number (leave it out for no limit)",
    "float": "takes a number",
    "greater_than": "takes a number above {gt:g}",
    "greater_than_equal": "takes {ge:g} at least",
    "int": "takes a whole number",
    "less_than_equal": "takes {le:g} at most",
    "list": "takes a list",
    "literal": "takes {expected}",
    "model": "takes names with their values",
    "path": "takes the name of a file",
    "string_pattern": "takes a text of the form {pattern}",
    "string_too_long": "takes {max_length} characters at most",
    "string_too_short": "takes a text that isn't empty",
    "string": "takes a text",
    "too_short": "needs an entry",
    "tuple": "takes a list",
    "union_tag": "kind takes {expected_tags}",
}
"""What to say of pydantic's errors, by the longest beginning of their type."""


def message_of(error: ErrorDetails) -> str:
    """Word one of pydantic's errors as what its place takes."""
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    kinds = [kind for kind in _MESSAGES if error["type"].startswith(kind)]
    if not kinds:
        return error["msg"]
    return _MESSAGES[max(kinds, key=len)].format(**error.get("ctx", {}))
