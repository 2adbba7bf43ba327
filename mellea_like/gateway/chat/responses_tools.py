"""Convert the tools of a request to ``/v1/responses`` to a chat completion's functions, and back.

Chat completions have only functions. A *custom* tool, whose input is any text, becomes a function
with one argument. The tools of a *namespace* become functions whose names begin with the
namespace. Tools of all other types are *hosted*: OpenAI's servers run them, or OpenAI's models were
trained on them.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, Tag, ValidationInfo

from mellea_like.gateway.chat.request import MOST_TOOLS, NO_ARGUMENTS, Function, FunctionName
from mellea_like.gateway.chat.strict_fields import (
    BY_TYPE,
    Fields,
    NotBlank,
    check_type,
    of_type,
    rules_of,
    type_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.gateway.fields import FieldRules

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
    name
    for line in (
        "apply_patch_call apply_patch_call_output code_interpreter_call computer_call",
        "computer_call_output file_search_call image_generation_call local_shell_call",
        "local_shell_call_output mcp_approval_request mcp_approval_response mcp_call",
        "mcp_list_tools program program_output shell_call shell_call_output tool_search_call",
        "tool_search_output web_search_call",
    )
    for name in line.split()
)
"""Types of conversation items that describe what hosted tools did."""

HINT = "hosted_tools: drop in the model's overrides ignores it"


class Sent(Fields):
    """An object whose unknown fields the model's rules drop or refuse, but never forward."""

    @classmethod
    def _keeps(cls, name: str, rules: FieldRules) -> bool:
        return rules.of_responses == "refuse" and super()._keeps(name, rules)


def drops_hosted(info: ValidationInfo) -> bool:
    """Return whether the model's rules leave out hosted tools, those that OpenAI's servers run."""
    return rules_of(info).hosted_tools == "drop"


def function_name(name: str, namespace: str | None = None) -> str:
    """Return the name of a tool's function. If it is too long, a digest replaces its end."""
    whole = name if namespace is None else f"{namespace}__{name}"
    if len(whole) <= LONGEST_NAME:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{whole[: LONGEST_NAME - len(digest) - 1]}_{digest}"


# --- tools ---------------------------------------------------------------------------------------


class _Callable(Sent):
    """A tool that the caller runs."""

    type: str
    name: FunctionName
    description: str | None = None
    call_type: ClassVar[str]

    @property
    def about(self) -> dict[str, Any]:
        """The function's fields in a chat completion request, except for its name."""
        return {name: value for name, value in self.sent.items() if name not in ("type", "name")}

    @property
    def echoed(self) -> dict[str, Any]:
        """The tool as the response repeats it."""
        return self.sent

    def functions(self, place: str, namespace: str | None = None) -> list[Function]:
        """Return the only function of this tool, which is at ``place`` in the request."""
        function = {"name": function_name(self.name, namespace), **self.about}
        called = {"type": self.call_type, "name": self.name}
        if namespace is not None:
            called["namespace"] = namespace
        return [Function(place, {"type": "function", "function": function}, called)]


class _Function(_Callable):
    call_type = "function_call"
    parameters: dict[str, Any] = NO_ARGUMENTS
    strict: bool | None = None

    @property
    def echoed(self) -> dict[str, Any]:
        return {"description": None, "parameters": {}, "strict": None, **self.sent}


class _Grammar(Sent):
    type: str
    syntax: str | None = None
    definition: str | None = None


class _Custom(_Callable):
    call_type = "custom_tool_call"
    format: _Grammar | None = None

    @property
    def about(self) -> dict[str, Any]:
        form = self.format
        told = [self.description or ""]
        if form is not None and form.definition is not None:
            told.append(f"Its input has this grammar ({form.syntax}):\n{form.definition}")
        return {"description": "\n\n".join(filter(None, told)), "parameters": CUSTOM_PARAMETERS}


class _Namespace(Sent):
    type: str
    name: FunctionName
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

    def functions(self, place: str) -> list[Function]:
        """Return the functions of the namespace's tools."""
        inside = enumerate(self.tools)
        return [f for n, tool in inside for f in tool.functions(f"{place}.tools.{n}", self.name)]

    @property
    def echoed(self) -> dict[str, Any]:
        return {**self.sent, "tools": [tool.echoed for tool in self.tools]}


class _Hosted(Sent):
    type: str
    echoed: ClassVar[dict[str, Any]] = {}

    def functions(self, _: str) -> list[Function]:
        """Return nothing: the tool is left out."""
        return []


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


# --- calls ---------------------------------------------------------------------------------------


def input_as_arguments(text: str) -> str:
    """Return the input of a custom tool as the arguments of its function, in JSON."""
    return json.dumps({INPUT: text})


def called_as(functions: Sequence[Function], name: str, arguments: str) -> dict[str, Any]:
    """Return the type and the fields of the response's item for a function call."""
    # A failed reply may call a function that doesn't exist.
    named = next((f.called for f in functions if f.name == name), {"type": "function_call"})
    item: dict[str, Any] = {"name": name, **named}
    if item["type"] == "custom_tool_call":
        return {**item, "input": _input(arguments)}
    return {**item, "arguments": arguments}


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
    def wanted(self) -> str:
        return function_name(self.name, self.namespace)

    @property
    def names(self) -> set[str]:
        return {self.wanted}


class _Allowed(Sent):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[_Named], Field(min_length=1, max_length=MOST_TOOLS)]

    @property
    def wanted(self) -> str:
        return self.mode

    @property
    def names(self) -> set[str]:
        return {tool.wanted for tool in self.tools}


Choice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")]
    | Annotated[_Named, Tag("<function>")]
    | Annotated[_Named, Tag("<custom>")]
    | Annotated[_Allowed, Tag("<allowed_tools>")],
    BY_TYPE,
    of_type(("function", "custom", "allowed_tools"), "choices", or_text=True),
]
"""The field ``tool_choice``: a word, a tool that must be called, or the tools that are allowed."""
