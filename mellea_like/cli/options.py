"""Options, declared once as the fields of a dataclass from which typer reads them."""

from __future__ import annotations

import inspect
import os
import re
from dataclasses import MISSING, fields
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

__all__ = ["add_command", "as_text", "check_file", "option_names", "read_section"]

T = TypeVar("T", bound="DataclassInstance")
S = TypeVar("S", bound=Section)


def add_command(
    app: typer.Typer, name: str, options: type[T], run: Callable[[T], int], **settings: Any
) -> None:
    """Add a command whose options are the fields of a dataclass; it is run with one of them.

    What a command's class puts into the context's object are values of further fields.
    """
    names = option_names(options)

    def command(context: typer.Context, **given: Any) -> int:
        texts = {field: _texts(value, names[field]) for field, value in given.items()}
        return run(options(**texts, **(context.obj or {})))

    panels: tuple[str, ...] = getattr(options, "panels", ())
    hints = {name: hint for name, hint in _hints(options).items() if name in names}
    if panels:  # Inherited fields come first, which need not be what the help begins with.
        hints = dict(sorted(hints.items(), key=lambda item: _place(item[1], panels)))
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for name, hint in hints.items()
        for default in [_default(options, name)]
    ]
    context = inspect.Parameter(
        "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    command.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
    command.__annotations__ = {"context": typer.Context, **hints}
    app.command(name, **settings)(command)


def option_names(options: type[DataclassInstance]) -> dict[str, str]:
    """Give the option of each field that has one, as the user writes it."""
    names: dict[str, str] = {}
    for name, hint in _hints(options).items():
        info = next((m for m in getattr(hint, "__metadata__", ()) if _is_info(m)), None)
        if isinstance(info, ArgumentInfo):
            names[name] = str(info.metavar)
        elif isinstance(info, OptionInfo):
            # Inside Annotated, typer takes the first name for a default at first.
            first = info.default if isinstance(info.default, str) else None
            names[name] = first or f"--{name.replace('_', '-')}"
    return names


def _place(hint: Any, panels: tuple[str, ...]) -> int:
    info = next(m for m in hint.__metadata__ if _is_info(m))
    return panels.index(info.rich_help_panel) if info.rich_help_panel in panels else -1


def _is_info(value: object) -> bool:
    return isinstance(value, ParameterInfo)


def _hints(options: type[DataclassInstance]) -> dict[str, Any]:
    return get_type_hints(options, include_extras=True)


def _default(options: type[DataclassInstance], name: str) -> Any:
    field = next(field for field in fields(options) if field.name == name)
    if field.default_factory is not MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is MISSING else field.default


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
