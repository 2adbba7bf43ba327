"""Strict checks of a body against the types that an SDK declares for it.

An SDK describes its requests as typed dicts. A provider refuses what isn't in them, which pydantic
would leave out silently.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typing_extensions

MARKS = {typing_extensions.Required, typing_extensions.NotRequired, Annotated}
PLAIN: dict[Any, tuple[type, ...]] = {
    str: (str,),
    int: (int,),
    float: (int, float),
    bool: (bool,),
    type(None): (type(None),),
}


def problems(kind: Any, value: Any, path: str = "") -> list[str]:  # noqa: C901, PLR0911
    """What is wrong with a value of plain data, as a sentence for each fault."""
    origin = get_origin(kind)
    if origin in MARKS:
        return problems(get_args(kind)[0], value, path)
    if hasattr(kind, "__value__"):  # An alias of a type.
        arguments = get_args(kind)
        return problems(kind.__value__[arguments] if arguments else kind.__value__, value, path)
    if kind in PLAIN:
        fits = isinstance(value, PLAIN[kind]) and (kind is bool or not isinstance(value, bool))
        return [] if fits else [f"{path}: expected {kind.__name__}, got {value!r:.60}"]
    if origin is Literal:
        return [] if value in get_args(kind) else [f"{path}: {value!r:.60} is not allowed"]
    if origin in (Union, types.UnionType):
        return _of_union(get_args(kind), value, path)
    if typing_extensions.is_typeddict(kind):
        return _of_dict(kind, value, path)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            return [f"{path}: expected an object, got {value!r:.60}"]
        inside = (get_args(kind) or (str, object))[1]
        return [p for k, v in value.items() for p in problems(inside, v, f"{path}.{k}")]
    if isinstance(origin, type) and (
        issubclass(origin, Iterable) or origin.__name__ == "SequenceNotStr"
    ):
        if not isinstance(value, list):
            return [f"{path}: expected a list, got {value!r:.60}"]
        inside = get_args(kind)[0]
        return [p for n, v in enumerate(value) for p in problems(inside, v, f"{path}[{n}]")]
    if kind in (object, Any) or not isinstance(kind, type):
        return []
    # A class of the SDK's, such as one for a file: JSON has no such thing.
    return [f"{path}: {value!r:.60} is not allowed"]


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _of_dict(kind: Any, value: Any, path: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{path}: expected an object, got {value!r:.60}"]
    hints = _hints(kind)
    where = f"{path}." if path else ""
    found = [f"{where}{name}: unknown field" for name in value if name not in hints]
    found += [
        f"{where}{name}: field required"
        for name, inside in hints.items()
        if name not in value and _is_required(kind, inside)
    ]
    for name, inside in value.items():
        if name in hints:
            found += problems(hints[name], inside, f"{where}{name}")
    return found


def _is_required(kind: Any, hint: Any) -> bool:
    # `__required_keys__` knows nothing of marks in annotations that are strings.
    mark = get_origin(hint)
    return mark is typing_extensions.Required or (
        kind.__total__ and mark is not typing_extensions.NotRequired
    )


def _of_union(kinds: tuple[Any, ...], value: Any, path: str) -> list[str]:
    fewest: tuple[int, list[str]] | None = None
    for kind in kinds:
        found = problems(kind, value, path)
        if not found:
            return []
        # The fault is told of the member that was meant, which its constant fields say.
        of_type = (p for p in found if p.partition(":")[0].endswith(("type", "role")))
        unlike = sum("is not allowed" in p for p in of_type)
        rank = unlike * 1000 + len(found) + 500 * ("expected" in found[0])
        if fewest is None or rank < fewest[0]:
            fewest = rank, found
    return fewest[1] if fewest else []
