"""Read the configuration file: YAML with environment variables. Errors name the lines."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

from pydantic import ValidationError

from mellea_like.lazy import needs_extra

with needs_extra("serve", "the gateway's configuration needs PyYAML"):
    import yaml

from mellea_like.gateway.config.cross_checks import Problem, problems_between
from mellea_like.gateway.config.gateway_config import GatewayConfig
from mellea_like.specification.section import message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pydantic_core import ErrorDetails

    Place: TypeAlias = tuple[str | int, ...]
    """The path to a part of the file: names of fields, and positions in lists."""

__all__ = ["ConfigError", "read_config"]

SHORTEST_SECRET = 4
"""Errors hide the value of an environment variable if it has at least this many characters."""

VARIABLE = re.compile(r"\$(\$?)\{([^}]*)\}")


class ConfigError(ValueError):
    """A configuration can't be used. Each line of the message names a place and the remedy."""


def read_config(
    path: str | os.PathLike[str],
    *,
    environ: Mapping[str, str] | None = None,
    further: Callable[[GatewayConfig], Iterable[Problem]] = lambda _: (),
    **server: Any,
) -> GatewayConfig:
    """Read a configuration file.

    ``${NAME}`` in a value is replaced by the environment variable; write ``$${`` for a literal
    ``${``.

    Args:
        path: a YAML file.
        environ: the variables for ``${NAME}``; the default is the process's environment, to which
            ``env`` and ``api_key_env`` always refer.
        further: a function that gets the configuration if it is valid, and returns further
            problems.
        **server: fields of the section ``server`` that override the file's.

    Returns:
        The configuration.

    Raises:
        ConfigError: the file can't be read, or something in it is wrong. The message names the
            file and has a line for each mistake, with its place and what to write there. It shows
            no values.
        ImportError: PyYAML is not installed.
    """
    file = _File(Path(path), os.environ if environ is None else environ)
    data = file.read()
    if not isinstance(data, dict):
        file.fail("it must have upstreams: and models:, each with names and their settings")
    given = cast("dict[str, Any]", data)
    own: object = given.get("server") or {}
    if server and isinstance(own, dict):
        given["server"] = {**cast("dict[str, Any]", own), **server}
    context = {"directory": file.path.parent}
    config: GatewayConfig | None = None
    try:
        config = GatewayConfig.model_validate(given, context=context)
    except ValidationError as exc:
        for error in exc.errors(include_input=False):
            file.add(error)
    if config is not None:
        found = [*problems_between(config), *further(config)]
        file.problems += [file.said(what, place=place) for place, what in found]
    if config is None or file.problems:
        raise ConfigError("\n".join(dict.fromkeys(file.problems))) from None
    return config


