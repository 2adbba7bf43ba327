"""The parts of pytest that generated tests use, for programs and tests in a sandbox.

They are ``raises``, ``approx``, ``param``, ``fixture``, ``skip``, ``fail`` and marks, as pytest's
documentation defines them. Tests that use another part raise `Unrunnable`, which names it.
"""

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import inspect
import re
import sys
import tempfile
import types
import unittest
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from mellea_like.requirements.code.plain import same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import ExitStack


class Unrunnable(BaseException):
    """Raised if the tests can't run for a reason that isn't the program's fault."""


class _Raises:
    """A context manager that expects an exception in its block."""

    def __init__(self, expected: Any, match: str | None = None) -> None:
        self.expected, self.pattern = expected, match
        self.value: Any = None
        self.type: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, exc: BaseException | None, _: object) -> bool:
        if exc is None:
            msg = f"did not raise {self.expected}"
            raise AssertionError(msg)
        self.type, self.value = kind, exc
        if not isinstance(exc, self.expected):
            return False
        return self.pattern is None or self.match(self.pattern)

    def match(self, pattern: str) -> bool:
        if re.search(pattern, str(self.value)) is None:
            msg = f"{str(self.value)!r} does not match {pattern!r}"
            raise AssertionError(msg)
        return True


def _raises(expected: Any, *call: Any, match: str | None = None, **named: Any) -> _Raises:
    raised = _Raises(expected, match)
    if call:
        with raised:
            call[0](*call[1:], **named)
    return raised


class _Approx:
    """A number, or several numbers, that equal others within a tolerance."""

    __array_ufunc__ = None  # NumPy leaves the comparison to this class.

    def __init__(self, expected: Any, rel: Any = None, abs: Any = None, **_: Any) -> None:  # noqa: A002
        self.expected = expected
        self.absolute = 1e-12 if abs is None else abs
        self.relative = (1e-6 if abs is None else 0.0) if rel is None else rel

    def __eq__(self, found: object) -> bool:
        expected: Any = self.expected
        if hasattr(expected, "tolist") or isinstance(expected, list | tuple):
            expected, found = list(expected), list(found)  # type: ignore[call-overload]
        return same(found, expected, self.relative, self.absolute)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"approx({self.expected!r})"


class _Marks:
    """``pytest.mark``, whose decorators record their names and arguments on the test."""

    def __getattr__(self, name: str) -> Any:
        def mark(*given: Any, **named: Any) -> Any:
            def put(test: Any) -> Any:
                test.pytestmark = [(name, given, named), *getattr(test, "pytestmark", ())]
                return test

            bare = len(given) == 1 and not named and inspect.isroutine(given[0])
            return mark()(given[0]) if bare else put

        return mark


def _param(*values: Any, id: object = None) -> Any:  # noqa: A002, ARG001
    return types.SimpleNamespace(parameters=values)


def _fixture(function: Any = None, **options: Any) -> Any:
    if options.keys() - {"scope"}:
        msg = f"a fixture uses {', '.join(options)}=, which the sandbox doesn't support"
        raise Unrunnable(msg)
    if function is not None:
        function.is_fixture = True
    return partial(_fixture, **options) if function is None else function


def _skip(reason: str = "", **_: object) -> NoReturn:
    raise unittest.SkipTest(reason)


def _fail(reason: str = "", **_: object) -> NoReturn:
    raise AssertionError(reason or "the test calls pytest.fail")


def nothing(*_: object, **__: object) -> None:
    """Do nothing, in place of ``pytest.main`` and the like: the harness itself runs the tests."""


def _other(name: str) -> Any:
    msg = f"they use pytest.{name}, which the sandbox doesn't support"
    raise AttributeError(msg) if name.startswith("__") else Unrunnable(msg)


def install() -> None:
    """Make ``import pytest`` import a module that has only the parts defined here."""
    module: Any = types.ModuleType("pytest")
    module.raises, module.approx, module.mark, module.param = _raises, _Approx, _Marks(), _param
    module.fixture, module.skip, module.fail = _fixture, _skip, _fail
    module.main, module.__getattr__ = nothing, _other
    sys.modules["pytest"] = module


def _marks(test: Any, name: str) -> list[Any]:
    return [mark for mark in getattr(test, "pytestmark", ()) if mark[0] == name]


def is_skipped(test: Any) -> bool:
    """Return whether a mark of pytest or unittest skips a test or expects it to fail."""
    return (
        getattr(test, "__unittest_skip__", False)
        or getattr(test, "__unittest_expecting_failure__", False)
        or any(name in ("skip", "xfail") for name, _, _ in getattr(test, "pytestmark", ()))
        or any(given[0] for _, given, _ in _marks(test, "skipif"))
    )


def parameters(*marked: Any) -> list[dict[str, Any]]:
    """Return a test's parameter sets; without ``parametrize``, one that is empty."""
    found: list[dict[str, Any]] = [{}]
    for _, given, named in [mark for one in marked for mark in _marks(one, "parametrize")]:
        names, values = (*given, *named.values())[:2]
        single = isinstance(names, str) and "," not in names
        names = names.replace(",", " ").split() if isinstance(names, str) else names
        rows = [getattr(row, "parameters", (row,) if single else row) for row in values]
        found = [dict(zip(names, row, strict=True)) | more for more in found for row in rows]
    return found


def arguments(
    function: Callable[..., Any], given: dict[str, Any], space: Mapping[str, Any], stack: ExitStack
) -> dict[str, Any]:
    """Return the arguments of a test or fixture: its parameters and the values of its fixtures."""
    found: dict[str, Any] = {}
    # Use the decorated function, not the one inside, because `unittest.mock.patch` adds arguments.
    for name, parameter in inspect.signature(function, follow_wrapped=False).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= given
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            if name not in given and parameter.default is not parameter.empty:
                continue
            if name not in given:
                given[name] = _fixture_value(name, given, space, stack)
            found[name] = given[name]
    return found


def _fixture_value(
    name: str, given: dict[str, Any], space: Mapping[str, Any], stack: ExitStack
) -> Any:
    if name == "tmp_path":
        return Path(tempfile.mkdtemp())
    fixture: Any = space.get(name)
    if not getattr(fixture, "is_fixture", False):
        msg = f"a test uses the fixture {name}, which doesn't exist here"
        raise Unrunnable(msg)
    value: Any = fixture(**arguments(fixture, given, space, stack))
    if inspect.isgenerator(value):
        generator: Iterator[Any] = value
        value = next(generator)
        stack.callback(next, generator, None)
    return value
