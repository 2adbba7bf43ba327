"""Chat completion requests as pydantic models, which are validated strictly."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from mellea_like.core.conversation import Message
from mellea_like.core.extra import NO_EXTRA
from mellea_like.core.parts import Part, Text, part_from_dict
from mellea_like.core.tools import ToolCall
from mellea_like.gateway.chat.strict_fields import (
    BY_TYPE,
    Fields,
    NotBlank,
    OpenFields,
    Penalty,
    Positive,
    Stops,
    Texts,
    of_type,
    read_as,
    reject,
    rules_of,
)
from mellea_like.gateway.fields import CHAT_FIELDS, DEFAULTS, UNSUPPORTED, FieldRules, read_fields
from mellea_like.gateway.refusal import refuse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_TOOLS = 128
"""The maximum number of tools in a request, as on OpenAI's own servers."""

MOST_MESSAGES = 2000
"""The maximum number of messages in a request."""

MOST_CONTENT_PARTS = 2000
"""The maximum number of parts in a message."""


# --- messages ------------------------------------------------------------------------------------


class _Called(OpenFields):
    name: NotBlank
    arguments: str
    # Fields that OpenAI's SDK adds to a reply and sends back, and that no server knows.
    parsed_arguments: Any = None


class _Call(OpenFields):
    id: NotBlank
    type: Literal["function"] = "function"
    function: _Called
    index: int | None = None


class _Part(OpenFields):
    place: ClassVar[str] = "part"


class _Text(_Part):
    type: str
    text: str


class _Refused(_Part):
    type: str
    refusal: str


def _scheme(url: str, info: ValidationInfo) -> str:
    scheme = url.partition(":")[0].lower()
    if scheme not in ("data", "http", "https"):
        reject("must be a data:, http: or https: URL")
    if scheme != "data" and not rules_of(info).media_urls:
        reject(
            "this model doesn't accept web URLs, because its upstream may have access to addresses"
            " that callers must not reach: send a data: URL (media_urls: forward in the model's"
            " overrides allows web URLs)",
            UNSUPPORTED,
        )
    return url


WebUrl = Annotated[str, AfterValidator(_scheme)]


class _ImageUrl(_Part):
    url: WebUrl
    detail: str | None = None


class _Image(_Part):
    type: str
    image_url: _ImageUrl


class _AudioData(_Part):
    data: str
    format: str


class _Audio(_Part):
    type: str
    input_audio: _AudioData


class _FileData(_Part):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class _File(_Part):
    type: str
    file: _FileData


def joined(parts: Sequence[Any]) -> str | Sequence[Part]:
    """Join texts to one, which every backend takes; leave other parts and extra fields alone."""
    if all(isinstance(part, Text) and not part.extra for part in parts):
        return "".join(part.text for part in parts)
    return parts


_AnyPart = Annotated[
    Annotated[_Text, Tag("<text>")]
    | Annotated[_Refused, Tag("<refusal>")]
    | Annotated[_Image, Tag("<image_url>")]
    | Annotated[_Audio, Tag("<input_audio>")]
    | Annotated[_File, Tag("<file>")],
    BY_TYPE,
    of_type(("text", "refusal", "image_url", "input_audio", "file"), "parts"),
    AfterValidator(lambda part: replace(part_from_dict(part.sent), extra=part.extra or NO_EXTRA)),
]


def _few_parts(given: object) -> Any:
    """Refuse too many parts before they are validated, which would take long."""
    if isinstance(given, list) and (count := len(cast("list[object]", given))) > MOST_CONTENT_PARTS:
        reject(
            f"there are {count:,} parts: at most {MOST_CONTENT_PARTS:,} are supported in a message"
        )
    return cast("Any", given)


FEW_PARTS = BeforeValidator(_few_parts)


def _content_tag(given: Any) -> str:
    return "<text>" if isinstance(given, str) else "<parts>" if given is not None else "<nothing>"


