"""Convert requests to Pydantic AI's types, read its replies, and translate its errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai import exceptions
from pydantic_ai import messages as wire
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from mellea_like.backends.server_errors import (
    STATUSES,
    Translator,
    failed_in_transport,
    kind_of_status,
)
from mellea_like.core.backend import MAX_SEED
from mellea_like.core.conversation import joined_text
from mellea_like.core.format import format_name, json_schema
from mellea_like.core.generation import Generation
from mellea_like.core.parts import Audio, File, Image, Part, Text
from mellea_like.core.tools import TOOL_CHOICES, ToolCall
from mellea_like.errors import (
    AuthenticationFailed,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    InvalidRequest,
    MalformedResponse,
    RateLimited,
)
from mellea_like.runtime.event_loops import running_loop

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mellea_like.core.backend import Options, Request
    from mellea_like.core.conversation import Message
    from mellea_like.core.generation import RequestMeter

OUTPUT_TOOL = "final_result"
"""The name of the tool whose arguments are the reply; Pydantic AI's agents use the same name."""

GUARANTEES = ("stop_sequences", "extra_body", "extra_headers")
"""Settings that a model must not silently ignore: without support for them, a request is refused.
"""


# --- what is sent ---------------------------------------------------------------------------------


def inner_models(model: Model) -> Iterator[Model]:
    """Iterate over a model and the models that it wraps or falls back to."""
    yield model
    inner: list[Model[Any] | None] = [
        getattr(model, "wrapped", None),
        *getattr(model, "models", ()),
    ]
    for each in inner:
        if each is not None:
            yield from inner_models(each)


def can_stream(model: Model) -> bool:
    """Return whether a model, and each model inside it, can stream."""
    return not any(
        type(each).request_stream is Model.request_stream
        or (isinstance(each, FunctionModel) and each.stream_function is None)
        for each in inner_models(model)
    )


def key_of(model: Model) -> str | None:
    """Return the API key that a model's client sends, or None if the client doesn't reveal it."""
    for each in inner_models(model):
        client: Any = getattr(each.provider, "client", None)
        key = getattr(client, "api_key", None)
        if isinstance(key, str) and key:
            return key
    return None


def model_messages(model: Model, messages: Sequence[Message]) -> list[wire.ModelMessage]:
    """Convert a conversation to Pydantic AI's messages, without names and reasoning."""
    written: list[wire.ModelMessage] = []
    called: dict[str, str] = {}
    for message in messages:
        if message.role == "assistant":
            called |= {call.id: call.name for call in message.tool_calls}
            written.append(wire.ModelResponse(list(_answer_parts(message))))
            continue
        part: wire.ModelRequestPart
        if message.role == "system":
            part = wire.SystemPromptPart(message.text)
        elif message.role == "user":
            part = wire.UserPromptPart(_content(model, message.content))
        else:
            call = message.tool_call_id or ""
            name = message.name or called.get(call, "tool")
            part = wire.ToolReturnPart(name, _content(model, message.content), call)
        last = written[-1] if written else None
        if isinstance(last, wire.ModelRequest):
            written[-1] = wire.ModelRequest([*last.parts, part])
        else:
            written.append(wire.ModelRequest([part]))
    return written


def _answer_parts(message: Message) -> Iterator[wire.ModelResponsePart]:
    if said := joined_text(message.content):
        yield wire.TextPart(said)
    for call in message.tool_calls:
        yield wire.ToolCallPart(call.name, call.arguments, call.id)


def _content(model: Model, content: str | tuple[Part, ...]) -> str | list[wire.UserContent]:
    return content if isinstance(content, str) else [_part(model, part) for part in content]


def _part(model: Model, part: Part) -> wire.UserContent:
    match part:
        case Text():
            return part.text
        case Image(url=str(url)):
            return wire.ImageUrl(url, vendor_metadata=_detail(part))
        case Image():
            data, kind = part.data or b"", part.media_type or ""
            return wire.BinaryContent(data, media_type=kind, vendor_metadata=_detail(part))
        case Audio():
            kind = "audio/mpeg" if part.format == "mp3" else f"audio/{part.format}"
            return wire.BinaryContent(part.data, media_type=kind)
        case File(file_id=str(file_id)):
            return wire.UploadedFile(file_id, provider_name=cast("Any", model.system))
        case File():
            data, kind = part.data or b"", part.media_type or ""
            return wire.BinaryContent(data, media_type=kind, identifier=part.filename)


def _detail(image: Image) -> dict[str, Any] | None:
    return None if image.detail is None else {"detail": image.detail}


