"""Make sure that applications import only public names, and that options don't know each other.

A name is public if ``mellea_like`` or the front door of its package exports it. ``core``,
``runtime`` and ``errors`` are below both rings: nouns, event loops and exceptions.
An option knows the kernel's ports, the nouns and the package that it serves, but no other option
and nothing above the options, not even for type checkers.
``python tools/rings.py`` prints what is imported otherwise; with ``--check``, that is an error.
"""

from __future__ import annotations

import argparse
import ast
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from house import APPLICATIONS, NAME, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

APPLICATION_FOLDERS = (*APPLICATIONS, "requirements/code")
BELOW = ("core", "runtime", "errors", "lazy", "version")

SERVED = ("limits", "requirements", "schedules", "selections", "telemetry")
"""The packages that options serve, and may import from."""


def exported(module: str) -> set[str]:
    """Return the names that ``mellea_like`` and the front door of a module's package export.

    ``requirements.checks`` is a front door, too: users import it by this name.
    """
    doors = [NAME, ".".join(module.split(".")[:2])]
    if module == f"{NAME}.requirements.checks":
        doors.append(module)
    return {name for door in doors for name in getattr(import_module(door), "__all__", ())}


def imports_in(path: Path) -> Iterator[tuple[str, str]]:
    """Yield what a file imports, as pairs of a module and a name; the name of a module is ""."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def inner_imports(folders: Iterable[str] = APPLICATION_FOLDERS, root: Path = ROOT) -> list[str]:
    """List what applications import from the library that isn't public."""
    found: set[str] = set()
    for application in folders:
        own = f"{NAME}.{application.replace('/', '.')}."
        for path in (root / NAME / application).rglob("*.py"):
            for module, name in imports_in(path):
                package, part, *_ = f"{module}..".split(".")
                if package != NAME or part in (*BELOW, *APPLICATIONS):
                    continue
                if f"{module}.".startswith((own, f"{NAME}.requirements.code.")):
                    continue
                whole = f"{module}.{name}".rstrip(".")
                is_front_door = whole.count(".") == 1
                if not is_front_door and name not in exported(module):
                    found.add(f"{application}: {whole}")
    return sorted(found)


def imports_of_options(folder: Path = ROOT / NAME / "options") -> list[str]:
    """List what options import from other options, or from anything above the options.

    Those in ``hooks`` may import from the rest of that package.
    """
    found: set[str] = set()
    known = (*BELOW, *SERVED, "kernel", *(["hooks"] if folder.name == "hooks" else ()))
    for path in folder.glob("*.py"):
        for module, name in imports_in(path):
            package, part, *_ = f"{module}.{name}.".split(".")
            if package == NAME and part not in known:
                found.add(f"{path.stem}: {module.removeprefix(f'{NAME}.')}.{name}".rstrip("."))
    return sorted(found)


def main() -> int:
    """Print wrong imports; return 1 if there are any and that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="fail if there are any")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    found = [*inner_imports(), *imports_of_options(), *imports_of_options(ROOT / NAME / "hooks")]
    print(*found, sep="\n", end="\n" if found else "")
    return int(options.check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
