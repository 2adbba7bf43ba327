"""Read the states and costs of a run's jobs, and cancel jobs, without resuming the run."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread

from mellea_like.batch.jobs.backend import BatchJobs
from mellea_like.batch.jobs.records import UNDER_WAY, JobStage
from mellea_like.batch.jobs.rounds import JobRounds
from mellea_like.batch.jobs.store import JobStore, jobs_path
from mellea_like.batch.journal.reader import read_run
from mellea_like.batch.journal.writer import JournalLock
from mellea_like.core.generation import Usage
from mellea_like.core.prices import IN_A_JOB, Price, cost, price_for
from mellea_like.errors import InvalidRequest, JournalError
from mellea_like.report.views import RunView
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from mellea_like.backends import BatchAPI
    from mellea_like.batch.jobs.records import StoredJob

AT_ONCE = 1e-9
"""A deadline, in seconds, that has passed for each job."""

TRIES = 10**6
"""The most jobs that a request may go into: so many that cancelling never gives a request up."""


@dataclass
class JobFile:
    """The jobs of a run and their costs, as read from the file of jobs and the run's journal."""

    path: Path
    counts: Mapping[str, int]
    jobs: list[StoredJob]
    waiting: int
    reserved: Usage
    reserved_cost: tuple[float, str] | None
    billed: Usage
    billed_cost: tuple[float, str] | None
    places: list[str] = field(default_factory=list[str])
    """The `BatchJobs.place` of each backend with jobs under way."""

    @classmethod
    def read(cls, path: Path) -> JobFile:
        """Read the file of jobs beside the journal at ``path``; call this in a thread."""
        run = _run_with_jobs(path)
        prices = {n: Price.from_list(p) for n, p in (run.prices or {}).items()}
        with closing(JobStore(path, look=True)) as store:
            jobs = store.jobs()
            at_work = [job for job in jobs if job.stage in UNDER_WAY]
            reserved = {job.api: Usage() for job in at_work}
            for job in at_work:
                for sent, received in store.costs(job):
                    reserved[job.api] += Usage(1, sent, received or 0)
            billed = {job.api: Usage() for job in jobs}
            for job in jobs:
                billed[job.api] += store.cost(job)
            return cls(
                path,
                run.counts,
                [job for job in jobs if job.stage is not JobStage.VOID],
                store.count_waiting(),
                sum(reserved.values(), Usage()),
                _money(reserved, prices),
                sum(billed.values(), Usage()),
                _money(billed, prices),
                list(dict.fromkeys(job.api for job in at_work)),
            )

    async def refresh(self, place: str, api: BatchAPI) -> None:
        """Ask the provider for the states of the jobs with this `BatchJobs.place`."""
        for n, job in enumerate(self.jobs):
            if job.api == place and job.stage is JobStage.AT_WORK and job.provider_id:
                state = await api.look(job.provider_id)
                self.jobs[n] = job._replace(state=state._asdict(), cancelled=False)


def _run_with_jobs(path: Path) -> RunView:
    """Read the record of a run from its journal; raise if the run has no jobs."""
    run = RunView(read_run(path, check=False))
    if not jobs_path(path).exists():
        msg = f"{path} has no jobs: only runs with a batch API (--batch-api) have them"
        raise JournalError(msg)
    return run


def _money(spent: dict[str, Usage], prices: Any) -> tuple[float, str] | None:
    """Return the cost of all usage and its currency; None if a price is unknown."""
    models = {place: f"{place.split(' ')[1]}{IN_A_JOB}" for place in spent}
    found = [price_for(model, prices) for model in models.values()] if prices else [None]
    if not found or None in found:
        return None
    total = sum(cost(usage, models[place], prices) for place, usage in spent.items())
    return total, found[0].currency if found[0] else "USD"


async def cancel_jobs(path: Path, api_at: Callable[[str], BatchAPI], *, poll: float) -> None:
    """Cancel the jobs of a run that isn't running now, and keep the answers that they have."""
    await to_thread.run_sync(_run_with_jobs, path)
    lock = await to_thread.run_sync(JournalLock, path)
    try:
        await _cancel_all(JobRounds(partial(JobStore, path), (), lambda: None), api_at, poll)
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(lock.release)


async def _cancel_all(rounds: JobRounds, api_at: Callable[[str], BatchAPI], poll: float) -> None:
    backends: dict[str, BatchJobs] = {}
    await rounds.open()
    try:
        while jobs := await rounds.do(rounds.store.jobs, *UNDER_WAY):
            for job in jobs:
                if job.api not in backends:
                    # All jobs are past this deadline, and so they are cancelled.
                    own = BatchJobs(api_at(job.api), poll=poll, deadline=AT_ONCE, tries=TRIES)
                    backends[job.api] = own
                    rounds.use(own)
                try:
                    await rounds.look_at(job)
                except InvalidRequest as exc:
                    warn("giving up on job %s: %s", job.provider_id, exc)
                    await rounds.do(rounds.store.void, job)
            if await rounds.do(rounds.store.jobs, *UNDER_WAY):
                await anyio.sleep(poll)
    finally:
        with anyio.CancelScope(shield=True):
            for backend in backends.values():
                await backend.aclose()
            await rounds.close()
