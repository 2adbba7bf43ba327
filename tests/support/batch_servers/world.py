"""The state of a fake server: files, jobs, their requests and the bill, in an SQLite file.

Nothing happens by itself: each request first brings the state up to the present (`World.advance`).
So the state is a function of the time, and a server that was killed goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

import anyio

from batch_servers import replies
from batch_servers.replies import Asked, Drawn
from batch_servers.settings import Settings

SCHEMA = """
CREATE TABLE IF NOT EXISTS facts(name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS files(
    seq INTEGER PRIMARY KEY, id TEXT UNIQUE, name TEXT, purpose TEXT, created REAL, content BLOB);
CREATE TABLE IF NOT EXISTS jobs(
    seq INTEGER PRIMARY KEY, id TEXT UNIQUE, model TEXT, created REAL, starts REAL, ends REAL,
    expires REAL, cancelled REAL, ended REAL, status TEXT, total INTEGER, tokens INTEGER,
    errors TEXT, given TEXT, output INTEGER, seen REAL);
CREATE TABLE IF NOT EXISTS requests(
    job INTEGER, n INTEGER, custom_id TEXT, body TEXT, done REAL, place REAL, status INTEGER,
    answer TEXT, PRIMARY KEY(job, n)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS due ON requests(job, done) WHERE status IS NULL;
CREATE INDEX IF NOT EXISTS places ON requests(job, place);
CREATE TABLE IF NOT EXISTS bill(
    seq INTEGER PRIMARY KEY, job TEXT, custom_id TEXT, model TEXT, input INTEGER, output INTEGER,
    nano INTEGER, at REAL);
CREATE TABLE IF NOT EXISTS calls(seq INTEGER PRIMARY KEY, name TEXT, at REAL);
"""

WORKING = ("validating", "working", "cancelling")


class Dialect(Protocol):
    """A provider's own protocol, as its server implements it."""

    def asked(self, body: dict[str, Any]) -> Asked:
        """Read a request."""
        ...

    def refusal(self, body: dict[str, Any]) -> str:
        """Return the reason why a request is refused when it runs; empty if it isn't."""
        ...

    def answer(self, body: dict[str, Any], drawn: Drawn, id_: str, now: float) -> dict[str, Any]:
        """Write a reply."""
        ...

    def failure(self, status: int, message: str) -> dict[str, Any]:
        """Write an error, as the body of an answer of HTTP."""
        ...


class Job(NamedTuple):
    """A row of the table of jobs."""

    seq: int
    id: str
    model: str
    created: float
    starts: float
    ends: float
    expires: float | None
    cancelled: float | None
    ended: float | None
    status: str
    total: int
    tokens: int
    errors: str
    given: str
    output: int
    seen: float


class Line(NamedTuple):
    """The outcome of one request; without a status, it was never run."""

    n: int
    custom_id: str
    status: int | None
    answer: dict[str, Any] | None


def loop_clock() -> Callable[[], float]:
    """The event loop's time, virtual or not, as seconds since the epoch."""
    base: list[float] = []

    def now() -> float:
        if not base:
            base.append(time.time() - anyio.current_time())
        return base[0] + anyio.current_time()

    return now


class World:
    """The state of one server.

    Args:
        path: its file; by default it is in memory.
        now: the time; by default the real one, times ``speed`` since the file was made.
        speed: how many seconds pass in one.
        settings: its behaviour; the file's if there is one already.
    """

    def __init__(
        self,
        path: str | Path = ":memory:",
        *,
        now: Callable[[], float] | None = None,
        speed: float = 1.0,
        settings: Settings | None = None,
    ) -> None:
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=NORMAL")
        self.db.executescript(SCHEMA)
        if settings is not None:
            self.tell("settings", settings.as_dict())
        self.settings = Settings.of(self.fact("settings", {}))
        self.save()
        self._began = self.fact("began", None) or time.time()
        self.tell("began", self._began)
        self._speed = speed
        self._given_now = now
        self.dialect: Dialect

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    # --- facts and the time -----------------------------------------------------------------------

    def fact(self, name: str, default: Any) -> Any:
        """Return a value that `tell` stored."""
        row = self.db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return default if row is None else json.loads(row[0])

    def tell(self, name: str, value: Any) -> None:
        """Store a value."""
        self.db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))

    def save(self) -> None:
        """Keep the settings."""
        self.tell("settings", self.settings.as_dict())

    def change(self, **settings: Any) -> None:
        """Change some settings."""
        self.tell("settings", self.settings.as_dict() | settings)
        self.settings = Settings.of(self.fact("settings", {}))

    @property
    def now(self) -> float:
        """The server's time, in seconds since the epoch."""
        if self._given_now is not None:
            passed = self._given_now()
        else:
            passed = self._began + (time.time() - self._began) * self._speed
        return passed + self.fact("skipped", 0.0)

    def skip(self, seconds: float) -> None:
        """Let time pass."""
        self.tell("skipped", self.fact("skipped", 0.0) + seconds)
        self.advance()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run the block as one transaction."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    def id_for(self, prefix: str, seq: int, length: int = 24) -> str:
        """Return an id that depends only on the seed."""
        digest = hashlib.sha256(f"{self.settings.seed}|{prefix}|{seq}".encode()).hexdigest()
        return prefix + digest[:length]

    def called(self, name: str) -> None:
        """Count a request."""
        self.db.execute("INSERT INTO calls(name, at) VALUES (?, ?)", (name, self.now))

    def calls(self, name: str) -> int:
        """Return the number of requests of a kind."""
        query = "SELECT count(*) FROM calls WHERE name = ?"
        found: int = self.db.execute(query, (name,)).fetchone()[0]
        return found

    def fault(self, on: str) -> dict[str, Any] | None:
        """Return the fault for this request, if there is one."""
        for fault in self.settings.faults:
            if fault["on"] != on or fault.get("times", 1) <= 0:
                continue
            if fault.get("after", 0) > 0:
                fault["after"] -= 1
                continue
            fault["times"] = fault.get("times", 1) - 1
            self.save()
            return fault
        self.save()
        return None

    # --- files ------------------------------------------------------------------------------------

    def add_file(self, name: str, purpose: str, content: bytes, id_: Callable[[int], str]) -> str:
        """Keep a file; return its id."""
        with self.step():
            row = self.db.execute(
                "INSERT INTO files(name, purpose, created, content) VALUES (?, ?, ?, ?)",
                (name, purpose, self.now, content),
            )
            seq = row.lastrowid or 0
            made = id_(seq)
            self.db.execute("UPDATE files SET id = ? WHERE seq = ?", (made, seq))
        return made

    def file(self, id_: str) -> tuple[str, str, float, int] | None:
        """A file's name, purpose, time and size."""
        query = "SELECT name, purpose, created, length(content) FROM files WHERE id = ?"
        found: tuple[str, str, float, int] | None = self.db.execute(query, (id_,)).fetchone()
        return found

    def content(self, id_: str) -> bytes:
        """A file's bytes."""
        found: bytes = self.db.execute("SELECT content FROM files WHERE id = ?", (id_,)).fetchone()[
            0
        ]
        return found

    def delete_file(self, id_: str) -> bool:
        """Delete a file."""
        return self.db.execute("DELETE FROM files WHERE id = ?", (id_,)).rowcount > 0

    # --- jobs -------------------------------------------------------------------------------------

    def add_job(
        self,
        requests: Iterable[tuple[str, dict[str, Any]]],
        model: str,
        given: dict[str, Any],
        id_: Callable[[int], str],
        *,
        errors: list[dict[str, Any]] | None = None,
        window: float | None = None,
        full: Callable[[str, int], dict[str, Any]] | None = None,
    ) -> Job:
        """Make a job.

        Args:
            requests: the custom id and the body of each of its requests.
            model: its model.
            given: what else it was created with.
            id_: makes its id.
            errors: why it fails when it is looked at.
            window: seconds after which it expires, in place of the settings'.
            full: makes the error if too many tokens of a model are queued; without it, there is no
                such limit.

        Returns:
            The job.
        """
        now, settings = self.now, self.settings
        with self.step():
            window = settings.window if window is None else window
            starts = now + settings.validating
            row = self.db.execute(
                "INSERT INTO jobs(model, created, starts, ends, expires, status, given, seen)"
                " VALUES (?, ?, ?, ?, ?, 'validating', ?, ?)",
                (
                    *(model, now, starts, starts + settings.work),
                    None if window is None else now + window,
                    *(json.dumps(given), now + settings.list_lag),
                ),
            )
            seq = row.lastrowid or 0
            made = id_(seq)
            rng = Random(f"{settings.seed}|job|{seq}")
            total = tokens = 0
            for n, (custom_id, body) in enumerate(requests):
                asked = self.dialect.asked(body)
                tokens += replies.input_tokens(asked)
                total += 1
                self.db.execute(
                    "INSERT INTO requests(job, n, custom_id, body, done, place)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        *(seq, n, custom_id, json.dumps(body)),
                        *(starts + settings.work * rng.random(), rng.random()),
                    ),
                )
            limit = settings.enqueued.get(model, settings.enqueued.get("*"))
            if full is not None and limit is not None:
                queued = self.db.execute(
                    "SELECT coalesce(sum(tokens), 0) FROM jobs WHERE ended IS NULL AND model = ?",
                    (model,),
                ).fetchone()[0]
                if queued + tokens > limit:
                    errors = [full(model, limit)]
            self.db.execute(
                "UPDATE jobs SET id = ?, total = ?, tokens = ?, errors = ?, output = ?"
                " WHERE seq = ?",
                (made, total, tokens if not errors else 0, json.dumps(errors or []), 1, seq),
            )
        job = self.job(made)
        assert job is not None
        return job

    def job(self, id_: str) -> Job | None:
        """A job by its id."""
        row = self.db.execute("SELECT * FROM jobs WHERE id = ?", (id_,)).fetchone()
        return None if row is None else Job(*row)

    def jobs(self, limit: int, *, after: Job | None = None, skip: int = 0) -> list[Job]:
        """Return the jobs that are already listed, by default the newest first."""
        order, beyond = ("", ">") if self.settings.oldest_first else ("DESC", "<")
        seq = after.seq if after else 0 if beyond == ">" else 10**18
        query = f"SELECT * FROM jobs WHERE seen <= ? AND seq {beyond} ? ORDER BY seq {order}"
        rows = self.db.execute(f"{query} LIMIT ? OFFSET ?", (self.now, seq, limit, skip))
        return [Job(*row) for row in rows]

    def all_jobs(self) -> list[Job]:
        """Return all jobs, the oldest first."""
        return [Job(*row) for row in self.db.execute("SELECT * FROM jobs ORDER BY seq")]

    def cancel(self, job: Job) -> None:
        """Begin to cancel a job, unless it has ended."""
        if job.ended is None and job.cancelled is None:
            self.db.execute(
                "UPDATE jobs SET cancelled = ?, status = 'cancelling' WHERE seq = ?",
                (self.now, job.seq),
            )
            self.advance()

    def counts(self, job: Job) -> tuple[int, int]:
        """Return the numbers of requests that have succeeded and failed so far."""
        row = self.db.execute(
            "SELECT coalesce(sum(status < 300), 0), coalesce(sum(status >= 300), 0)"
            " FROM requests WHERE job = ? AND status IS NOT NULL",
            (job.seq,),
        ).fetchone()
        return row[0], row[1]

    def lines(self, job: Job) -> Iterator[Line]:
        """Return the outcomes of a job's requests, in another order than theirs."""
        rows = self.db.execute(
            "SELECT n, custom_id, status, answer FROM requests WHERE job = ? ORDER BY place",
            (job.seq,),
        )
        for n, custom_id, status, answer in rows:
            yield Line(n, custom_id, status, None if answer is None else json.loads(answer))

    # --- what happens -----------------------------------------------------------------------------

    def advance(self) -> None:
        """Bring the state up to the present."""
        now = self.now
        rows = self.db.execute("SELECT * FROM jobs WHERE ended IS NULL ORDER BY seq").fetchall()
        for job in (Job(*row) for row in rows):
            with self.step():
                self._advance(job, now)

    def _advance(self, job: Job, now: float) -> None:
        ends = [(job.ends, "completed")]
        if json.loads(job.errors):
            ends = [(job.starts, "failed")]
        if job.expires is not None:
            ends.append((job.expires, "expired"))
        if job.cancelled is not None:
            ends.append((job.cancelled + self.settings.cancelling, "cancelled"))
        at, status = min(ends)
        if status != "failed":
            self._work(job, min(now, at), at)
        if now >= at:
            self.db.execute(
                "UPDATE jobs SET ended = ?, status = ?, output = ? WHERE seq = ?",
                (at, status, not self.settings.no_output, job.seq),
            )
        elif now >= job.starts and job.cancelled is None:
            self.db.execute("UPDATE jobs SET status = 'working' WHERE seq = ?", (job.seq,))

    def _work(self, job: Job, now: float, until: float) -> None:
        rows = self.db.execute(
            "SELECT n, custom_id, body, done FROM requests"
            " WHERE job = ? AND status IS NULL AND done <= ? AND done < ?",
            (job.seq, now, until if until < job.ends else job.ends + 1),
        ).fetchall()
        for n, custom_id, text, done in rows:
            body = {"model": job.model, **json.loads(text)}
            status, answer = self._answer(job, custom_id, body, done)
            self.db.execute(
                "UPDATE requests SET status = ?, answer = ? WHERE job = ? AND n = ?",
                (status, json.dumps(answer), job.seq, n),
            )

    def _answer(
        self, job: Job, custom_id: str, body: dict[str, Any], done: float
    ) -> tuple[int, dict[str, Any]]:
        if why := self.dialect.refusal(body):
            return 400, self.dialect.failure(400, why)
        rng = Random(f"{self.settings.seed}|error|{job.seq}|{custom_id}")
        if rng.random() < self.settings.error_rate:
            return 500, self.dialect.failure(500, "The server had an error")
        return 200, self.reply(body, custom_id, done, job.id)

    def reply(
        self, body: dict[str, Any], custom_id: str, now: float, job: str | None = None
    ) -> dict[str, Any]:
        """Answer a request, and add it to the bill."""
        asked = self.dialect.asked(body)
        drawn = replies.draw(self.settings, asked, body, custom_id)
        prices = self.settings.prices
        sent, received = prices.get(asked.model, prices["*"])
        nano = drawn.input_tokens * sent + drawn.output_tokens * received
        row = self.db.execute(
            "INSERT INTO bill(job, custom_id, model, input, output, nano, at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                *(job, custom_id, asked.model, drawn.input_tokens, drawn.output_tokens),
                *(nano // 2 if job is not None else nano, now),
            ),
        )
        return self.dialect.answer(body, drawn, self.id_for("", row.lastrowid or 0), now)

    def bill(self) -> dict[str, Any]:
        """Return all costs: requests, tokens and nano-dollars, in jobs and directly."""
        told: dict[str, Any] = {}
        for name, where in (("jobs", "job IS NOT NULL"), ("direct", "job IS NULL"), ("all", "1")):
            row = self.db.execute(
                "SELECT count(*), coalesce(sum(input), 0), coalesce(sum(output), 0),"
                f" coalesce(sum(nano), 0) FROM bill WHERE {where}"
            ).fetchone()
            told[name] = dict(
                zip(("requests", "input_tokens", "output_tokens", "nano"), row, strict=True)
            )
        return told

    def results_are_gone(self, job: Job) -> bool:
        """Return whether a job's results have been deleted."""
        kept = self.settings.kept
        return kept is not None and self.now > job.created + kept
