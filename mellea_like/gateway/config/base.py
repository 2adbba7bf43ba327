"""What all sections of the gateway's configuration have in common."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Seconds", "Section", "Text", "Whole"]

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
"""A length of time, in seconds: over 0, and a day at most."""

Whole = Annotated[int, Field(ge=1, strict=True)]
"""A number of things, at least 1."""

Text = Annotated[str, Field(min_length=1, strict=True)]
"""A text that says something."""


class Section(BaseModel):
    """A section of the configuration: frozen, and an unknown name in it is a mistake.

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
