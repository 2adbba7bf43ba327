"""Questions answered by SQL: each query has to parse and run, and their rows take a vote.

Shown: the checks `parses` and `runs_sql`, and a vote in which queries that return equal rows agree.
For your case: name your SQLite file in `DATABASE`; its tables go into the prompt by themselves.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from stand_in import show, start

from mellea_like import Backend, Candidate, RejectionSamplingStrategy, Request, Vote, sample_many
from mellea_like.batch import ItemResult
from mellea_like.requirements.code import fenced, parses, runs_sql

FOLDER = tempfile.TemporaryDirectory(prefix="sql-answers-")
DATABASE = Path(FOLDER.name) / "shop.db"
QUESTIONS = [
    "Which customer has paid most in all, and how much?",
    "How many orders in 2024 had no discount?",
    "Which products were never ordered?",
]
SHOP = """
CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE product (id INTEGER PRIMARY KEY, name TEXT, price REAL);
CREATE TABLE purchase (customer_id INTEGER, product_id INTEGER, day TEXT, n INTEGER, discount REAL);
INSERT INTO customer VALUES (1, 'Ada'), (2, 'Bob'), (3, 'Cleo');
INSERT INTO product VALUES (1, 'lamp', 40), (2, 'rug', 95.5), (3, 'vase', 18), (4, 'clock', 60);
INSERT INTO purchase VALUES (1, 1, '2023-11-02', 2, 0), (2, 2, '2024-01-15', 1, NULL),
    (3, 1, '2024-02-01', 3, 0.1), (1, 3, '2024-02-20', 5, NULL), (2, 1, '2024-06-30', 1, 0),
    (3, 2, '2024-07-04', 1, 0.2), (1, 2, '2025-01-09', 1, 0.5), (2, 3, '2024-12-31', 2, 0);
"""


def query(sql: str) -> list[tuple[Any, ...]]:
    where = f"{DATABASE.as_uri()}?mode=ro"
    with closing(sqlite3.connect(where, uri=True)) as database:
        return database.execute(sql).fetchall()


def rows(candidate: Candidate) -> tuple[Any, ...]:
    """Say what a query votes for: its rows, in any order; it has run in the sandbox before."""
    return tuple(sorted(query(fenced(candidate.text, "sql") or candidate.text), key=repr))


def ask(question: str) -> str:
    tables = "\n".join(sql for (sql,) in query("SELECT sql FROM sqlite_master"))
    return f"{tables}\n\nAnswer with one SQLite query: {question}"


async def answer(model: Backend, questions: list[str]) -> list[ItemResult[str]]:
    strategy = RejectionSamplingStrategy(
        model,
        loop_budget=10,
        requirements=[parses("sql", dialect="sqlite"), runs_sql(database=DATABASE)],
        selection=Vote(key=rows, n=7),
    )
    async with sample_many(
        strategy, questions, action=ask, concurrency=3, in_order=True
    ) as results:
        return [item async for item in results]


async def main(model: Backend) -> None:
    with closing(sqlite3.connect(DATABASE)) as database:
        database.executescript(SHOP)
    for question, item in zip(QUESTIONS, await answer(model, QUESTIONS), strict=True):
        show(question, item)
        if item.success:
            for found in item.result.decision.answers:
                print(f"  {found.votes:g} votes for {found.label}")
            print("  " + fenced(item.result.best.text, "sql").strip())


# --- what plays the model: 6 of 10 queries are right, the others miss a point or don't run


def hasty_analyst(request: Request, chance: Random) -> str:
    right, wrong = next(v for k, v in KNOWN.items() if k in request.messages[0].text)
    fault = chance.choices(["", "wrong", "no such column", "broken", "writes"], [6, 2, 1, 1, 1])[0]
    sql = chance.choice(wrong if fault == "wrong" else right)
    if fault == "no such column":
        sql = sql.replace("name", "full_name").replace("day", "date")
    elif fault == "broken":
        sql = sql.replace("FROM", "FROM WHERE", 1)
    elif fault == "writes":
        sql = "DELETE FROM purchase"
    return f"```sql\n{sql}\n```"


PAID = "SELECT c.name, SUM(p.price * o.n {}) AS paid FROM purchase o {} GROUP BY c.id {}"
JOINS = "JOIN customer c ON c.id = o.customer_id JOIN product p ON p.id = o.product_id"
BEST = "ORDER BY paid DESC LIMIT 1"
IN_2024 = "SELECT COUNT(*) FROM purchase WHERE day >= '2024' AND day < '2025' AND {}"
NEVER = "SELECT name FROM product WHERE id {}IN (SELECT product_id FROM purchase)"
OUTER = "SELECT p.name FROM product p LEFT JOIN purchase o ON o.product_id = p.id WHERE o.n {}"
KNOWN = {
    "paid most": (
        [PAID.format("* (1 - IFNULL(o.discount, 0))", JOINS, BEST)],
        [PAID.format("", JOINS, BEST), PAID.format("* (1 - o.discount)", JOINS, BEST)],
    ),
    "no discount": (
        [IN_2024.format("IFNULL(discount, 0) = 0"), IN_2024.format("NOT COALESCE(discount, 0)")],
        [IN_2024.format("discount = 0"), IN_2024.format("discount IS NULL")],
    ),
    "never ordered": (
        [NEVER.format("NOT "), OUTER.format("IS NULL")],
        [NEVER.format(""), OUTER.format("= 0")],
    ),
}


if __name__ == "__main__":
    with FOLDER:
        start(main, __doc__, model=hasty_analyst)
