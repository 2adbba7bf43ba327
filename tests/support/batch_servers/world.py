"""The state of a fake server: files, jobs, their requests, the bill and the time.

Nothing happens by itself: each request first brings the state up to the present (`World.advance`).
So the state is a function of the time. A server with a file keeps its state there after each
request, and one that was killed continues where it was.
"""

from __future__ import annotations

import copy
import hashlib
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

import anyio

from batch_servers import replies
from batch_servers.replies import Asked, Drawn
from batch_servers.settings import Settings


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


@dataclass
class Line:
    """A request of a job, and its outcome; without a status, it was never run."""

    n: int
    custom_id: str
    body: dict[str, Any]
    done: float
    place: float
    status: int | None = None
    answer: dict[str, Any] | None = None


@dataclass
class Job:
    """A job; ``seen`` is when it appears in lists."""

    seq: int
    id: str
    model: str
    created: float
    starts: float
    ends: float
    expires: float | None
    given: dict[str, Any]
    seen: float
    lines: list[Line]
    tokens: int
    errors: list[dict[str, Any]]
    cancelled: float | None = None
    ended: float | None = None
    status: str = "validating"

    @property
    def total(self) -> int:
        """The number of requests."""
        return len(self.lines)

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of requests that have succeeded and failed so far."""
        done = [line.status < 300 for line in self.lines if line.status is not None]
        return sum(done), len(done) - sum(done)

    @property
    def shuffled(self) -> list[Line]:
        """The outcomes of the requests, in another order than theirs."""
        return sorted(self.lines, key=lambda line: line.place)


class File(NamedTuple):
    """An uploaded file."""

    name: str
    created: float
    content: bytes


class Charge(NamedTuple):
    """The cost of one request; ``job`` is None for one that was sent directly."""

    job: str | None
    custom_id: str
    input: int
    output: int
    nano: int


@dataclass
class State:
    """Everything that a server's file keeps."""

    settings: Settings
    began: float = field(default_factory=time.time)
    skipped: float = 0.0
    uploads: int = 0
    files: dict[str, File] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    charges: list[Charge] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)


def loop_clock() -> Callable[[], float]:
    """The event loop's time, virtual or not, as seconds since the epoch."""
    base: list[float] = []

    def now() -> float:
        if not base:
            base.append(time.time() - anyio.current_time())
        return base[0] + anyio.current_time()

    return now


