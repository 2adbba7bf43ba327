"""Check that public docstrings list what their function raises.

``python tools/check_raises.py mellea_like`` reads every module below a directory. A public function
or method that has a ``raise SomeError(...)`` in its body names ``SomeError``, or one of its base
classes, under ``Raises:`` in its docstring. ``Exception`` there means what others raise, so it
covers no type that the function raises itself. What a constructor raises is in the docstring of its
class. A docstring without sections promises nothing, so nothing is asked of it. Functions that
it calls are not looked into, and a bare ``raise`` passes on what others raised.

Ruff's DOC501 asks the same of private functions too, and nothing of constructors.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import mellea_like.errors

if TYPE_CHECKING:
    from collections.abc import Iterator

CONSTRUCTORS = {"__init__", "__new__", "__post_init__"}

ANYTHING = {"Exception", "BaseException"}
"""What says nothing of a type."""

SECTION = re.compile(r"^(?:Args|Attributes|Raises|Returns|Yields):$", re.MULTILINE)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def problems(source: str, name: str) -> list[str]:
    """Check one module.

    Args:
        source: its text.
        name: how to call it.

    Returns:
        A line for each exception that is not documented.
    """
    found: list[str] = []
    for owner, function in public_functions(ast.parse(source)):
        docstring = ast.get_docstring(owner) or ""
        if not SECTION.search(docstring):
            continue
        documented = named_under_raises(docstring)
        for line, raised in raised_in(function):
            if not documented & {raised, *(bases_of(raised) - ANYTHING)}:
                found.append(f"{name}:{line}: {owner.name} does not say that it raises {raised}")
    return found


def public_functions(tree: ast.AST) -> Iterator[tuple[Function | ast.ClassDef, Function]]:
    """Walk over the public functions and methods of a module or a class.

    Args:
        tree: the module or class.

    Yields:
        What has the docstring, and the function: the same but for constructors.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if isinstance(tree, ast.ClassDef) and node.name in CONSTRUCTORS:
                yield tree, node
            elif not node.name.startswith("_"):
                yield node, node
        elif isinstance(node, ast.If | ast.Try):
            yield from public_functions(node)


def raised_in(function: Function) -> Iterator[tuple[int, str]]:
    """Find what a function raises by name, without the functions inside it.

    Args:
        function: where to look.

    Yields:
        The line and the exception's name.
    """
    nodes = list(ast.iter_child_nodes(function))
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Raise) and node.exc is not None:
            target = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
            if name[:1].isupper() and name != "AssertionError":
                yield node.lineno, name


def named_under_raises(docstring: str) -> set[str]:
    """Read the names in a docstring's ``Raises:`` section.

    Args:
        docstring: the docstring, cleaned of indentation.

    Returns:
        The exceptions' names.
    """
    section = re.search(r"^Raises:\n((?:[ \t]+.*\n?|\n)*)", docstring, re.MULTILINE)
    if section is None:
        return set()
    return set(re.findall(r"^ {4}([A-Za-z_]\w*):", section[1], re.MULTILINE))


def bases_of(name: str) -> set[str]:
    """Name the base classes of an exception of Python's or of ours.

    Args:
        name: the exception's name.

    Returns:
        The names of its base classes; none for an exception from elsewhere.
    """
    exception: type = getattr(mellea_like.errors, name, getattr(builtins, name, object))
    return {base.__name__ for base in exception.__mro__} - {"object"}


def main(directory: str) -> int:
    """Check all modules below a directory and print what is wrong.

    Args:
        directory: where to look.

    Returns:
        The exit code: 1 where something is wrong.
    """
    found = [
        problem
        for path in sorted(Path(directory).rglob("*.py"))
        for problem in problems(path.read_text(encoding="utf-8"), str(path))
    ]
    print("\n".join(found) or "All public docstrings list what their functions raise.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
