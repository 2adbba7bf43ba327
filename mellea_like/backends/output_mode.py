"""How a server is asked for output of a type, and what is done where it refuses one way to ask.

Nothing here waits or knows a wire format. A backend keeps an `OutputModes`, takes an
`OutputAttempt` from it for each request that has a format, writes its `Demand` in its own way, and
asks the attempt what a refusal means. A refusal costs no turn: the backend sends the request again
at once, asking in the next way. A refused request is counted as what it was: a request sent, on
which nobody worked.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from mellea_like.backends.server_errors import REFUSALS
from mellea_like.core.conversation import Message
from mellea_like.core.format import format_name, json_schema
from mellea_like.core.parts import Text
from mellea_like.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.backend import Options, Request
    from mellea_like.errors import BackendError

__all__ = [
    "Demand",
    "Mode",
    "OutputAttempt",
    "OutputMode",
    "OutputModes",
    "OutputTool",
    "check_output",
    "demand",
    "refuses",
    "reply_text",
]

Mode = Literal["json_schema", "tool", "json_object", "prompt"]
"""A way to ask for output of a type, the strictest first.

- ``"json_schema"``: the server is given the schema and keeps the reply to it.
- ``"tool"``: the model is made to call a tool whose parameters are the schema. The call's arguments
  are the reply.
- ``"json_object"``: the server makes sure that it is a JSON object, the prompt says which.
- ``"prompt"``: the prompt alone asks for it.
"""

OutputMode = Literal["auto", "json_schema", "tool", "json_object", "prompt"]
"""A `Mode`, or ``"auto"``: the strictest that the server takes."""

MODES: tuple[Mode, ...] = get_args(Mode)

MAX_SCHEMA = 32_000
"""Characters of a schema in a prompt, some 8,000 tokens; a longer one loses its descriptions."""

TOOL_SERVERS = ("api.anthropic.com", "api.deepseek.com")
"""Hosts that take a tool and no schema: the first ignores ``response_format``, so that it would not
even refuse it (docs.anthropic.com, "OpenAI SDK compatibility"); the second answers 400 "This
response_format type is unavailable now"."""

WRAPPED = "value"
"""The property that holds a reply that isn't an object: a tool's arguments have to be one."""

_PROMPT = (
    "Reply with one JSON value that is valid against this JSON Schema, and with nothing else: no"
    " explanation, no code fence.\n{schema}"
)

_DESCRIPTION = "Gives the reply: call it once, with the whole reply as its arguments."


# --- what is asked for ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutputTool:
    """The tool whose arguments are the reply.

    Args:
        name: its name, which none of the request's own tools has.
        description: what it is for.
        parameters: the JSON Schema of its arguments: an object.
        wrapped: whether the reply is the ``value`` of the arguments, as the format isn't an object.
        forced: whether it must be called; if not, one of the request's tools may be, instead.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    wrapped: bool
    forced: bool


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of a request, in one mode.

    Args:
        mode: the way to ask.
        name: the format's name, of letters that any server takes.
        schema: the format's JSON Schema; shared, not to be changed.
        messages: the conversation, with the schema where the server does not get it otherwise.
        tool: in mode ``"tool"``, the tool to send along; None where the request says which of its
            own tools is to be called, so that no reply is asked for yet.
    """

    mode: Mode
    name: str
    schema: dict[str, Any]
    messages: tuple[Message, ...]
    tool: OutputTool | None = None


def check_output(output: object) -> OutputMode:
    """Make sure that an argument is an output mode."""
    if output not in (modes := get_args(OutputMode)):
        msg = f"output is one of {', '.join(map(repr, modes))}, not {output!r}"
        raise ValueError(msg)
    return cast("OutputMode", output)


def demand(request: Request, mode: Mode) -> Demand:
    """Write what a request with a format asks for in a mode.

    Args:
        request: the request.
        mode: the way to ask.

    Returns:
        The demand to send.

    Raises:
        InvalidRequest: that can't be asked for in this way.
    """
    schema = json_schema(request.format)
    made = Demand(mode, format_name(request.format), schema, request.messages)
    if mode == "tool":
        return replace(made, tool=_tool(request, made))
    if mode == "json_object" and _as_object(schema) is None:
        msg = (
            "output='json_object' makes a server write an object, and the format isn't one: take a"
            " model with a field for it, or output='tool' or 'prompt'"
        )
        raise InvalidRequest(msg)
    if mode in ("json_object", "prompt"):
        asked = _PROMPT.format(schema=_bounded(schema))
        return replace(made, messages=_with(request.messages, asked))
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
    """Return a schema of objects as one that says so at its root; None for any other."""
    if "$ref" in schema:
        definitions = schema.get("$defs", {})
        root = definitions.get(str(schema["$ref"]).removeprefix("#/$defs/"))
        if not isinstance(root, dict):
            return None
        schema = {**cast("dict[str, Any]", root), "$defs": definitions}
    return schema if schema.get("type") == "object" else None


def _with(messages: Sequence[Message], asked: str) -> tuple[Message, ...]:
    """Put what is asked for below the user's last message."""
    # Some models have no system message; and at the top, it would change what a server has cached.
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


def _bounded(schema: dict[str, Any]) -> str:
    """Write a schema for a prompt: without titles, and if it is long without descriptions."""
    for dropped in (("title",), ("title", "description", "examples", "default")):
        text = json.dumps(_without(schema, dropped), ensure_ascii=False, separators=(", ", ": "))
        if len(text) <= MAX_SCHEMA:
            return text
    msg = (
        f"the format's JSON Schema is longer than the {MAX_SCHEMA:,} characters that a prompt may"
        " have of it: take a smaller type, or a server that takes schemas"
    )
    raise InvalidRequest(msg)


