"""Read the states and costs of a run's jobs, and cancel jobs, without resuming the run."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.backends import JobState
from mellea_like.batch.jobs.records import UNDER_WAY, JobStage
from mellea_like.batch.jobs.rounds import collect, intention_of
from mellea_like.batch.jobs.store import JobStore, OneThread, jobs_path
from mellea_like.batch.journal.reader import read_run
from mellea_like.batch.journal.writer import JournalLock
from mellea_like.core.generation import Usage
from mellea_like.core.prices import IN_A_JOB, Price, cost, price_for
from mellea_like.errors import BackendError, InvalidRequest, JournalError
from mellea_like.report.views import RunView

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from mellea_like.backends import BatchAPI
    from mellea_like.batch.jobs.records import StoredJob

SETTLED = 30.0
"""The seconds after which a provider is sure to list a job that it has created."""

TRIES = 10**6
"""The most jobs that a request may go into.

It is too high to be reached, so no request is given up because its job was cancelled.
"""


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


async def cancel_jobs(
    path: Path,
    api_at: Callable[[str], BatchAPI],
    *,
    poll: float,
    tell: Callable[[str], object] = lambda _: None,
) -> None:
    """Cancel the jobs of a run that isn't running now, and keep the answers that they have."""
    do = OneThread()

    def opened() -> tuple[JournalLock, JobStore]:
        _run_with_jobs(path)
        lock = JournalLock(path)
        try:
            return lock, JobStore(path)
        except BaseException:
            lock.release()
            raise

    lock, store = await do(opened)
    apis: dict[str, BatchAPI] = {}
    listed = anyio.current_time() + SETTLED
    try:
        while jobs := await do(store.jobs, *UNDER_WAY):
            for job in jobs:
                if job.api not in apis:
                    apis[job.api] = api_at(job.api)
                await _cancel(store, job, apis[job.api], do, tell, listed)
            if await do(store.jobs, *UNDER_WAY):
                await anyio.sleep(poll)
    finally:
        with anyio.CancelScope(shield=True):
            for api in apis.values():
                await api.aclose()
            await do(store.close)
            await do(lock.release)


async def _cancel(
    store: JobStore,
    job: StoredJob,
    api: BatchAPI,
    do: OneThread,
    tell: Callable[[str], object],
    listed: float,
) -> None:
    """Take the next step to cancel a job and collect its results.

    After the time ``listed``, a job that the provider doesn't list was never created.
    """
    name = job.provider_id
    if job.stage is JobStage.NOTED:
        await do(store.void, job, tried=False)
        return
    if job.stage is JobStage.CREATING:
        now = anyio.current_time()
        found = await api.find(intention_of(store, job))
        if isinstance(found, JobState):
            await do(store.created, job, found)
            job, name = await do(store.job, job.id), found.id
        elif found is None and now >= listed:
            await do(store.void, job, tried=False)
            return
        else:
            tell("A job may have been created just before the run ended; looking for it.")
            return
    try:
        state = await api.look(name or "")
        if not state.ended and not job.cancelled:
            state = await api.cancel(name or "")
            await do(store.cancelled, job)
            tell(f"Requested the cancellation of job {name}.")
        if not state.ended:
            return
        await collect(store, job, api, state, do, tries=TRIES, patient=False)
        usage = await do(store.cost, job)
        tell(f"Job {name} has ended: {usage.requests:,} of {job.requests:,} requests answered.")
    except InvalidRequest as exc:
        tell(f"Giving up on job {name}: {exc}")
        await do(store.void, job, tried=True)
    except BackendError as exc:
        if not exc.retryable:
            raise
        tell(f"Can't check on job {name} at the moment: {exc}")
