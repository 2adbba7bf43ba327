"""What a chat completion request says, read strictly: what the gateway would not do, it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from mellea_like.core.message import Message
from mellea_like.gateway.chat.fields import Fields, checked_text, refuse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mellea_like.core.message import Role

__all__ = ["ChatRequest", "ResponseFormat", "Wishes", "model_of", "read_chat"]

MAX_MESSAGES = 2000
MAX_STOPS = 4
MAX_N = 128
MAX_WISHES = 100
MAX_TEMPERATURE = 2.0
PENALTY = 2.0

ROLES: Mapping[str, Role] = MappingProxyType(
    {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
)

LABELS = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})
"""Fields that label a request and change nothing about its reply; they go no further."""

HARMLESS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "logprobs": (False,),
        "modalities": (["text"],),
        "parallel_tool_calls": (True, False),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "tool_choice": ("none", "auto"),
        "top_logprobs": (0,),
    }
)
"""Values of fields that the gateway does not support, where they ask for nothing."""

UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "audio": "replies are text",
        "function_call": "tools are not supported",
        "functions": "tools are not supported",
        "logit_bias": "token biases are not supported",
        "logprobs": "log probabilities are not supported",
        "modalities": "replies are text",
        "parallel_tool_calls": "tools are not supported",
        "prediction": "predicted outputs are not supported",
        "service_tier": "there is one tier here",
        "store": "nothing is stored here",
        "tool_choice": "tools are not supported",
        "tools": "tools are not supported",
        "top_logprobs": "log probabilities are not supported",
        "web_search_options": "nothing is fetched from the web",
    }
)
"""Fields of OpenAI's that are refused, and why."""


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """What JSON a reply is to be.

    Args:
        schema: the JSON Schema; None for any object.
        sent: the field as it was sent, for the upstream.
    """

    schema: Mapping[str, Any] | None
    sent: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the field ``mellea_like`` of a request asks for besides.

    Args:
        requirements: further requirements in words.
        checks: further checks.
        loop: draws in a row; None for the model's number.
        concurrency: draws at a time; None for the model's number.
        timeout: the longest the call may take, in seconds; None for the model's.
        when_nothing_passed: ``error`` or ``best``; None for what the model says.
        progress: whether a streamed reply is to say how each draw ended.
    """

    requirements: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    loop: int | None = None
    concurrency: int | None = None
    timeout: float | None = None
    when_nothing_passed: str | None = None
    progress: bool = False


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat completion request, checked.

    Args:
        model: the model's name.
        messages: the conversation; the last is no assistant's.
        temperature: as in `Options`, like the others that follow.
        top_p: see there.
        max_tokens: see there.
        stop: see there.
        seed: see there.
        n: how many replies are wanted.
        format: what JSON they are to be; None for any text.
        stream: whether the reply is to be sent as events.
        include_usage: whether the last of them is to say what all cost.
        wishes: what it asks for besides.
        passed_on: further fields for the upstream.
    """

    model: str
    messages: tuple[Message, ...]
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    n: int = 1
    format: ResponseFormat | None = None
    stream: bool = False
    include_usage: bool = False
    wishes: Wishes = Wishes()
    passed_on: Mapping[str, Any] = field(default_factory=dict[str, Any])


def model_of(body: Mapping[str, Any]) -> str:
    """Return the model that a request asks for.

    Args:
        body: the request.

    Returns:
        The name.

    Raises:
        Refusal: there is none.
    """
    name = Fields(body).text("model")
    if name is None:
        refuse("model", "this is the name of a model: see /v1/models")
    return name


def read_chat(body: Mapping[str, Any], pass_on: tuple[str, ...] = ()) -> ChatRequest:
    """Read a request.

    Args:
        body: the request.
        pass_on: names of further fields that may go to the upstream as they are.

    Returns:
        What it says.

    Raises:
        Refusal: a field is wrong, unknown or not supported; it is named.
    """
    fields = Fields(body)
    model = model_of(body)
    fields.take("model")
    stream = fields.flag("stream") or False
    passed_on: dict[str, Any] = {
        name: value
        for name in ("frequency_penalty", "presence_penalty")
        if name not in pass_on
        and (value := fields.real(name, least=-PENALTY, most=PENALTY)) is not None
    }
    if "reasoning_effort" not in pass_on and (effort := fields.text("reasoning_effort")):
        passed_on["reasoning_effort"] = effort
    passed_on |= {name: value for name in pass_on if (value := fields.take(name)) is not None}
    request = ChatRequest(
        model=model,
        messages=_messages(fields.take("messages")),
        temperature=fields.real("temperature", least=0, most=MAX_TEMPERATURE),
        top_p=fields.real("top_p", least=0, most=1),
        max_tokens=_max_tokens(fields),
        stop=fields.texts("stop", MAX_STOPS, blank=True),
        seed=fields.whole("seed", least=-(2**63), most=2**63 - 1),
        n=fields.whole("n", most=MAX_N) or 1,
        format=_format(fields.take("response_format")),
        stream=stream,
        include_usage=_include_usage(fields.take("stream_options"), stream=stream),
        wishes=_wishes(fields.take("mellea_like"), stream=stream),
        passed_on=passed_on,
    )
    _check_rest(fields.rest())
    return request


