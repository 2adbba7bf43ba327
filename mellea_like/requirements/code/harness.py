"""Run a program, its tests, or calls of its function, in the process that a sandbox gives it.

This module uses only the standard library, because the sandbox runs its source. It has its own
copy of the builtins, which a program can't replace. It looks nothing up in other modules, because
the program may have changed them.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import gc
import linecache
import re
import sys
import threading
import types
import unittest
from asyncio import run  # noqa: TID251 (this process is the program's own)
from contextlib import ExitStack, suppress
from functools import partial
from itertools import groupby
from json import dumps
from os import _exit, write
from traceback import TracebackException, walk_tb
from typing import TYPE_CHECKING, Any, NoReturn, cast

from mellea_like.requirements.code.plain import decode, encode
from mellea_like.requirements.code.pytest_parts import (
    Unrunnable,
    arguments,
    is_skipped,
    nothing,
    parameters,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

PROGRAM, TESTS = "program.py", "tests.py"
"""The file names of the program and of its tests in tracebacks."""

FRAMES = 3
"""The most frames of a program to show in a reason."""

LONGEST = 4000
"""The most characters of one failure's message."""

NAMES = re.compile(r"[\w.]+")

GUARDED = {"asyncio", "math", "pytest", "unittest"}
"""Modules in which a program might replace functions that tests use, in addition to builtins.

If the tests name such a module, its functions are restored before each test.
"""


def work(job: dict[str, Any], saying: int) -> NoReturn:
    """Do a job in this process, write the result to the file descriptor ``saying``, and exit."""
    sys.setrecursionlimit(sys.getrecursionlimit() + 60)  # The frames from here to the program.
    secret: str = job.pop("secret")

    def say(message: dict[str, Any]) -> None:
        data = dumps(message).encode("ascii") + b"\n"
        while data:
            data = data[write(saying, data) :]

    try:
        if job["tests"]:
            said = _Tests(job, say).run()
        elif job["function"] is not None:
            said = _call(job, say)
        else:
            _run(job["program"], say)
    except Unrunnable as exc:
        said = {"trouble": f"the tests could not be run: {exc}"}
    except BaseException as exc:  # noqa: BLE001 (a fault of ours is no verdict on the program)
        said = {"trouble": f"the harness failed: {type(exc).__name__}: {exc}"}
    say(said | {"secret": secret})
    _exit(0)


# --- a program ------------------------------------------------------------------------------------


def _run(source: str, say: Callable[[dict[str, Any]], None]) -> NoReturn:
    """Run a program as Python runs a file, and end with its exit status."""
    status = 0
    try:
        _execute(source, "__main__")
    except SystemExit as exc:
        if not isinstance(exc.code, int | None):
            sys.stderr.write(f"{exc.code}\n")
        status = exc.code & 0xFF if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException as exc:  # noqa: BLE001 (the program's)
        _attempt(sys.stderr.write, _told(exc))
        say({"missing": _missing(exc)})
        status = 1
    for step in (getattr(threading, "_shutdown"), getattr(atexit, "_run_exitfuncs")):  # noqa: B009
        _attempt(step)
    for stream in (sys.stdout, sys.stderr):
        _attempt(stream.flush)
    _exit(status)


def _attempt(step: Callable[..., object], *given: object) -> None:
    with suppress(BaseException):  # This runs the program's own code, which is over.
        step(*given)


def _execute(source: str, name: str) -> dict[str, Any]:
    module = types.ModuleType(name)
    sys.modules[name] = module
    sys.argv = [PROGRAM]
    sys.path.insert(0, "")
    _show_lines(PROGRAM, source)
    exec(compile(source, PROGRAM, "exec", dont_inherit=True), vars(module))  # noqa: S102
    return vars(module)


def _show_lines(file: str, source: str) -> None:
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)


def _told(exc: BaseException) -> str:
    """Return a description of an exception, with the last frames of the program's own code."""
    said = TracebackException.from_exception(exc, compact=True)
    own = [part for part in said.stack if part.filename == PROGRAM]
    lines: list[str] = []
    for _, same in groupby(own, key=lambda part: (part.lineno, part.name)):
        part, *again = same
        line = f"  {PROGRAM}, line {part.lineno}, in {part.name}: {part.line}\n"
        if again:  # Python shortens them too: an endless recursion has a thousand.
            line += f"  [Previous line repeated {len(again)} more times]\n"
        lines.append(line)
    return _clipped("".join([*said.format_exception_only(), *lines[-FRAMES:]]), LONGEST).strip()


