"""Break the package at random places and see whether the tests notice.

``nox -s mutants -- --modules mellea_like/kernel --count 60 --seed 1`` makes 60 random changes, one
at a time, in a copy of the project: a comparison flipped, a condition negated, a number off by one,
a statement dropped, ``and`` for ``or``, an early return. For each it runs the tests that cover the
line, those that cover most of its module first, until one fails. The same seed makes the same
changes as long as the modules stay the same.

A change that survives is a line that no test guards, or it changes nothing that matters. A reader
decides which; the script only counts. Log calls and the texts of messages are left alone.

Coverage's data says which tests cover a line: ``pytest --cov --cov-branch --cov-context=test``. Of
several files after ``--contexts``, the last one that knows a test file decides about its tests.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path.cwd()
COPIED = ("mellea_like", "tests", "tools", "docs", "examples", "benchmarks")
BATCHES = (20, 300)
"""How many tests run first, and then: most changes fail one of the first few."""

FLIPPED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}
INNER = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
DROPPED = (ast.Expr, ast.AugAssign, ast.Raise, ast.Delete, ast.Continue, ast.Break)
LOGGERS = re.compile(r"^_?(?:log|logger)$", re.IGNORECASE)
WORD = re.compile(r"^[\w./:-]+$")


class Mutant(NamedTuple):
    """One change: the text between two places of a module is replaced."""

    path: str
    line: int
    """The line whose tests are run: that of the node, which may be inside a longer statement."""
    statement: int
    span: tuple[int, int]
    old: str
    new: str

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.path}:{self.line}  {old[:70]}  ->  {new[:70]}"


# Making changes


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """Find every change of a module that the script knows to make."""
    starts = [0]
    for text in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    data = source.encode()
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement, node, new in _changes(function):
            if not (isinstance(node, ast.stmt | ast.expr) and node.end_lineno is not None):
                continue
            first = starts[node.lineno - 1] + node.col_offset
            last = starts[node.end_lineno - 1] + (node.end_col_offset or 0)
            old = data[first:last].decode()
            # Parentheses keep a replaced operand together, and indentation is that of the node.
            new_text = ast.unparse(new) if isinstance(new, ast.stmt) else f"({ast.unparse(new)})"
            yield Mutant(path, node.lineno, statement.lineno, (first, last), old, new_text)


def _changes(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[tuple[ast.stmt, ast.AST, ast.AST]]:
    """Walk over a function's statements, and yield each with a node in it and another for it."""
    code = function.body[1:] if ast.get_docstring(function) else function.body
    if len(code) > 1 and not isinstance(code[0], ast.Nonlocal | ast.Global):
        yield code[0], code[0], ast.Return(value=None)
    for statement in _statements(code):
        if isinstance(statement, DROPPED) or _is_stored(statement):
            yield statement, statement, ast.Pass()
        if isinstance(statement, ast.If | ast.While):
            yield statement, statement.test, ast.UnaryOp(ast.Not(), statement.test)
        if not isinstance(statement, ast.Raise | ast.Assert):
            for node in _expressions(statement):
                for changed_node in _changed(node):
                    yield statement, node, changed_node