class World:
    """The state of one server, perhaps in a file, whose settings come before the given ones.

    The time is the real one unless ``now`` is given, and passes ``speed`` times as fast.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        now: Callable[[], float] | None = None,
        speed: float = 1.0,
        settings: Settings | None = None,
    ) -> None:
        self._path = path
        if path is not None and path.exists():
            self.state: State = pickle.loads(path.read_bytes())
        else:
            self.state = State(copy.deepcopy(settings or Settings()))
        self._speed = speed
        self._given_now = now
        self.dialect: Dialect

    def save(self) -> None:
        """Write the state to the file, if there is one."""
        if self._path is not None:
            beside = self._path.with_suffix(".new")
            beside.write_bytes(pickle.dumps(self.state))
            beside.replace(self._path)

    @property
    def settings(self) -> Settings:
        """The settings."""
        return self.state.settings

    def change(self, **settings: Any) -> None:
        """Change some settings."""
        self.state.settings = replace(self.settings, **copy.deepcopy(settings))

    @property
    def now(self) -> float:
        """The server's time, in seconds since the epoch."""
        if self._given_now is not None:
            return self._given_now() + self.state.skipped
        began = self.state.began
        return began + (time.time() - began) * self._speed + self.state.skipped

    def skip(self, seconds: float) -> None:
        """Let time pass."""
        self.state.skipped += seconds
        self.advance()

    def id_for(self, prefix: str, seq: int, length: int = 24) -> str:
        """Return an id that depends only on the seed."""
        digest = hashlib.sha256(f"{self.settings.seed}|{prefix}|{seq}".encode()).hexdigest()
        return prefix + digest[:length]

    def fault(self, on: str) -> dict[str, Any] | None:
        """Return the fault for this request, if there is one."""
        for fault in self.settings.faults:
            if fault["on"] != on or fault.get("times", 1) <= 0:
                continue
            if fault.get("after", 0) > 0:
                fault["after"] -= 1
                continue
            fault["times"] = fault.get("times", 1) - 1
            return fault
        return None

    # --- files and jobs ---------------------------------------------------------------------------

    def add_file(self, name: str, content: bytes, id_: Callable[[int], str]) -> str:
        """Keep a file; return its id."""
        self.state.uploads += 1
        made = id_(self.state.uploads)
        self.state.files[made] = File(name, self.now, content)
        return made

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
        """Make a job of custom ids and bodies.

        With ``errors``, it fails when it is looked at. Without ``full``, which makes the error,
        any number of tokens can be queued.
        """
        now, settings, jobs = self.now, self.settings, self.state.jobs
        window = settings.window if window is None else window
        starts, seq = now + settings.validating, len(jobs) + 1
        rng = Random(f"{settings.seed}|job|{seq}")
        lines = [
            Line(n, custom_id, body, starts + settings.work * rng.random(), rng.random())
            for n, (custom_id, body) in enumerate(requests)
        ]
        tokens = sum(replies.input_tokens(self.dialect.asked(line.body)) for line in lines)
        limit = settings.enqueued.get(model, settings.enqueued.get("*"))
        if full is not None and limit is not None:
            at_work = (job for job in jobs.values() if job.ended is None and job.model == model)
            if sum(job.tokens for job in at_work) + tokens > limit:
                errors = [full(model, limit)]
        job = Job(
            seq,
            id_(seq),
            model,
            created=now,
            starts=starts,
            ends=starts + settings.work,
            expires=None if window is None else now + window,
            given=given,
            seen=now + settings.list_lag,
            lines=lines,
            tokens=0 if errors else tokens,
            errors=errors or [],
        )
        jobs[job.id] = job
        return job

    def jobs(self, limit: int, *, after: Job | None = None, skip: int = 0) -> list[Job]:
        """Return the jobs that are already listed, by default the newest first."""
        listed = [job for job in self.state.jobs.values() if job.seen <= self.now]
        if not self.settings.oldest_first:
            listed.reverse()
        start = skip if after is None else listed.index(after) + 1
        return listed[start : start + limit]

    def cancel(self, job: Job) -> None:
        """Begin to cancel a job, unless it has ended."""
        if job.ended is None and job.cancelled is None:
            job.cancelled, job.status = self.now, "cancelling"
            self.advance()

    # --- what happens -----------------------------------------------------------------------------

    def advance(self) -> None:
        """Bring the state up to the present."""
        for job in self.state.jobs.values():
            if job.ended is None:
                self._advance(job, self.now)

    def _advance(self, job: Job, now: float) -> None:
        ends = [(job.starts, "failed") if job.errors else (job.ends, "completed")]
        if job.expires is not None:
            ends.append((job.expires, "expired"))
        if job.cancelled is not None:
            ends.append((job.cancelled + self.settings.cancelling, "cancelled"))
        at, status = min(ends)
        if status != "failed":
            until = at if at < job.ends else job.ends + 1
            for line in job.lines:
                if line.status is None and line.done <= min(now, at) and line.done < until:
                    self._answer(job, line)
        if now >= at:
            job.ended, job.status = at, status
        elif now >= job.starts and job.cancelled is None:
            job.status = "working"

    def _answer(self, job: Job, line: Line) -> None:
        body = {"model": job.model, **line.body}
        rng = Random(f"{self.settings.seed}|error|{job.seq}|{line.custom_id}")
        if why := self.dialect.refusal(body):
            line.status, line.answer = 400, self.dialect.failure(400, why)
        elif rng.random() < self.settings.error_rate:
            line.status, line.answer = 500, self.dialect.failure(500, "The server had an error")
        else:
            line.status, line.answer = 200, self.reply(body, line.custom_id, line.done, job.id)

    def reply(
        self, body: dict[str, Any], custom_id: str, now: float, job: str | None = None
    ) -> dict[str, Any]:
        """Answer a request, and add it to the bill."""
        asked = self.dialect.asked(body)
        drawn = replies.draw(self.settings, asked, body, custom_id)
        prices = self.settings.prices
        sent, received = prices.get(asked.model, prices["*"])
        nano = drawn.input_tokens * sent + drawn.output_tokens * received
        nano = nano // 2 if job is not None else nano
        charges = self.state.charges
        charges.append(Charge(job, custom_id, drawn.input_tokens, drawn.output_tokens, nano))
        return self.dialect.answer(body, drawn, self.id_for("", len(charges)), now)

    def bill(self) -> dict[str, dict[str, int]]:
        """Return all costs: requests, tokens and nano-dollars, in jobs and directly."""

        def total(charges: list[Charge]) -> dict[str, int]:
            return {
                "requests": len(charges),
                "input_tokens": sum(charge.input for charge in charges),
                "output_tokens": sum(charge.output for charge in charges),
                "nano": sum(charge.nano for charge in charges),
            }

        charges = self.state.charges
        in_jobs = [charge for charge in charges if charge.job is not None]
        direct = [charge for charge in charges if charge.job is None]
        return {"jobs": total(in_jobs), "direct": total(direct), "all": total(charges)}

    def results_are_gone(self, job: Job) -> bool:
        """Return whether a job's results have been deleted."""
        kept = self.settings.kept
        return kept is not None and self.now > job.created + kept
