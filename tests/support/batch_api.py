"""A provider's batch API in memory: its jobs take virtual time, and misbehave on request."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio
from anyio.lowlevel import checkpoint

from mellea_like import Generation, Request
from mellea_like.backends import (
    Intention,
    JobError,
    JobLimits,
    JobOutcome,
    JobResult,
    JobState,
)
from mellea_like.core import Options, Usage
from mellea_like.errors import BackendUnavailable, InvalidRequest, MalformedResponse, RateLimited

Answer = Callable[[list[str]], str]

LIMITS = JobLimits(1000, 1_000_000)


@dataclass
class FakeJob:
    """A job at the provider."""

    id: str
    key: str
    lines: dict[str, dict[str, Any]]
    created: float
    ends: float
    status: str = "in_progress"
    results: dict[str, JobOutcome] = field(default_factory=dict)
    errors: tuple[JobError, ...] = ()


class FakeProvider:
    """The provider's state, which outlives the runs that use it.

    Args:
        answer: gives the reply to the texts of a request's messages.
        seconds: how long a job takes.
    """

    def __init__(self, answer: Answer, seconds: float = 300.0) -> None:
        self.answer = answer
        self.seconds = seconds
        self.jobs: dict[str, FakeJob] = {}
        self.uploads = Counter[str]()
        self.asked = Counter[str]()
        """How many times each prompt was worked on."""
        self.usage = Usage()
        """What is billed."""
        self.lost: list[str] = []
        """How the next creations end: lost ``"after"`` or ``"before"`` the job is made, refused."""
        self.hidden = 0
        """How many times a search doesn't list jobs yet."""
        self.fate: Callable[[str, str], JobOutcome | None] = lambda custom_id, prompt: None
        """What comes of a request in place of a reply."""
        self.looked: Callable[[], object] = lambda: None
        """Called when someone looks at a job."""
        self.cut = 0
        """How many downloads end in the middle."""
        self.full_from: int | None = None
        """How many jobs may be at work; a further one fails, since too many tokens are enqueued."""
        self.most: int | None = None
        """How many requests may be enqueued."""
        self.down_until = 0.0
        """Until when nobody can reach it."""
        self.attempts = 0
        """How many times someone has begun to submit a job."""
        self.odd: list[JobResult] = []
        """More results in every download."""
        self.missing = 0
        """How many results downloads lack, although the job says that it has them."""

    def work(self, now: float) -> None:
        """Finish the jobs that are due."""
        for job in self.jobs.values():
            if job.status == "in_progress" and now >= job.ends:
                job.status = "completed"
                for custom_id in job.lines:
                    self._answer(job, custom_id)

    def _answer(self, job: FakeJob, custom_id: str) -> None:
        texts = job.lines[custom_id]["texts"]
        outcome = self.fate(custom_id, texts[-1])
        if outcome is None:
            self.asked["\n".join(texts)] += 1
            text = self.answer(texts)
            usage = Usage(1, sum(len(t.split()) for t in texts), len(text.split()))
            self.usage += usage
            outcome = JobOutcome(
                {"text": text, "in": usage.input_tokens, "out": usage.output_tokens}
            )
        job.results[custom_id] = outcome


