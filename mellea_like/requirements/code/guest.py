"""What runs in the sandbox's processes: programs, and the tests that drive them from outside.

A program under test has a process of its own, and so have its tests, which reach it through a
`Peer`. Standard library only: the source is sent to the server.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import json
import linecache
import operator
import os
import sys
import threading
import traceback
import types
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, cast

from mellea_like.requirements.code.channel import PROGRAM, Peer, ProgramEnded, raised, told

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping


__all__ = ["drive", "dumped", "load", "run"]

TESTS = "tests.py"

LONGEST_FAILURE = 4000
"""Characters of what a failed test found."""


# --- a program -----------------------------------------------------------------------------------


def run(source: str) -> NoReturn:
    """Run a program as Python runs a file, and end with its exit status."""
    status = 0
    try:
        _execute(source, "__main__")
    except SystemExit as exc:
        if not isinstance(exc.code, int | None):
            sys.stderr.write(f"{exc.code}\n")
        status = exc.code & 0xFF if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException as exc:  # noqa: BLE001 (the program's)
        with suppress(Exception):
            sys.stderr.write(told(exc))
        status = 1
    for step in (getattr(threading, "_shutdown"), getattr(atexit, "_run_exitfuncs")):  # noqa: B009
        with suppress(BaseException):
            step()
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()
    os._exit(status)


def load(source: str, connection: socket.socket) -> NoReturn:
    """Run a program as a module, and serve its tests until they hang up."""
    peer = Peer(connection)
    try:
        names = _execute(source, "solution")
    except BaseException as exc:  # noqa: BLE001 (the program's)
        peer.send(raised(exc))
    else:
        shown = {k: v for k, v in names.items() if not (k.startswith("__") and k.endswith("__"))}
        peer.send(("answer", shown, None))
        with suppress(BaseException):
            while True:
                peer.serve(peer.receive())
    os._exit(0)


def _execute(source: str, name: str) -> dict[str, Any]:
    module = types.ModuleType(name)
    sys.modules[name] = module
    sys.argv = [PROGRAM]
    lines = source.splitlines(keepends=True)
    linecache.cache[PROGRAM] = (len(source), None, lines, PROGRAM)
    exec(compile(source, PROGRAM, "exec", dont_inherit=True), vars(module))  # noqa: S102
    return vars(module)


# --- tests ---------------------------------------------------------------------------------------


def drive(asked: Mapping[str, Any], connection: socket.socket, saying: int) -> None:
    """Run tests against a program in another process, and tell the server what they found."""
    Tests(asked, Peer(connection, guarded=True), saying).run()


class Tests:
    """The tests of one program."""

    def __init__(self, asked: Mapping[str, Any], peer: Peer, saying: int) -> None:
        self.sources: list[str] = asked["tests"]
        self.names: list[str] | None = asked["names"]
        self.peer = peer
        self.saying = saying
        self.passed = 0
        self.total = 0
        self.failures: list[str] = []
        self.given: dict[str, Any] = {}

    def run(self) -> None:
        """Run them all; the last that is said is the verdict."""
        trees = [ast.parse(source) for source in self.sources]
        self.total = sum(_is_unit(statement) for tree in trees for statement in tree.body)
        try:
            if self._take(self.peer.receive()):
                for source, tree in zip(self.sources, trees, strict=True):
                    self._module(source, tree)
        except BaseException:  # noqa: BLE001 (what is no answer is the program's doing)
            self.peer.ended = True
        self.say(
            {
                "passed": self.passed,
                "total": self.total,
                "failures": self.failures,
                "ended": self.peer.ended,
            }
        )

    def say(self, message: object) -> None:
        """Tell the server something."""
        data = dumped(message)
        while data:
            data = data[os.write(self.saying, data) :]

    def _take(self, message: tuple[Any, ...]) -> bool:
        """Take the program's names over, unless it could not be loaded."""
        kind, *rest = message
        if kind == "raise":
            self._failed(f"the program raised {str(rest[2]).strip()}")
            return False
        # Nothing that a program calls so can be reached as a name, but it could hide what can.
        given: dict[str, Any] = {
            name: value
            for name, value in rest[0].items()
            if name.isidentifier() and not (name.startswith("__") and name.endswith("__"))
        }
        missing = [name for name in self.names or () if name not in given]
        if missing:
            self._failed(f"the program defines no {' and no '.join(missing)}")
            return False
        module = types.ModuleType("solution")
        vars(module).update(given)
        sys.modules["solution"] = module
        if self.names is not None:
            given = {name: given[name] for name in self.names}
        else:
            hidden = {*vars(builtins), *sys.stdlib_module_names}
            given = {
                name: value
                for name, value in given.items()
                if name not in hidden or sys.modules.get(name) is value
            }
        self.given = given
        return True

    def _module(self, source: str, tree: ast.Module) -> None:
        linecache.cache[TESTS] = (len(source), None, source.splitlines(keepends=True), TESTS)
        space: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins, **self.given}
        before = dict(space)
        space["@compared"] = _compared
        space["@told"] = _told
        for statement in tree.body:
            name = ast.unparse(statement)
            unit = _is_unit(statement)
            worked = self._unit(name, _compiled(statement, space), counted=unit)
            if not unit and not worked:
                self.total += 1
                return  # What follows would fail for want of it.
        for name, thing in list(space.items()):
            if before.get(name) is thing:
                continue
            if isinstance(thing, types.FunctionType) and name.startswith("test"):
                self.total += 1
                self._unit(name, thing)
            elif isinstance(thing, type) and hasattr(thing, "assertEqual"):
                self._cases(thing)

    def _cases(self, kind: type) -> None:
        import unittest  # noqa: PLC0415 (it takes as long as the rest of a run)

        if kind in (unittest.TestCase, unittest.IsolatedAsyncioTestCase):
            return  # Imported.
        cases: Any = unittest.defaultTestLoader.loadTestsFromTestCase(cast("Any", kind))
        for case in cases:
            result = unittest.TestResult()
            self.total += 1
            name = case.id().partition(".")[2]
            self.say({"at": name})
            unittest.TestSuite([case]).run(result)
            wrong = [*result.failures, *result.errors]
            if wrong:
                self._failed(f"{name}: {wrong[0][1].strip().splitlines()[-1]}")
            elif result.unexpectedSuccesses:
                self._failed(f"{name}: it passes, and should not")
            elif not result.skipped:
                self.passed += 1

    def _failed(self, what: str) -> None:
        """Note a failure, in words that are no longer than a reason, and that can be encoded."""
        self.failures.append(_clipped(what.encode("utf-8", "replace").decode(), LONGEST_FAILURE))

    def _unit(self, name: str, test: Callable[[], object], *, counted: bool = True) -> bool:
        self.say({"at": _clipped(name)})
        try:
            found = test()
            if isinstance(found, types.CoroutineType):
                import asyncio  # noqa: PLC0415, TID251 (this process is the tests' own)

                asyncio.run(cast("Any", found))
        except ProgramEnded:
            raise
        except AssertionError as exc:
            said = getattr(exc, "told", "")
            what = f"raised {said}" if said else str(exc) or "an assertion failed"
            self._failed(what if what.startswith("`") else f"`{_clipped(name)}` {what}")
            return False
        except BaseException as exc:  # noqa: BLE001 (of the tests, or the program)
            said = getattr(exc, "told", "") or "".join(traceback.format_exception_only(exc))
            self._failed(f"`{_clipped(name)}` raised {said.strip()}")
            return False
        self.passed += counted
        return True


