"""What a validator does, in a digest: its source, without what only people read. Pure.

Comments, docstrings, annotations, layout and decorators do not count. The values that it takes from
around it do: numbers and texts, and the functions of its module that it calls.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["code_of"]

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

FOR_PEOPLE = frozenset({"annotation", "decorator_list", "kind", "name", "returns", "type_comment"})
"""Fields of a syntax tree that change nothing of what a function decides."""

CALLED: tuple[type, ...] = (FunctionType, partial)


def code_of(validator: Any, seen: frozenset[Any] = frozenset()) -> Json:
    """Return what tells a validator from one of the same name that does something else.

    None where there is no source, as of what was typed in or written in C.
    """
    if isinstance(validator, partial):
        given = {str(n): value for n, value in enumerate(validator.args)} | validator.keywords
        return [code_of(validator.func, seen), _values(given, seen)]
    if isinstance(validator, MethodType):
        return code_of(validator.__func__, seen)
    if not isinstance(validator, FunctionType):
        kind = cast("type[object]", type(validator))
        called = inspect.getattr_static(kind, "__call__", None)
        return code_of(called, seen) if isinstance(called, FunctionType) else None
    if validator in seen:
        return None
    node = _node_of(validator.__code__)
    if node is None:
        return None
    around = inspect.getclosurevars(validator)
    changed = {name for part in ast.walk(node) for name in _rebound(part)}
    own = {
        name: value
        for name, value in {**around.globals, **around.nonlocals}.items()
        if name not in changed
        and (not isinstance(value, FunctionType) or value.__module__ == validator.__module__)
    }
    defaults = dict(enumerate(validator.__defaults__ or ())) | (validator.__kwdefaults__ or {})
    seen |= {validator}
    return [
        _shape(node),
        _values(own, seen),
        _values({str(name): value for name, value in defaults.items()}, seen),
    ]


def _values(around: Mapping[str, Any], seen: frozenset[Any]) -> Json:
    return {
        name: repr(value) if _is_constant(value) else code_of(value, seen)
        for name, value in sorted(around.items())
        if isinstance(value, CALLED) or _is_constant(value)
    }


def _is_constant(value: object) -> bool:
    """Tell what stays as it is while the process runs, and reads the same in the next one."""
    if isinstance(value, tuple):
        return all(map(_is_constant, cast("tuple[object, ...]", value)))
    return value is None or type(value) in {str, bytes, bool, int, float, complex}


def _rebound(node: ast.AST) -> list[str]:
    return node.names if isinstance(node, ast.Global | ast.Nonlocal) else []


def _node_of(code: CodeType) -> ast.AST | None:
    """Find the function in its file."""
    for node in _functions(code.co_filename).get(code.co_firstlineno, ()):
        if not isinstance(node, ast.Lambda):
            return node
        places = [(line, column) for line, _, column, _ in code.co_positions() if column]
        if (node.body.lineno, node.body.col_offset) in places:
            return node
    return None


def _functions(filename: str) -> Mapping[int, list[ast.AST]]:
    """Return all functions of a file by the lines where they begin, with their decorators."""
    found: dict[int, list[ast.AST]] = {}
    linecache.checkcache(filename)
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            found.setdefault(first, []).append(node)
    return found


def _shape(node: object) -> Json:
    """Write a syntax tree so that all versions of Python write it alike."""
    if isinstance(node, list):
        return [_shape(part) for part in cast("list[object]", node)]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    if (
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node) is not None
    ):
        fields["body"] = node.body[1:]
    kept = {n: v for n, v in fields.items() if v not in (None, []) and n not in FOR_PEOPLE}
    return {type(node).__name__: {name: _shape(value) for name, value in kept.items()}}
