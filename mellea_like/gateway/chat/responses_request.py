"""Requests to ``/v1/responses``, read strictly and converted to chat completion requests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    Tag,
    ValidationInfo,
    model_validator,
)

from mellea_like.core.conversation import Message
from mellea_like.core.parts import part_from_dict
from mellea_like.core.tools import ToolCall
from mellea_like.gateway.chat.request import (
    FEW_PARTS,
    MOST_MESSAGES,
    MOST_TOOLS,
    ChatRequest,
    WebUrl,
    joined,
)
from mellea_like.gateway.chat.responses_tools import (
    HINT,
    HOSTED_ITEMS,
    Choice,
    Sent,
    Tool,
    drops_hosted,
    function_name,
    input_as_arguments,
)
from mellea_like.gateway.chat.strict_fields import (
    BY_TYPE,
    NotBlank,
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
from mellea_like.gateway.refusal import refuse

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
    # The last three are of a server's text, which is sent back.
    annotations: Any = None
    logprobs: Any = None
    parsed: Any = None

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
        return {"type": "image_url", "image_url": {"url": self.image_url, "detail": self.detail}}


def _no_url(_: str) -> NoReturn:
    reject("chat completions have no such field: send file_data or file_id", UNSUPPORTED)


class _InputFile(Sent):
    type: str
    file_data: str | None = None
    file_id: str | None = None
    file_url: Annotated[str, AfterValidator(_no_url)] | None = None
    filename: str | None = None

    @property
    def chat(self) -> dict[str, Any]:
        return {"type": "file", "file": self.sent}


_Part = Annotated[
    Annotated[_TextPart, Tag("<input_text>")]
    | Annotated[_TextPart, Tag("<output_text>")]
    | Annotated[_OutputRefusal, Tag("<refusal>")]
    | Annotated[_InputImage, Tag("<input_image>")]
    | Annotated[_InputFile, Tag("<input_file>")],
    BY_TYPE,
    of_type(("input_text", "output_text", "refusal", "input_image", "input_file"), "parts"),
    AfterValidator(lambda part: part_from_dict(part.chat)),
]


_Parts = Annotated[
    Annotated[list[_Part], Field(min_length=1), FEW_PARTS],
    BeforeValidator(
        lambda given: [{"type": "input_text", "text": given}] if isinstance(given, str) else given
    ),
]


# --- items ---------------------------------------------------------------------------------------


class _Item(Sent):
    type: str
    # Servers add these to the items of a response.
    id: Any = None
    status: Any = None


class _MessageItem(_Item):
    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: _Parts
    phase: Any = None


class _CallItem(_Item):
    call_id: NotBlank
    name: NotBlank
    namespace: NotBlank | None = None


class _FunctionCallItem(_CallItem):
    arguments: str
    parsed_arguments: Any = None


class _CustomCallItem(_CallItem):
    input: str

    @property
    def arguments(self) -> str:
        return input_as_arguments(self.input)


class _OutputItem(_Item):
    call_id: NotBlank
    output: _Parts


class _SkippedItem(BaseModel):
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


def _readable(given: Any, info: ValidationInfo) -> Any:
    kind = type_of(given)
    if kind == "item_reference":
        reject("the gateway stores nothing: send the item itself", UNSUPPORTED)
    if kind in HOSTED_ITEMS:
        if drops_hosted(info):
            return {"type": "reasoning"}
        reject(f"{kind!r} belongs to a hosted tool, and this model has none; {HINT}", UNSUPPORTED)
    if isinstance(given, dict) and "role" in given:
        return {"type": "message", **cast("dict[str, Any]", given)}
    return cast("Any", given)


_AnyItem = Annotated[
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


_Items = Annotated[
    list[_AnyItem],
    Field(min_length=1, max_length=MOST_MESSAGES),
    BeforeValidator(
        lambda given: [{"role": "user", "content": given}] if isinstance(given, str) else given
    ),
]


# --- formats -------------------------------------------------------------------------------------


class _Format(Sent):
    type: Literal["text", "json_object", "json_schema"]
    name: NotBlank | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None
    description: str | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        for name in ("name", "schema"):
            if self.type == "json_schema" and name not in self.sent:
                reject("Field required", field=name)
        return self


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
    summary: Any = None  # Agents send it. It is accepted without effect.


def _includable(name: str, info: ValidationInfo) -> str:
    if name not in INCLUDED and not drops_hosted(info):
        what = f"{name[:64]!r} isn't supported: a response can include {' and '.join(INCLUDED)}"
        reject(f"{what}; {HINT}", UNSUPPORTED)
    return name


class ResponsesRequest(ChatRequest):
    """A request to ``/v1/responses``: a chat completion request with other names and forms."""

    messages: _Items = Field(alias="input")  # type: ignore[assignment]
    instructions: str | None = None
    max_completion_tokens: Positive | None = Field(default=None, alias="max_output_tokens")
    tools: list[Tool] = Field(default_factory=list[Any], max_length=MOST_TOOLS)  # type: ignore[assignment]
    tool_choice: Choice | None = None  # type: ignore[assignment]
    text: _Text = _Text()
    reasoning: _Reasoning = _Reasoning()
    include: list[Annotated[str, AfterValidator(_includable)]] = Field(default_factory=list[str])
    metadata: dict[str, str] = Field(default_factory=dict[str, str])
    stream_options: dict[str, Any] | None = None  # type: ignore[assignment]
    labels: dict[str, str | None] = Field(default_factory=dict[str, str | None])
    """The values of the fields in `LABELS`, which the response repeats."""

    @property
    def conversation(self) -> tuple[Message, ...]:
        """The request's messages for backends, beginning with the instructions."""
        said: list[dict[str, Any]] = []
        if self.instructions:
            said.append({"role": "system", "content": self.instructions})
        for item in self.messages:
            match item:
                case _MessageItem():
                    role = "system" if item.role == "developer" else item.role
                    message: dict[str, Any] = {"role": role, "content": joined(item.content)}
                    if role == "assistant" and said and "tool_calls" in said[-1]:
                        # Calls move to the later text, because their results must come next.
                        message["tool_calls"] = said[-1].pop("tool_calls")
                        if not said[-1]["content"]:
                            said.pop()
                    said.append(message)
                case _FunctionCallItem() | _CustomCallItem():
                    # The assistant's text and calls between two other messages become one message.
                    if not said or said[-1]["role"] != "assistant":
                        said.append({"role": "assistant", "content": ""})
                    name = function_name(item.name, item.namespace)
                    call = ToolCall(item.call_id, name, item.arguments)
                    said[-1].setdefault("tool_calls", []).append(call)
                case _OutputItem():
                    answered = {"content": joined(item.output), "tool_call_id": item.call_id}
                    said.append({"role": "tool", **answered})
                case _:  # It is skipped.
                    pass
        return tuple(Message(**message) for message in said)

    @property
    def format(self) -> dict[str, Any] | None:
        """The ``response_format`` that the reply must have; None if any text will do."""
        match self.text.format:
            case None | _Format(type="text"):
                return None
            case _Format(type="json_object"):
                return {"type": "json_object"}
            case asked:
                described = {name: value for name, value in asked.sent.items() if name != "type"}
                return {"type": "json_schema", "json_schema": described}

    @property
    def passed_on(self) -> dict[str, Any]:
        """The fields that go to the upstream unchanged, under their names in chat completions."""
        told = {
            "reasoning_effort": self.reasoning.effort,
            "verbosity": self.text.verbosity,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }
        return {**super().passed_on, **{n: value for n, value in told.items() if value is not None}}

    def name_of(self, param: str) -> str:
        """Translate the name of a field in chat completions to the endpoint's name for it."""
        for pattern, name in NAMES:
            param = re.sub(pattern, name, param)
        return re.sub(r"^tools\.(\d+)\.function", self._place_of_function, param)

    def _place_of_function(self, found: re.Match[str]) -> str:
        sent, position = self.functions, int(found[1])
        return f"tools.{sent[position].place}" if position < len(sent) else found[0]


def read_response(body: Mapping[str, Any], rules: FieldRules = DEFAULTS) -> ResponsesRequest:
    """Parse a ``/v1/responses`` request under the model's rules."""
    honoured, forwarded = read_fields(body, RESPONSES_FIELDS, rules.named, rules.of_responses)
    labels = {name: text if isinstance(text := body.get(name), str) else None for name in LABELS}
    include = honoured.get("include")
    wanted = isinstance(include, list) and LOGPROBS in include
    more = {"labels": labels, "logprobs": wanted or bool(honoured.get("top_logprobs"))}
    request = read_as(ResponsesRequest, {**honoured, **more, "forwarded": forwarded}, rules)
    conversation = request.conversation
    if not conversation or conversation[-1].role == "assistant":
        refuse("input", "must end with an item to answer, not with one from the assistant")
    return request


NAMES = (
    (r"^max_completion_tokens", "max_output_tokens"),
    (r"^messages(\.\d+)?", "input"),
    (r"^response_format(\.json_schema)?", "text.format"),
    (r"^reasoning_effort", "reasoning.effort"),
    (r"^tool_choice\.function", "tool_choice"),
)
"""Patterns for field names of chat completions, each with its replacement in ``/v1/responses``."""