def _is_unit(statement: ast.stmt) -> bool:
    """Whether a statement is a test by itself: an assertion, a call, or a block that has one."""
    if isinstance(statement, ast.For | ast.While | ast.With | ast.Try):
        return any(
            isinstance(part, ast.stmt) and _is_unit(part)
            for part in ast.walk(statement)
            if part is not statement
        )
    called = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    return called or isinstance(statement, ast.Assert)


def _compiled(statement: ast.stmt, space: dict[str, Any]) -> Callable[[], object]:
    """Return what does a statement; of a call, its result, since that may be to be awaited."""
    explained = ast.fix_missing_locations(Explained().visit(statement))
    if isinstance(explained, ast.Expr):
        called = compile(ast.Expression(explained.value), TESTS, "eval", dont_inherit=True)
        return lambda: eval(called, space)  # noqa: S307
    code = compile(ast.Module([explained], []), TESTS, "exec", dont_inherit=True)
    return lambda: exec(code, space)  # noqa: S102


class Explained(ast.NodeTransformer):
    """Has assertions say what values they found."""

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        """Put a call that remembers the values in place of the comparison."""
        test = node.test
        sides, sign = [test], ""
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            sides, sign = [test.left, test.comparators[0]], type(test.ops[0]).__name__
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            sides, sign = [test.operand], "Not"
        texts = ["" if isinstance(side, ast.Constant) else ast.unparse(side) for side in sides]
        whole = ast.unparse(node)
        details = [ast.Constant(sign), ast.Constant(cast("Any", tuple(texts))), *sides]
        compared = ast.Call(ast.Name("@compared", ast.Load()), details, [])
        said = [ast.Constant(_clipped(whole)), *([node.msg] if node.msg else [])]
        told = ast.Call(ast.Name("@told", ast.Load()), cast("Any", said), [])
        return ast.copy_location(ast.Assert(compared, told), node)


def _within(one: Any, other: Any) -> bool:
    return one in other


def _outside(one: Any, other: Any) -> bool:
    return one not in other


_SIGNS: dict[str, Callable[..., Any]] = {
    "Not": operator.not_,
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Is": operator.is_,
    "IsNot": operator.is_not,
    "In": _within,
    "NotIn": _outside,
}
_values: list[str] = []


def _compared(sign: str, texts: tuple[str, ...], *sides: Any) -> bool:
    """Do what an assertion asks for, and remember the values of a failure."""
    holds = bool(_SIGNS[sign](*sides) if sign else sides[0])
    if not holds:
        found = zip(texts, sides, strict=True)
        _values[:] = [f"{_clipped(text)} is {_shown(value)}" for text, value in found if text]
    return holds


def _told(source: str, message: object = "") -> str:
    said = f"`{source}` failed: {' and '.join(_values)}"
    return f"{said} ({message})" if message else said


def _shown(value: object) -> str:
    try:
        return _clipped(repr(value))
    except Exception as exc:  # noqa: BLE001 (of a value's repr)
        return f"something whose repr raises {type(exc).__name__}"


def _clipped(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-limit // 2 :]}"


def dumped(message: object) -> bytes:
    """Return a message to the server as a line."""
    return json.dumps(message).encode("ascii") + b"\n"
