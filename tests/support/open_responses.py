"""The objects and events of the Responses API that its open specification requires.

`Open Responses <https://www.openresponses.org>`_ lists the fields of a response, its
items and the events of a stream. These models have the required fields of the edition of
2026-04-24.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class _Required(BaseModel):
    model_config = ConfigDict(strict=True)


class OutputText(_Required):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]


class Refusal(_Required):
    type: Literal["refusal"]
    refusal: str


class ReasoningText(_Required):
    type: Literal["reasoning_text"]
    text: str


Part = Annotated[OutputText | Refusal | ReasoningText, Field(discriminator="type")]
Progress = Literal["in_progress", "completed", "incomplete"]


class Message(_Required):
    type: Literal["message"]
    id: str
    status: Progress
    role: Literal["assistant"]
    content: list[Part]


class FunctionCall(_Required):
    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: Progress


class Reasoning(_Required):
    type: Literal["reasoning"]
    id: str
    summary: list[Any]


Item = Annotated[Message | FunctionCall | Reasoning, Field(discriminator="type")]


class FunctionTool(_Required):
    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class IncompleteDetails(_Required):
    reason: str


class Format(_Required):
    type: Literal["text", "json_object", "json_schema"]


class Text(_Required):
    format: Format


class ReasoningSettings(_Required):
    effort: str | None
    summary: str | None


class InputDetails(_Required):
    cached_tokens: int


class OutputDetails(_Required):
    reasoning_tokens: int


class Usage(_Required):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails
    output_tokens_details: OutputDetails


class Response(_Required):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: str
    incomplete_details: IncompleteDetails | None
    model: str
    previous_response_id: str | None
    instructions: str | None
    output: list[Item]
    error: dict[str, Any] | None
    tools: list[FunctionTool]
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any]
    truncation: Literal["auto", "disabled"]
    parallel_tool_calls: bool
    text: Text
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    temperature: float
    reasoning: ReasoningSettings | None
    usage: Usage | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool
    service_tier: str
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None


class _Event(_Required):
    type: str
    sequence_number: int


class OfResponse(_Event):
    type: Literal[
        "response.created", "response.in_progress", "response.completed", "response.incomplete"
    ]
    response: Response


class OfItem(_Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: Item


class _Inside(_Event):
    item_id: str
    output_index: int


class OfPart(_Inside):
    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int
    part: Part


class Delta(_Inside):
    type: Literal["response.output_text.delta", "response.refusal.delta"]
    content_index: int
    delta: str


class TextDone(_Inside):
    type: Literal["response.output_text.done"]
    content_index: int
    text: str


class RefusalDone(_Inside):
    type: Literal["response.refusal.done"]
    content_index: int
    refusal: str


class ArgumentsDelta(_Inside):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDone(_Inside):
    type: Literal["response.function_call_arguments.done"]
    arguments: str


class ErrorPayload(_Required):
    type: str
    code: str | None
    message: str
    param: str | None


class Error(_Event):
    type: Literal["error"]
    error: ErrorPayload


EVENT: TypeAdapter[Any] = TypeAdapter(
    Annotated[
        OfResponse
        | OfItem
        | OfPart
        | Delta
        | TextDone
        | RefusalDone
        | ArgumentsDelta
        | ArgumentsDone
        | Error,
        Field(discriminator="type"),
    ]
)
"""Reads an event, or raises ``ValidationError``."""
