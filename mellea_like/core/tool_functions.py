"""Make tools from plain functions: describe arguments by JSON Schemas, and read calls."""

from __future__ import annotations

import inspect
import re
from dataclasses import field, fields, make_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_origin

from pydantic import ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from mellea_like.core.argument_checks import unknown_argument, yields
from mellea_like.core.display import bounded, first_few, shown
from mellea_like.core.format import format_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class FunctionTool(NamedTuple):
    """A function as a tool: its description for the model, and a parser of calls' arguments."""

    name: str
    description: str
    parameters: dict[str, Any]
    arguments: Any
    """A dataclass with a field for each argument."""

    def watch(self) -> Callable[[str], str | None]:
        """Return a function that checks a call's arguments as they arrive; see `CallWatch`."""
        from mellea_like.core.format_watch import format_watch  # noqa: PLC0415 (few stream calls)

        return format_watch(self.arguments).feed

    def read(self, arguments: str) -> dict[str, Any]:
        """Parse a call's JSON arguments; raise a ``ValueError`` that names the wrong ones."""
        try:
            read = format_of(self.arguments).adapter.validate_json(arguments.strip() or "{}")
        except ValidationError as exc:
            wrong = (_wrong(e, self._names) for e in exc.errors(include_url=False))
            raise ValueError("; ".join(first_few(wrong))) from exc
        return {name: getattr(read, name) for name in self._names}

    @property
    def _names(self) -> list[str]:
        return [f.name for f in fields(self.arguments)]


class _Schema(GenerateJsonSchema):
    """Generates JSON Schemas without pydantic's titles, which don't help a model."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 (theirs)

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 (pydantic's)
        return False


@lru_cache(maxsize=256)
def function_tool(function: Callable[..., Any]) -> FunctionTool:
    """Make a tool from a function; raise ``TypeError`` if it can't be one."""
    inner: Any = getattr(function, "func", function)  # The function inside a partial.
    name = getattr(inner, "__name__", None) or type(inner).__name__
    documentation = inspect.getdoc(inner if inspect.isroutine(inner) else inner.__call__)
    if yields(function):
        msg = f"the tool {name} is a generator function, which would never run"
        raise TypeError(msg)
    try:
        signature = inspect.signature(function, eval_str=True)
    except (NameError, TypeError, ValueError) as exc:
        msg = f"the tool {name}: its parameters can't be read: {exc}"
        raise TypeError(msg) from exc
    description, about = documented(documentation or "")
    described: list[Any] = []
    for parameter in signature.parameters.values():
        hint, default = _checked(name, parameter), parameter.default
        if (said := about.get(parameter.name)) and not _described(hint, default):
            hint = Annotated[hint, Field(description=said)]
        described.append((parameter.name, hint, _default(default)))
    try:
        forbid = ConfigDict(extra="forbid")
        settings = {"__pydantic_config__": forbid}
        made = make_dataclass(name, described, namespace=settings, kw_only=True)
        schema = format_of(made).adapter.json_schema(schema_generator=_Schema)
    except Exception as exc:
        msg = f"the tool {name}: a model can't pass its arguments: {str(exc).splitlines()[0]}"
        raise TypeError(msg) from exc
    schema = {key: part for key, part in schema.items() if key not in {"title", "description"}}
    return FunctionTool(name, description, schema, made)


def _checked(name: str, parameter: inspect.Parameter) -> Any:
    """Return a parameter's type hint; raise ``TypeError`` if a model can't give the argument."""
    by_name = {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
    if parameter.kind not in by_name:
        msg = f"the tool {name}: its parameter {parameter} can't be passed by name, as models do"
        raise TypeError(msg)
    if parameter.annotation is parameter.empty:
        msg = f"the tool {name}: its parameter {parameter.name!r} has no type hint"
        raise TypeError(msg)
    return parameter.annotation


def _default(default: object) -> Any:
    if default is inspect.Parameter.empty:
        return field()
    if isinstance(default, FieldInfo) or type(default).__hash__ is not None:
        return field(default=default)
    return field(default_factory=lambda: default)


def _described(hint: Any, default: object) -> bool:
    """Return whether a parameter's type hint or default contains a description."""
    parts = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return any(isinstance(p, FieldInfo) and p.description for p in (*parts, default))


def _wrong(error: Any, names: list[str]) -> str:
    """Describe a wrong argument: the rule that it breaks, and its value."""
    where = ".".join(map(str, error["loc"]))
    kind, said = error["type"], error["msg"]
    if kind == "missing":
        return f"{where} is missing"
    if kind == "unexpected_keyword_argument" and len(error["loc"]) == 1:
        return unknown_argument(bounded(where, 100), where, names)
    if not where:
        return f"the arguments aren't a JSON object of its schema: {said}"
    return f"{where} is {bounded(shown(error['input']), 100)}: {said}"


# --- docstrings, in Google's style

_SECTION = re.compile(
    r"^(args|arguments|parameters|params|attributes|returns?|yields?|raises|examples?|notes?"
    r"|warnings?|warns|todo|see also|references|keyword args|keyword arguments|other parameters)"
    r":[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
_ARGUMENT = re.compile(r"^(\*{0,2}\w+)[ \t]*(?:\([^)]*\))?:[ \t]*(.*)$")


def documented(docstring: str) -> tuple[str, Mapping[str, str]]:
    """Return a docstring's description of a function, and of each argument."""
    sections = list(_SECTION.finditer(docstring))
    description = docstring[: sections[0].start()] if sections else docstring
    ends = [*(found.start() for found in sections), len(docstring)][1:]
    about: dict[str, str] = {}
    for found, end in zip(sections, ends, strict=True):
        if found[1].lower() in {"args", "arguments", "parameters", "params"}:
            about |= _arguments(docstring[found.end() : end])
    return description.strip(), about


def _arguments(section: str) -> dict[str, str]:
    about: dict[str, str] = {}
    name, indent = "", None
    for line in section.splitlines():
        text = line.strip()
        if not text:
            continue
        depth = len(line) - len(line.lstrip())
        indent = depth if indent is None else indent
        if depth <= indent and (found := _ARGUMENT.match(text)):
            name = found[1].lstrip("*")
            about[name] = found[2]
        elif name:
            about[name] = f"{about[name]} {text}".strip()
    return about
