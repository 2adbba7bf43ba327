"""Structured output by a JSON Schema from a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mellea_like.cli.arguments import BackendName
from mellea_like.cli.opening import choose_backend
from mellea_like.core.format import check_format

if TYPE_CHECKING:
    from mellea_like.cli.arguments import SampleArguments

__all__ = ["structured_type", "type_of_schema"]


def structured_type(arguments: SampleArguments, schema: dict[str, Any] | None) -> type[Any] | None:
    """Say what type to ask the model for."""
    if schema is None or choose_backend(arguments) is BackendName.MARKOV:
        return None
    return type_of_schema(schema)


def type_of_schema(schema: dict[str, Any]) -> type[Any] | None:
    """Make a type that any JSON fits and whose JSON Schema is the one given."""
    if '"$ref"' in json.dumps(schema):
        return None

    class Reply:
        @classmethod
        def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
            from pydantic_core import core_schema  # noqa: PLC0415 (slow to import)

            return core_schema.any_schema()

        @classmethod
        def __get_pydantic_json_schema__(cls, _core: Any, _handler: Any) -> dict[str, Any]:
            return schema

    check_format(Reply)
    return Reply
