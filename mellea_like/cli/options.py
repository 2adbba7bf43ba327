"""Options, declared once as the fields of a dataclass from which typer reads them."""

from __future__ import annotations

import inspect
import os
import re
from dataclasses import MISSING, Field, field, fields
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_type_hints

import typer
from pydantic import ValidationError
from typer.models import ArgumentInfo, OptionInfo, ParameterInfo

from mellea_like.cli.exits import Exit, Problem
from mellea_like.cli.terminal import one_line
from mellea_like.specification.section import Section, message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from _typeshed import DataclassInstance

__all__ = [
    "REQUIRED",
    "add_command",
    "argument",
    "as_text",
    "check_file",
    "option",
    "option_names",
    "read_section",
]

T = TypeVar("T", bound="DataclassInstance")
S = TypeVar("S", bound=Section)


REQUIRED: Any = MISSING
"""The default of an option that has to be given."""


def option(default: Any, about: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """Make a field that is an option, by default called as the field is; False makes it a flag."""
    given: Any = ... if default is REQUIRED else default
    if default is list:
        given = []
    return _field(default, typer.Option(given, *names, help=about, rich_help_panel=panel, **more))


def argument(metavar: str, about: str) -> Any:
    """Make a field that is an argument."""
    return _field(REQUIRED, typer.Argument(..., help=about, metavar=metavar))


def _field(default: Any, info: ParameterInfo) -> Any:
    if default is list:
        return field(default_factory=list[Any], metadata={"typer": info})
    return field(default=default, metadata={"typer": info})


def add_command(
    app: typer.Typer, name: str, options: type[T], run: Callable[[T], int], **settings: Any
) -> None:
    """Add a command whose options are the fields of a dataclass; it is run with one of them.

    What a command's class puts into the context's object are values of further fields.
    """
    names = option_names(options)
    hints = get_type_hints(options)
    panels: tuple[str, ...] = getattr(options, "panels", ())
    given = [one for one in fields(options) if one.name in names]
    if panels:  # Inherited fields come first, which need not be what the help begins with.
        given.sort(key=lambda one: _place(one, panels))

    def command(context: typer.Context, **values: Any) -> int:
        texts = {name: _texts(value, names[name]) for name, value in values.items()}
        return run(options(**texts, **(context.obj or {})))

    parameters: list[inspect.Parameter] = []
    for one in given:
        info = one.metadata["typer"]
        if one.default is False and not info.param_decls:
            info.param_decls = (names[one.name],)  # Without a --no-... beside it.
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(
            inspect.Parameter(one.name, kind, default=info, annotation=hints[one.name])
        )
    context = inspect.Parameter(
        "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    command.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
    command.__annotations__ = {
        "context": typer.Context,
        **{one.name: hints[one.name] for one in given},
    }
    app.command(name, **settings)(command)


def option_names(options: type[DataclassInstance]) -> dict[str, str]:
    """Give the option of each field that has one, as the user writes it."""
    names: dict[str, str] = {}
    for one in fields(options):
        info = one.metadata.get("typer")
        if isinstance(info, ArgumentInfo):
            names[one.name] = str(info.metavar)
        elif isinstance(info, OptionInfo):
            own = f"--{one.name.replace('_', '-')}"
            names[one.name] = next(iter(info.param_decls or ()), own)
    return names


def _place(one: Field[Any], panels: tuple[str, ...]) -> int:
    panel = one.metadata["typer"].rich_help_panel
    return panels.index(panel) if panel in panels else -1


def _texts(given: object, option: str) -> object:
    if isinstance(given, (list, tuple)):
        return [_texts(one, option) for one in cast("list[object]", given)]
    return as_text(given, option) if type(given) is str else given  # Not members of an enum.


def as_text(given: str, option: str) -> str:
    """Read an argument's bytes as UTF-8, whatever the locale makes of them."""
    try:
        return os.fsencode(given).decode("utf-8")
    except UnicodeError as exc:
        msg = f"{option} isn't UTF-8 text"
        raise Problem(msg, Exit.USAGE) from exc


def check_file(option: str, path: Path) -> None:
    """Make sure that a file can be read, and comes to an end."""
    try:
        if path.is_fifo():
            return  # What is read from a pipe is gone.
        if path.is_char_device() or path.is_block_device():
            msg = f"{option}: {path} is a device: name a file"
            raise Problem(msg)
        with path.open("rb") as file:
            file.read(1)
    except OSError as exc:
        msg = f"{option}: can't read {path}: {exc.strerror or exc}"
        raise Problem(msg) from exc


def read_section(
    section: type[S], given: Mapping[str, Any], names: Mapping[str, str], **files: Path | None
) -> S:
    """Read a section of the specification from options; names has the option of each field.

    A mistake in what stands in a file isn't bad usage.
    """
    try:
        return section.model_validate(given)
    except ImportError as exc:
        raise Problem(str(exc)) from exc
    except ValidationError as exc:
        error = exc.errors()[0]
        message = message_of(error)
        field = next((step for step in reversed(error["loc"]) if step in names), None)
        if field is None:
            for name, option in names.items():
                message = re.sub(rf"\b{name} (?=\d|takes)", f"{option} ", message)
            raise Problem(message, Exit.USAGE) from None
        option, file = names[str(field)], files.get(str(field))
        if file is not None:
            message = message.removeprefix(f"{field}: ")
            about = "" if str(file) in message else f"{file}: "
            msg = f"{option}: {about}{message}"
            raise Problem(msg) from None
        if message.startswith("takes"):
            value: object = error["input"]
            shown = one_line(repr(value) if isinstance(value, str) else f"{value:g}", 80)
            message = f"{option} {message}, not {shown}"
        elif message.startswith(f"{option.removeprefix('--')} "):
            message = f"--{message}"
        else:
            message = f"{option}: {message}"
        raise Problem(message, Exit.USAGE) from None