def model_settings(model: Model, options: Options, tool_choice: str | None) -> ModelSettings:
    """Convert options to Pydantic AI's settings; unknown ``extra`` entries go into the body."""
    named = tool_choice not in {None, *TOOL_CHOICES}
    said: dict[str, Any] = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_tokens": options.max_tokens,
        "stop_sequences": list(options.stop) or None,
        "seed": None if options.seed is None else options.seed % MAX_SEED,
        "tool_choice": [tool_choice] if named else tool_choice,
    }
    body = dict(options.extra.get("extra_body") or {})
    known = tuple({f"{name}_" for each in inner_models(model) for name in _families(each)})
    for name, value in options.extra.items():
        if name in ModelSettings.__annotations__ or name.startswith(known):
            said[name] = value
        else:
            body[name] = value
    said["extra_body"] = body or None
    said = {name: value for name, value in said.items() if value is not None}
    for each in inner_models(model):
        ignored = [name for name in GUARANTEES if name in said.keys() & each.unsupported_settings]
        if ignored:
            what = ", ".join(sorted(body)) if "extra_body" in ignored else ", ".join(ignored)
            msg = f"{each.model_id} doesn't support {what}: leave it out of the options"
            raise InvalidRequest(msg)
        if "max_retries" not in each.unsupported_settings:
            said.setdefault("max_retries", 0)
    return cast("ModelSettings", said)


def _families(model: Model) -> Iterator[str]:
    # For example, the settings of pydantic_ai.models.anthropic begin with anthropic_.
    for kind in type(model).__mro__:
        package, _, name = kind.__module__.partition("pydantic_ai.models.")
        if not package and name:
            yield name.partition(".")[0]


def request_parameters(model: Model, request: Request) -> ModelRequestParameters:
    """Return the parameters for a request's tools and its typed output."""
    tools = [
        ToolDefinition(
            name=tool.name,
            description=tool.description or None,
            parameters_json_schema=dict(tool.parameters),
            strict=tool.strict,
        )
        for tool in request.tools
    ]
    format = request.format
    if format is None:
        return ModelRequestParameters(function_tools=tools)
    schema, profile = json_schema(format), _profile(model)
    native = profile.get("supports_json_schema_output", False)
    if not native and profile.get("supports_tools", True) and schema.get("type") == "object":
        output = ToolDefinition(
            name=OUTPUT_TOOL,
            description="The final reply: its arguments are the whole of it.",
            parameters_json_schema=schema,
            kind="output",
        )
        return ModelRequestParameters(
            function_tools=tools,
            output_mode="tool",
            output_tools=[output],
            allow_text_output=False,
        )
    return ModelRequestParameters(
        function_tools=tools,
        output_mode="native" if native else "prompted",
        output_object=OutputObjectDefinition(schema, name=format_name(format)),
    )


def _profile(model: Model) -> Any:
    try:
        return model.profile
    except NotImplementedError:  # It's a FallbackModel, whose models have their own.
        return {}


# --- a reply --------------------------------------------------------------------------------------


class Reply:
    """Collects a reply of Pydantic AI while it is received."""

    def __init__(self, meter: RequestMeter, parameters: ModelRequestParameters) -> None:
        self._meter = meter
        self._by_tool = bool(parameters.output_tools)
        self._text: list[str] = []
        self._pieces = 0
        self._output_part: int | None = None

    def take(self, event: object, tokens: int) -> str:
        """Read an event; return the text that it adds. ``tokens`` have been counted so far."""
        piece = ""
        match event:
            case wire.PartStartEvent(part=wire.TextPart(content=text)):
                piece = text
            case wire.PartStartEvent(index=index, part=wire.ToolCallPart(tool_name=name) as call):
                if self._by_tool and name == OUTPUT_TOOL:
                    self._output_part = index
                    piece = _arguments(call.args)
            case wire.PartDeltaEvent(delta=wire.TextPartDelta(content_delta=text)):
                piece = text
            case wire.PartDeltaEvent(index=index, delta=wire.ToolCallPartDelta(args_delta=delta)):
                if index == self._output_part:
                    piece = _arguments(delta)
            case wire.PartDeltaEvent():
                pass
            case _:
                return ""
        # Providers send about one event per token; the usage at the end corrects this.
        self._pieces += 1
        self._meter.update(output_tokens=max(self._pieces, tokens))
        if piece:
            self._text.append(piece)
        return piece

    def refused(self, response: wire.ModelResponse) -> str:
        """Use a refusal as the reply's text if there is no other text; return the text added."""
        said = str((response.provider_details or {}).get("refusal") or "")
        if not said or self._text:
            return ""
        self._text.append(said)
        return said

    def generation(self, response: wire.ModelResponse) -> Generation:
        """Return the whole reply, and settle the meter with its usage."""
        used = response.usage
        if used.has_values() and not used.unmeasured_requests:
            self._meter.settle(
                input_tokens=used.input_tokens,
                output_tokens=used.output_tokens,
                cached_input_tokens=min(used.cache_read_tokens, used.input_tokens),
                reasoning_tokens=min(used.output_reasoning_tokens, used.output_tokens),
            )
        if response.state != "complete" or response.finish_reason == "error":
            what = "ends in an error" if response.finish_reason == "error" else "is incomplete"
            msg = f"{response.provider_name or 'the model'} sent a reply that {what}"
            raise MalformedResponse(msg)
        calls = tuple(_calls(response, given=self._output_part is not None))
        refusal = (response.provider_details or {}).get("refusal")
        thoughts = [p.content for p in response.parts if isinstance(p, wire.ThinkingPart)]
        return Generation(
            "".join(self._text),
            usage=self._meter.usage,
            model=response.model_name,
            finish_reason="refusal" if refusal else _ended(response.finish_reason, calls),
            tool_calls=calls,
            refusal=str(refusal) if refusal else None,
            reasoning="\n".join(filter(None, thoughts)) or None,
        )