class _File:
    """Reads a configuration file, and formats problems with the line numbers of their places."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self.path = path
        self.environ = environ
        self.problems: list[str] = []
        self._lines: dict[Place, int] = {}
        self._unset: set[Place] = set()
        self._used: dict[str, str] = {}
        self._filled: set[int] = set()

    def read(self) -> Any:
        """Return the file's content as plain data, without running code that the YAML names."""
        text = self._text()
        try:
            loader: Any = yaml.SafeLoader(text)
            node = loader.get_single_node()
            if node is not None:
                self._visit(node, ())
            data = None if node is None else loader.construct_document(node)
        except ConfigError:
            raise
        except RecursionError:
            self.fail("it is nested too deeply, or contains itself through an alias")
        except yaml.MarkedYAMLError as exc:
            self.fail(*_syntax(exc, text))
        except (yaml.YAMLError, ValueError) as exc:
            self.fail(f"it isn't valid YAML: {type(exc).__name__}")
        return data

    def _text(self) -> str:
        try:
            return self.path.read_text("utf-8")
        except OSError as exc:
            self.fail(f"can't be read: {exc.strerror or exc}")
        except UnicodeDecodeError as exc:
            self.fail(f"it isn't valid UTF-8, from byte {exc.start} on")

    def _visit(self, node: Any, place: Place) -> None:
        """Record the lines of a YAML node and its parts, and insert environment variables."""
        line = node.start_mark.line + 1
        self._lines.setdefault(place, line)
        if isinstance(node, yaml.MappingNode):
            self._visit_mapping(node, place)
        elif isinstance(node, yaml.SequenceNode):
            for position, part in enumerate(node.value):
                self._visit(part, (*place, position))
        elif node.tag == "tag:yaml.org,2002:str" and id(node) not in self._filled:
            self._filled.add(id(node))  # Aliases may repeat it.
            node.value = VARIABLE.sub(lambda found: self._variable(found, line, place), node.value)

    def _visit_mapping(self, node: Any, place: Place) -> None:
        seen: set[str] = set()
        for key, part in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.fail("a name must be a string, not a list or a mapping", line, place)
            if key.value in seen:
                what = f"{key.value!r} appears twice: keep one of them"
                self.problems.append(self.said(what, line, place))
            seen.add(key.value)
            if key.tag == "tag:yaml.org,2002:merge":
                self._visit(part, place)
                continue
            # Names are texts, even those that YAML takes for numbers or booleans.
            key.tag = "tag:yaml.org,2002:str"
            self._lines[*place, key.value] = line
            self._visit(part, (*place, key.value))

    def _variable(self, found: re.Match[str], line: int, place: Place) -> str:
        escaped, name = found.groups()
        if escaped:
            return "${" + name + "}"
        if name not in self.environ:
            what = f"the environment variable {name} is not set"
            self.problems.append(self.said(what, line, place))
            self._unset.add(place)
            return found[0]
        self._used[self.environ[name]] = name
        return self.environ[name]

    def fail(self, message: str, line: int | None = None, place: Place = ()) -> NoReturn:
        """Raise a `ConfigError` with the problems recorded so far, and with this one."""
        raise ConfigError("\n".join([*self.problems, self.said(message, line, place)])) from None

    def add(self, error: ErrorDetails) -> None:
        """Record a validation error of the file's content as a problem."""
        message = message_of(error)
        # Replace variables' texts in the message by their names.
        for value, name in sorted(self._used.items(), key=lambda item: -len(item[0])):
            if len(value) >= SHORTEST_SECRET:
                message = message.replace(value, "${" + name + "}")
        place: list[str | int] = []
        for step in error["loc"]:
            if step == "[key]":
                message = f"invalid name: {message}"
            # A union's errors name its member, which isn't part of the file.
            if (*place, step) in self._lines or isinstance(step, int):
                place.append(step)
        if tuple(place) not in self._unset:
            self.problems.append(self.said(message, place=tuple(place)))

    def said(self, message: str, line: int | None = None, place: Place = ()) -> str:
        """Format a problem as one line: the file, the line number, the place and the message."""
        if line is None:  # Take the nearest part's line.
            known = (self._lines.get(place[:length]) for length in range(len(place), 0, -1))
            line = next((line for line in known if line is not None), None)
        where = f"{self.path}" if line is None else f"{self.path}, line {line}"
        message = message.replace("?\n", "? ").replace("\n", ". ")
        return ": ".join(filter(None, (where, ".".join(map(str, place)), message)))


def _syntax(error: yaml.MarkedYAMLError, text: str) -> tuple[str, int]:
    # The message may quote a key, unless it quotes a single character. The mark would quote the
    # line.
    def hidden(quote: re.Match[str]) -> str:
        return quote[0] if len(quote[0]) < len("'...'") or "<" in quote[0] else "..."

    what = re.sub(r"'[^']*'|\"[^\"]*\"", hidden, error.problem or "it can't be read")
    message = f"it isn't valid YAML: {what}"
    mark: Any = error.problem_mark or error.context_mark
    if text[max(mark.index - 1, 0) : mark.index + 1] == "${":
        message += '; inside {...} and [...], put quotes around a variable: "${NAME}"'
    return message, mark.line + 1