class _Message(OpenFields):
    place: ClassVar[str] = "message"
    role: Literal["system", "developer", "user", "assistant", "tool"]
    refusal: NotBlank | None = None
    tool_calls: Annotated[list[_Call], Field(max_length=MOST_TOOLS)] = []
    tool_call_id: NotBlank | None = Field(default=None, validate_default=True)
    content: Annotated[
        Annotated[str, Tag("<text>")]
        | Annotated[list[_AnyPart], Field(min_length=1), FEW_PARTS, Tag("<parts>")]
        | Annotated[None, Tag("<nothing>")],
        Discriminator(_content_tag),
    ] = Field(default=None, validate_default=True)
    name: NotBlank | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    parsed: Any = None  # Like `parsed_arguments`.

    @field_validator("tool_calls", "refusal")
    @classmethod
    def _are_the_assistants(cls, given: Any, info: ValidationInfo) -> Any:
        if given and info.data.get("role", "assistant") != "assistant":
            reject("only assistant messages can have this")
        return given

    @field_validator("tool_call_id")
    @classmethod
    def _is_a_tools(cls, given: str | None, info: ValidationInfo) -> str | None:
        role = info.data.get("role")
        if role is not None and (given is not None) != (role == "tool"):
            reject("required for role: tool, and not allowed for others")
        return given

    @field_validator("content", mode="before")
    @classmethod
    def _beside_calls(cls, given: Any, info: ValidationInfo) -> Any:
        """Treat an empty ``content`` beside tool calls as None: some clients send an empty list."""
        return None if given == [] and info.data.get("tool_calls") else given

    @field_validator("content")
    @classmethod
    def _something(cls, content: Any, info: ValidationInfo) -> Any:
        if content is None and not (info.data.get("refusal") or info.data.get("tool_calls")):
            reject("must be a string or a list of parts")
        return content

    def read(self) -> Message:
        """Return the message for backends. If there is only a refusal, it becomes the text."""
        content: Any = self.refusal or "" if self.content is None else self.content
        extra = self.extra
        if self.reasoning is not None and self.reasoning_content in (None, self.reasoning):
            extra["reasoning"] = self.reasoning  # The upstream's own field.
        return Message(
            "system" if self.role == "developer" else self.role,
            content if isinstance(content, str) else joined(content),
            self.name,
            [
                ToolCall(c.id, c.function.name, c.function.arguments, extra=c.extra or NO_EXTRA)
                for c in self.tool_calls
            ],
            self.tool_call_id,
            self.reasoning_content or self.reasoning,
            extra=extra or NO_EXTRA,
        )


# --- tools and formats ---------------------------------------------------------------------------


NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}

WORDS = ("none", "auto", "required")
"""The values of ``tool_choice`` that name no tool."""


class Function(NamedTuple):
    """A function that the model may call."""

    place: str
    """Its path within the request's ``tools``, such as ``0.function``."""
    sent: dict[str, Any]
    """The function as a tool in a chat completion request."""
    called: Mapping[str, str] = NO_EXTRA
    """The fields of a response's item for a call of it: ``type``, ``name``, ``namespace``."""

    @property
    def name(self) -> str:
        """The function's name."""
        return str(self.sent["function"]["name"])

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON Schema of the function's arguments."""
        schema: dict[str, Any] = self.sent["function"].get("parameters", NO_ARGUMENTS)
        return schema


FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class _Function(OpenFields):
    place: ClassVar[str] = "tool"
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] = NO_ARGUMENTS
    strict: bool | None = None


class Tool(OpenFields):
    """A function that the model may ask the caller to call."""

    place: ClassVar[str] = "tool"
    type: Literal["function"]
    function: _Function

    def functions(self, place: str) -> list[Function]:
        """Return the only function of this tool, which is at ``place`` in the request."""
        return [Function(f"{place}.function", self.sent)]


class _Named(OpenFields):
    name: NotBlank


class _NamedFunction(OpenFields):
    type: Literal["function"]
    function: _Named

    @property
    def names(self) -> set[str]:
        return {self.function.name}

    @property
    def wanted(self) -> str:
        return self.function.name


class _Allowed(OpenFields):
    mode: Literal["auto", "required"]
    tools: Annotated[list[_NamedFunction], Field(min_length=1, max_length=MOST_TOOLS)]


class _AllowedTools(OpenFields):
    type: Literal["allowed_tools"]
    allowed_tools: _Allowed

    @property
    def names(self) -> set[str]:
        return {tool.function.name for tool in self.allowed_tools.tools}

    @property
    def wanted(self) -> str:
        return self.allowed_tools.mode


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")]
    | Annotated[_NamedFunction, Tag("<function>")]
    | Annotated[_AllowedTools, Tag("<allowed_tools>")],
    BY_TYPE,
    of_type(("function", "allowed_tools"), "choices", or_text=True),
]


class _JsonSchema(OpenFields):
    name: NotBlank
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(OpenFields):
    """The format that a reply must have: any text, a JSON object, or JSON that fits a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchema | None = Field(default=None, validate_default=True)

    @field_validator("json_schema")
    @classmethod
    def _goes_with_its_type(
        cls, described: _JsonSchema | None, info: ValidationInfo
    ) -> _JsonSchema | None:
        if (described is not None) != (info.data.get("type") == "json_schema"):
            reject("required for type: json_schema, and not allowed for others")
        return described


# --- the whole request ---------------------------------------------------------------------------


class _StreamOptions(OpenFields):
    include_usage: bool = False
    include_obfuscation: bool = False


class Extensions(Fields):
    """The field ``mellea_like`` of a request, for settings that OpenAI's API lacks."""

    requirements: Texts = []
    checks: Texts = []
    attempts: Positive | None = None
    lanes: Positive | None = None
    timeout: Annotated[float, Field(ge=0.001, le=86_400)] | None = None
    when_nothing_passed: Literal["error", "best"] | None = None


