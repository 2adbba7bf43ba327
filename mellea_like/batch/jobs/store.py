"""The file that records the jobs of a run, with their requests and the answers.

It is an SQLite file beside the run's journal. Each step is committed before the provider hears of
it, so a run that was killed knows which jobs it may have submitted. All functions block.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from anyio import CapacityLimiter, to_thread

from mellea_like.backends import JobOutcome
from mellea_like.batch.jobs.records import UNDER_WAY, Answer, JobStage, StoredJob, Waiting
from mellea_like.batch.journal.database import (
    connect,
    is_there,
    journal_errors,
    make_durable,
    transaction,
)
from mellea_like.batch.journal.reader import read_run
from mellea_like.core.display import plural
from mellea_like.core.generation import Usage
from mellea_like.errors import JournalError
from mellea_like.report.views import RunView

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import ParamSpec, TypeVar

    from mellea_like.backends import JobResult, JobState
    from mellea_like.batch.jobs.records import Ask

    P = ParamSpec("P")
    T = TypeVar("T")

APPLICATION_ID = 0x4D4C6A62
"""SQLite's application id in the file: the letters ``MLjb``."""

VERSION = 1

TABLES = """
CREATE TABLE run (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (
  id INTEGER NOT NULL PRIMARY KEY,
  key TEXT NOT NULL UNIQUE,
  api TEXT NOT NULL,
  stage TEXT NOT NULL,
  noted REAL NOT NULL,
  before TEXT NOT NULL,
  requests INTEGER NOT NULL,
  tokens INTEGER NOT NULL,
  provider_id TEXT,
  state TEXT,
  cancelled INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE requests (
  id INTEGER NOT NULL PRIMARY KEY,
  item INTEGER NOT NULL,
  key TEXT NOT NULL,
  api TEXT NOT NULL,
  purpose TEXT NOT NULL,
  body TEXT,
  bytes INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL,
  max_tokens INTEGER,
  sitting INTEGER NOT NULL,
  tries INTEGER NOT NULL DEFAULT 0,
  job INTEGER,
  answer TEXT,
  answered INTEGER,
  trouble TEXT NOT NULL DEFAULT '',
  cost_requests INTEGER NOT NULL DEFAULT 0,
  cost_input INTEGER NOT NULL DEFAULT 0,
  cost_output INTEGER NOT NULL DEFAULT 0,
  cost_cached INTEGER NOT NULL DEFAULT 0,
  cost_reasoning INTEGER NOT NULL DEFAULT 0,
  UNIQUE (item, key)
);
CREATE TABLE marks (
  item INTEGER NOT NULL,
  iteration INTEGER NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (item, iteration)
) WITHOUT ROWID;
CREATE INDEX waiting ON requests (api, item, id) WHERE job IS NULL AND answer IS NULL;
CREATE INDEX of_job ON requests (job, item, id) WHERE job IS NOT NULL;
"""

_WAITING = "api = ? AND job IS NULL AND answer IS NULL AND sitting = ?"
"""The SQL condition for the requests to one API, in one session, that wait for a job."""

MANY = 500
"""The number of rows to read with one query."""


def jobs_path(journal: Path) -> Path:
    """Return the path of the file that records the jobs of a journal's run."""
    return journal.with_name(f"{journal.name}-jobs")


