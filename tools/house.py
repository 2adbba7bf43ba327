"""Measure the house: lines of each package, modules with one importer, circles, and ways.

``python tools/house.py`` prints a table. Code is what is left of a module without its docstrings,
comments and blank lines. ``--ways`` also counts the files that a draw, a row of a batch and a
request to the gateway pass (their functions are called); it needs the extras ``cli`` and ``serve``.
Each figure has an aim, and a limit that it must not exceed on the way there: with ``--check``, that
is an error. Lower a limit when the house shrinks; raise one where it has to grow, and say in the
commit what for.
"""

from __future__ import annotations

import argparse
import ast
import graphlib
import io
import json
import sys
import tempfile
import threading
import tokenize
from collections import Counter, defaultdict
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator

    Second = Callable[[], AbstractContextManager[None]]

ROOT = Path(__file__).resolve().parent.parent
NAME = "mellea_like"


class Bound(NamedTuple):
    """How large a figure should be, and how large it may be until it is."""

    aim: int
    most: int


LINES = {
    "gateway": Bound(2900, 7850),
    "cli": Bound(2600, 5460),
    "specification": Bound(600, 1140),
    "coalescing": Bound(3600, 3860),
    "batch": Bound(3000, 5740),
    "batch/ray": Bound(900, 1040),
    "sampling": Bound(4200, 6400),
    "selections": Bound(900, 1095),
    "schedules": Bound(900, 1150),
    "limits": Bound(2300, 4620),
    "backends": Bound(3200, 6720),
    "report": Bound(1900, 3190),
    "requirements": Bound(2100, 3190),
    "requirements/code": Bound(2400, 2590),
    "estimate": Bound(600, 740),
    "export": Bound(1200, 1590),
    "core": Bound(2600, 6720),
    "hooks": Bound(900, 930),
    "telemetry": Bound(500, 585),
    "runtime": Bound(600, 770),
    "testing": Bound(800, 980),
    "the rest": Bound(600, 1320),
}
"""Lines of a package; ``core`` has ``errors.py`` with it."""

FIGURES = {
    "all lines": Bound(32_000, 67_500),
    "all code": Bound(18_500, 46_200),
    "lines of tests": Bound(45_000, 85_600),
    "modules with one importer": Bound(40, 51),
    "circles at import": Bound(0, 0),
    "circles with lazy imports": Bound(0, 0),
    "a draw": Bound(20, 27),
    "a row of a batch": Bound(45, 40),
    "a request to the gateway": Bound(30, 47),
}


class Size(NamedTuple):
    """Lines: all, and those with code."""

    lines: int
    code: int

    def __add__(self, other: tuple[Any, ...]) -> Size:
        return Size(self.lines + other[0], self.code + other[1])


def size(source: str) -> Size:
    """Count the lines of a module."""
    no_code = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in no_code and token.type != tokenize.ENDMARKER:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        # Docstrings, those of attributes too.
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            code.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return Size(source.count("\n"), len(code))


def modules(root: Path) -> dict[str, str]:
    """Read the package: the source of each module by its dotted name."""
    found: dict[str, str] = {}
    for path in sorted((root / NAME).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text("utf-8")
    return found


def package_of(module: str) -> str:
    """Tell which row of the table a module belongs to."""
    _, *parts = module.split(".")
    for package in ("batch/ray", "requirements/code"):
        if parts[:2] == package.split("/"):
            return package
    if parts == ["errors"]:
        return "core"
    return parts[0] if parts and parts[0] in LINES else "the rest"


class Import(NamedTuple):
    """That a module imports another one of the package."""

    importer: str
    imported: str
    when: str
    """``types`` where only a type checker does, ``later`` inside a function, else ``now``."""


def imports(sources: dict[str, str]) -> Iterator[Import]:
    """Find what the modules import from one another."""
    for module, source in sources.items():
        for name, when in _imported(ast.parse(source), "now"):
            parent, _, _ = name.rpartition(".")
            imported = name if name in sources else parent
            if imported in sources and imported != module:
                yield Import(module, imported, when)


def _imported(node: ast.AST, when: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom) and child.module is not None:
            for alias in child.names:
                yield f"{child.module}.{alias.name}", when
        elif isinstance(child, ast.Import):
            for alias in child.names:
                yield alias.name, when
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _imported(child, "types")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _imported(child, "types" if when == "types" else "later")
        else:
            yield from _imported(child, when)


def circles(found: list[Import], *when: str) -> list[list[str]]:
    """Find circles of imports; each circle that is found loses its last import for the next."""
    graph: defaultdict[str, set[str]] = defaultdict(set)
    for importer, imported, moment in found:
        if moment in when:
            graph[importer].add(imported)
    seen: list[list[str]] = []
    while True:
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            circle: list[str] = error.args[1]
            seen.append(circle)
            # The sorter lists each module after one that imports it, or before: cut either way.
            graph[circle[0]].discard(circle[1])
            graph[circle[1]].discard(circle[0])
        else:
            return seen


# --- ways ----------------------------------------------------------------------------------------


async def draw(_folder: Path, second: Second) -> None:
    """Sample: the first draw fails, the second passes."""
    from mellea_like import RejectionSamplingStrategy, requirement  # noqa: PLC0415
    from mellea_like.backends import FunctionBackend  # noqa: PLC0415

    @requirement("isn't empty")
    def is_not_empty(candidate: Any) -> bool:
        return bool(candidate.text)

    replies = iter(["", "a haiku", "", "a haiku"])
    backend = FunctionBackend(lambda _: next(replies))
    strategy = RejectionSamplingStrategy(backend, loop_budget=2, concurrency_budget=1)
    for counted in (nullcontext, second):
        with counted():
            await strategy.sample("Write a haiku.", [is_not_empty])


async def batch_row(folder: Path, second: Second) -> None:
    """Sample a batch of one row with a journal."""
    from mellea_like import RejectionSamplingStrategy  # noqa: PLC0415
    from mellea_like.backends import FunctionBackend  # noqa: PLC0415
    from mellea_like.batch import Journal, sample_many  # noqa: PLC0415

    strategy = RejectionSamplingStrategy(FunctionBackend(lambda _: "a haiku"))
    for name, counted in (("first", nullcontext), ("second", second)):
        journal = Journal(folder / f"{name}.db")
        with counted():
            rows = ["Write a haiku."]
            async with sample_many(strategy, rows, concurrency=1, journal=journal) as results:
                async for _ in results:
                    pass


async def gateway_request(folder: Path, second: Second) -> None:
    """Answer a chat completion, as a server would have it answered."""
    import anyio  # noqa: PLC0415 (an environment without the package can count lines)

    from mellea_like.gateway import make_app, read_config  # noqa: PLC0415

    path = folder / "gateway.yaml"
    path.write_text("upstreams: {a: {kind: markov}}\nmodels: {m: {upstream: a}}\n", "utf-8")
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    app: Any = make_app(read_config(path))
    started, stop, sent = anyio.Event(), anyio.Event(), list[dict[str, Any]]()
    to_read: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not to_read:
            await stop.wait()
            return {"type": "lifespan.shutdown"}
        return to_read.pop()

    async def send(message: Any) -> None:  # noqa: RUF029 (a server's would wait)
        sent.append(message)
        started.set()

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
    }
    async with anyio.create_task_group() as group:
        to_read.append({"type": "lifespan.startup"})
        group.start_soon(app, {"type": "lifespan", "state": {}}, receive, send)
        await started.wait()
        for counted in (nullcontext, second):
            sent.clear()
            to_read.append({"type": "http.request", "body": json.dumps(body).encode()})
            with counted():
                await app(dict(scope), receive, send)
            if sent[0].get("status") != 200:  # noqa: PLR2004
                msg = f"the gateway answered {sent}"
                raise RuntimeError(msg)
        stop.set()


