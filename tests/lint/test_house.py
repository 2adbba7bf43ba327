"""The script that measures the package and the way of the plainest call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import house
import pytest

ROOT = Path(__file__).parents[2]


def test_the_package_is_within_its_limits():
    command = [sys.executable, str(ROOT / "tools" / "house.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("graph", "count"),
    [("a>b b>c", 0), ("a>b b>a", 1), ("a>b b>c c>a c>d d>c", 2)],
)
def test_circles_are_found(graph, count):
    pairs = [pair.split(">") for pair in graph.split()]
    imports = {one: {b for a, b in pairs if a == one} for one, _ in pairs}
    assert len(house.circles(imports)) == count


def test_imports_for_type_checkers_alone_do_not_count():
    modules = {
        "mellea_like": "",
        "mellea_like.a": (
            "from typing import TYPE_CHECKING\n"
            "from mellea_like.b import x\n"
            "if TYPE_CHECKING:\n    from mellea_like import c\n"
            "def f():\n    import mellea_like.d\n"
        ),
        "mellea_like.b": "",
        "mellea_like.c": "",
        "mellea_like.d": "",
    }
    assert house.imports(modules) == {"mellea_like.a": {"mellea_like.b", "mellea_like.d"}}


def test_folders_that_import_each_other_are_a_circle_even_if_no_modules_are():
    graph = {"m.a.upper": {"m.b"}, "m.b": {"m.a.lower"}, "m.a.lower": {"m.c.d", "m.c"}}
    assert house.circles(graph) == []
    neighbours = house.neighbours(graph)
    assert neighbours == {"m.a": {"m.b", "m.c"}, "m.b": {"m.a"}}
    assert len(house.circles(neighbours)) == 1


def test_the_plainest_call_passes_the_strategy_the_kernel_and_a_backend():
    passed = {(function.path, function.name) for function in house.passed()}
    assert {
        ("mellea_like/sampling/base.py", "sample"),
        ("mellea_like/kernel/race.py", "record"),
        ("mellea_like/backends/function.py", "generate"),
    } <= passed
