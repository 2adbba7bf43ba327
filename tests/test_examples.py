"""Every file in examples/ runs offline to exit code 0, and prints what it says it does.

Lines ``# expect: TEXT`` in an example stand for lines of its output, in their order; ``...`` in
them stands for anything. Lines ``# types: TEXT`` are typed into it. An example that ``# needs:``
something has a test file of its own, which gives it that: ``tests/test_example_NAME.py``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import run

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))


def comments(script: Path, kind: str) -> list[str]:
    return re.findall(rf"^# {kind}: (.+)$", script.read_text(encoding="utf-8"), re.MULTILINE)


def unmet(expected: list[str], printed: str) -> list[str]:
    """Return the expected lines that are not found, in order, among the printed ones."""
    lines = iter(printed.splitlines())
    for position, text in enumerate(expected):
        pattern = ".*".join(map(re.escape, text.split("...")))
        if not any(re.fullmatch(pattern, line.rstrip()) for line in lines):
            return expected[position:]
    return []


ALONE = [script for script in SCRIPTS if not comments(script, "needs")]


@pytest.mark.parametrize("script", [pytest.param(path, id=path.stem) for path in ALONE])
def test_example_runs_and_prints_what_it_promises(script, tmp_path):
    typed = "".join(f"{line}\n" for line in comments(script, "types"))
    done = run(script=str(script), stdin=typed, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not unmet(comments(script, "expect"), done.stdout), done.stdout


def test_no_example_goes_unchecked():
    assert [script.name for script in ALONE if not comments(script, "expect")] == []
    tests = {path.stem for path in Path(__file__).parent.glob("test_example_*.py")}
    assert {f"test_example_{script.stem}" for script in SCRIPTS if script not in ALONE} == tests


@pytest.mark.parametrize(
    ("expected", "missing"),
    [
        ([], []),
        (["one", "three"], []),
        (["t...", "three"], []),
        (["three", "one"], ["one"]),
        (["on"], ["on"]),
        (["four", "one"], ["four", "one"]),
    ],
)
def test_expected_lines_are_compared_whole_and_in_order(expected, missing):
    assert unmet(expected, "one\ntwo\nthree\n") == missing