def _check_rest(rest: Mapping[str, Any]) -> None:
    for name, value in rest.items():
        neutral = HARMLESS.get(name, ())
        if name in LABELS or any(value == v and type(value) is type(v) for v in neutral):
            continue
        if name in UNSUPPORTED:
            refuse(name, UNSUPPORTED[name], "unsupported_parameter")
        refuse(name, "the gateway knows no such field", "unknown_parameter")


def _max_tokens(fields: Fields) -> int | None:
    old, new = fields.whole("max_tokens"), fields.whole("max_completion_tokens")
    if old is not None and new is not None and old != new:
        refuse("max_tokens", "max_completion_tokens says something else: keep one of them")
    return new if old is None else old


# --- messages ----------------------------------------------------------------------------------


def _messages(given: Any) -> tuple[Message, ...]:
    if not isinstance(given, list) or not given:
        refuse("messages", "this is a list of at least one message")
    items = cast("Sequence[Any]", given)
    if len(items) > MAX_MESSAGES:
        refuse("messages", f"{MAX_MESSAGES} are the most, not {len(items)}")
    messages = tuple(_message(item, f"messages.{n}") for n, item in enumerate(items))
    if messages[-1].role == "assistant":
        what = "the last message is the user's: going on with a reply's beginning is not supported"
        refuse(f"messages.{len(items) - 1}.role", what)
    return messages


def _message(given: Any, path: str) -> Message:
    fields = Fields(given, path)
    role = fields.text("role")
    if role is None or role not in ROLES:
        what = "tool messages are not supported" if role in {"tool", "function"} else ""
        refuse(f"{path}.role", what or f"this is one of {', '.join(ROLES)}")
    text = _content(fields.take("content"), f"{path}.content")
    if role == "assistant":
        # A refusal is what the assistant said.
        refusal = fields.text("refusal")
        text = refusal if text is None else text
    if text is None:
        refuse(f"{path}.content", "this is a text, or a list of parts of type text")
    name = fields.text("name")
    for other in fields.rest():
        refuse(fields.at(other), "not supported in a message", "unsupported_parameter")
    return Message(ROLES[role], text, name)


def _content(given: Any, path: str) -> str | None:
    if given is None or isinstance(given, str):
        return given if given is None else checked_text(given, path, empty=True)
    if not isinstance(given, list) or not given:
        refuse(path, "this is a text, or a list of parts of type text")
    texts: list[str] = []
    parts = cast("Sequence[Any]", given)
    for position, part in enumerate(parts):
        at = f"{path}.{position}"
        fields = Fields(part, at)
        if fields.take("type") != "text":
            refuse(at, "only parts of type text are supported", "unsupported_parameter")
        texts.append(checked_text(fields.take("text"), f"{at}.text", empty=True))
        fields.finish()
    return "".join(texts)


# --- what a reply is to be ---------------------------------------------------------------------


def _format(given: Any) -> ResponseFormat | None:
    if given is None:
        return None
    fields = Fields(given, "response_format")
    kind = fields.choice("type", "text", "json_object", "json_schema")
    if kind is None:
        refuse("response_format.type", "this is text, json_object or json_schema")
    described = fields.take("json_schema") if kind == "json_schema" else None
    fields.finish()
    if kind == "text":
        return None
    if kind == "json_object":
        return ResponseFormat(None, {"type": kind})
    inner = Fields(described, "response_format.json_schema")
    name = inner.text("name")
    schema = inner.take("schema")
    strict, description = inner.flag("strict"), inner.text("description", empty=True)
    inner.finish()
    if name is None:
        refuse("response_format.json_schema.name", "this is a name for the schema")
    if not isinstance(schema, dict):
        refuse("response_format.json_schema.schema", "this is a JSON Schema, an object")
    more = {"strict": strict, "description": description}
    sent: dict[str, Any] = {"name": name, "schema": schema}
    sent |= {key: value for key, value in more.items() if value is not None}
    return ResponseFormat(cast("dict[str, Any]", schema), {"type": kind, "json_schema": sent})


def _include_usage(given: Any, *, stream: bool) -> bool:
    if given is None:
        return False
    if not stream:
        refuse("stream_options", "this goes with stream: true")
    fields = Fields(given, "stream_options")
    wanted = fields.flag("include_usage") or False
    fields.flag("include_obfuscation")
    fields.finish()
    return wanted


def _wishes(given: Any, *, stream: bool) -> Wishes:
    if given is None:
        return Wishes()
    fields = Fields(given, "mellea_like")
    wishes = Wishes(
        requirements=fields.texts("requirements", MAX_WISHES),
        checks=fields.texts("checks", MAX_WISHES),
        loop=fields.whole("loop"),
        concurrency=fields.whole("concurrency"),
        timeout=fields.real("timeout", least=0.001, most=86_400),
        when_nothing_passed=fields.choice("when_nothing_passed", "error", "best"),
        progress=fields.flag("progress") or False,
    )
    fields.finish()
    if wishes.progress and not stream:
        refuse("mellea_like.progress", "this goes with stream: true")
    return wishes
