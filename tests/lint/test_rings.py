"""Applications import only public names of the library: those of a front door or an API page.

``core``, ``runtime`` and ``errors`` are below both rings: nouns, event loops and exceptions.
"""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import mellea_like

PACKAGE = Path(mellea_like.__file__).parent
APPLICATIONS = ("batch", "export", "report", "estimate", "gateway", "cli", "requirements/code")
LIBRARY = (
    "agent",
    "backends",
    "coalescing",
    "hooks",
    "limits",
    "requirements",
    "sampling",
    "schedules",
    "scoring",
    "selections",
    "telemetry",
    "web",
)


def documented() -> set[str]:
    found = set()
    for page in (PACKAGE.parent / "docs" / "api").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        found |= {
            name.rpartition(".")[2] for name in re.findall(r"auto(?:class|data):: (\S+)", text)
        }
        for module, options in re.findall(r"automodule:: (\S+)\n((?:   :.*\n)*)", text):
            given = dict(re.findall(r":([\w-]+): (.*)", options))
            names = re.findall(r"\w+", given.get("members", ""))
            all_names = getattr(import_module(module), "__all__", ())
            found |= set(names or all_names) - set(
                re.findall(r"\w+", given.get("exclude-members", ""))
            )
    return found


def public(package: str) -> set[str]:
    return set(getattr(import_module(f"mellea_like.{package}"), "__all__", ())) | documented()


def inner_imports() -> set[str]:
    found = set()
    exported = {package: public(package) for package in LIBRARY}
    for application in APPLICATIONS:
        own = f"mellea_like.{application.replace('/', '.')}"
        for path in (PACKAGE / application).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
                package = f"{module}..".split(".")[1]
                if package in exported and not f"{module}.".startswith(f"{own}."):
                    inner = {name.name for name in node.names} - exported[package]
                    place = module.removeprefix("mellea_like.")
                    found |= {f"{application}: {place}.{name}" for name in inner}
    return found


def test_applications_import_only_public_names_of_the_library():
    assert sorted(inner_imports()) == []
