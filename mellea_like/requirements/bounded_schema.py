"""JSON Schema validators that can't hang: their steps are counted, and patterns have a timeout.

A schema of a few hundred bytes can ask for more steps than anyone can wait for (`anyOf` whose parts
refer to each other), and so can a regular expression. Who gets schemas from others needs bounds.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

__all__ = ["MAX_STEPS", "PATTERN_SECONDS", "TooCostly", "bounded", "counted"]

MAX_STEPS = 100_000
"""Keywords that are looked at in one validation; so many take about two seconds."""

PATTERN_SECONDS = 0.1
"""The most processor time for one search of a pattern."""

_spent = threading.local()


class TooCostly(Exception):
    """A validation takes more than it may; the message says more of what."""


@contextmanager
def counted(most: int) -> Generator[None]:
    """Count the steps of one validation from here on, in this thread.

    Args:
        most: how many it may take.

    Yields:
        Nothing.

    Raises:
        TooCostly: there are too many, or a search took too long.
    """
    _spent.left = most
    try:
        yield
    except RecursionError:
        msg = "references that go round in a circle"
        raise TooCostly(msg) from None


def bounded(kind: Any) -> Any:
    """Make a validator class whose validations end.

    Args:
        kind: a class of the ``jsonschema`` package.

    Returns:
        A class that finds the same errors, or raises `TooCostly`; to be used in `counted`.
    """
    from jsonschema import validators  # noqa: PLC0415 (an extra)

    own = {"pattern": _pattern, "patternProperties": _patterns}
    checks = {name: _counting(check) for name, check in {**kind.VALIDATORS, **own}.items()}
    extend: Any = getattr(validators, "extend")  # noqa: B009 (its types are half unknown)
    return extend(kind, checks)


def _counting(check: Callable[..., Any]) -> Callable[..., Any]:
    def step(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _spent.left -= 1
        if _spent.left < 0:
            msg = "too many steps"
            raise TooCostly(msg)
        return check(validator, value, instance, schema)

    return step


def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415

    if validator.is_type(instance, "string") and not _found(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _patterns(
    validator: Any, patterns: dict[str, Any], instance: Any, _schema: Any
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, part in patterns.items():
        for name, value in instance.items():
            if _found(pattern, name):
                yield from validator.descend(value, part, path=name, schema_path=pattern)


def _found(pattern: str, text: str) -> bool:
    import regex  # noqa: PLC0415 (an extra, the same one)

    try:
        return regex.search(pattern, text, timeout=PATTERN_SECONDS) is not None
    except TimeoutError:
        msg = f"more than {PATTERN_SECONDS:g} s for a pattern"
        raise TooCostly(msg) from None