class FakeAPI:
    """A `BatchAPI` for a `FakeProvider`."""

    can_judge = True
    name = "fake"
    where = "memory"

    def __init__(
        self,
        provider: FakeProvider,
        model: str = "small",
        *,
        limits: JobLimits = LIMITS,
        keys: bool = True,
    ) -> None:
        self.provider = provider
        self.model = model
        self.limits = limits
        self.defaults = Options()
        self.keys = keys

    def body(self, request: Request) -> dict[str, Any]:
        if request.options.stop:
            raise InvalidRequest("fake jobs take no stop texts")
        body: dict[str, Any] = {"texts": [m.text for m in request.messages]}
        if request.options.seed is not None:
            body["seed"] = request.options.seed
        return body

    def line(self, custom_id: str, body: Mapping[str, Any]) -> str:
        return json.dumps({"custom_id": custom_id, "body": body})

    def reply(self, request: Request, outcome: JobOutcome, meter: Any) -> Generation:
        usage = self.usage(outcome)
        meter.settle(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
        if outcome.reply is None:
            raise InvalidRequest(outcome.error)
        return Generation(outcome.reply["text"], None, usage, self.model, "stop")

    def usage(self, outcome: JobOutcome) -> Usage:
        if outcome.reply is None:
            return Usage()
        return Usage(1, outcome.reply["in"], outcome.reply["out"])

    async def known(self) -> Sequence[str]:
        await checkpoint()
        self.provider.attempts += 1
        if anyio.current_time() < self.provider.down_until:
            raise BackendUnavailable("nobody is there")
        return () if self.keys else list(self.provider.jobs)

    async def upload(self, intention: Intention, lines: Path) -> str:
        await checkpoint()
        self.provider.uploads[intention.key] += 1
        return str(lines)

    async def create(self, intention: Intention, uploaded: str) -> JobState | None:
        provider = self.provider
        await checkpoint()
        fate = provider.lost.pop(0) if provider.lost else ""
        if fate == "refused":
            raise RateLimited("too many jobs", retry_after=90)
        if fate == "before":
            return None
        now = anyio.current_time()
        text = await anyio.Path(uploaded).read_text("utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
        job = FakeJob(
            f"job_{len(provider.jobs) + 1}",
            intention.key,
            {line["custom_id"]: line["body"] for line in lines},
            now,
            now + provider.seconds,
        )
        assert len(job.lines) == len(lines) == intention.count <= self.limits.requests
        assert all(len(i) <= 64 and i.startswith(intention.prefix) for i in job.lines)
        at_work = sum(other.status == "in_progress" for other in provider.jobs.values())
        if provider.full_from is not None and at_work >= provider.full_from:
            job.status = "failed"
            job.errors = (JobError("token_limit_exceeded", "too many tokens are enqueued"),)
        enqueued = sum(len(j.lines) for j in provider.jobs.values() if j.status == "in_progress")
        if provider.most is not None and enqueued + len(lines) > provider.most:
            job.status = "failed"
            job.errors = (JobError("token_limit_exceeded", "too many tokens are enqueued"),)
        provider.jobs[job.id] = job
        return None if fate == "after" else self._state(job)

    async def find(self, intention: Intention) -> JobState | Literal["perhaps"] | None:
        await checkpoint()
        self.provider.work(anyio.current_time())
        if self.provider.hidden:
            self.provider.hidden -= 1
            return None
        for job in self.provider.jobs.values():
            if self.keys and job.key == intention.key:
                return self._state(job)
            if (
                not self.keys
                and job.id not in intention.before
                and len(job.lines) == intention.count
            ):
                if job.status == "in_progress":
                    return "perhaps"
                if all(i.startswith(intention.prefix) for i in job.lines):
                    return self._state(job)
        return None

    async def look(self, job: str) -> JobState:
        self.provider.looked()
        await checkpoint()
        self.provider.work(anyio.current_time())
        return self._state(self.provider.jobs[job])

    def _state(self, job: FakeJob) -> JobState:
        return JobState(
            job.id,
            job.status,
            ended=job.status in {"completed", "failed", "expired", "cancelled"},
            total=len(job.lines),
            succeeded=len(job.results),
            full=any(e.code == "token_limit_exceeded" for e in job.errors),
            errors=job.errors,
            outputs=("out" if job.results else "", ""),  # As OpenAI's.
        )

    @asynccontextmanager
    async def results(self, state: JobState) -> AsyncIterator[AsyncIterator[JobResult]]:
        job = self.provider.jobs[state.id]
        found = [JobResult(i, outcome) for i, outcome in job.results.items()]
        random.Random(7).shuffle(found)
        found = [*found[self.provider.missing :], *self.provider.odd]

        async def each() -> AsyncIterator[JobResult]:
            for n, result in enumerate(found):
                await checkpoint()
                if self.provider.cut and n >= len(found) // 2:
                    self.provider.cut -= 1
                    raise BackendUnavailable("the download was cut")
                yield result
            if self.provider.missing:
                raise MalformedResponse("the download has fewer results than the job")

        yield each()

    async def cancel(self, job: str) -> JobState:
        await checkpoint()
        fake = self.provider.jobs[job]
        if fake.status == "in_progress":
            fake.status = "cancelled"
            for n, custom_id in enumerate(fake.lines):
                if n % 2:
                    fake.results[custom_id] = JobOutcome(unrun="cancelled")
                else:
                    self.provider._answer(fake, custom_id)
        return self._state(fake)

    async def aclose(self) -> None:
        await checkpoint()
