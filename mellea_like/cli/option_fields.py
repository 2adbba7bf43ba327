"""Options of commands, declared as fields of a dataclass, from which typer's options are made."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, field, fields
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import typer
from pydantic import ValidationError
from typer.models import ArgumentInfo

from mellea_like.cli.errors import run_command
from mellea_like.cli.exit_codes import Exit, Problem
from mellea_like.core.display import one_line
from mellea_like.specification.section import Section, message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from _typeshed import DataclassInstance

    from mellea_like.cli.signals import SignalHandler

T = TypeVar("T", bound="DataclassInstance")
S = TypeVar("S", bound=Section)

REQUIRED: Any = MISSING
"""The value to pass as an option's default if the option is required."""

FILES = ("json_schema", "gguf", "corpus")
"""The options that name files. Errors in these files have the exit code 3, not 2 for bad usage."""


def option(default: Any, names: str, about: str, panel: str | None = None, **more: Any) -> Any:
    """Make a field for an option; ``names`` is, for example, ``--output -o FILE``."""
    given: Any = ... if default is REQUIRED else [] if default is list else default
    *flags, last = names.split()
    if last.startswith("-"):
        flags.append(last)
    else:
        more["metavar"] = last
    info = typer.Option(given, *flags, help=about, rich_help_panel=panel, **more)
    if default is list:
        return field(default_factory=list[Any], metadata={"typer": info})
    return field(default=default, metadata={"typer": info})


def argument(metavar: str, about: str) -> Any:
    """Make a field for a positional argument."""
    return field(metadata={"typer": typer.Argument(..., help=about, metavar=metavar)})


def add_command(
    app: typer.Typer,
    name: str,
    options: type[T],
    run: Callable[[T, SignalHandler], int],
    **settings: Any,
) -> None:
    """Add a command that calls ``run`` with an instance of the dataclass ``options``."""
    names, hints = option_names(options), get_type_hints(options)
    # A dataclass begins with its inherited fields, but the help may begin with others.
    panels: tuple[str | None, ...] = getattr(options, "panels", ())
    given = {one.name: one.metadata["typer"] for one in fields(options) if one.name in names}
    for panel in reversed(panels):
        given = dict(sorted(given.items(), key=lambda one: one[1].rich_help_panel != panel))

    def command(context: typer.Context, **values: Any) -> int:
        return run_command(run, options(**values, **context.meta.get(name, {})), context.obj)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("context", kind, annotation=typer.Context)]
    for one, info in given.items():
        parameters.append(
            inspect.Parameter(
                one, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=hints[one]
            )
        )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    app.command(name, **settings)(command)


def option_names(options: type[DataclassInstance]) -> dict[str, str]:
    """Map each field to its option, such as ``--output``, or to its metavar if it's an argument."""
    names: dict[str, str] = {}
    for one in fields(options):
        info = one.metadata.get("typer")
        if isinstance(info, ArgumentInfo):
            names[one.name] = str(info.metavar)
        elif info is not None:
            names[one.name] = info.param_decls[0]
    return names


def read_section(section: type[S], given: Mapping[str, Any], names: Mapping[str, str]) -> S:
    """Build a ``section`` from values. ``names`` maps its fields to options, for use in errors."""
    try:
        return section.model_validate(given, context={"options": names})
    except ValidationError as exc:
        error = exc.errors()[0]
        message = message_of(error)
        place = str(next((step for step in reversed(error["loc"]) if step in names), ""))
        option = names.get(place, "")
        if option and message.startswith("must "):
            value: object = error["input"]
            shown = one_line(repr(value) if isinstance(value, str) else f"{value:g}", 80)
            message = f"{option} {message}, not {shown}"
        elif option:
            named = message.startswith(option.removeprefix("--"))
            message = f"--{message}" if named else f"{option}: {message}"
        raise Problem(message, Exit.SETUP if place in FILES else Exit.USAGE) from None
