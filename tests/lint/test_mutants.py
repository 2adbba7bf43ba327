"""The script that breaks random lines makes the changes that it says, and finds their tests."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import mutants
import pytest


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        ("return a < 1", {"(a <= 1)", "(a >= 1)", "(2)"}),
        ("if a: b()", {"(not a)", "pass"}),
        ("return a and not b", {"(a or not b)", "(b)"}),
        ("return x if a else y", {"(y if a else x)"}),
        ("self.a = b - 'c_d'", {"pass", "(b + 'c_d')", "('c_d_')"}),
        ("await a()\n    return True", {"return", "pass", "(False)"}),
        ("a: 'int' = cast('int', 'two words')", set()),
        ("logger.warning('a')", set()),
        ("msg = f'{a < b}'", set()),
    ],
)
def test_each_change_is_of_one_place_and_words_are_left_alone(body, changes):
    source = f"async def f():\n    {body}\n"
    made = list(mutants.mutants_of("m.py", source))
    assert {mutant.new for mutant in made} == changes
    for mutant in made:
        first, last = mutant.span
        assert source[first:last] == mutant.old


def data_file(path, covering):
    with closing(sqlite3.connect(path)) as data, data:
        data.execute("create table file (id, path)")
        data.execute("create table context (id, context)")
        data.execute("create table arc (file_id, context_id, fromno, tono)")
        data.execute("insert into file values (1, 'm.py')")
        for number, (test, lines) in enumerate(covering.items()):
            data.execute("insert into context values (?, ?)", (number, f"{test}|run"))
            rows = [(1, number, line, line + 1) for line in lines]
            data.executemany("insert into arc values (?, ?, ?, ?)", rows)
    return path


def test_tests_are_those_of_the_last_data_file_that_knows_theirs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    for name in ("a.py", "b.py"):
        (tmp_path / name).touch()
    old = {"a.py::t[1]": [1], "a.py::u": [1, 4], "b.py::t": [1, 2, 4], "gone.py::t": [1]}
    before = data_file(tmp_path / "before", old)
    after = data_file(tmp_path / "after", {"a.py::v": [1]})
    assert mutants.Contexts([before], []).tests("m.py", 1) == ["b.py::t", "a.py::u", "a.py::t[1]"]
    both = mutants.Contexts([before, after], [])
    assert both.tests("m.py", 1) == ["b.py::t", "a.py::v"]
    assert both.tests("m.py", 9, 4) == ["b.py::t"]
    assert mutants.Contexts([before], ["a.py"]).tests("m.py", 3) == []
