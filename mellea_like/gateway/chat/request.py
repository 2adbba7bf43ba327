"""What a chat completion request says, read strictly: what the gateway wouldn't do, it refuses."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, LiteralString, NoReturn, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from mellea_like.core.conversation import Message
from mellea_like.gateway.refusal import Refusal, refuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mellea_like.core.conversation import Role

__all__ = ["ChatRequest", "Extensions", "ResponseFormat", "model_of", "read_chat"]

ROLES: Mapping[str, Role] = MappingProxyType(
    {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
)

LABELS = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})
"""Fields that label a request and change nothing about its reply; they go no further."""

TOOLS = "tools are not supported"
LOG_PROBABILITIES = "log probabilities are not supported"

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "audio": ("replies are text",),
        "function_call": (TOOLS,),
        "functions": (TOOLS,),
        "logit_bias": ("token biases are not supported",),
        "logprobs": (LOG_PROBABILITIES, False),
        "modalities": ("replies are text", ["text"]),
        "parallel_tool_calls": (TOOLS, True, False),
        "prediction": ("predicted outputs are not supported",),
        "service_tier": ("there is one tier here", "auto", "default"),
        "store": ("nothing is stored here", False),
        "tool_choice": (TOOLS, "none", "auto"),
        "tools": (TOOLS,),
        "top_logprobs": (LOG_PROBABILITIES, 0),
        "web_search_options": ("nothing is fetched from the web",),
    }
)
"""Fields of OpenAI's that are refused: why, and the values that ask for nothing."""

UNSUPPORTED_CODE = "unsupported_parameter"

PASSED_ON = {"frequency_penalty", "presence_penalty", "reasoning_effort"}
"""Fields that are checked, and mean nothing to the gateway itself."""


def _reject(message: str, kind: LiteralString = "wrong") -> NoReturn:
    raise PydanticCustomError(kind, "{message}", {"message": message})


def _not_blank(text: str) -> str:
    if not text.strip():
        _reject("this is a text that says something")
    return text


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


