"""Requests to ``/v1/responses``, read strictly and converted to chat completion requests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    Tag,
    ValidationInfo,
)

from mellea_like.gateway.chat.request import (
    MOST_TOOLS,
    ChatRequest,
    Extensions,
    WebUrl,
    carried,
    model_of,
)
from mellea_like.gateway.chat.responses_tools import (
    HINT,
    HOSTED_ITEMS,
    Choice,
    Sent,
    Tool,
    ToolName,
    drops_hosted,
    function_name,
    functions_of,
    input_as_arguments,
    names_of,
    places_of,
)
from mellea_like.gateway.chat.strict_fields import (
    BY_TYPE,
    Fields,
    NotBlank,
    Penalty,
    Positive,
    of_type,
    read_as,
    reject,
    type_of,
)
from mellea_like.gateway.fields import (
    DEFAULTS,
    RESPONSES_FIELDS,
    UNSUPPORTED,
    FieldRules,
    read_fields,
)
from mellea_like.gateway.refusal import Refusal, refuse

if TYPE_CHECKING:
    from collections.abc import Mapping

LOGPROBS = "message.output_text.logprobs"

INCLUDED = (LOGPROBS, "reasoning.encrypted_content")
"""The allowed values of ``include``. ``reasoning.encrypted_content`` is accepted without effect."""

LABELS = ("safety_identifier", "prompt_cache_key", "user")
"""The text fields of a request that its response repeats."""


# --- parts ---------------------------------------------------------------------------------------


class _TextPart(Sent):
    type: str
    text: str

    @property
    def chat(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text}


class _OutputRefusal(Sent):
    type: str
    refusal: str

    @property
    def chat(self) -> dict[str, Any]:
        return {"type": "refusal", "refusal": self.refusal}


class _InputImage(Sent):
    type: str
    image_url: WebUrl
    detail: str | None = None

    @property
    def chat(self) -> dict[str, Any]:
        detail = {} if self.detail is None else {"detail": self.detail}
        return {"type": "image_url", "image_url": {"url": self.image_url, **detail}}


class _InputFile(Sent):
    type: str
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None

    @property
    def chat(self) -> dict[str, Any]:
        return {"type": "file", "file": {n: v for n, v in self.sent.items() if n != "type"}}


def _carriable(part: Any) -> Any:
    """Reject a part that backends can't take, while pydantic still knows the part's place."""
    carried(part.chat)
    return part


_Part = Annotated[
    Annotated[_TextPart, Tag("<input_text>")]
    | Annotated[_TextPart, Tag("<output_text>")]
    | Annotated[_OutputRefusal, Tag("<refusal>")]
    | Annotated[_InputImage, Tag("<input_image>")]
    | Annotated[_InputFile, Tag("<input_file>")],
    BY_TYPE,
    of_type(("input_text", "output_text", "refusal", "input_image", "input_file"), "parts"),
    AfterValidator(_carriable),
]


def _as_parts(given: Any) -> Any:
    return [{"type": "input_text", "text": given}] if isinstance(given, str) else given


_Parts = Annotated[Annotated[list[_Part], Field(min_length=1)], BeforeValidator(_as_parts)]


# --- items ---------------------------------------------------------------------------------------


class _MessageItem(Sent):
    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: _Parts


class _CallItem(Sent):
    type: str
    call_id: NotBlank
    name: NotBlank
    namespace: NotBlank | None = None

    def called_with(self, arguments: str) -> dict[str, Any]:
        name = function_name(self.name, self.namespace)
        function = {"name": name, "arguments": arguments}
        return {"id": self.call_id, "type": "function", "function": function}


class _FunctionCallItem(_CallItem):
    arguments: str

    @property
    def chat(self) -> dict[str, Any]:
        return self.called_with(self.arguments)


class _CustomCallItem(_CallItem):
    input: str

    @property
    def chat(self) -> dict[str, Any]:
        return self.called_with(input_as_arguments(self.input))


class _OutputItem(Sent):
    type: str
    call_id: NotBlank
    output: _Parts


class _SkippedItem(Sent):
    """An input item that is ignored: a server's reasoning, or an action of a hosted tool."""

    type: str


ITEMS = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
)


SKIPPED = {"type": "reasoning"}


def _readable(given: Any, info: ValidationInfo) -> Any:
    kind = type_of(given)
    if kind == "item_reference":
        reject("the gateway stores nothing: send the item itself", UNSUPPORTED)
    if kind in HOSTED_ITEMS:
        if drops_hosted(info):
            return SKIPPED
        reject(f"{kind!r} belongs to a hosted tool, and this model has none; {HINT}", UNSUPPORTED)
    if isinstance(given, dict) and "role" in given:
        return {"type": "message", **cast("dict[str, Any]", given)}
    return cast("Any", given)


_Item = Annotated[
    Annotated[_MessageItem, Tag("<message>")]
    | Annotated[_FunctionCallItem, Tag("<function_call>")]
    | Annotated[_CustomCallItem, Tag("<custom_tool_call>")]
    | Annotated[_OutputItem, Tag("<function_call_output>")]
    | Annotated[_OutputItem, Tag("<custom_tool_call_output>")]
    | Annotated[_SkippedItem, Tag("<reasoning>")],
    BY_TYPE,
    of_type(ITEMS, "items"),
    BeforeValidator(_readable),
]


def _as_items(given: Any) -> Any:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


# --- formats -------------------------------------------------------------------------------------