def _missing(exc: BaseException) -> str:
    """Return the name of the module that could not be imported, or "" for other exceptions."""
    return str(exc.name or "") if isinstance(exc, ModuleNotFoundError) else ""


def _clipped(text: str, limit: int = 200) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-limit // 2 :]}"


# --- calls ----------------------------------------------------------------------------------------


def _awaited(found: Any) -> Any:
    return run(cast("Any", found)) if isinstance(found, types.CoroutineType) else found


def _call(job: Mapping[str, Any], say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Call a function of the program with each input, and report its answers."""
    try:
        names = _execute(job["program"], "solution")
        function = eval(job["function"], names)  # noqa: S307 (the user's words)
    except BaseException as exc:  # noqa: BLE001 (the program's)
        return {"failed": f"the program raised {_told(exc)}", "missing": _missing(exc)}
    for given in job["inputs"]:
        arguments = decode(given)
        try:
            found = _awaited(function(*arguments))
        except BaseException as exc:  # noqa: BLE001 (the program's)
            say({"raised": [kind.__name__ for kind in type(exc).__mro__], "told": _told(exc)})
            continue
        try:
            answer = {"value": encode(found)}
        except RecursionError:
            answer = {"odd": "data that is nested too deeply, or contains itself"}
        except BaseException:  # noqa: BLE001 (of an object's own methods, or it is no plain data)
            kind = type(found).__name__
            answer = {"odd": f"an object of the type {kind}, which isn't plain data"}
        say(answer)
    return {}


# --- tests ----------------------------------------------------------------------------------------


class _Tests:
    """Runs the tests of one program, in the program's process."""

    def __init__(self, job: Mapping[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
        self.job = job
        self.say = say
        self.passed = 0
        self.total = 0
        self.failures: list[str] = []
        setattr(unittest, "main", nothing)  # noqa: B010 (cases are run here)
        # Only modules that the tests name, because reading an object copies its page of memory.
        words = NAMES.findall(" ".join(job["tests"]))
        self.modules = {word: sys.modules[word] for word in words if word in sys.modules}
        guarded: list[Any] = [
            builtins,
            *(self.modules[one] for one in GUARDED & self.modules.keys()),
        ]
        guarded += [unittest.TestCase] if unittest in guarded else []
        self.guarded: list[tuple[Any, str, object]] = [
            (owner, name, value)
            for owner in guarded
            for name, value in cast("dict[str, Any]", vars(owner)).items()
            if callable(value) or isinstance(value, classmethod | staticmethod)
        ]

    def restore(self, wrong: Callable[[object], bool]) -> None:
        """Restore functions that were replaced, if ``wrong`` returns True for the replacement."""
        for owner, name, value in self.guarded:
            now = owner.__dict__.get(name)
            if now is not value and wrong(now):
                setattr(owner, name, value)

    def run(self) -> dict[str, Any]:
        """Run all tests; return the numbers of passed tests and of all tests, and the failures."""
        trees = [ast.parse(source) for source in self.job["tests"]]
        for tree in trees:
            tree.body = [part for part in tree.body if not _is_runner(part)]
        self.total = sum(_is_unit(statement) for tree in trees for statement in tree.body)
        names: dict[str, Any] = {}

        def load() -> None:
            names.update(_execute(self.job["program"], "solution"))

        if self._unit("the program", load, counted=False):
            sys.modules.update(self.modules)
            self.restore(lambda _: True)
            if missing := [name for name in self.job["names"] or () if name not in names]:
                self.failures.append(f"the program defines no {' and no '.join(missing)}")
            else:
                for source, tree in zip(self.job["tests"], trees, strict=True):
                    self._module(source, tree, names)
                self._doubt()
        if not (self.total or self.failures):
            msg = "they have no test that isn't skipped"
            raise Unrunnable(msg)
        return {"passed": self.passed, "total": self.total, "failures": self.failures}

    def _doubt(self) -> None:
        """Fail a program whose objects equal everything, because comparisons would always pass."""
        for kind in [one for one in gc.get_objects() if isinstance(one, type)]:
            if kind.__module__ == "solution" and "__eq__" in vars(kind):
                base: Any = next(one for one in kind.__mro__ if one.__module__ != "solution")
                with suppress(BaseException):  # The object may never have been made.
                    if cast("Any", kind).__eq__(base.__new__(kind), object()) is True:
                        self.passed = 0
                        said = f"objects of the program's {kind.__name__} are equal to anything"
                        self.failures.append(said)

    def _module(self, source: str, tree: ast.Module, names: dict[str, Any]) -> None:
        """Run the statements of a source of tests, and then the tests that they define."""
        _show_lines(TESTS, source)
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        given = {name: names[name] for name in self.job["names"] or _seen(names, tree)}
        space = vars(module)
        space.update({**given, "@failure": _failure})
        for statement in tree.body:
            unit = _is_unit(statement)
            test = partial(_executed, statement, space)
            if not self._unit(f"`{_clipped(ast.unparse(statement))}`", test, unit) and not unit:
                self.total += 1
                return  # The rest would fail without it.
        used = _names(part for part in tree.body if not isinstance(part, _DEFINITIONS))
        for name, thing in list(space.items()):
            if thing is given.get(name) or getattr(thing, "__module__", "") != "__main__":
                continue
            if isinstance(thing, type):
                if issubclass(thing, unittest.TestCase) or name.startswith("Test"):
                    self._methods(thing, space)
            elif callable(thing) and name.startswith("test") and name not in used:
                self._function(name, thing, space)

    def _methods(self, kind: Any, space: dict[str, Any]) -> None:
        """Run the methods of a class of tests, each on its own object."""
        case = issubclass(kind, unittest.TestCase)
        steps = ("setUpClass", "tearDownClass") if case else ("setup_class", "teardown_class")
        before, after = (getattr(kind, name, lambda: None) for name in steps)
        tests = [name for name in dir(kind) if name.startswith("test")]
        if is_skipped(kind) or not self._step(f"`{kind.__name__}.{steps[0]}`", before):
            return
        for name in tests:
            self._function(f"{kind.__name__}.{name}", getattr(kind, name), space, kind)
        self._step(f"`{kind.__name__}.{steps[1]}`", after)

    def _step(self, name: str, step: Callable[[], object]) -> bool:
        """Run setup or teardown, which counts as one more test if it fails."""
        worked = self._unit(name, step, counted=False)
        self.total += not worked
        return worked

    def _function(self, name: str, test: Any, space: dict[str, Any], kind: Any = None) -> None:
        """Run a test function or method once for each parameter set; methods get a new object."""
        for given in [] if is_skipped(test) else parameters(test, kind):
            shown = ", ".join(f"{key}={_shown(value)}" for key, value in given.items())
            self.total += 1
            label = f"`{name}`" if not shown else f"`{name}` with {shown}"
            self._unit(label, partial(_tested, name.rpartition(".")[2], test, given, space, kind))

    def _unit(self, name: str, test: Callable[[], object], counted: bool = True) -> bool:  # noqa: FBT001, FBT002
        """Run one test or step, and record its outcome; return False if it failed."""
        self.say({"at": name})
        self.restore(lambda now: getattr(now, "__module__", "") == "solution")
        try:
            _awaited(test())
        except Unrunnable:
            raise
        except BaseException as exc:
            frames = walk_tb(exc.__traceback__)
            own = any(frame.f_code.co_filename == PROGRAM for frame, _ in frames)
            missing = _missing(exc)
            if missing and not own and missing.partition(".")[0] != "solution":
                msg = f"they import {missing}, which the sandbox doesn't have"
                raise Unrunnable(msg) from exc
            if isinstance(exc, unittest.SkipTest) and not own:
                self.total -= counted
                return True
            what = f" raised {_told(exc)}"
            if isinstance(exc, AssertionError) and not own:
                what = f": {str(exc) or 'an assertion failed'}"
            what = what[2:] if what.startswith(": `assert ") else name + what
            self.failures.append(_clipped(what, LONGEST))
            self.say({"missing": missing})
            return False
        self.passed += counted
        return True


def _executed(statement: ast.stmt, space: dict[str, Any]) -> Any:
    """Execute a statement of the tests; return its value if it is an expression, else None."""
    if isinstance(statement, ast.Expr):
        statement = ast.Assign([ast.Name("@value", ast.Store())], statement.value)
    tree = ast.fix_missing_locations(_Explained().visit(ast.Module([statement], [])))
    exec(compile(tree, TESTS, "exec", dont_inherit=True), space)  # noqa: S102
    return space.pop("@value", None)


def _tested(name: str, test: Any, given: dict[str, Any], space: dict[str, Any], kind: Any) -> None:
    """Call a test with its fixtures and parameters."""
    if kind is not None and issubclass(kind, unittest.TestCase):
        kind(name).debug()
        return
    with ExitStack() as stack:
        if kind is not None:
            made = kind()
            space = {**space, **{name: getattr(made, name) for name in dir(made)}}
            before, after = (
                getattr(made, name, nothing) for name in ("setup_method", "teardown_method")
            )
            before(**arguments(before, {"method": test}, space, stack))
            stack.callback(lambda: after(**arguments(after, {"method": test}, space, stack)))
            test = getattr(made, name)
        _awaited(test(**arguments(test, dict(given), space, stack)))


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _is_runner(statement: ast.stmt) -> bool:
    """Return whether a statement only starts a test run, as ``unittest.main()`` does."""
    if isinstance(statement, ast.If):
        return all(_is_runner(part) for part in (*statement.body, *statement.orelse))
    called = statement.value if isinstance(statement, ast.Expr) else None
    runners = ("unittest.main", "pytest.main", "sys.exit")
    return isinstance(called, ast.Call) and ast.unparse(called.func) in runners


def _is_unit(statement: ast.stmt) -> bool:
    """Return whether a statement is a test: an assertion, a call, or a block that has either."""
    if isinstance(statement, ast.For | ast.While | ast.With | ast.Try | ast.If):
        parts = [part for part in ast.walk(statement) if part is not statement]
        return any(isinstance(part, ast.stmt) and _is_unit(part) for part in parts)
    called = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    return called or isinstance(statement, ast.Assert)


def _names(parts: Iterable[ast.AST]) -> set[str]:
    return {node.id for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)}


def _seen(names: Mapping[str, Any], tree: ast.Module) -> list[str]:
    """Return the names that tests see: all, or those that hide no builtin if one is used."""
    public = [name for name in names if not name.startswith(("__", "@"))]
    others = [name for name in public if not hasattr(builtins, name)]
    return others if _names([tree]).intersection(others) else public


class _Explained(ast.NodeTransformer):
    """Rewrites assertions so that, when they fail, they show the values that they compared."""

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        """Make an assertion record the values of both sides, and forget them if it holds."""
        source, test = _clipped(ast.unparse(node)), node.test
        noted: list[tuple[str, str]] = []

        def note(side: ast.expr) -> ast.expr:
            if isinstance(side, ast.Constant):
                return side
            noted.append((f"@{len(noted)}", _clipped(ast.unparse(side))))
            return ast.NamedExpr(ast.Name(noted[-1][0], ast.Store()), side)

        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            test.left, test.comparators = note(test.left), [note(test.comparators[0])]
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test.operand = note(test.operand)
        else:
            node.test = note(test)
        values = ast.Tuple([ast.Name(name, ast.Load()) for name, _ in noted], ast.Load())
        said = [
            ast.Constant(source),
            ast.Constant(cast("Any", tuple(text for _, text in noted))),
            values,
        ]
        message = [*said, *([node.msg] if node.msg else [])]
        node.msg = ast.Call(ast.Name("@failure", ast.Load()), message, [])
        names = [ast.Name(name, ast.Store()) for name, _ in noted]
        return [node, *([ast.Assign([name], ast.Constant(None)) for name in names])]


def _failure(
    source: str, texts: Iterable[str], values: Iterable[object], message: object = ""
) -> str:
    found = [f"{text} is {_shown(value)}" for text, value in zip(texts, values, strict=True)]
    said = f"`{source}` failed: {' and '.join(found)}"
    return f"{said} ({message})" if message else said


def _shown(value: object) -> str:
    try:
        return _clipped(repr(value))
    except BaseException as exc:  # noqa: BLE001 (of a value's repr)
        return f"something whose repr raises {type(exc).__name__}"
