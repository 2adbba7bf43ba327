"""The objects and events of the Responses API that its open specification requires.

`Open Responses <https://www.openresponses.org>`_ lists the fields of a response, its
items and the events of a stream. These models have the required fields of the edition of
2026-04-24.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model


def _model(kind: str | None = None, **fields: Any) -> Any:
    """Make a model whose fields are all required; the kinds are the values of its ``type``."""
    if kind is not None:
        fields["type"] = Literal[tuple(kind.split())]
    made = {name: (type_, ...) for name, type_ in fields.items()}
    return create_model("Required", __config__=ConfigDict(strict=True), **made)


def _one_of(*models: type[BaseModel]) -> Any:
    return Annotated[reduce(or_, models), Field(discriminator="type")]


PART = _one_of(
    _model("output_text", text=str, annotations=list[Any]),
    _model("refusal", refusal=str),
    _model("reasoning_text", text=str),
)
PROGRESS = Literal["in_progress", "completed", "incomplete"]
ITEM = _one_of(
    _model("message", id=str, status=PROGRESS, role=Literal["assistant"], content=list[PART]),
    _model("function_call", id=str, call_id=str, name=str, arguments=str, status=PROGRESS),
    _model("reasoning", id=str, summary=list[Any]),
)
TOOL = _model(
    "function",
    name=str,
    description=str | None,
    parameters=dict[str, Any] | None,
    strict=bool | None,
)
USAGE = _model(
    input_tokens=int,
    output_tokens=int,
    total_tokens=int,
    input_tokens_details=_model(cached_tokens=int),
    output_tokens_details=_model(reasoning_tokens=int),
)
RESPONSE = _model(
    id=str,
    object=Literal["response"],
    created_at=int,
    completed_at=int | None,
    status=str,
    incomplete_details=_model(reason=str) | None,
    model=str,
    previous_response_id=str | None,
    instructions=str | None,
    output=list[ITEM],
    error=dict[str, Any] | None,
    tools=list[TOOL],
    tool_choice=Literal["none", "auto", "required"] | dict[str, Any],
    truncation=Literal["auto", "disabled"],
    parallel_tool_calls=bool,
    text=_model(format=_model("text json_object json_schema")),
    top_p=float,
    presence_penalty=float,
    frequency_penalty=float,
    top_logprobs=int,
    temperature=float,
    reasoning=_model(effort=str | None, summary=str | None) | None,
    usage=USAGE | None,
    max_output_tokens=int | None,
    max_tool_calls=int | None,
    store=bool,
    background=bool,
    service_tier=str,
    metadata=dict[str, str],
    safety_identifier=str | None,
    prompt_cache_key=str | None,
)


def _events(kinds: str, **fields: Any) -> Any:
    kinds = " ".join(f"response.{kind}" for kind in kinds.split())
    return _model(kinds, sequence_number=int, **fields)


INSIDE = {"item_id": str, "output_index": int}
PLACE = {**INSIDE, "content_index": int}
ERROR = _model(type=str, code=str | None, message=str, param=str | None)
EVENT: TypeAdapter[Any] = TypeAdapter(
    _one_of(
        _events("created in_progress completed incomplete", response=RESPONSE),
        _events("output_item.added output_item.done", output_index=int, item=ITEM),
        _events("content_part.added content_part.done", **PLACE, part=PART),
        _events("output_text.delta refusal.delta", **PLACE, delta=str),
        _events("output_text.done", **PLACE, text=str),
        _events("refusal.done", **PLACE, refusal=str),
        _events("function_call_arguments.delta", **INSIDE, delta=str),
        _events("function_call_arguments.done", **INSIDE, arguments=str),
        _model("error", sequence_number=int, error=ERROR),
    )
)
"""Reads an event, or raises ``ValidationError``."""

OPENAI_EVENT: TypeAdapter[Any] = TypeAdapter(
    ResponseStreamEvent, config=ConfigDict(defer_build=True)
)
"""Reads an event as OpenAI's SDK has it."""
