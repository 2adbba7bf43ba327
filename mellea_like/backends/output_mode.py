"""How to ask a server for typed output, and what to do if it refuses one way of asking.

Nothing here waits or knows a wire format. A backend has an `OutputModes` and takes an
`OutputAttempt` from it for each request with a format. The backend writes the attempt's `Demand` in
its own protocol, and passes refusals to the attempt. After a refusal, the backend immediately sends
the request again in the next mode, within the same draw. The refused request counts as a request
without tokens.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from mellea_like.backends.server_errors import REFUSALS
from mellea_like.core.argument_checks import check_one_of
from mellea_like.core.conversation import Message
from mellea_like.core.format import format_name, json_schema
from mellea_like.core.parts import Text
from mellea_like.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mellea_like.core.backend import Options, Request
    from mellea_like.errors import BackendError

__all__ = [
    "Demand",
    "Mode",
    "OutputAttempt",
    "OutputMode",
    "OutputModes",
    "OutputTool",
    "demand",
    "refuses",
]

Mode = Literal["json_schema", "tool", "json_object", "prompt"]
"""A way to ask for typed output, the strictest first.

- ``"json_schema"``: the server gets the schema and enforces it.
- ``"tool"``: the model must call a tool whose parameters are the schema. The call's arguments are
  the reply.
- ``"json_object"``: the server enforces only that the reply is a JSON object. The prompt contains
  the schema.
- ``"prompt"``: only the prompt asks for the type.
"""

OutputMode = Literal["auto", "json_schema", "tool", "json_object", "prompt"]
"""A `Mode`, or ``"auto"`` for the strictest mode that the server accepts."""

MODES: tuple[Mode, ...] = get_args(Mode)

TOOL_SERVERS = ("api.anthropic.com", "api.deepseek.com")
"""Servers that accept a tool but not a schema.