class OneThread:
    """Calls functions in a thread, one at a time."""

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(1)

    async def __call__(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a function in the thread, and return its result."""
        return await to_thread.run_sync(
            partial(function, *arguments, **named), limiter=self._limiter
        )


class JobStore:
    """The file of a run's jobs. Opening it to ``look`` is no session (``sitting``) of the run."""

    def __init__(self, journal: Path, *, look: bool = False) -> None:
        self.path = path = jobs_path(journal)
        # A validator may change the working directory before the next upload.
        self.upload = path.absolute().with_name(f"{path.name}-upload")
        self._using = threading.Lock()
        started = str(RunView(read_run(journal, check=False)).started)
        with journal_errors(path):
            if not is_there(path):
                path.touch(mode=0o600)
            self._db = connect(path, "rw")
            try:
                self._open(started, look=look)
            except BaseException:
                self._db.close()
                raise

    def _open(self, journal: str, *, look: bool) -> None:
        make_durable(self._db, self.path)
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if not application and not self._db.execute("SELECT 1 FROM sqlite_schema").fetchone():
            facts = {"journal": journal, "prefix": f"{uuid4().hex[:12]}-", "sitting": "0"}
            self._db.executescript(
                f"BEGIN; PRAGMA application_id = {APPLICATION_ID};"
                f" PRAGMA user_version = {VERSION}; {TABLES}"
            )
            self._db.executemany("INSERT INTO run VALUES (?, ?)", facts.items())
            self._db.execute("COMMIT")
        elif (application, version) != (APPLICATION_ID, VERSION):
            msg = (
                f"{self.path} does not contain jobs of this version of mellea_like: use another"
                " journal"
            )
            raise JournalError(msg)
        facts = dict(self._db.execute("SELECT * FROM run"))
        if facts["journal"] != journal:
            msg = (
                f"{self.path} has the jobs of another run, not of the journal next to it: put that"
                " run's journal back, or use another name for this one"
            )
            raise JournalError(msg)
        self.prefix = facts["prefix"]
        self.sitting = int(facts["sitting"])
        if look:
            return
        self.sitting += 1
        with self._writing() as db:
            db.execute("UPDATE run SET value = ? WHERE name = 'sitting'", (str(self.sitting),))
            # Errors of an earlier sitting cost nothing, and the requests may succeed now.
            db.execute(
                "DELETE FROM requests WHERE json_extract(answer, '$.reply') IS NULL"
                " AND answer IS NOT NULL"
            )

    @contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        with self._using, journal_errors(self.path), transaction(self._db):
            yield self._db

    @contextmanager
    def _reading(self) -> Generator[sqlite3.Connection]:
        with self._using, journal_errors(self.path):
            yield self._db

    def close(self) -> None:
        """Close the file."""
        with self._using, suppress(sqlite3.Error):
            self._db.close()

    # Requests

    def ask(self, asks: Iterable[Ask]) -> None:
        """Record requests as waiting for a job in this session; insert those that are new."""
        with self._writing() as db:
            db.executemany(
                "INSERT INTO requests (item, key, api, purpose, body, bytes, input_tokens,"
                " max_tokens, sitting) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (item, key) DO UPDATE SET sitting = excluded.sitting",
                [(*ask[:5], len(ask.body.encode()), *ask[5:], self.sitting) for ask in asks],
            )

    def keep(self, item: int, key: str, place: str, purpose: str, reply: dict[str, Any]) -> None:
        """Record a reply that came from a backend, not from a job, in case the draw is repeated."""
        answer = json.dumps({"reply": {}, "kept": reply})
        with self._writing() as db:
            db.execute(
                "INSERT INTO requests (item, key, api, purpose, bytes, input_tokens, sitting,"
                " answer, answered) VALUES (?, ?, ?, ?, 0, 0, ?, ?, ?) ON CONFLICT (item, key) DO"
                " UPDATE SET answer = excluded.answer, answered = excluded.answered, body = NULL",
                (item, key, place, purpose, self.sitting, answer, self.sitting),
            )

    def known(self, item: int) -> tuple[dict[str, Answer], dict[int, Any]]:
        """Return the answers to an item's requests by key, and its draws' marks by iteration."""
        answers: dict[str, Answer] = {}
        with self._reading() as db:
            rows = db.execute(
                "SELECT key, answer, answered FROM requests WHERE item = ? AND answer IS NOT NULL",
                (item,),
            )
            for key, text, when in rows:
                plain = json.loads(text)
                kept = plain.pop("kept", None)
                answers[key] = Answer(JobOutcome(**plain), when, kept)
            marks = db.execute("SELECT iteration, value FROM marks WHERE item = ?", (item,))
            # Scores with their reasons, or keys with their weights.
            return answers, {n: tuple(json.loads(value)) for n, value in marks}

    def mark(self, item: int, marks: Mapping[int, Any]) -> None:
        """Record the marks (scores or vote keys) that the selection gave to draws, by iteration."""
        with self._writing() as db:
            db.executemany(
                "INSERT OR REPLACE INTO marks VALUES (?, ?, ?)",
                [(item, iteration, json.dumps(value)) for iteration, value in marks.items()],
            )

    def waiting(self, api: str) -> Iterator[Waiting]:
        """Yield the requests of this session that wait for a job of ``api``, ordered by item."""
        columns = "bytes, input_tokens, max_tokens"
        for row in self._requests(columns, _WAITING, api, self.sitting):
            yield Waiting(*row)

    def _requests(self, columns: str, which: str, *given: object) -> Iterator[tuple[Any, ...]]:
        """Yield each request's item, id and further columns, by item and id; read in pages."""
        rows: list[tuple[Any, ...]] = [(-1, -1)]
        while rows:
            with self._reading() as db:
                rows = db.execute(
                    f"SELECT item, id, {columns} FROM requests"  # noqa: S608 (constants)
                    f" WHERE {which} AND (item, id) > (?, ?) ORDER BY item, id LIMIT ?",
                    (*given, *rows[-1][:2], MANY),
                ).fetchall()
            yield from rows

    def count_waiting(self) -> int:
        """Return how many requests, of any session and to any model, wait for a job."""
        with self._reading() as db:
            (count,) = db.execute(
                "SELECT count(*) FROM requests WHERE job IS NULL AND answer IS NULL AND sitting > 0"
            ).fetchone()
        return int(count)

    def waiting_items(self, api: str, most: int = 1) -> list[int]:
        """Return the items of the first ``most`` requests to ``api`` that wait for a job."""
        with self._reading() as db:
            rows = db.execute(
                f"SELECT item FROM requests WHERE {_WAITING} ORDER BY item LIMIT ?",  # noqa: S608
                (api, self.sitting, most),
            )
            return [item for (item,) in rows]

    # Jobs

    def note(
        self, key: str, api: str, requests: Sequence[Waiting], before: Sequence[str], now: float
    ) -> StoredJob:
        """Record a job that is about to be created, with its requests, and return it."""
        tokens = sum(r.input_tokens for r in requests)
        with self._writing() as db:
            cursor = db.execute(
                "INSERT INTO jobs (key, api, stage, noted, before, requests, tokens)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (key, api, JobStage.NOTED, now, json.dumps(list(before)), len(requests), tokens),
            )
            db.executemany(
                "UPDATE requests SET job = ? WHERE id = ?",
                [(cursor.lastrowid, r.id) for r in requests],
            )
        return self.jobs()[-1]

    def jobs(self, *stages: JobStage) -> list[StoredJob]:
        """Return the jobs at these stages, oldest first; all jobs if no stage is given."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT * FROM jobs WHERE stage IN (SELECT value FROM json_each(?)) ORDER BY id",
                (json.dumps(stages or list(JobStage)),),
            )
            found: list[Any] = [StoredJob(*row) for row in rows]
        return [
            job._replace(
                stage=JobStage(job.stage),
                before=json.loads(job.before),
                state=json.loads(job.state or "{}"),
                cancelled=bool(job.cancelled),
            )
            for job in found
        ]

    def lines(
        self, job: StoredJob, write: Callable[[str, Mapping[str, Any]], str]
    ) -> Iterator[str]:
        """Yield a job's requests as lines; ``write`` makes a line from a custom id and a body."""
        for _, id_, body in self._requests("body", "job = ?", job.id):
            yield write(f"{self.prefix}{job.id}-{id_}", json.loads(body))

    def costs(self, job: StoredJob) -> list[tuple[int, int | None]]:
        """Return the estimated prompt tokens and the ``max_tokens`` of each request in a job."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT input_tokens, max_tokens FROM requests WHERE job = ? ORDER BY item, id",
                (job.id,),
            )
            return [(sent, received) for sent, received in rows]

    def created(self, job: StoredJob, state: JobState) -> None:
        """Record that a job was created, or was found at the provider."""
        self.update(job, stage=JobStage.AT_WORK, provider_id=state.id, state=_written(state))

    def seen(self, job: StoredJob, state: JobState) -> None:
        """Record the state of a job, as its provider reports it."""
        self.update(job, state=_written(state))

    def update(self, job: StoredJob, **columns: object) -> None:
        """Change columns of a job."""
        names = ", ".join(f"{name} = ?" for name in columns)
        with self._writing() as db:
            db.execute(f"UPDATE jobs SET {names} WHERE id = ?", (*columns.values(), job.id))  # noqa: S608 (constants)

    def void(self, job: StoredJob) -> None:
        """Record that a job is void: its requests wait for another one."""
        with self._writing() as db:
            db.execute("UPDATE jobs SET stage = ? WHERE id = ?", (JobStage.VOID, job.id))
            _back(db, job.id)

    def take(self, job: StoredJob, results: Sequence[tuple[JobResult, Usage]]) -> None:
        """Store a job's results with their costs; keep only the first answer to each request."""
        ours = re.compile(f"{self.prefix}{job.id}-([0-9]{{1,18}})")
        with self._writing() as db:
            for (custom_id, outcome), usage in results:
                if (named := ours.fullmatch(custom_id)) is None:
                    continue  # It is no result of this job.
                which = int(named[1]), job.id
                if outcome.unrun or (outcome.reply is None and outcome.retryable):
                    # The request goes into another job.
                    db.execute(
                        "UPDATE requests SET trouble = ? WHERE id = ? AND job = ?",
                        (outcome.error or outcome.unrun, *which),
                    )
                    continue
                db.execute(
                    "UPDATE requests SET answer = ?, answered = ?, body = NULL, cost_requests = ?,"
                    " cost_input = ?, cost_output = ?, cost_cached = ?, cost_reasoning = ?"
                    " WHERE id = ? AND job = ? AND answer IS NULL",
                    (
                        json.dumps(outcome._asdict()),
                        self.sitting,
                        usage.requests,
                        usage.input_tokens,
                        usage.output_tokens,
                        usage.cached_input_tokens,
                        usage.reasoning_tokens,
                        *which,
                    ),
                )

    def refuse(self, job: StoredJob, line: int, why: str) -> None:
        """Record that the request on a line (from 1) of a job's file was refused."""
        with self._reading() as db:
            found = db.execute(
                "SELECT id FROM requests WHERE job = ? ORDER BY item, id LIMIT 1 OFFSET ?",
                (job.id, line - 1),
            ).fetchall()
        for (request,) in found:
            self.fail(request, why)

    def fail(self, request: int, why: str) -> None:
        """Record the reason why a request, given by its id, can't be answered."""
        answer = json.dumps(JobOutcome(error=why)._asdict())
        with self._writing() as db:
            db.execute(
                "UPDATE requests SET answer = ?, answered = ? WHERE id = ?",
                (answer, self.sitting, request),
            )

    def leave_out(self, api: str, items: Iterable[int]) -> None:
        """Exclude the waiting requests of items from jobs, because they are answered directly."""
        with self._writing() as db:
            db.executemany(
                "UPDATE requests SET sitting = 0"
                " WHERE api = ? AND item = ? AND job IS NULL AND answer IS NULL",
                [(api, item) for item in items],
            )

    def collected(self, job: StoredJob, state: JobState, most: int, why: str) -> None:
        """Record that a job's results are stored; give up requests that ``most`` jobs left open."""
        failed = json.dumps(JobOutcome(error=why)._asdict())
        with self._writing() as db:
            db.execute(
                "UPDATE jobs SET stage = ?, state = ? WHERE id = ?",
                (JobStage.COLLECTED, _written(state), job.id),
            )
            db.execute(
                "UPDATE requests SET tries = tries + 1 WHERE job = ? AND answer IS NULL", (job.id,)
            )
            db.execute(
                "UPDATE requests SET answered = ?, answer = json_set(?, '$.error', ? ||"
                " CASE trouble WHEN '' THEN '' ELSE ': ' || trouble END)"
                " WHERE job = ? AND answer IS NULL AND tries >= ?",
                (self.sitting, failed, why, job.id, most),
            )
            _back(db, job.id)

    def items_of(self, job: StoredJob) -> set[int]:
        """Return the items that a job has answered."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT DISTINCT item FROM requests WHERE job = ? AND answer IS NOT NULL", (job.id,)
            )
            return {item for (item,) in rows}

    def cost(self, job: StoredJob) -> Usage:
        """Return the cost of a job's answered requests."""
        with self._reading() as db:
            row = db.execute(
                "SELECT total(cost_requests), total(cost_input), total(cost_output),"
                " total(cost_cached), total(cost_reasoning) FROM requests WHERE job = ?",
                (job.id,),
            ).fetchone()
        requests, sent, received, cached, reasoning = map(int, row)
        return Usage(requests, sent, received, 0, cached, reasoning)


def refuse_jobs_under_way(journal: Path) -> None:
    """Raise if a provider may still be working on jobs of a run; call this in a thread."""
    if not jobs_path(journal).exists():
        return
    with closing(JobStore(journal, look=True)) as store:
        count = len(store.jobs(*UNDER_WAY))
    if count:
        msg = (
            f"journal {journal}: {plural(count, 'job')} of this run may still be running at a"
            " provider's batch API: resume the run with BatchJobs (--batch-api), or cancel its"
            f" jobs first: mellea-like batch cancel {journal}"
        )
        raise JournalError(msg)


def _written(state: JobState) -> str:
    return json.dumps({**state._asdict(), "errors": [list(e) for e in state.errors]})


def _back(db: sqlite3.Connection, job: int) -> None:
    """Let a job's unanswered requests wait for another job."""
    db.execute("UPDATE requests SET job = NULL WHERE job = ? AND answer IS NULL", (job,))