class ChatRequest(Fields):
    """A chat completion request."""

    model: NotBlank
    messages: Annotated[list[_Message], Field(min_length=1, max_length=MOST_MESSAGES)]
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_completion_tokens: Positive | None = None
    max_tokens: Positive | None = None
    stop: Stops = []
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] = 1
    response_format: ResponseFormat | None = None
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    tools: Annotated[
        list[Annotated[Tool, of_type(("function",), "tools")]], Field(max_length=MOST_TOOLS)
    ] = []
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    mellea_like: Extensions = Extensions()
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    reasoning_effort: NotBlank | None = None
    forwarded: dict[str, Any] = {}
    """The fields that the gateway only forwards, by name, as the caller sent them."""

    @field_validator("top_logprobs")
    @classmethod
    def _goes_with_logprobs(cls, top: int, info: ValidationInfo) -> int:
        if top and not info.data.get("logprobs"):
            reject("requires logprobs: true")
        return top

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        functions, choice = self.all_functions, self.tool_choice
        if len(functions) > MOST_TOOLS:
            what = f"there are {len(functions)} tools: at most {MOST_TOOLS} are supported"
            reject(what, field="tools")
        for function in functions:
            if (name := function.name) in WORDS:
                what = f"a tool can't be named {name!r}: tool_choice: {name} has another meaning"
                reject(what, field=f"tools.{function.place}.name")
        names = {function.name for function in functions}
        if len(names) < len(functions):
            reject("two tools have the same name", field="tools")
        if choice not in (None, "none", "auto") and not names:
            reject("there are no tools to choose from", field="tool_choice")
        if isinstance(choice, Fields) and (unknown := sorted(choice.names - names)):
            reject(f"there is no tool named {unknown[0][:128]!r}", field="tool_choice")
        return self

    @cached_property
    def all_functions(self) -> list[Function]:
        """The functions of all tools, even if ``tool_choice`` allows only some of them."""
        return [
            f for position, tool in enumerate(self.tools) for f in tool.functions(f"{position}")
        ]

    @property
    def conversation(self) -> tuple[Message, ...]:
        """The request's messages for backends. The last one is never the assistant's."""
        return tuple(message.read() for message in self.messages)

    @property
    def format(self) -> dict[str, Any] | None:
        """The ``response_format`` that the reply must have; None if any text will do."""
        asked = self.response_format
        return None if asked is None or asked.type == "text" else asked.sent

    @property
    def functions(self) -> list[Function]:
        """The functions that the model may call."""
        choice = self.tool_choice
        if isinstance(choice, str) or choice is None or choice.type != "allowed_tools":
            return self.all_functions
        return [function for function in self.all_functions if function.name in choice.names]

    @property
    def wanted_call(self) -> str | None:
        """The wanted call: one of `WORDS`, a function's name, or None without a choice."""
        choice = self.tool_choice
        return choice if isinstance(choice, str) or choice is None else choice.wanted

    def name_of(self, param: str) -> str:
        """Translate the name of a field in chat completions to the endpoint's name for it."""
        return param

    @property
    def passed_on(self) -> dict[str, Any]:
        """The fields that go to the upstream unchanged, as `Options` has no arguments for them."""
        wanted: dict[str, Any] = {"logprobs": True} if self.logprobs else {}
        if self.top_logprobs:
            wanted["top_logprobs"] = self.top_logprobs
        if self.tools and self.parallel_tool_calls is not None:
            wanted["parallel_tool_calls"] = self.parallel_tool_calls
        return {**wanted, **self.forwarded}


def model_of(body: Mapping[str, Any]) -> str:
    """Return the name of the requested model; refuse a request without one."""
    name = body.get("model")
    if not isinstance(name, str) or not name.strip():
        refuse("model", "must be the name of a model: see /v1/models")
    return name


def read_chat(body: Mapping[str, Any], rules: FieldRules = DEFAULTS) -> ChatRequest:
    """Parse a chat completion request under the rules of the model's configuration."""
    honoured, forwarded = read_fields(body, CHAT_FIELDS, rules.named, rules.outside)
    checked = {name: forwarded[name] for name in CHECKED if name in forwarded}
    request = read_as(ChatRequest, {**honoured, **checked, "forwarded": forwarded}, rules)
    if request.messages[-1].role == "assistant":
        what = "the last message can't be the assistant's: continuing a reply isn't supported"
        refuse(f"messages.{len(request.messages) - 1}.role", what)
    return request


CHECKED = ("frequency_penalty", "presence_penalty", "reasoning_effort")
"""Fields whose values are checked before they are forwarded."""