WAYS = {"a draw": draw, "a row of a batch": batch_row, "a request to the gateway": gateway_request}
"""Each is gone twice: what is done once only is not counted."""


def files_passed(way: Callable[[Path, Second], Awaitable[None]]) -> int:
    """Count the package's files of which some function is called the second time."""
    import anyio  # noqa: PLC0415

    passed: set[str] = set()
    counting = False

    def look(frame: Any, _event: str, _argument: object) -> None:
        if counting:
            passed.add(frame.f_code.co_filename)

    @contextmanager
    def second() -> Generator[None]:
        nonlocal counting
        counting = True
        yield
        counting = False

    with tempfile.TemporaryDirectory() as folder:
        threading.setprofile(look)
        sys.setprofile(look)
        try:
            anyio.run(way, Path(folder), second)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return sum(Path(name).is_relative_to(ROOT / NAME) for name in passed)


# --- the table -----------------------------------------------------------------------------------


def measure(root: Path, *, ways: bool) -> tuple[dict[str, Size], dict[str, int], list[str]]:
    """Measure the house.

    Returns:
        The size of each package, the other figures, and remarks on these.
    """
    sources = modules(root)
    packages = {name: Size(0, 0) for name in LINES}
    for module, source in sources.items():
        packages[package_of(module)] += size(source)
    found = sorted({*imports(sources)})
    importers = Counter(imported for imported, _ in {(i.imported, i.importer) for i in found})
    single = sorted(module for module, count in importers.items() if count == 1)
    at_import, lazy = circles(found, "now"), circles(found, "now", "later")
    tests = [path.read_text("utf-8").count("\n") for path in (root / "tests").rglob("*.py")]
    figures = {
        "all lines": sum(item.lines for item in packages.values()),
        "all code": sum(item.code for item in packages.values()),
        "lines of tests": sum(tests),
        "modules with one importer": len(single),
        "circles at import": len(at_import),
        "circles with lazy imports": len(lazy),
    }
    if ways:
        figures |= {name: files_passed(way) for name, way in WAYS.items()}
    remarks = ["one importer: " + ", ".join(name.removeprefix(f"{NAME}.") for name in single)]
    remarks += ["a circle: " + " -> ".join(circle) for circle in lazy]
    return packages, figures, remarks


def main() -> int:
    """Print the table; return 1 where a limit is exceeded and that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="fail where a limit is exceeded")
    parser.add_argument("--ways", action="store_true", help="count the files on three ways, too")
    parser.add_argument("--verbose", action="store_true", help="name modules and circles")
    options = parser.parse_args()
    packages, figures, remarks = measure(ROOT, ways=options.ways)
    too_much: list[str] = []
    print(f"{'package':28}{'lines':>8}{'code':>8}{'aim':>8}{'limit':>8}")
    for name, item in packages.items():
        aim, most = LINES[name]
        print(f"{name:28}{item.lines:8,}{item.code:8,}{aim:8,}{most:8,}")
        if item.lines > most:
            too_much.append(f"{name} has {item.lines:,} lines, and may have {most:,}")
    print()
    for name, figure in figures.items():
        aim, most = FIGURES[name]
        print(f"{name:28}{figure:8,}{aim:16,}{most:8,}")
        if figure > most:
            too_much.append(f"{name}: {figure:,}, and {most:,} is the most")
    if options.verbose:
        print("", *remarks, sep="\n")
    if options.check and too_much:
        print("", *too_much, sep="\n", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