def _calls(response: wire.ModelResponse, *, given: bool) -> Iterator[ToolCall]:
    """Yield the tool calls; with ``given``, skip the output tool's call, which is the reply."""
    for part in response.parts:
        if isinstance(part, wire.ToolCallPart) and not (given and part.tool_name == OUTPUT_TOOL):
            yield ToolCall(part.tool_call_id, part.tool_name, _arguments(part.args) or "{}")


def _ended(reason: str | None, calls: tuple[ToolCall, ...]) -> str | None:
    if calls and reason in {None, "stop", "tool_call"}:
        return "tool_calls"
    return "stop" if reason == "tool_call" else reason


def _arguments(given: Any) -> str:
    if given is None or isinstance(given, str):
        return given or ""
    return json.dumps(given, ensure_ascii=False)


# --- errors ---------------------------------------------------------------------------------------


class ModelTranslator(Translator):
    """Translates errors of a request to a Pydantic AI model into this library's errors."""

    def __init__(self, model: Model, timeout: float | None, total: float | None) -> None:
        key = key_of(model)
        super().__init__(model.model_id, None, timeout, [key] if key else [], total)

    def of_model(self, exc: Exception) -> BackendError | None:
        """Translate the exception of a request; return None if the exception is a bug."""
        said = f"{type(exc).__name__}: {self.clean(str(exc))}"
        match exc:
            case BackendError():
                return exc
            case exceptions.ModelAPIError():
                return self._of_api(exc)
            case exceptions.UserError() | NotImplementedError():
                return InvalidRequest(
                    f"{self._where} can't take this request: {self.clean(str(exc))}"
                )
            case exceptions.AgentRunError():
                return MalformedResponse(f"{self._where} sent an invalid response ({said})")
            case _ if isinstance(exc, TimeoutError) or "Timeout" in type(exc).__name__:
                return BackendTimeout(f"{self._where} did not answer in time ({said})")
            case _ if failed_in_transport(exc):
                return BackendUnavailable(f"the connection to {self._where} failed ({said})")
            case _:
                return self._of_loop(exc)

    def _of_loop(self, exc: Exception) -> BackendError | None:
        asyncios = "event loop" in str(exc) or "asyncio" in str(exc)
        on_asyncio = hasattr(running_loop(), "is_running")
        if not asyncios or not isinstance(exc, RuntimeError | TypeError) or on_asyncio:
            return None
        return InvalidRequest(
            f"the client of {self._where} runs only on asyncio: run this on asyncio, or choose"
            " another provider (the clients of OpenAI, Anthropic, Google and Amazon run on trio)"
        )

    def _of_api(self, exc: exceptions.ModelAPIError) -> BackendError:
        status: int | None = getattr(exc, "status_code", None)
        return self.answered(status, _message(exc), _kind(exc, status), exc.retry_after)


CATEGORIES: tuple[tuple[type[Exception], type[BackendError], bool | None], ...] = (
    (exceptions.ModelQuotaExceededError, RateLimited, False),
    (exceptions.ModelRateLimitError, RateLimited, None),
    (exceptions.ModelTimeoutError, BackendTimeout, None),
    (exceptions.ModelRequestTimeout, BackendTimeout, None),
    (exceptions.ModelConnectionError, BackendUnavailable, None),
    (exceptions.ModelUnavailableError, BackendUnavailable, None),
    (exceptions.ModelServerError, BackendUnavailable, None),
    (exceptions.ModelAuthenticationError, AuthenticationFailed, None),
    (exceptions.ModelRequestRejectedError, InvalidRequest, None),
)
"""This library's error class for each of Pydantic AI's exceptions, and whether to retry (None for
the error class's default)."""


def _kind(
    exc: exceptions.ModelAPIError, status: int | None
) -> tuple[type[BackendError], bool | None]:
    if status in STATUSES and not isinstance(exc, exceptions.ModelQuotaExceededError):
        return STATUSES[status]
    for category, kind, retryable in CATEGORIES:
        if isinstance(exc, category):
            return kind, retryable
    return (MalformedResponse, None) if status is None else kind_of_status(status)


def _message(exc: exceptions.ModelAPIError) -> str:
    body: Any = exc.body
    for _ in range(2):
        if isinstance(body, dict):
            fields = cast("dict[str, Any]", body)
            body = fields.get("message") or fields.get("error") or fields.get("detail") or fields
    hint = getattr(exc, "hint", None)
    return f"{body or exc.message}" + (f" ({hint})" if hint else "")
