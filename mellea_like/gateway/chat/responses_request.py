"""What a request to ``/v1/responses`` says, read strictly, and the same as a chat completion's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, cast

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, Tag

from mellea_like.gateway.chat.fields import (
    DEFAULTS,
    RESPONSES_FIELDS,
    UNSUPPORTED,
    FieldRules,
    read_fields,
)
from mellea_like.gateway.chat.request import (
    BY_TYPE,
    MOST_TOOLS,
    NO_ARGUMENTS,
    WORD_OR_BY_TYPE,
    ChatRequest,
    Extensions,
    Fields,
    NotBlank,
    Positive,
    WebUrl,
    carried,
    model_of,
    of_type,
    read_as,
    reject,
)
from mellea_like.gateway.refusal import Refusal, refuse

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AskedResponse", "ResponsesRequest", "chat_name", "read_response"]

Include = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]
"""What a response may have besides; thoughts of OpenAI's servers never come through here."""

LOGPROBS: Include = "message.output_text.logprobs"


class _Sent(Fields):
    """What a server wrote, and is sent back: it may have more to say than is of use here."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")


# --- parts ---------------------------------------------------------------------------------------


class _InputText(Fields):
    type: str
    text: str

    @property
    def chat(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text}


class _OutputText(_Sent):
    type: str
    text: str

    @property
    def chat(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text}


class _OutputRefusal(_Sent):
    type: str
    refusal: str

    @property
    def chat(self) -> dict[str, Any]:
        return {"type": "refusal", "refusal": self.refusal}


class _InputImage(Fields):
    type: str
    image_url: WebUrl
    detail: str | None = None

    @property
    def chat(self) -> dict[str, Any]:
        detail = {} if self.detail is None else {"detail": self.detail}
        return {"type": "image_url", "image_url": {"url": self.image_url, **detail}}


class _InputFile(Fields):
    type: str
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None

    @property
    def chat(self) -> dict[str, Any]:
        return {"type": "file", "file": {n: v for n, v in self.sent.items() if n != "type"}}


def _carriable(part: Any) -> Any:
    """Make sure of a part here, where its place is known."""
    carried(part.chat)
    return part


_Part = Annotated[
    Annotated[_InputText, Tag("<input_text>")]
    | Annotated[_OutputText, Tag("<output_text>")]
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


class _MessageItem(_Sent):
    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: _Parts


class _CallItem(_Sent):
    type: str
    call_id: NotBlank
    name: NotBlank
    arguments: str

    @property
    def chat(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}


class _OutputItem(_Sent):
    type: str
    call_id: NotBlank
    output: _Parts


class _ReasoningItem(_Sent):
    type: str


ITEMS = ("message", "function_call", "function_call_output", "reasoning")


def _named(given: Any) -> Any:
    if isinstance(given, dict):
        item = cast("dict[str, Any]", given)
        if item.get("type") == "item_reference":
            reject("nothing is stored here: send the item itself", UNSUPPORTED)
        if "type" not in item and "role" in item:
            return {**item, "type": "message"}
    return cast("Any", given)


_Item = Annotated[
    Annotated[_MessageItem, Tag("<message>")]
    | Annotated[_CallItem, Tag("<function_call>")]
    | Annotated[_OutputItem, Tag("<function_call_output>")]
    | Annotated[_ReasoningItem, Tag("<reasoning>")],
    BY_TYPE,
    of_type(ITEMS, "items"),
    BeforeValidator(_named),
]


def _as_items(given: Any) -> Any:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


# --- tools and formats ---------------------------------------------------------------------------


class _Tool(Fields):
    type: str
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] = NO_ARGUMENTS
    strict: bool | None = None

    @property
    def chat(self) -> dict[str, Any]:
        function = {name: value for name, value in self.sent.items() if name != "type"}
        return {"type": "function", "function": function}


class _NamedTool(Fields):
    type: Literal["function"]
    name: NotBlank

    @property
    def chat(self) -> dict[str, Any]:
        return {"type": "function", "function": {"name": self.name}}


class _AllowedTools(Fields):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[_NamedTool], Field(min_length=1, max_length=MOST_TOOLS)]

    @property
    def chat(self) -> dict[str, Any]:
        allowed = {"mode": self.mode, "tools": [tool.chat for tool in self.tools]}
        return {"type": "allowed_tools", "allowed_tools": allowed}


_Choice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")]
    | Annotated[_NamedTool, Tag("<function>")]
    | Annotated[_AllowedTools, Tag("<allowed_tools>")],
    WORD_OR_BY_TYPE,
    of_type(("function", "allowed_tools"), "choices", or_text=True),
]


class _Format(Fields):
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


class _Text(Fields):
    format: _Format | None = None
    verbosity: NotBlank | None = None


class _Reasoning(_Sent):
    effort: NotBlank | None = None


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
    tools: Annotated[
        list[Annotated[_Tool, of_type(("function",), "tools")]], Field(max_length=MOST_TOOLS)
    ] = Field(default_factory=list[_Tool])
    tool_choice: _Choice | None = None
    parallel_tool_calls: bool | None = None
    text: _Text = _Text()
    reasoning: _Reasoning = _Reasoning()
    include: list[Include] = Field(default_factory=list[Include])
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    metadata: dict[str, str] = Field(default_factory=dict[str, str])
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    mellea_like: Extensions = Extensions()

    @property
    def chat(self) -> dict[str, Any]:
        """The same request as a chat completion's."""
        choice, format = self.tool_choice, self.text.format
        same = ("model", "temperature", "top_p", "parallel_tool_calls", "top_logprobs", "stream")
        fields: dict[str, Any] = {
            **{name: getattr(self, name) for name in same},
            "messages": self._messages(),
            "max_completion_tokens": self.max_output_tokens,
            "tools": [tool.chat for tool in self.tools],
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
                case _CallItem():
                    # What the assistant said and called at a time is one message.
                    if not messages or messages[-1]["role"] != "assistant":
                        messages.append({"role": "assistant"})
                    messages[-1].setdefault("tool_calls", []).append(item.chat)
                case _OutputItem():
                    content = [part.chat for part in item.output]
                    said = {"tool_call_id": item.call_id, "content": content}
                    messages.append({"role": "tool", **said})
                case _ReasoningItem():
                    pass  # It is for the server that wrote it.
        return messages


class AskedResponse(NamedTuple):
    """A request, as it was sent and as a chat completion's."""

    own: ResponsesRequest
    chat: ChatRequest


def read_response(body: Mapping[str, Any], rules: FieldRules = DEFAULTS) -> AskedResponse:
    """Read a request, by what the model's configuration says of fields."""
    model_of(body)
    honoured, forwarded = read_fields(body, RESPONSES_FIELDS, rules.of_responses)
    own = read_as(ResponsesRequest, honoured, rules)
    if own.text.verbosity is not None:
        forwarded["verbosity"] = own.text.verbosity
    fields = own.chat
    if not fields["messages"] or fields["messages"][-1]["role"] == "assistant":
        refuse("input", "it ends with what is to be answered, not with what the assistant said")
    try:
        return AskedResponse(own, read_as(ChatRequest, {**fields, "forwarded": forwarded}, rules))
    except Refusal as refusal:
        refusal.rename(chat_name)
        raise


NAMES = (
    (r"^max_completion_tokens", "max_output_tokens"),
    (r"^messages\.\d+", "input"),
    (r"^messages", "input"),
    (r"^response_format(\.json_schema)?", "text.format"),
    (r"^reasoning_effort", "reasoning.effort"),
    (r"^(tools\.\d+|tool_choice)\.function", r"\1"),
)
"""What fields of chat completions are called in a request to this endpoint."""


def chat_name(param: str) -> str:
    """Return what this endpoint calls a field of a chat completion request."""
    for pattern, name in NAMES:
        param = re.sub(pattern, name, param)
    return param
