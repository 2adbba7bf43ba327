"""The script that measures the package, and how many files the three ways pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import house
import pytest

ROOT = Path(__file__).parents[2]


def test_the_package_is_within_its_limits():
    command = [sys.executable, str(ROOT / "tools" / "house.py"), "--check", "--ways"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_code_is_neither_docstring_nor_comment_nor_blank():
    source = '"""A\nmodule."""\n\n# Why.\nx = """a\n\nb"""\n"""What x is."""\n\n\ndef f(): ...\n'
    assert house.size(source) == (11, 4)


@pytest.mark.parametrize(
    ("graph", "when", "count"),
    [
        ("a>b b>c", ("now",), 0),
        ("a>b b>a", ("now",), 1),
        ("a>b b>c c>a c>d d>c", ("now",), 2),
        ("a>b b~a", ("now",), 0),
        ("a>b b~a", ("now", "later"), 1),
    ],
)
def test_circles_are_found(graph, when, count):
    found = [
        house.Import(pair[0], pair[2], "now" if pair[1] == ">" else "later")
        for pair in graph.split()
    ]
    assert len(house.circles(found, *when)) == count


def test_imports_are_told_apart_by_when_they_happen():
    sources = {
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
    assert {(found.imported[-1], found.when) for found in house.imports(sources)} == {
        ("b", "now"),
        ("c", "types"),
        ("d", "later"),
    }