Text = Annotated[str, AfterValidator(_not_blank)]
Texts = Annotated[list[Text], BeforeValidator(_as_list), Field(max_length=100)]
Stops = Annotated[
    list[Annotated[str, Field(min_length=1)]], BeforeValidator(_as_list), Field(max_length=4)
]
Positive = Annotated[int, Field(ge=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class _Fields(BaseModel):
    """One JSON object. None counts as left out, and so does an empty field that isn't known."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _given(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            _reject("this is a JSON object")
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {
            name: value
            for name, value in cast("dict[str, Any]", data).items()
            if value is not None and (name in known or value not in ([], {}))
        }


class _Part(_Fields):
    type: str = ""
    text: str

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, data: Any) -> Any:
        part: object = data
        if isinstance(part, dict) and cast("dict[str, Any]", part).get("type") != "text":
            _reject("only parts of type text are supported", UNSUPPORTED_CODE)
        return data


def _as_parts(given: Any) -> Any:
    return [{"type": "text", "text": given}] if isinstance(given, str) else given


class _Message(_Fields):
    role: Literal["system", "developer", "user", "assistant"]
    refusal: Text | None = None
    content: Annotated[
        Annotated[list[_Part], Field(min_length=1)] | None, BeforeValidator(_as_parts)
    ] = Field(default=None, validate_default=True)
    name: Text | None = None

    @field_validator("refusal")
    @classmethod
    def _said_by_the_assistant(cls, refusal: str | None, info: ValidationInfo) -> str | None:
        if info.data.get("role") != "assistant":
            _reject("only an assistant's message has one", UNSUPPORTED_CODE)
        return refusal

    @field_validator("content")
    @classmethod
    def _something(cls, content: list[_Part] | None, info: ValidationInfo) -> list[_Part] | None:
        if content is None and info.data.get("refusal") is None:
            _reject("this is a text, or a list of parts of type text")
        return content

    def read(self) -> Message:
        """Return the message as a backend gets it; a refusal is what the assistant said."""
        text = self.refusal or ""
        if self.content is not None:
            text = "".join(part.text for part in self.content)
        return Message(ROLES[self.role], text, self.name)


class _JsonSchema(_Fields):
    name: Text
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(_Fields):
    """What JSON a reply is to be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchema | None = Field(default=None, validate_default=True)

    @field_validator("json_schema")
    @classmethod
    def _goes_with_its_type(
        cls, described: _JsonSchema | None, info: ValidationInfo
    ) -> _JsonSchema | None:
        if (described is not None) != (info.data.get("type") == "json_schema"):
            _reject("this goes with type: json_schema, and that needs it")
        return described

    @property
    def sent(self) -> dict[str, Any]:
        """The field as it was sent, for the upstream."""
        return self.model_dump(by_alias=True, exclude_unset=True)


class _StreamOptions(_Fields):
    include_usage: bool = False
    include_obfuscation: bool = False


class Extensions(_Fields):
    """What the field ``mellea_like`` of a request asks for."""

    requirements: Texts = []
    checks: Texts = []
    loop: Positive | None = None
    concurrency: Positive | None = None
    timeout: Annotated[float, Field(ge=0.001, le=86_400)] | None = None
    when_nothing_passed: Literal["error", "best"] | None = None


class ChatRequest(_Fields):
    """A chat completion request."""

    model: Text
    messages: Annotated[list[_Message], Field(min_length=1, max_length=2000)]
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
    mellea_like: Extensions = Extensions()
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    reasoning_effort: Text | None = None
    unchecked: dict[str, Any] = Field(default_factory=dict[str, Any])

    @field_validator("max_tokens")
    @classmethod
    def _once(cls, given: int | None, info: ValidationInfo) -> int | None:
        if info.data.get("max_completion_tokens") not in {None, given}:
            _reject("max_completion_tokens says something else: keep one of them")
        return given

    @field_validator("stream_options")
    @classmethod
    def _goes_with_a_stream(cls, given: _StreamOptions, info: ValidationInfo) -> _StreamOptions:
        if not info.data.get("stream"):
            _reject("this goes with stream: true")
        return given

    @property
    def conversation(self) -> tuple[Message, ...]:
        """The messages, as a backend gets them; the last isn't the assistant's."""
        return tuple(message.read() for message in self.messages)

    @property
    def format(self) -> ResponseFormat | None:
        """What JSON the reply is to be; None for any text."""
        asked = self.response_format
        return None if asked is None or asked.type == "text" else asked

    @property
    def passed_on(self) -> dict[str, Any]:
        """Further fields for the upstream."""
        return {**self.model_dump(include=PASSED_ON, exclude_none=True), **self.unchecked}


CHECKED = ChatRequest.model_fields.keys() - {"unchecked"}
OUR_FIELDS = CHECKED - PASSED_ON


def model_of(body: Mapping[str, Any]) -> str:
    """Return the model that a request asks for."""
    name = body.get("model")
    if not isinstance(name, str) or not name.strip():
        refuse("model", "this is the name of a model: see /v1/models")
    return name


def read_chat(body: Mapping[str, Any], pass_on: tuple[str, ...] = ()) -> ChatRequest:
    """Read a request; fields named in ``pass_on`` may go to the upstream as they are."""
    model_of(body)
    given = {name: value for name, value in body.items() if value is not None}
    unchecked = {
        name: given.pop(name) for name in pass_on if name in given and name not in OUR_FIELDS
    }
    read = {name: given.pop(name) for name in CHECKED if name in given}
    _check_others(given)
    try:
        request = ChatRequest.model_validate({**read, "unchecked": unchecked})
    except ValidationError as exc:
        raise _refusal(exc) from None
    if request.messages[-1].role == "assistant":
        what = "the last message is the user's: continuing a reply's beginning isn't supported"
        refuse(f"messages.{len(request.messages) - 1}.role", what)
    return request


def _refusal(error: ValidationError) -> Refusal:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    param, message, code = ".".join(map(str, first["loc"])), first["msg"], None
    if first["type"] == "extra_forbidden":
        message, code = "there is no such field here", "unknown_parameter"
    elif first["type"] == UNSUPPORTED_CODE:
        code = UNSUPPORTED_CODE
    return Refusal(400, f"{param}: {message}", param=param, code=code)


def _check_others(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if name in LABELS or value in ([], {}):
            continue
        if name not in UNSUPPORTED:
            refuse(name, "the gateway knows no such field", "unknown_parameter")
        why, *harmless = UNSUPPORTED[name]
        if not any(value == v and type(value) is type(v) for v in harmless):
            refuse(name, why, UNSUPPORTED_CODE)
