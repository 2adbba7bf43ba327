"""Tools that a model may call, and the calls it makes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from mellea_like.core.argument_checks import check_text, check_type
from mellea_like.core.display import fields_shown, shown
from mellea_like.core.extra import NO_EXTRA, as_extra, with_extra

__all__ = ["TOOL_ROUNDS", "CallWatch", "Tool", "ToolCall", "ToolSource"]

CallWatch: TypeAlias = "Callable[[], Callable[[str], str | None]]"
"""Makes a function that checks the arguments of a call as they arrive.

That function takes the text so far. It returns why the text can't become a valid call, or None if
it still can.
"""

TOOL_ROUNDS = 8
"""How many rounds of tools a draw may run by default. In a round, all calls of a reply are run."""

TOOL_CHOICES = ("auto", "required", "none")
"""The tool choices of a request, other than the name of a tool."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call made by a model. Calls are compared without their parsed ``value``.

    Args:
        id: its id, from the model or its server; the message with the tool's result refers to it.
        name: the tool's name.
        arguments: the arguments, as the JSON text that the model wrote. It may be invalid.
        value: the parsed and validated arguments, if the call was checked against its `Tool`.
        extra: more fields of OpenAI's chat protocol, such as a server's ``extra_content``, which
            are sent back unchanged.

    Raises:
        TypeError: the id, the name or the arguments aren't a ``str``, or ``extra`` isn't a
            mapping.
        ValueError: the name is empty.
    """

    id: str
    name: str
    arguments: str
    value: Any = field(default=None, compare=False, repr=False)
    extra: Mapping[str, Any] = field(default=NO_EXTRA, repr=False, kw_only=True)

    __repr__ = fields_shown

    def __post_init__(self) -> None:
        for name in ("id", "name", "arguments"):
            check_text(f"a ToolCall's {name}", getattr(self, name))
        if not self.name:
            msg = "a ToolCall needs the name of the tool that it calls"
            raise ValueError(msg)
        if self.extra is not NO_EXTRA:
            object.__setattr__(self, "extra", as_extra(self.extra, "a ToolCall"))

    def __str__(self) -> str:
        return f"{self.name}({self.arguments})"

    def as_dict(self) -> dict[str, Any]:
        """Return the call as plain data in OpenAI's chat protocol."""
        function = {"name": self.name, "arguments": self.arguments}
        written = {"id": self.id, "type": "function", "function": function}
        return with_extra(written, self.extra)

    @classmethod
    def from_dict(cls, call: object) -> ToolCall:
        """Read a call in OpenAI's chat protocol.

        Args:
            call: the call. Its arguments may already be parsed, as in some chat templates.

        Returns:
            The call.

        Raises:
            ValueError: it isn't a call of a function. A missing id is no error; it becomes empty.
        """
        try:
            given = cast("Mapping[str, Any]", call)
            function = given["function"]
            arguments = function["arguments"]
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments, ensure_ascii=False)
            return cls(given.get("id") or "", function["name"], arguments)
        except (AttributeError, KeyError, TypeError) as exc:
            what = f"it lacks {exc}" if isinstance(exc, KeyError) else str(exc)
            msg = f"invalid tool call: {what}"
            raise ValueError(msg) from exc


@dataclass(frozen=True, slots=True)
class Tool:
    """Something that a model may ask to run.

    Args:
        name: its name for the model: 1 to 64 letters, digits, ``_`` and ``-`` (OpenAI's rule), but
            not ``auto``, ``required`` or ``none``.
        description: a description for the model.
        parameters: the JSON Schema of its arguments, which describes an object. Arguments that it
            doesn't list are refused, unless ``"additionalProperties"`` is true or a schema.
        function: the function to run, or None if the tool runs elsewhere.
        read_only: whether the tool changes nothing, so that draws may run it before they win.
        hinted: whether ``parameters`` come from the function's type hints, as in `of`.
        strict: whether OpenAI's servers must keep to the schema while they generate arguments; by
            default, the server decides.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: the name breaks its rule, or a tool without a function is ``read_only``.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"type": "object", "properties": {}}, repr=False
    )
    function: Callable[..., Any] | None = field(default=None, repr=False)
    read_only: bool = False
    hinted: bool = field(default=False, repr=False, compare=False, kw_only=True)
    strict: bool | None = field(default=None, repr=False, kw_only=True)
    """Whether servers must keep to the schema while they generate arguments; see ``Args``."""

    def __post_init__(self) -> None:
        check_text("a Tool's name", self.name)
        check_text("a Tool's description", self.description)
        if not _NAME.fullmatch(self.name):
            msg = f"a Tool's name must be 1 to 64 letters, digits, _ or -, not {self.name!r}"
            raise ValueError(msg)
        check_type("a Tool's parameters", self.parameters, Mapping, "a JSON Schema as a dict")
        check_type("a Tool's strict", self.strict, bool | None, "True, False or None")
        check_type("a Tool's read_only", self.read_only, bool, "a bool")
        check_type("a Tool's function", self.function, Callable | None, "callable")
        if self.name in TOOL_CHOICES:
            msg = (
                f"a Tool can't be named {self.name!r}: tool_choice={self.name!r} has another"
                " meaning"
            )
            raise ValueError(msg)
        if self.read_only and self.function is None:
            msg = f"the tool {self.name} is read_only but has no function that a draw could run"
            raise ValueError(msg)

    @classmethod
    def of(
        cls,
        source: ToolSource,
        *,
        name: str | None = None,
        description: str | None = None,
        read_only: bool | None = None,
    ) -> Tool:
        """Make a tool from a function or a schema.

        Args:
            source: a plain or async function with type hints, a mapping, or a tool. A function's
                docstring describes it, and an ``Args:`` section in Google's style describes its
                arguments, unless their hints do (``Annotated[str, Field(description=...)]``). A
                mapping is a tool in OpenAI's API, or a JSON Schema whose ``title`` is the name.
            name: the tool's name, in place of the source's.
            description: the description, in place of the source's.
            read_only: whether the tool changes nothing; by default as in the source, or else False.

        Returns:
            The tool.

        Raises:
            TypeError: the source is of another type, or a parameter has no type hint, has no name
                (``*args``), or has a type that can't be read from JSON.
            ValueError: the name breaks the rule for names of tools, or a schema, which has no
                function, is made ``read_only``.
        """
        given = {"name": name, "description": description, "read_only": read_only}
        changes: Any = {key: value for key, value in given.items() if value is not None}
        return replace(_made(cls, source, name), **changes)

    def as_dict(self) -> dict[str, Any]:
        """Return the tool in OpenAI's chat protocol."""
        told = {"description": self.description} if self.description else {}
        strict = {} if self.strict is None else {"strict": self.strict}
        function = {"name": self.name, **told, "parameters": dict(self.parameters), **strict}
        return {"type": "function", "function": function}


