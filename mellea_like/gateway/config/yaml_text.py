"""A YAML text as plain data, with the line of each part, and variables put in; nothing is run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

try:
    import yaml
except ImportError as exc:  # pragma: no cover
    msg = "The gateway's configuration needs PyYAML: pip install 'mellea-like[serve]'"
    raise ImportError(msg) from exc

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Document", "Mistake", "Path", "parse"]

Path: TypeAlias = "tuple[str | int, ...]"
"""Where a part stands: the names and positions on the way to it."""

MAX_PARTS = 5_000
MAX_DEPTH = 50

SHORTEST_SECRET = 4
"""Shorter texts aren't secrets, and would be found everywhere."""

VARIABLE = re.compile(r"\$(\$?)\{([^}]*)\}")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Mistake(Exception):
    """What is wrong in a document.

    Args:
        message: what, without any value from the document.
        line: the line it stands in, from 1 on; None where that is unknown.
        path: where it stands.
    """

    def __init__(self, message: str, line: int | None = None, path: Path = ()) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.path = path


@dataclass(frozen=True, slots=True, repr=False)
class Document:
    """What a text says.

    Args:
        data: mappings, lists, texts, numbers, truths and None.
        lines: the line of each part, from 1 on.
        used: the texts of the environment's variables that were put in, with their names.
    """

    data: Any
    lines: Mapping[Path, int] = field(default_factory=dict[Path, int])
    used: Mapping[str, str] = field(default_factory=dict[str, str])

    def hide(self, message: str) -> str:
        """Write variables' names where a message has their texts.

        Args:
            message: any text.

        Returns:
            The text, fit to be shown.
        """
        for value, name in sorted(self.used.items(), key=lambda item: -len(item[0])):
            if len(value) >= SHORTEST_SECRET:
                message = message.replace(value, "${" + name + "}")
        return message


def parse(text: str, environ: Mapping[str, str]) -> Document:
    """Read a text.

    ``${NAME}`` in a value becomes the environment variable's text; ``$${`` stands for ``${``.

    Args:
        text: YAML.
        environ: the environment's variables.

    Returns:
        What it says.

    Raises:
        Mistake: it isn't YAML, a name stands twice in one mapping, or a variable is not set.
    """
    walk = _Walk(environ)
    try:
        data = _construct(text, walk)
    except RecursionError:
        raise Mistake(_TOO_DEEP) from None
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        # The message alone: the mark would quote the line, which may hold a key.
        what = " ".join(filter(None, (exc.context, exc.problem))) or "it can't be read"
        message = f"it isn't YAML: {_quiet(what)}"
        if mark is not None and text[max(mark.index - 1, 0) : mark.index + 1] == "${":
            message += _QUOTE_IT
        raise Mistake(message, None if mark is None else mark.line + 1) from None
    except (yaml.YAMLError, ValueError) as exc:
        message = f"it isn't YAML: {type(exc).__name__}"
        raise Mistake(message) from None
    return Document(data, walk.lines, walk.used)


def _construct(text: str, walk: _Walk) -> Any:
    loader: Any = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        walk.visit(node, (), ())
        return loader.construct_document(node)
    finally:
        loader.dispose()


_QUOTE_IT = '; inside {...} and [...] a variable needs quotes around it: "${NAME}"'
_TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep"


class _Walk:
    """Notes lines, puts variables in, and refuses what YAML would let pass."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.lines: dict[Path, int] = {}
        self._environ = environ
        self._parts = 0
        self._filled: set[int] = set()
        self.used: dict[str, str] = {}

    def visit(self, node: Any, path: Path, above: tuple[int, ...]) -> None:
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        self._parts += 1
        if id(node) in above:
            _fail("a part of it contains itself, by an alias", line, path)
        if self._parts > MAX_PARTS:
            _fail(f"it has more than {MAX_PARTS} parts", line, path)
        if len(above) >= MAX_DEPTH:
            _fail(_TOO_DEEP, line, path)
        inside = (*above, id(node))
        if isinstance(node, yaml.MappingNode):
            self._visit_mapping(node, path, inside)
        elif isinstance(node, yaml.SequenceNode):
            for position, part in enumerate(node.value):
                self.visit(part, (*path, position), inside)
        elif node.tag == "tag:yaml.org,2002:str" and id(node) not in self._filled:
            self._filled.add(id(node))
            node.value = self._with_variables(node.value, line, path)

    def _visit_mapping(self, node: Any, path: Path, inside: tuple[int, ...]) -> None:
        seen: set[str] = set()
        for key, part in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                _fail("a name is a text here, not a list or a mapping", line, path)
            if key.value in seen:
                _fail(f"{key.value!r} stands twice: keep one of them", line, path)
            seen.add(key.value)
            merged = key.tag == "tag:yaml.org,2002:merge"
            if not merged:
                # Names are texts, also those that YAML takes for numbers or truths.
                key.tag = "tag:yaml.org,2002:str"
                self.lines[*path, key.value] = line
            self.visit(part, path if merged else (*path, key.value), inside)

    def _with_variables(self, text: str, line: int, path: Path) -> str:
        def filled(match: re.Match[str]) -> str:
            escaped, name = match.groups()
            if escaped:
                return "${" + name + "}"
            if NAME.fullmatch(name) is None:
                what = "${...} takes the name of an environment variable, as in ${OPENAI_API_KEY}"
                _fail(what, line, path)
            if name not in self._environ:
                _fail(f"the environment variable {name} is not set", line, path)
            self.used[self._environ[name]] = name
            return self._environ[name]

        return VARIABLE.sub(filled, text)


def _fail(message: str, line: int, path: Path) -> NoReturn:
    raise Mistake(message, line, path)


def _quiet(problem: str) -> str:
    """A message of the YAML package without what it quotes of the text, but for single signs."""
    # Names that the text's author chose may have quotes in them, so all after one is left out.
    problem = re.sub(
        r"\b(alias|anchor|tag|tag handle) ['\"].*", r"\1 there", problem, flags=re.DOTALL
    )
    return re.sub(r"'([^']*)'", _quiet_quote, problem)


def _quiet_quote(match: re.Match[str]) -> str:
    shown = len(match[1]) < 3 or re.fullmatch(r"<[a-z ]+>", match[1])  # noqa: PLR2004 (as in "\\t")
    return match[0] if shown else "it"
