"""A requirement that SQL runs on SQLite and returns the right rows."""

from __future__ import annotations

import base64
import json
import os
import re
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from mellea_like.core.argument_checks import check_text
from mellea_like.core.requirement import ready_made
from mellea_like.core.validation import ValidationResult
from mellea_like.errors import RequirementError
from mellea_like.requirements.code.checks import CodeSettings, running
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from mellea_like.core.requirement import Requirement
    from mellea_like.requirements.code.checks import Run

PROGRAM = """
import base64, collections, json, sqlite3, sys

given = json.load(sys.stdin)


def connected():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    if given["image"]:
        connection.deserialize(base64.b64decode(given["image"]))
    connection.executescript(given["schema"])
    return connection


READS = [getattr(sqlite3, "SQLITE_" + name) for name in ("SELECT", "READ", "FUNCTION", "RECURSIVE")]
LOOKS = {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo",
         "foreign_key_list", "database_list", "function_list", "compile_options"}
denied = []


def allowed(action, name, *_):
    good = action in READS or (action == sqlite3.SQLITE_PRAGMA and name.lower() in LOOKS)
    if given["writes"]:
        good = action not in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
    if not good:
        denied.append(action)
    return sqlite3.SQLITE_OK if good else sqlite3.SQLITE_DENY


def rows_of(script, connection):
    connection.set_authorizer(allowed)
    rows, statement = None, ""
    pieces = script.split(";")
    for number, piece in enumerate(pieces, 1):
        statement += piece + ";"
        if number == len(pieces) or sqlite3.complete_statement(statement):
            cursor = connection.execute(statement)
            rows = cursor.fetchall() if cursor.description else rows
            statement = ""
    return rows


said = {"wrong": "", "score": 0.0}
try:
    connection = connected()
    wanted = rows_of(given["like"], connected()) if given["like"] else None
except (sqlite3.Error, MemoryError, TypeError, ValueError) as exc:
    said["errored"] = str(exc) or "it takes more memory than there is"
else:
    try:
        found = rows_of(given["sql"], connection)
        same = not given["like"] or found == wanted
        if not same and None not in (found, wanted) and not given["ordered"]:
            same = collections.Counter(found) == collections.Counter(wanted)
    except (sqlite3.Error, sqlite3.Warning, ValueError) as exc:
        only = "it may only read this database; " if denied else ""
        said["wrong"] = f"{only}SQLite says: {exc}"
    except MemoryError:
        said["wrong"] = "its rows take more memory than there is"
    else:
        if found is None and wanted is not None:
            said["wrong"] = "it is no query: it returns no rows at all"
        elif not same:
            first, other = (repr(rows[0]) if rows else "none" for rows in (found, wanted))
            said["wrong"] = (f"it returns {len(found)} row(s), the first is {first}; it should "
                             f"return {len(wanted)}, and the first is {other}")
            said["score"] = 0.5
print(json.dumps(said))
"""


@ready_made
def runs_sql(
    schema: str = "",
    *,
    database: str | os.PathLike[str] | None = None,
    like: str | None = None,
    writes: bool = False,
    **settings: Unpack[CodeSettings],
) -> Requirement:
    """Require SQL that runs on SQLite and, optionally, returns the same rows as a given query.

    Each check runs on its own copy of the database, in memory and in its own process, so replies
    can't affect each other.

    Args:
        schema: statements that create the database or, if ``database`` is given, run on its copy.
        database: an SQLite file to copy. It is read when the first reply is checked.
        like: a query whose rows the reply's SQL must return, in the same order if the query has an
            ``ORDER BY`` outside of parentheses. Names of columns don't matter.
        writes: whether the SQL may change the database.
        **settings: see `CodeSettings`, and `Requirement` for ``name``, ``weight`` and others.

    Returns:
        The requirement. Its reason is SQLite's message (``no such column: nmae``), or the numbers
        of rows and the first row of both results. It errs if the schema or ``like`` can't be run,
        or if the database file can't be read.

    Raises:
        FileNotFoundError: ``database`` doesn't exist.
        TypeError: ``schema`` or ``like`` isn't a str.
    """
    check_text("runs_sql: schema", schema)
    if like is not None:
        check_text("runs_sql: like", like)
    if database is not None and not Path(database).is_file():
        msg = f"runs_sql: the file {os.fspath(database)} doesn't exist"
        raise FileNotFoundError(msg)
    given: dict[str, Any] = {
        "image": None,
        "schema": schema,
        "like": like,
        "ordered": like is not None and _is_ordered(like),
        "writes": writes,
    }
    path = None if database is None else os.fspath(database)

    async def judge(run: Run, sql: str) -> ValidationResult:
        if path is not None and given["image"] is None:
            given["image"] = await run_in_thread(_image, path)
        report = await run(program=PROGRAM, stdin=json.dumps(given | {"sql": sql}))
        if report.failure:
            return ValidationResult(False, report.failure, 0.0)
        said = json.loads(report.stdout)
        if "errored" in said:
            msg = f"runs_sql: the schema or the query in like= can't be run: {said['errored']}"
            raise RequirementError(msg)
        right = "it returns the rows that it should" if like else "it runs"
        passed = not said["wrong"]
        return ValidationResult(passed, said["wrong"] or right, 1.0 if passed else said["score"])

    words = "is SQL that runs on SQLite" + (", and returns the right rows" if like else "")
    decides = (schema, path, like, writes)
    return running("runs_sql", words, judge, settings, decides, language="sql")


_SKIPPED = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|\[[^]]*]|--[^\n]*|/\*.*?\*/""", re.DOTALL)
"""Matches strings, quoted names and comments."""


def _is_ordered(query: str) -> bool:
    """Return whether a query orders its own rows, and not just those of a subquery or a window."""
    words: list[str] = []
    depth = 0
    for word in re.findall(r"[()]|\w+", _SKIPPED.sub(" x ", query).lower()):
        depth += (word == "(") - (word == ")")
        if not depth:
            words.append(word)
    return ("order", "by") in pairwise(words)


def _image(path: str) -> str:
    where = f"{Path(path).absolute().as_uri()}?mode=ro"  # Unescaped, a # or % would end the path.
    try:
        with closing(sqlite3.connect(where, uri=True)) as connection:
            return base64.b64encode(connection.serialize()).decode("ascii")
    except sqlite3.Error as exc:
        msg = f"runs_sql: the database {path} can't be read: {exc}"
        raise RequirementError(msg) from exc