class _Format(Sent):
    type: Literal["text", "json_object", "json_schema"]
    name: NotBlank | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None
    description: str | None = None

    @property
    def chat(self) -> dict[str, Any]:
        described = {name: value for name, value in self.sent.items() if name != "type"}
        if self.type != "json_schema":
            return {"type": self.type}
        return {"type": self.type, "json_schema": described}


class _Text(Sent):
    format: _Format | None = None
    verbosity: NotBlank | None = None

    @property
    def echoed(self) -> dict[str, Any]:
        """The field ``text`` as the response repeats it, with defaults."""
        format: dict[str, Any] = {"type": "text"} if self.format is None else self.format.sent
        if format["type"] == "json_schema":
            format = {"description": None, "strict": False, **format}
        return {**self.sent, "format": format}


class _Reasoning(Sent):
    effort: NotBlank | None = None


def _includable(name: str, info: ValidationInfo) -> str:
    if name not in INCLUDED and not drops_hosted(info):
        what = f"{name[:64]!r} isn't supported: a response can include {' and '.join(INCLUDED)}"
        reject(f"{what}; {HINT}", UNSUPPORTED)
    return name


class ResponsesRequest(Fields):
    """A request to ``/v1/responses``."""

    model: NotBlank
    input: Annotated[
        Annotated[list[_Item], Field(min_length=1, max_length=2000)], BeforeValidator(_as_items)
    ]
    instructions: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_output_tokens: Positive | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    tools: Annotated[list[Tool], Field(max_length=MOST_TOOLS)] = Field(default_factory=list[Any])
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    text: _Text = _Text()
    reasoning: _Reasoning = _Reasoning()
    include: list[Annotated[str, AfterValidator(_includable)]] = Field(default_factory=list[str])
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    metadata: dict[str, str] = Field(default_factory=dict[str, str])
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    mellea_like: Extensions = Extensions()
    labels: dict[str, str | None] = Field(default_factory=dict[str, str | None])
    """The values of the fields in `LABELS`, which the response repeats."""

    @property
    def names(self) -> Mapping[str, ToolName]:
        """Maps the name of a function in chat completions to the caller's name for the tool."""
        return names_of(self.tools)

    def name_of(self, param: str) -> str:
        """Translate a field's name in chat completions to its name in ``/v1/responses``."""
        for pattern, name in NAMES:
            param = re.sub(pattern, name, param)
        places = places_of(self.tools)
        return re.sub(r"^tools\.(\d+)", lambda found: f"tools.{places[int(found[1])]}", param)

    @property
    def chat(self) -> dict[str, Any]:
        """The same request in the form of a chat completion request."""
        choice, format = self.tool_choice, self.text.format
        fields: dict[str, Any] = {
            **{name: getattr(self, name) for name in SAME},
            "messages": self._messages(),
            "max_completion_tokens": self.max_output_tokens,
            "tools": functions_of(self.tools),
            "tool_choice": choice if choice is None or isinstance(choice, str) else choice.chat,
            "response_format": None if format is None else format.chat,
            "reasoning_effort": self.reasoning.effort,
            "logprobs": LOGPROBS in self.include or bool(self.top_logprobs),
            "mellea_like": self.mellea_like.sent,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def _messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        for item in self.input:
            match item:
                case _MessageItem():
                    content = [part.chat for part in item.content]
                    messages.append({"role": item.role, "content": content})
                case _FunctionCallItem() | _CustomCallItem():
                    # The assistant's text and calls between two other messages become one message.
                    if not messages or messages[-1]["role"] != "assistant":
                        messages.append({"role": "assistant"})
                    messages[-1].setdefault("tool_calls", []).append(item.chat)
                case _OutputItem():
                    content = [part.chat for part in item.output]
                    said = {"tool_call_id": item.call_id, "content": content}
                    messages.append({"role": "tool", **said})
                case _SkippedItem():
                    pass
        return messages


class AskedResponse(NamedTuple):
    """A request to ``/v1/responses``, and the same request as a chat completion request."""

    own: ResponsesRequest
    chat: ChatRequest


def read_response(body: Mapping[str, Any], rules: FieldRules = DEFAULTS) -> AskedResponse:
    """Parse a ``/v1/responses`` request under the model's rules."""
    model_of(body)
    honoured, forwarded = read_fields(body, RESPONSES_FIELDS, rules.of_responses)
    labels = {name: text if isinstance(text := body.get(name), str) else None for name in LABELS}
    own = read_as(ResponsesRequest, {**honoured, "labels": labels}, rules)
    if own.text.verbosity is not None:
        forwarded["verbosity"] = own.text.verbosity
    fields = own.chat
    if not fields["messages"] or fields["messages"][-1]["role"] == "assistant":
        refuse("input", "must end with an item to answer, not with one from the assistant")
    try:
        return AskedResponse(own, read_as(ChatRequest, {**fields, "forwarded": forwarded}, rules))
    except Refusal as refusal:
        refusal.rename(own.name_of)
        raise


SAME = (
    "model",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "parallel_tool_calls",
    "top_logprobs",
    "stream",
)
"""Fields with the same name in requests to ``/v1/responses`` and ``/v1/chat/completions``."""

NAMES = (
    (r"^max_completion_tokens", "max_output_tokens"),
    (r"^messages(\.\d+)?", "input"),
    (r"^response_format(\.json_schema)?", "text.format"),
    (r"^reasoning_effort", "reasoning.effort"),
    (r"^(tools\.\d+|tool_choice)\.function", r"\1"),
)
"""Patterns for field names of chat completions, each with its replacement in ``/v1/responses``."""