def _statements(code: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Walk over statements and those in them, without functions' and classes' own."""
    for statement in code:
        if isinstance(statement, INNER) or _is_left_alone(statement):
            continue
        yield statement
        for field in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, field, []))
        for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from _statements(part.body)


def _expressions(parent: ast.AST) -> Iterator[ast.AST]:
    """Walk over the expressions of a statement, without the statements in it and without types."""
    if isinstance(parent, ast.Call) and ast.unparse(parent.func) == "cast":
        yield from _expressions(parent.args[1])
        return
    for child in ast.iter_child_nodes(parent):
        if child is getattr(parent, "annotation", None):
            continue
        if not isinstance(child, ast.stmt | ast.JoinedStr | ast.Lambda | ast.ExceptHandler):
            yield child
            yield from _expressions(child)


def _is_stored(statement: ast.stmt) -> bool:
    """Whether it assigns to an attribute or an item: without it, nothing is left undefined."""
    return isinstance(statement, ast.Assign) and all(
        isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets
    )


def _is_left_alone(statement: ast.stmt) -> bool:
    """Whether it logs or makes a message: such a change is one of words."""
    match statement:
        case ast.Expr(value=ast.Constant()) | ast.Expr(value=ast.Yield()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return LOGGERS.match(name) is not None
        case ast.Assign(targets=[ast.Name(id="msg")]):
            return True
        case _:
            return False


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=others):
            yield from (
                ast.Compare(left, [flipped()], others) for flipped in FLIPPED[type(operator)]
            )
        case ast.BoolOp(op=operator, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in SWAPPED:
            yield ast.BinOp(left, SWAPPED[type(operator)](), right)
        case ast.Constant(value=value):
            yield from _other_constants(value)
        case _:
            pass


def _other_constants(value: object) -> Iterator[ast.Constant]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int | float):
        yield ast.Constant(value + 1)
    elif isinstance(value, str) and WORD.match(value):
        yield ast.Constant(f"{value}_")


def chosen(modules: list[str], count: int, seed: int) -> list[Mutant]:
    """Draw changes: first a line, then one of the changes that can be made there."""
    by_line: defaultdict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for path in _files(modules):
        for mutant in mutants_of(path, (ROOT / path).read_text("utf-8")):
            by_line[path, mutant.line].append(mutant)
    rng = random.Random(seed)
    lines = sorted(by_line)
    rng.shuffle(lines)
    found: list[Mutant] = []
    while lines and len(found) < count:
        line = lines.pop()
        changes = by_line[line]
        # What one line gets does not depend on the other lines, nor on how many are drawn.
        random.Random(f"{seed} {line}").shuffle(changes)
        found += [mutant for mutant in changes if _compiles(mutant)][:1]
    return found


def _files(modules: list[str]) -> list[str]:
    found: set[Path] = set()
    for module in modules:
        path = ROOT / module
        if not path.exists():  # A dotted name.
            path = ROOT / module.replace(".", "/")
            path = path if path.is_dir() else path.with_suffix(".py")
        found.update(path.rglob("*.py") if path.is_dir() else [path])
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def changed(mutant: Mutant) -> bytes:
    """Return the module's source with the change made."""
    data = (ROOT / mutant.path).read_bytes()
    first, last = mutant.span
    return data[:first] + mutant.new.encode() + data[last:]


def _compiles(mutant: Mutant) -> bool:
    try:
        ast.parse(changed(mutant))
    except SyntaxError:
        return False
    return True


# Finding the tests


class Contexts:
    """Which tests cover a line, from one or more of coverage's data files."""

    def __init__(self, files: list[Path], only: list[str]) -> None:
        self._files = files
        self._only = tuple(path.rstrip("/") for path in only)
        self._known = [self._test_files(file) for file in files]

    @staticmethod
    def _test_files(file: Path) -> set[str]:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as data:
            rows = data.execute("select context from context").fetchall()
        return {context.partition("::")[0] for (context,) in rows if context}

    def tests(self, path: str, *lines: int) -> list[str]:
        """List the tests that cover the first of these lines that any test covers.

        Those that cover most of the module come first.
        """
        for line in lines:
            arcs: dict[str, int] = {}
            for file, later in zip(self._files, self._later(), strict=True):
                for test, number in self._covering(file, path, line):
                    if test.partition("::")[0] not in later and self._wanted(test):
                        arcs[test] = max(number, arcs.get(test, 0))
            if arcs:
                return sorted(arcs, key=lambda test: (-arcs[test], test))
        return []

    def _later(self) -> list[set[str]]:
        return [set().union(*self._known[place + 1 :]) for place in range(len(self._known))]

    def _wanted(self, test: str) -> bool:
        file = test.partition("::")[0]
        exists = (ROOT / file).exists()
        return exists and (not self._only or test.startswith(self._only))

    @staticmethod
    def _covering(file: Path, path: str, line: int) -> Iterator[tuple[str, int]]:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as data:
            rows = data.execute(
                "select context, count(*) from arc"
                " join file on file.id = arc.file_id join context on context.id = arc.context_id"
                " where file.path = ? and context != '' group by arc.context_id"
                " having sum(abs(fromno) = ? or abs(tono) = ?)",
                (path, line, line),
            ).fetchall()
        for context, number in rows:
            yield context.rpartition("|")[0], number


# Running them


class Bench:
    """A copy of the project in which changes are made and tests are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            junk = shutil.ignore_patterns("__pycache__", "_build", ".hypothesis")
            shutil.copytree(ROOT / name, folder / name, ignore=junk)
        for path in ROOT.iterdir():
            if path.is_file() and not path.name.startswith(".coverage"):
                shutil.copy(path, folder)
        self._writes = 0

    def write(self, path: str, source: bytes) -> None:
        """Replace a module, with a time that no compiled file of it has seen."""
        self._writes += 1
        (self.folder / path).write_bytes(source)
        moment = time.time() - 100_000 + 2 * self._writes
        os.utime(self.folder / path, (moment, moment))

    def first_failure(self, tests: list[str], deadline: float, *more: str) -> str | None:
        """Run tests until one fails; return it, or "timeout", or what pytest stumbled over."""
        cache = self.folder / ".failed"
        shutil.rmtree(cache, ignore_errors=True)
        listed = self.folder / ".tests"
        listed.write_text("\n".join(tests), encoding="utf-8")
        command = [
            *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:randomly", "-n0"),
            *("-o", f"cache_dir={cache}", "--timeout=30", "--no-header", *more, f"@{listed}"),
        ]
        variables = {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "", "CI": "true"}
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "timeout"
        if process.returncode == 0:
            return None
        failed = cache / "v" / "cache" / "lastfailed"
        if failed.exists():
            return str(next(iter(json.loads(failed.read_text("utf-8")))))
        return f"pytest exit {process.returncode}: {output.strip().splitlines()[-1:]}"

    def verdict(self, mutant: Mutant, tests: list[str], limit: float) -> str:
        """Make a change, run its tests and undo it; "killed by ..." or why it was not."""
        deadline = time.monotonic() + limit
        original = (ROOT / mutant.path).read_bytes()
        edges = (0, *BATCHES, len(tests))
        batches = [tests[a:b] for a, b in pairwise(edges) if tests[a:b]]
        try:
            for batch in batches:
                left = batch
                while left:
                    self.write(mutant.path, changed(mutant))
                    failed = self.first_failure(left, deadline)
                    if failed is None:
                        break
                    if failed == "timeout":
                        return f"TIMEOUT after {limit:.0f} s"
                    self.write(mutant.path, original)
                    # A test that fails without the change, too, says nothing about it.
                    if failed in left:
                        if self.first_failure([failed], deadline + 60) is None:
                            return f"killed by {failed}"
                        left = left[left.index(failed) + 1 :]
                    elif self.first_failure(left, deadline + 60, "--collect-only") is None:
                        return f"killed at import: {failed}"
                    else:
                        return "STALE contexts: pytest does not find the tests that they name"
        finally:
            self.write(mutant.path, original)
        return f"SURVIVED {len(tests)} tests" if tests else "UNCOVERED"


def main() -> int:
    """Draw changes, try each, and print what became of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--modules", nargs="+", default=["mellea_like"], help="files, folders")
    parser.add_argument("--count", type=int, default=20, help="how many changes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="+", help="only the changes of these numbers")
    parser.add_argument("--tests", nargs="+", default=[], help="only tests that begin with these")
    parser.add_argument("--contexts", nargs="+", type=Path, default=[ROOT / ".nox" / "contexts"])
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each change")
    parser.add_argument("--jobs", type=int, default=1, help="changes tried at a time")
    parser.add_argument("--list", action="store_true", help="show the changes; run nothing")
    options = parser.parse_args()

    contexts = Contexts(options.contexts, options.tests)
    drawn = list(enumerate(chosen(options.modules, options.count, options.seed), 1))
    if options.only:
        drawn = [(number, mutant) for number, mutant in drawn if number in options.only]
    if options.list:
        for number, mutant in drawn:
            covering = contexts.tests(mutant.path, mutant.line, mutant.statement)
            print(f"{number:3} {mutant}  [{len(covering)} tests]")
        return 0
    verdicts: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        benches: SimpleQueue[Bench] = SimpleQueue()
        for place in range(options.jobs):
            benches.put(Bench(Path(folder) / str(place)))

        def tried(numbered: tuple[int, Mutant]) -> None:
            number, mutant = numbered
            covering = contexts.tests(mutant.path, mutant.line, mutant.statement)
            bench = benches.get()
            try:
                verdict = bench.verdict(mutant, covering, options.limit)
            finally:
                benches.put(bench)
            verdicts.append(verdict)
            print(f"{number:3} {mutant}\n      {verdict}", flush=True)

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(tried, drawn))
    killed = sum(verdict.startswith("killed") for verdict in verdicts)
    print(f"{killed} of {len(verdicts)} killed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
