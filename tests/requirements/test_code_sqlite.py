"""SQL that runs on SQLite, on a copy of a database."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from code_kit import decided, sandbox

from mellea_like.errors import RequirementError
from mellea_like.requirements.code import runs_sql

pytestmark = pytest.mark.anyio

box = pytest.fixture(scope="module", name="box")(sandbox)

SCHEMA = """
CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, age REAL);
INSERT INTO users (name, age) VALUES ('Ada', 36), ('Bob', 41), ('Cy;d', NULL);
"""
LIKE = "SELECT name FROM users WHERE age > 30"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("sql", "settings", "reason"),
    [
        ("SELECT name FROM users", {}, "it runs"),
        ("```sql\nSELECT name FROM users WHERE name = 'Cy;d'\n```", {}, "it runs"),
        (
            "SELECT name AS n FROM users WHERE age >= 36 ORDER BY 1 DESC;",
            {"like": LIKE},
            "it returns the rows",
        ),
        ("CREATE TABLE a (b); SELECT * FROM a", {"writes": True}, "it runs"),
        ("PRAGMA table_info(users)", {}, "it runs"),
        (
            "SELECT name FROM users WHERE age > 30 ORDER BY name DESC",
            {"like": f"SELECT name FROM ({LIKE} ORDER BY name) -- ORDER BY"},
            "it returns the rows",
        ),
        (
            "SELECT name, rank() OVER (ORDER BY age) FROM users ORDER BY name DESC",
            {"like": "SELECT name, rank() OVER (ORDER BY age) FROM users"},
            "it returns the rows",
        ),
        ("SELECT nmae FROM users", {}, "SQLite says: no such column: nmae"),
        ("SELECT name FORM users", {}, 'SQLite says: near "users": syntax error'),
        ("I can't do that.", {}, "SQLite says: "),
        ("DELETE FROM users", {}, "it may only read this database; SQLite says: not authorized"),
        ("PRAGMA QUERY_ONLY=0; DELETE FROM users", {}, "it may only read"),
        ("CREATE TEMP TABLE x (a)", {}, "it may only read"),
        ("ATTACH '/tmp/x.db' AS x", {"writes": True}, "SQLite says: "),
        (
            "SELECT name FROM users",
            {"like": LIKE},
            "it returns 3 row(s), the first is ('Ada',); it should return 2, and",
        ),
        (
            "SELECT name FROM users WHERE age > 30",
            {"like": f"{LIKE} ORDER BY\n age DESC"},
            "it ret",
        ),
        ("DELETE FROM users", {"like": LIKE, "writes": True}, "it is no query"),
        (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n",
            {"seconds": 0.2},
            "it took more than 0.2 s of processor time",
        ),
        ("SELECT randomblob(999999999), randomblob(999999999)", {}, ""),
        (
            "WITH n AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT hex(zeroblob(9e7)) FROM n",
            {"seconds": 50},
            "its rows take more memory than there is",
        ),
    ],
)
async def test_sql_that_is_right_passes_and_other_fails_with_what_sqlite_says(
    box, sql, settings, reason
):
    result = await decided(runs_sql(SCHEMA, sandbox=box, **settings), sql)
    assert result.passed is (reason in {"it runs", "it returns the rows"}), result.reason
    assert reason in result.reason


@pytest.mark.allow_blocking  # The test's own database.
async def test_a_file_is_copied_and_stays_as_it_is(box, tmp_path):
    path = tmp_path / "us#r?s %23.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCHEMA)
    before = path.read_bytes()
    check = runs_sql(database=path, like="SELECT count(*) FROM users", writes=True, sandbox=box)
    assert not (await decided(check, "DELETE FROM users; SELECT count(*) FROM users")).passed
    assert (await decided(check, "SELECT 3")).passed
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.allow_blocking  # The test's own files.
async def test_a_database_that_is_missing_or_none_is_named(box, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the file .*none\.db doesn't exist"):
        runs_sql(database=tmp_path / "none.db", sandbox=box)
    (tmp_path / "notes.db").write_text("these are my notes")
    with pytest.raises(RequirementError, match=r"the database .*notes\.db can't be read: "):
        await decided(runs_sql(database=tmp_path / "notes.db", sandbox=box), "SELECT 1")


async def test_what_can_t_be_run_is_no_verdict_on_the_reply(box):
    for settings in ({"schema": "CREATE"}, {"like": "SELECT * FROM nobody"}):
        with pytest.raises(RequirementError, match="the schema or the query"):
            await decided(runs_sql(sandbox=box, **settings), "SELECT 1")
