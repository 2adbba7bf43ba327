"""Measure the house: lines, circles of imports, and the way of the plainest call.

``python tools/house.py`` prints a table; ``--verbose`` also names the functions of the plainest
call. With ``--check``, it is an error if a figure exceeds its limit. The others have an aim.
"""

from __future__ import annotations

import argparse
import ast
import graphlib
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
NAME = "mellea_like"

APPLICATIONS = ("batch", "export", "report", "estimate", "gateway", "cli", "specification")
"""Everything else is the library, except for the sandbox in ``requirements/code``."""

LIMITS = {
    "circles at import": 0,
    "circles of folders": 0,
    "kernel": 1_400,
    "plainest call: functions": 101,
}
"""Figures that must not be exceeded. These numbers are fixed: they may only be lowered."""

AIMS = {
    "kernel": 1_400,
    "plainest call: files": 15,
    "plainest call: functions": 75,
    "plainest call: lines": 1_100,
    "library": 30_000,
    "package": 56_000,
    "tests": 60_000,
    "names at the front door": 40,
}


def sources(folder: Path) -> dict[str, str]:
    """Read the modules below a folder, by their dotted names."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text("utf-8")
    return found


def is_application(module: str) -> bool:
    """Tell whether a module is part of an application."""
    parts = module.split(".")[1:]
    return bool(parts) and (parts[0] in APPLICATIONS or parts[:2] == ["requirements", "code"])


# Import circles


def imports(modules: dict[str, str]) -> dict[str, set[str]]:
    """Find what the modules import from one another at run time, also inside functions."""
    graph: defaultdict[str, set[str]] = defaultdict(set)
    for module, source in modules.items():
        for name in _imported(ast.parse(source)):
            imported = name if name in modules else name.rpartition(".")[0]
            if imported in modules and imported != module:
                graph[module].add(imported)
    return graph


def _imported(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom) and child.module is not None:
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield from _imported(child)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Find circles; each loses an import for the search of the next."""
    graph = {module: set(imported) for module, imported in graph.items()}
    seen: list[list[str]] = []
    while True:
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            circle: list[str] = error.args[1]
            seen.append(circle)
            for one, other in ((circle[0], circle[1]), (circle[1], circle[0])):
                graph.get(one, set()).discard(other)
        else:
            return seen


def neighbours(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Reduce imports to those between neighbours: the folders and modules of the same folder."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for module, imported in graph.items():
        for other in imported:
            one, two = module.split("."), other.split(".")
            for length, (a, b) in enumerate(zip(one, two, strict=False), 1):
                if a != b:
                    found[".".join(one[:length])].add(".".join(two[:length]))
                    break
    return found


# The plainest call


async def plainest_call(look: Any) -> None:
    """Sample: the first draw fails, the second passes."""
    from mellea_like import RejectionSamplingStrategy, requirement  # noqa: PLC0415
    from mellea_like.backends import FunctionBackend  # noqa: PLC0415

    @requirement("isn't empty", inline=True)
    def is_not_empty(candidate: Any) -> bool:
        return bool(candidate.text)

    replies = iter(["", "a haiku", "", "a haiku"])
    strategy = RejectionSamplingStrategy(FunctionBackend(lambda _: next(replies)), loop_budget=2)
    await strategy.sample("Write a haiku.", [is_not_empty])  # What is done once isn't counted.
    sys.setprofile(look)
    try:
        await strategy.sample("Write a haiku.", [is_not_empty])
    finally:
        sys.setprofile(None)


class Function(NamedTuple):
    """A function of the package."""

    path: str
    line: int
    name: str
    lines: int


def passed() -> list[Function]:
    """List the functions that the plainest call runs."""
    import anyio  # noqa: PLC0415 (an environment without the package can count lines)

    seen: set[tuple[str, int]] = set()

    def look(frame: Any, _event: str, _argument: object) -> None:
        seen.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    anyio.run(plainest_call, look)
    found: list[Function] = []
    for filename in sorted({name for name, _ in seen}):
        path = Path(filename)
        if not path.is_relative_to(ROOT / NAME):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                if (filename, first) in seen:
                    lines = (node.end_lineno or first) - first + 1
                    found.append(Function(str(path.relative_to(ROOT)), first, node.name, lines))
    return found


# The table


def main() -> int:
    """Print the table; return 1 if a limit is exceeded and that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="fail if a limit is exceeded")
    parser.add_argument("--verbose", action="store_true", help="name functions and circles")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    import mellea_like  # noqa: PLC0415

    modules, tests = sources(ROOT / NAME), sources(ROOT / "tests")
    lines = {module: source.count("\n") for module, source in modules.items()}
    packages = Counter[str]()
    for module, count in lines.items():
        packages[module.split(".")[1] if module.count(".") else "front door"] += count
    way, graph = passed(), imports(modules)
    found, of_folders = circles(graph), circles(neighbours(graph))
    figures = {
        "kernel": packages["kernel"],
        "plainest call: files": len({function.path for function in way}),
        "plainest call: functions": len(way),
        "plainest call: lines": sum(function.lines for function in way),
        "circles at import": len(found),
        "circles of folders": len(of_folders),
        "library": sum(n for module, n in lines.items() if not is_application(module)),
        "package": sum(lines.values()),
        "tests": sum(source.count("\n") for source in tests.values()),
        "names at the front door": len(mellea_like.__all__),
    }
    for name, count in packages.most_common():
        print(f"{name:28}{count:8,}")
    print()
    for name, figure in figures.items():
        bounds = [
            f"{word} {b[name]:,}" for word, b in (("aim", AIMS), ("limit", LIMITS)) if name in b
        ]
        print(f"{name:28}{figure:8,}  {', '.join(bounds)}")
    if options.verbose:
        print("", *(f"{f.path}:{f.line} {f.name} {f.lines}" for f in way), sep="\n")
        print("", *(" -> ".join(circle) for circle in [*found, *of_folders]), sep="\n")
    over = [name for name, most in LIMITS.items() if figures[name] > most]
    if options.check and over:
        print(f"\ntoo large: {', '.join(over)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
