"""Convert the tools of a request to ``/v1/responses`` to a chat completion's functions, and back.

Chat completions have only functions. A *custom* tool, whose input is any text, becomes a function
with one argument. The tools of a *namespace* become functions whose names begin with the
namespace. Tools of all other types are *hosted*: OpenAI's servers run them, or OpenAI's models were
trained on them.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Field, Tag, ValidationInfo

from mellea_like.gateway.chat.request import MOST_TOOLS, NO_ARGUMENTS
from mellea_like.gateway.chat.strict_fields import (
    BY_TYPE,
    WORD_OR_BY_TYPE,
    Fields,
    NotBlank,
    check_type,
    of_type,
    rules_of,
    type_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LONGEST_NAME = 64
"""The maximum length of a function's name in chat completions."""

INPUT = "input"
"""The name of the only argument of a function that replaces a custom tool."""

CUSTOM_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {INPUT: {"type": "string", "description": "The tool's whole input."}},
    "required": [INPUT],
    "additionalProperties": False,
}

HOSTED_ITEMS = frozenset(
    {
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "computer_call",
        "computer_call_output",
        "file_search_call",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)
"""Types of conversation items that describe what hosted tools did."""

HINT = "hosted_tools: drop in the model's overrides ignores it"


class Sent(Fields):
    """The base class of the JSON objects in a request. Undeclared fields are ignored."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")


class ToolName(NamedTuple):
    """A tool's name and namespace in the caller's request, and whether it is a custom tool."""

    name: str
    namespace: str | None = None
    custom: bool = False


def drops_hosted(info: ValidationInfo) -> bool:
    """Return whether the model's rules leave out hosted tools, those that OpenAI's servers run."""
    return rules_of(info).hosted_tools == "drop"


def function_name(name: str, namespace: str | None = None) -> str:
    """Return the name of a tool's function.

    It begins with the namespace, if there is one. If the name is too long, a digest replaces its
    end.
    """
    whole = name if namespace is None else f"{namespace}__{name}"
    if len(whole) <= LONGEST_NAME:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{whole[: LONGEST_NAME - len(digest) - 1]}_{digest}"


# --- tools ---------------------------------------------------------------------------------------

Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class _Function(Sent):
    type: str
    name: Identifier
    description: str | None = None
    parameters: dict[str, Any] = NO_ARGUMENTS
    strict: bool | None = None

    @property
    def about(self) -> dict[str, Any]:
        """The function's fields in a chat completion request, except for its name."""
        named = ("type", "name")
        return {name: value for name, value in self.sent.items() if name not in named}

    @property
    def echoed(self) -> dict[str, Any]:
        """The tool as the response repeats it, with defaults for missing fields."""
        return {"description": None, "parameters": {}, "strict": None, **self.sent}


class _Grammar(Sent):
    type: str
    syntax: str | None = None
    definition: str | None = None


class _Custom(Sent):
    type: str
    name: Identifier
    description: str | None = None
    format: _Grammar | None = None

    @property
    def about(self) -> dict[str, Any]:
        form = self.format
        told = [self.description or ""]
        if form is not None and form.definition is not None:
            told.append(f"Its input has this grammar ({form.syntax}):\n{form.definition}")
        return {"description": "\n\n".join(filter(None, told)), "parameters": CUSTOM_PARAMETERS}

    @property
    def echoed(self) -> dict[str, Any]:
        return self.sent


class _Namespace(Sent):
    type: str
    name: Identifier
    description: str | None = None
    tools: Annotated[
        list[
            Annotated[
                Annotated[_Function, Tag("<function>")] | Annotated[_Custom, Tag("<custom>")],
                BY_TYPE,
                of_type(("function", "custom"), "tools"),
            ]
        ],
        Field(max_length=MOST_TOOLS),
    ]

    @property
    def echoed(self) -> dict[str, Any]:
        return {**self.sent, "tools": [tool.echoed for tool in self.tools]}


class _Hosted(Sent):
    type: str
    echoed: ClassVar[dict[str, Any]] = {}


OWN = ("function", "custom", "namespace")


def _own_or_dropped(given: Any, info: ValidationInfo) -> Any:
    if drops_hosted(info) and type_of(given) not in (None, *OWN):
        return {"type": "hosted"}
    return check_type(given, OWN, "tools", f"; {HINT}")


Tool = Annotated[
    Annotated[_Function, Tag("<function>")]
    | Annotated[_Custom, Tag("<custom>")]
    | Annotated[_Namespace, Tag("<namespace>")]
    | Annotated[_Hosted, Tag("<hosted>")],
    BY_TYPE,
    BeforeValidator(_own_or_dropped),
]
"""A tool in a request: a function, a custom tool, a namespace or a hosted tool."""


def _each(tools: Sequence[Any]) -> Iterator[tuple[str, str | None, _Function | _Custom]]:
    """Yield each tool that the caller runs: its place in the request, its namespace, the tool."""
    for position, tool in enumerate(tools):
        match tool:
            case _Namespace():
                for within, inner in enumerate(tool.tools):
                    yield f"{position}.tools.{within}", tool.name, inner
            case _Hosted():
                pass
            case _:
                yield f"{position}", None, tool


def functions_of(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Convert tools to the functions of a chat completion request, without hosted tools."""
    return [
        {"type": "function", "function": {"name": function_name(tool.name, space), **tool.about}}
        for _, space, tool in _each(tools)
    ]


def places_of(tools: Sequence[Any]) -> list[str]:
    """Return each tool's place in the request, such as ``0.tools.1``, in `functions_of`'s order."""
    return [place for place, _, _ in _each(tools)]


def names_of(tools: Sequence[Any]) -> dict[str, ToolName]:
    """Return a map from the names of the tools' functions to the caller's names for the tools."""
    return {
        function_name(tool.name, space): ToolName(tool.name, space, isinstance(tool, _Custom))
        for _, space, tool in _each(tools)
    }


# --- calls ---------------------------------------------------------------------------------------


def input_as_arguments(text: str) -> str:
    """Return the input of a custom tool as the arguments of its function, in JSON."""
    return json.dumps({INPUT: text})


def called_as(
    names: Mapping[str, ToolName], name: str, arguments: str
) -> tuple[str, dict[str, Any]]:
    """Return the type and the fields of the response's item for a function call."""
    tool = names.get(name) or ToolName(name)
    named = {"name": tool.name}
    if tool.namespace is not None:
        named["namespace"] = tool.namespace
    if tool.custom:
        return "custom_tool_call", {**named, "input": _input(arguments)}
    return "function_call", {**named, "arguments": arguments}


def _input(arguments: str) -> str:
    try:
        given = json.loads(arguments)[INPUT]
    except (ValueError, KeyError, TypeError, RecursionError):
        return arguments  # A failed reply may have invalid calls.
    return given if isinstance(given, str) else arguments


# --- the choice of a tool ------------------------------------------------------------------------


class _Named(Sent):
    type: Literal["function", "custom"]
    name: NotBlank
    namespace: NotBlank | None = None

    @property
    def chat(self) -> dict[str, Any]:
        name = function_name(self.name, self.namespace)
        return {"type": "function", "function": {"name": name}}


class _Allowed(Sent):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[_Named], Field(min_length=1, max_length=MOST_TOOLS)]

    @property
    def chat(self) -> dict[str, Any]:
        allowed = {"mode": self.mode, "tools": [tool.chat for tool in self.tools]}
        return {"type": "allowed_tools", "allowed_tools": allowed}


Choice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")]
    | Annotated[_Named, Tag("<function>")]
    | Annotated[_Named, Tag("<custom>")]
    | Annotated[_Allowed, Tag("<allowed_tools>")],
    WORD_OR_BY_TYPE,
    of_type(("function", "custom", "allowed_tools"), "choices", or_text=True),
]
"""The field ``tool_choice``: a word, a tool that must be called, or the tools that are allowed."""
