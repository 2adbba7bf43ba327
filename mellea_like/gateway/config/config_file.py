"""The configuration's file: YAML with variables of the environment; each mistake has its line."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from pydantic import ValidationError

try:
    import yaml
except ImportError as exc:  # pragma: no cover
    msg = "The gateway's configuration needs PyYAML: pip install 'mellea-like[serve]'"
    raise ImportError(msg) from exc

from mellea_like.gateway.config.gateway_config import GatewayConfig
from mellea_like.specification.section import message_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

    Place: TypeAlias = tuple[str | int, ...]
    """Where a part stands: the names and positions on the way to it."""

__all__ = ["ConfigError", "read_config"]

SHORTEST_SECRET = 4
"""Shorter texts aren't secrets, and would be found everywhere."""

VARIABLE = re.compile(r"\$(\$?)\{([^}]*)\}")


class ConfigError(ValueError):
    """A configuration can't be used; each line of the message names a place and what to write."""


def read_config(
    path: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None
) -> GatewayConfig:
    """Read a configuration's file.

    ``${NAME}`` in a value becomes the environment variable's text; ``$${`` stands for ``${``.

    Args:
        path: a YAML file.
        environ: the environment's variables; by default the process's.

    Returns:
        The configuration.

    Raises:
        ConfigError: the file can't be read, or something in it is wrong: the message names the file
            and, on a line each, the place and what to write. It shows no value.
        ImportError: PyYAML is not installed.
    """
    file = _File(Path(path), os.environ if environ is None else environ)
    data = file.read()
    if not isinstance(data, dict):
        file.fail("it has upstreams: and models:, each with names and what they stand for")
    context = {"directory": file.path.parent, "environ": file.environ}
    try:
        return GatewayConfig.model_validate(data, context=context)
    except ValidationError as exc:
        problems = [file.problem(error) for error in exc.errors(include_input=False)]
        raise ConfigError("\n".join(dict.fromkeys(problems))) from None


class _File:
    """A file, and the line of each part in it."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self.path = path
        self.environ = environ
        self._lines: dict[Place, int] = {}
        self._used: dict[str, str] = {}
        self._filled: set[int] = set()

    def read(self) -> Any:
        """Return the file's content as plain data; nothing in it is run."""
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
            self.fail("it is nested too deep, or contains itself by an alias")
        except yaml.MarkedYAMLError as exc:
            self.fail(*_syntax(exc, text))
        except (yaml.YAMLError, ValueError) as exc:
            self.fail(f"it isn't YAML: {type(exc).__name__}")
        return data

    def _text(self) -> str:
        try:
            return self.path.read_text("utf-8")
        except OSError as exc:
            self.fail(f"can't be read: {exc.strerror or exc}")
        except UnicodeDecodeError as exc:
            self.fail(f"it isn't UTF-8 text, from byte {exc.start} on")

    def _visit(self, node: Any, place: Place) -> None:
        """Note lines, put variables in, and refuse names that stand twice."""
        line = node.start_mark.line + 1
        self._lines.setdefault(place, line)
        if isinstance(node, yaml.MappingNode):
            self._visit_mapping(node, place)
        elif isinstance(node, yaml.SequenceNode):
            for position, part in enumerate(node.value):
                self._visit(part, (*place, position))
        elif node.tag == "tag:yaml.org,2002:str" and id(node) not in self._filled:
            self._filled.add(id(node))  # It may stand elsewhere too, by an alias.
            node.value = VARIABLE.sub(lambda found: self._variable(found, line, place), node.value)

    def _visit_mapping(self, node: Any, place: Place) -> None:
        seen: set[str] = set()
        for key, part in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.fail("a name is a text here, not a list or a mapping", line, place)
            if key.value in seen:
                self.fail(f"{key.value!r} stands twice: keep one of them", line, place)
            seen.add(key.value)
            if key.tag == "tag:yaml.org,2002:merge":
                self._visit(part, place)
                continue
            # Names are texts, also those that YAML takes for numbers or truths.
            key.tag = "tag:yaml.org,2002:str"
            self._lines[*place, key.value] = line
            self._visit(part, (*place, key.value))

    def _variable(self, found: re.Match[str], line: int, place: Place) -> str:
        escaped, name = found.groups()
        if escaped:
            return "${" + name + "}"
        if not name.isidentifier():
            what = "${...} takes the name of an environment variable, as in ${OPENAI_API_KEY}"
            self.fail(what, line, place)
        if name not in self.environ:
            self.fail(f"the environment variable {name} is not set", line, place)
        self._used[self.environ[name]] = name
        return self.environ[name]

    def fail(self, message: str, line: int | None = None, place: Place = ()) -> NoReturn:
        """Say what is wrong, and where."""
        raise ConfigError(self._said(message, line, place)) from None

    def problem(self, error: ErrorDetails) -> str:
        """Say what a check of the file's content found wrong, and where."""
        misplaced = error.get("ctx", {}) if error["type"] == "misplaced" else {}
        message = misplaced.get("what") or message_of(error)
        # Variables' names, where a message has their texts.
        for value, name in sorted(self._used.items(), key=lambda item: -len(item[0])):
            if len(value) >= SHORTEST_SECRET:
                message = message.replace(value, "${" + name + "}")
        place: list[str | int] = []
        for step in misplaced.get("path") or error["loc"]:
            if step == "[key]":
                message = f"this can't be its name: {message}"
            # A union's errors name its member, which isn't part of the file.
            if (*place, step) in self._lines or isinstance(step, int):
                place.append(step)
        known = (self._lines.get(tuple(place[:length])) for length in range(len(place), 0, -1))
        line = next((line for line in known if line is not None), None)
        return self._said(message, line, tuple(place))

    def _said(self, message: str, line: int | None, place: Place) -> str:
        where = f"{self.path}" if line is None else f"{self.path}, line {line}"
        return ": ".join(filter(None, (where, ".".join(map(str, place)), message)))


def _syntax(error: yaml.MarkedYAMLError, text: str) -> tuple[str, int | None]:
    # What its message quotes may be a key, but for single signs; the mark would quote the line.
    def hidden(quote: re.Match[str]) -> str:
        return quote[0] if len(quote[0]) < len("'...'") or "<" in quote[0] else "..."

    what = re.sub(r"'[^']*'|\"[^\"]*\"", hidden, error.problem or "it can't be read")
    message = f"it isn't YAML: {what}"
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return message, None
    if text[max(mark.index - 1, 0) : mark.index + 1] == "${":
        message += '; inside {...} and [...] a variable needs quotes around it: "${NAME}"'
    return message, mark.line + 1
