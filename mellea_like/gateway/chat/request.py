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


__all__ = ["ChatRequest", "Extensions", "ResponseFormat", "model_of", "read_chat"]

LABELS = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})
"""Fields that label a request and change nothing about its reply; they go no further."""

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "audio": (),
        "function_call": (),
        "functions": (),
        "logit_bias": (),
        "logprobs": (False,),
        "modalities": (["text"],),
        "parallel_tool_calls": (True, False),
        "prediction": (),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "tool_choice": ("none", "auto"),
        "tools": (),
        "top_logprobs": (0,),
        "web_search_options": (),
    }
)
"""Fields of OpenAI's that are refused, and the values of them that ask for nothing."""

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
Texts = Annotated[
    list[Annotated[Text, Field(max_length=4000)]], BeforeValidator(_as_list), Field(max_length=100)
]
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
        role = "system" if self.role == "developer" else self.role
        return Message(role, text, self.name)


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


class ChatRequest(_Fields, extra="allow"):
    """A chat completion request; what is extra goes to the upstream as it is."""

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
        return {
            **self.model_dump(include=PASSED_ON, exclude_none=True),
            **(self.model_extra or {}),
        }


def model_of(body: Mapping[str, Any]) -> str:
    """Return the model that a request asks for."""
    name = body.get("model")
    if not isinstance(name, str) or not name.strip():
        refuse("model", "this is the name of a model: see /v1/models")
    return name


def read_chat(body: Mapping[str, Any], pass_on: tuple[str, ...] = ()) -> ChatRequest:
    """Read a request; fields named in ``pass_on`` may go to the upstream as they are."""
    model_of(body)
    read = {*ChatRequest.model_fields, *pass_on}
    for name, value in body.items():
        if name not in read and name not in LABELS:
            _check_other(name, value)
    known = {name: value for name, value in body.items() if name in read}
    try:
        request = ChatRequest.model_validate(known)
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


def _check_other(name: str, value: Any) -> None:
    if value is None or value in ([], {}):
        return
    if name not in UNSUPPORTED:
        refuse(name, "the gateway knows no such field", "unknown_parameter")
    if not any(value == v and type(value) is type(v) for v in UNSUPPORTED[name]):
        refuse(name, "the gateway doesn't support this", UNSUPPORTED_CODE)