Anthropic's server doesn't refuse ``response_format``, but ignores it (docs.anthropic.com, "OpenAI
SDK compatibility"). DeepSeek's server answers 400 "This response_format type is unavailable now".
"""

WRAPPED = "value"
"""The name of the output tool's argument that holds the reply, if the format isn't an object."""

_PROMPT = (
    "Reply with one JSON value that is valid against this JSON Schema, and with nothing else: no"
    " explanation, no code fence.\n{schema}"
)

_DESCRIPTION = "Gives the reply: call it once, with the whole reply as its arguments."


# --- what is asked for ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutputTool:
    """A tool that the model calls to give its reply: the call's arguments are the reply.

    Args:
        name: the tool's name, which differs from those of the request's own tools.
        description: the tool's description for the model.
        parameters: the JSON Schema of the tool's arguments, whose type is ``object``.
        wrapped: whether the reply is the argument ``value``, because the format isn't an object.
        forced: whether the model must call this tool. If not, it may call one of the request's own
            tools instead.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    wrapped: bool
    forced: bool


@dataclass(frozen=True, slots=True)
class Demand:
    """The data with which a request asks for typed output, in one mode.

    Args:
        mode: the way to ask.
        name: the format's name, in letters that any server accepts.
        schema: the format's JSON Schema. It is shared and must not be changed.
        messages: the conversation, which contains the schema in modes ``"json_object"`` and
            ``"prompt"``.
        tool: in mode ``"tool"``, the extra tool whose arguments are the typed reply. It is None if
            the request already forces a call of one of its own tools, because then no typed reply
            is asked for.
    """

    mode: Mode
    name: str
    schema: dict[str, Any]
    messages: tuple[Message, ...]
    tool: OutputTool | None = None


def demand(request: Request, mode: Mode) -> Demand:
    """Return the `Demand` of a request with a format, for one mode.

    Args:
        request: the request.
        mode: the way to ask.

    Returns:
        The demand to send.

    Raises:
        InvalidRequest: the mode can't ask for this format.
    """
    schema = json_schema(request.format)
    made = Demand(mode, format_name(request.format), schema, request.messages)
    if mode == "tool":
        return replace(made, tool=_tool(request, made))
    if mode == "json_object" and _as_object(schema) is None:
        msg = (
            "output='json_object' makes a server write an object, but the format isn't one: use a"
            " model with a field for it, or output='tool' or 'prompt'"
        )
        raise InvalidRequest(msg)
    if mode in ("json_object", "prompt"):
        text = json.dumps(_untitled(schema), ensure_ascii=False)
        return replace(made, messages=_with(request.messages, _PROMPT.format(schema=text)))
    return made


def _tool(request: Request, made: Demand) -> OutputTool | None:
    own = () if request.tool_choice == "none" else request.tools
    if own and request.tool_choice not in (None, "auto"):
        return None
    taken = {tool.name for tool in own}
    names = (made.name, *(f"{made.name[:60]}_{number}" for number in range(2, len(taken) + 3)))
    name = next(name for name in names if name not in taken)
    parameters = _as_object(made.schema)
    wrapped = parameters is None
    if parameters is None:
        inner = {key: part for key, part in made.schema.items() if key != "$defs"}
        parameters = {
            "type": "object",
            "properties": {WRAPPED: inner},
            "required": [WRAPPED],
            "additionalProperties": False,
        }
        if "$defs" in made.schema:
            parameters["$defs"] = made.schema["$defs"]
    return OutputTool(name, _DESCRIPTION, parameters, wrapped, not own)


def _as_object(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return a schema with its root's ``$ref`` resolved; None if the format isn't an object."""
    if "$ref" in schema:
        definitions = schema.get("$defs", {})
        root = definitions.get(str(schema["$ref"]).removeprefix("#/$defs/"))
        if not isinstance(root, dict):
            return None
        schema = {**cast("dict[str, Any]", root), "$defs": definitions}
    return schema if schema.get("type") == "object" else None


def _with(messages: Sequence[Message], asked: str) -> tuple[Message, ...]:
    """Return the conversation, with ``asked`` appended to the user's last message."""
    # Some models take no system message, and one at the top would defeat the server's prompt
    # cache.
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        if message.role != "user":
            continue
        if isinstance(message.content, str):
            content: Any = f"{message.content}\n\n{asked}"
        else:
            content = (*message.content, Text(asked))
        return (*messages[:at], replace(message, content=content), *messages[at + 1 :])
    return (*messages, Message("user", asked))


def _untitled(schema: Any, *, names: bool = False) -> Any:
    """Return a schema without titles; with ``names``, its keys are names of properties."""
    if isinstance(schema, list):
        return [_untitled(part) for part in cast("Sequence[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, part in cast("dict[str, Any]", schema).items():
        if names:
            kept[key] = _untitled(part)
        elif key != "title":
            values = key in ("const", "enum")
            kept[key] = part if values else _untitled(part, names=key in _NAMING)
    return kept


_NAMING = ("properties", "$defs", "patternProperties", "dependentSchemas")


def reply_text(tool: OutputTool, arguments: str) -> str:
    """Return the reply contained in the arguments of a call of the output tool."""
    if not tool.wrapped:
        return arguments
    try:
        value: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments  # Reading the reply will report the error.
    if not isinstance(value, dict) or list(cast("dict[str, Any]", value)) != [WRAPPED]:
        return arguments
    return json.dumps(value[WRAPPED], ensure_ascii=False)


# --- which way a server takes ---------------------------------------------------------------------

_SUBJECT: dict[Mode, re.Pattern[str]] = {
    "json_schema": re.compile(
        r"response_?format|json.?schema|schema|text\.format|structured.output|guided|grammar",
        re.IGNORECASE,
    ),
    "tool": re.compile(r"\btools?\b|tool_?choice|\bfunctions?\b|schema|grammar", re.IGNORECASE),
    "json_object": re.compile(
        r"response_?format|json.?object|json.mode|text\.format", re.IGNORECASE
    ),
}
"""Words that show that an error is about a mode. No error can be about the mode "prompt"."""

_ELSEWHERE = re.compile(
    r"context.{0,10}(length|window|size)|max\w*.tokens|reduce the length"
    r"|(prompt|input|messages?|request).{0,20}too (long|large)"
    r"|tool_call_id|tool_calls|messages?\W{1,4}\d|role\W{0,3}tool",
    re.IGNORECASE,
)
"""Words that show that an error isn't about a mode, but for example about the prompt's length."""

_UNSUPPORTED = re.compile(
    r"support|requires|unavailable|not available|not allowed|not implement|unknown", re.IGNORECASE
)

_THIS_SCHEMA = re.compile(
    r"(invalid|unsupported) (json )?schema|schema.{0,30}(feature|is invalid)|parameters is|grammar",
    re.IGNORECASE,
)
"""Words that show that an error is about one schema, so the server may accept other schemas."""

_PERHAPS = (404, 500, 501)
"""Statuses that some servers use to refuse a mode; the error's words must confirm it.

OpenRouter answers 404 "No endpoints found that support tool use". llama.cpp answers 500 "tools
param requires --jinja flag".
"""

_TOOL_FIELDS = ("tools", "functions", "tool_choice")
"""The protocol's fields for tools, which a user may have set in ``extra``."""

_Refused = tuple["str | None", str, Mode]
"""A model, a schema's digest (or "" for any schema), and the mode that the server refused."""


class OutputModes:
    """Decides how a backend asks for typed output: in a fixed mode, or in one that works.

    It remembers which modes a server refused for a model. If the server refused a mode only because
    of the request's schema, this mode is skipped for that schema alone.

    Args:
        output: the mode. ``"auto"`` tries one mode after the other until the server accepts one.

    Raises:
        ValueError: ``output`` is unknown.
    """

    def __init__(self, output: OutputMode = "auto") -> None:
        check_one_of("output", output, get_args(OutputMode))
        self.output: OutputMode = output
        self.refused: set[_Refused] = set()

    def begin(
        self, request: Request, model: str | None, options: Options, host: str = ""
    ) -> OutputAttempt:
        """Return an attempt to get typed output for one request with a format.

        Args:
            request: the request.
            model: the model to ask.
            options: the request's complete options.
            host: the server's name, if it is known.

        Returns:
            The attempt. Its ``demand`` is the demand to send, and changes after a refusal.

        Raises:
            InvalidRequest: the chosen mode can't ask for this format.
        """
        return OutputAttempt(self, request, model, options, host)


class OutputAttempt:
    """One request for typed output, made in one mode after another; see `OutputModes.begin`.

    Attributes:
        demand: how to ask for the format in the mode that is tried next.
    """

    demand: Demand

    def __init__(
        self, modes: OutputModes, request: Request, model: str | None, options: Options, host: str
    ) -> None:
        self._modes = modes
        self._request = request
        self._model = model
        self._refused: set[_Refused] = set()
        self._to_try = self._usable(options, host)
        self._choose()

    def refused(self, error: BackendError) -> bool:
        """Handle a refusal; return whether to send the request again with the new ``demand``."""
        mode = self.demand.mode
        if not refuses(mode, error) or not self._choose():
            return False
        schema = _digest(self._request.format) if _THIS_SCHEMA.search(error.said) else ""
        self._refused.add((self._model, schema, mode))
        return True

    def accepted(self) -> None:
        """Remember the refused modes, because the server has now accepted another mode."""
        self._modes.refused |= self._refused

    def _choose(self) -> bool:
        for mode in self._to_try:
            self.demand = demand(self._request, mode)
            return True
        return False

    def _usable(self, options: Options, host: str) -> Iterator[Mode]:
        by_hand = next((name for name in _TOOL_FIELDS if options.extra.get(name)), "")
        chosen = self._modes.output
        if chosen == "tool" and by_hand:
            msg = (
                f"output='tool' sends a tool itself, so it can't be combined with {by_hand!r}"
                " in options.extra: pass tools=, or use another output mode"
            )
            raise InvalidRequest(msg)
        if chosen != "auto":
            yield chosen
            return
        unusable = {
            "json_schema": host in TOOL_SERVERS,
            "tool": by_hand,
            "json_object": _as_object(json_schema(self._request.format)) is None,
        }
        for mode in MODES:
            refused = self._modes.refused  # Other requests may have added to it since the last try.
            schemas = ("", _digest(self._request.format)) if refused else ()
            known = any((self._model, schema, mode) in refused for schema in schemas)
            if not unusable.get(mode) and not known:
                yield mode


def _digest(format: Any) -> str:
    text = json.dumps(json_schema(format), sort_keys=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def refuses(mode: Mode, error: BackendError) -> bool:
    """Return whether a server refused a mode, and not something else in the request.

    Args:
        mode: the mode of the refused request.
        error: the server's refusal.

    Returns:
        Whether another mode may help.
    """
    subject, said = _SUBJECT.get(mode), error.said
    if subject is None or error.status not in (*REFUSALS, *_PERHAPS):
        return False
    if not subject.search(said) or _ELSEWHERE.search(said):
        return False
    return error.status in REFUSALS or _UNSUPPORTED.search(said) is not None