ToolSource: TypeAlias = "Tool | Callable[..., Any] | Mapping[str, Any]"
"""A tool, a function, or a mapping that `Tool.of` reads."""


def _made(kind: type[Tool], source: object, name: str | None) -> Tool:
    if isinstance(source, Tool):
        return source
    if isinstance(source, Mapping):
        return _of_mapping(kind, cast("Mapping[str, Any]", source), name)
    if isinstance(source, type) or not callable(source):
        msg = f"a tool must be a function with type hints, a JSON Schema or a Tool, not {source!r}"
        raise TypeError(msg)
    from mellea_like.core.tool_functions import function_tool  # noqa: PLC0415 (loads pydantic)

    found = function_tool(source)
    return kind(name or found.name, found.description, found.parameters, source, hinted=True)


def _of_mapping(kind: type[Tool], given: Mapping[str, Any], name: str | None) -> Tool:
    if given.get("type", "function") == "function":
        told: Any = given.get("function", given)
        check_type("a tool's 'function'", told, Mapping, "a dict with its name and parameters")
        inside = cast("Mapping[str, Any]", told)
        if "parameters" not in inside and {"input_schema", "inputSchema"} & inside.keys():
            msg = (
                f"the tool {inside.get('name')}: pass its schema as 'parameters', as in OpenAI's"
                " API"
            )
            raise ValueError(msg)
        schema, named = inside.get("parameters"), inside.get("name")
        strict = inside.get("strict")
    else:
        schema, named, inside, strict = given, given.get("title"), given, None
    called = name or named
    if not called:
        msg = f"a tool needs a name: this mapping has neither 'name' nor 'title': {shown(given)}"
        raise ValueError(msg)
    about = inside.get("description") or ""
    if schema is None:
        return kind(called, about, strict=strict)
    return kind(called, about, schema, strict=strict)


# --- calls in conversations, and their comparison


def recorded_call(written: Mapping[str, Any]) -> ToolCall:
    """Read a call that `ToolCall.as_dict` wrote, with its extra fields."""
    inside = {n: v for n, v in written["function"].items() if n not in ("name", "arguments")}
    extra = {n: v for n, v in written.items() if n not in ("id", "type", "function")}
    if inside:
        extra["function"] = inside
    call = ToolCall.from_dict(written)
    return replace(call, extra=extra) if extra else call


def resendable(call: ToolCall) -> ToolCall:
    """Return a call whose arguments are a JSON object, because some servers refuse other ones."""
    read = plain_arguments(call)
    if isinstance(read, dict):
        return call if call.arguments else replace(call, arguments="{}")
    return replace(call, arguments=json.dumps({"not an object": read}, ensure_ascii=False))


def read_arguments(call: ToolCall) -> Any:
    """Return a call's parsed arguments; if they aren't JSON, return their text."""
    return plain_arguments(call) if call.value is None else call.value


def plain_arguments(call: ToolCall) -> Any:
    """Return a call's arguments as plain JSON data, or as text if they aren't JSON."""
    try:
        return json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return call.arguments


def canonical(call: ToolCall) -> str:
    """Return a call as a text that depends only on its name and arguments."""
    return f"{call.name}({as_json(read_arguments(call), sort=True)})"


def as_json(value: object, *, sort: bool = False) -> str:
    """Return a value as JSON; objects that JSON can't express are replaced by their ``repr``."""
    from pydantic_core import to_jsonable_python  # noqa: PLC0415 (few programs need it)

    plain = to_jsonable_python(value, fallback=repr)
    return json.dumps(plain, sort_keys=sort, ensure_ascii=False)