def _without(schema: Any, dropped: tuple[str, ...], *, names: bool = False) -> Any:
    """Leave keywords out of a schema; where properties are named, a name is no keyword."""
    if isinstance(schema, list):
        return [_without(part, dropped) for part in cast("Sequence[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, part in cast("dict[str, Any]", schema).items():
        if names:
            kept[key] = _without(part, dropped)
        elif key in ("const", "enum"):
            kept[key] = part
        elif key not in dropped:
            kept[key] = _without(part, dropped, names=key in _NAMING)
    return kept


_NAMING = ("properties", "$defs", "patternProperties", "dependentSchemas")


def reply_text(tool: OutputTool, arguments: str) -> str:
    """Return the reply that the arguments of a call of the output tool are."""
    if not tool.wrapped:
        return arguments
    try:
        value: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments  # Reading the reply tells what is wrong with it.
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
"""The subject of a mode's refusal; nothing can be about the prompt."""

_ELSEWHERE = re.compile(
    r"context.{0,10}(length|window|size)|max\w*.tokens|reduce the length"
    r"|(prompt|input|messages?|request).{0,20}too (long|large)"
    r"|tool_call_id|tool_calls|messages?\W{1,4}\d|role\W{0,3}tool",
    re.IGNORECASE,
)
"""Other subjects, though they may have such words in them: the length, or the conversation."""

_UNSUPPORTED = re.compile(
    r"support|requires|unavailable|not available|not allowed|not implement|unknown", re.IGNORECASE
)

_THIS_SCHEMA = re.compile(
    r"(invalid|unsupported) (json )?schema|schema.{0,30}(feature|is invalid)|parameters is|grammar",
    re.IGNORECASE,
)
"""... about this one schema, so that the server may take another in the same mode."""

_PERHAPS = (404, 500, 501)
"""Others that servers use for it, where the words have to say so: OpenRouter answers 404 "No
endpoints found that support tool use", llama.cpp 500 "tools param requires --jinja flag"."""

_TOOL_FIELDS = ("tools", "functions", "tool_choice")
"""Fields of the wire that a user may have set by hand."""

_Refused = tuple["str | None", str, Mode]
"""A model, the digest of a schema or nothing for all, and the mode that its server refused."""


class OutputModes:
    """How a backend asks for typed output: as it was told, or as its servers take it.

    It remembers for each model, and where a server refused just one schema, for that one.

    Args:
        output: the mode; with ``"auto"``, one after the other until the server takes it.
    """

    def __init__(self, output: OutputMode = "auto") -> None:
        self.output: OutputMode = check_output(output)
        self.refused: set[_Refused] = set()

    def begin(
        self, request: Request, model: str | None, options: Options, host: str = ""
    ) -> OutputAttempt:
        """Begin to ask for the output of one request that has a format.

        Args:
            request: the request.
            model: the model that is asked.
            options: the request's options, complete.
            host: the name of the server, as far as it is known.

        Returns:
            The demand to send, and the next one after a refusal.

        Raises:
            InvalidRequest: that can't be asked for in the mode that was chosen.
        """
        return OutputAttempt(self, request, model, options, host)


class OutputAttempt:
    """One request's output, asked for in one mode after the other; see `OutputModes.begin`.

    Attributes:
        demand: the demand to send.

    Raises:
        InvalidRequest: that can't be asked for in the mode that was chosen.
    """

    demand: Demand

    def __init__(
        self, modes: OutputModes, request: Request, model: str | None, options: Options, host: str
    ) -> None:
        self._modes = modes
        self._request = request
        self._model = model
        self._refused: set[_Refused] = set()
        self._skipped: set[Mode] = set()
        by_hand = next((name for name in _TOOL_FIELDS if options.extra.get(name)), "")
        chosen = modes.output
        if chosen != "auto":
            if chosen == "tool" and by_hand:
                msg = (
                    f"output='tool' sends a tool of its own, and options.extra has {by_hand!r}:"
                    " give tools by tools=, or take another output mode"
                )
                raise InvalidRequest(msg)
            self.demand = demand(request, chosen)
            return
        if by_hand:
            self._skipped.add("tool")
        if host in TOOL_SERVERS:
            self._skipped.add("json_schema")
        if _as_object(json_schema(request.format)) is None:
            self._skipped.add("json_object")
        self._choose()

    def refused(self, error: BackendError) -> bool:
        """Take a refusal; tell whether to send the request again, as the demand is now."""
        mode = self.demand.mode
        if self._modes.output != "auto":
            return False
        if not refuses(mode, error):
            return False
        schema = _digest(self._request.format) if _THIS_SCHEMA.search(error.said) else ""
        self._refused.add((self._model, schema, mode))
        self._choose()
        return True

    def accepted(self) -> None:
        """Hear that the server has begun to reply: what it refused before was about the mode."""
        self._modes.refused |= self._refused

    def _choose(self) -> None:
        refused = self._modes.refused | self._refused
        schemas = ("", _digest(self._request.format)) if refused else ("",)
        for mode in MODES:
            tried = {(self._model, schema, mode) for schema in schemas}
            if mode not in self._skipped and refused.isdisjoint(tried):
                self.demand = demand(self._request, mode)
                return


def _digest(format: Any) -> str:
    text = json.dumps(json_schema(format), sort_keys=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def refuses(mode: Mode, error: BackendError) -> bool:
    """Tell whether a server refused a mode, rather than anything else in the request.

    Args:
        mode: how the output was asked for.
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
