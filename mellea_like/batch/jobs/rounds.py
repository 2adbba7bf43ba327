"""Rounds of jobs: waiting requests are submitted, jobs are polled, and results are collected.

Each step is recorded in the store before the provider hears of it. The store records a job, and
then the job's requests are uploaded. The store records that the job is being created, and then the
job is created. If the provider's response is lost, by a broken connection or a crash, the run looks
for the job at the provider before it creates another one.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio

from mellea_like.backends import Intention, JobState
from mellea_like.batch.jobs.backend import BatchJobs, check_alike
from mellea_like.batch.jobs.records import UNDER_WAY, JobStage
from mellea_like.batch.jobs.store import JobStore, OneThread
from mellea_like.core.backend import Options
from mellea_like.core.display import plural
from mellea_like.errors import BackendError, InvalidRequest, LimitExceeded, MalformedResponse
from mellea_like.limits import reserve_round
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from mellea_like.backends import BatchAPI, JobResult
    from mellea_like.batch.jobs.records import Ask, StoredJob, Waiting
    from mellea_like.core.generation import Usage
    from mellea_like.limits import Budget, ReservedRound


MANY = 500
"""The number of requests or results to write in one transaction."""

PACKAGING = 256
"""The bytes to allow for a request in a job's file in addition to its body: id, method, path."""

LONGEST = 600.0
"""The most seconds to wait before submitting again to a provider that refused a job."""


class _Provider:
    """A backend whose requests go into jobs, and how its provider has responded so far."""

    def __init__(self, backend: BatchJobs) -> None:
        self.backend = backend
        self.tried = False  # Whether an item was chosen to try the backend out.
        self.most = math.inf  # The most requests in the next job.
        self.refusals = 0
        self.wait_until = 0.0

    def later(self, now: float, wanted: float | None = None) -> None:
        """Submit nothing for a while, which gets longer with each refusal."""
        poll = self.backend.poll
        wait = poll * 2.0 ** min(self.refusals, 30)
        self.refusals += 1
        self.wait_until = now + max(wanted or 0.0, poll, min(wait, LONGEST))


class JobRounds:
    """Submits, polls and collects the jobs of a run, round after round."""

    def __init__(
        self,
        store: Callable[[], JobStore],
        budgets: Sequence[Budget],
        changed: Callable[[], None],
    ) -> None:
        self._make_store = store
        self._budgets = budgets
        self._changed = changed
        self._providers: dict[str, _Provider] = {}
        self._buffer: list[Ask] = []
        self.do = OneThread()
        self._reserved: dict[int, ReservedRound] = {}
        self._ready: set[int] = set()
        self._told = set[str]()
        self._sought: dict[int, float] = {}  # When the search for a job began, by the job's id.
        self.direct: frozenset[str] = frozenset()
        """The `BatchJobs.place` of each backend whose ``direct`` backend answers now."""
        self.canaries = set[int]()
        """The items that try a backend out."""
        self.problem: LimitExceeded | None = None
        """The error of a budget that can't pay for the next requests; None if there is none."""
        self.states: dict[int, JobState] = {}
        """The last known states of the jobs under way, by their ids in the store."""

    async def open(self) -> None:
        """Open the file, and read the state that an earlier session of the run has left."""
        self.store = await self.do(self._make_store)
        known = await self.do(self.store.jobs)
        # The time never goes back, even if the computer's clock does.
        today = max([time.time(), *(job.noted for job in known)])
        self._began = today - anyio.current_time()

    def release(self) -> None:
        """Release the budgets' reservations for jobs. The jobs continue at the provider."""
        for reserved in self._reserved.values():
            reserved.settle(None)

    async def close(self) -> None:
        """Write the buffered requests, and close the file."""
        await self._flush()
        await self.do(self.store.close)

    def _now(self) -> float:
        """Return the Unix time, derived from the event loop's clock so that it never goes back."""
        return self._began + anyio.current_time()

    # Requests

    def use(self, backend: BatchJobs) -> None:
        """Submit and poll jobs with a backend, which must be like others of the same model."""
        check_alike(self._providers.setdefault(backend.place, _Provider(backend)).backend, backend)

    async def ask(self, backend: BatchJobs, ask: Ask) -> None:
        """Record a request that waits for a job."""
        self.use(backend)
        self._buffer.append(ask)
        if len(self._buffer) >= MANY:
            await self._flush()

    async def _flush(self) -> None:
        if self._buffer:
            asks, self._buffer = self._buffer, []
            await self.do(self.store.ask, asks)

    # A round

    async def round(self) -> set[int]:
        """Submit the waiting requests; return the items whose requests are answered now.

        This includes those that ``BatchJobs.direct`` answers next. There are none if no request is
        waiting. Raise if the budget can't pay for the requests that are left.
        """
        await self._flush()
        self.direct = frozenset()
        self.problem = None
        while True:
            if items := await self._directly():
                return items
            await self._submit()
            items, self._ready = self._ready, set()
            for job in await self._under_way():
                items |= await self.look_at(job)
            if items:
                return items
            pause = self._poll()
            if not await self._under_way():
                if not await self._waits():
                    if self.problem is not None:
                        raise self.problem
                    return set()
                # There is nothing to look at until something can be submitted again.
                soonest = min(one.wait_until for one in self._providers.values())
                pause = max(pause, soonest - self._now())
            await anyio.sleep(pause)

    async def look_until(self, done: anyio.Event) -> None:
        """Poll the jobs until ``done``, because items may be waiting for budget that jobs hold."""
        while self._budgets and self._reserved and not done.is_set():
            with anyio.move_on_after(self._poll()):
                await done.wait()
                return
            for job in await self._under_way():
                self._ready |= await self.look_at(job)

    def _poll(self) -> float:
        return min(one.backend.poll for one in self._providers.values())

    async def _under_way(self) -> list[StoredJob]:
        jobs = await self.do(self.store.jobs, *UNDER_WAY)
        return [job for job in jobs if job.api in self._providers]

    async def _waits(self) -> bool:
        if self.problem is not None:
            return False
        for place in self._providers:
            if await self.do(self.store.waiting_items, place):
                return True
        return False

    async def _directly(self) -> set[int]:
        """Choose the items that ``direct`` answers next: the first, as a trial, or the last few."""
        items = set[int]()
        direct = set[str]()
        under_way = await self._under_way()
        for place, provider in self._providers.items():
            backend = provider.backend
            if backend.direct is None:
                continue
            most = max(1, backend.direct_below)
            waiting = await self.do(self.store.waiting_items, place, most)
            if not waiting:
                continue
            if len(waiting) < backend.direct_below and not under_way:
                items |= set(waiting)
            elif backend.canary and not provider.tried:
                provider.tried = True
                if await self.do(self.store.jobs):
                    continue  # An earlier sitting has tried an item already.
                items.add(waiting[0])
                self.canaries.add(waiting[0])
            else:
                continue
            direct.add(place)
        for place in direct:  # An item is answered directly wherever it waits.
            await self.do(self.store.leave_out, place, items)
        self.direct = frozenset(direct)
        return items

    # Submitting

    async def _submit(self) -> None:
        for provider in self._providers.values():
            if self._now() < provider.wait_until:
                continue
            while await self._submit_one(provider):
                pass

    async def _submit_one(self, provider: _Provider) -> bool:
        """Submit one job, if possible; return whether there may be another one to submit."""
        backend = provider.backend
        under_way = [job for job in await self._under_way() if job.api == backend.place]
        if len(under_way) >= backend.jobs_at_once:
            return False
        room = None
        if backend.enqueued_tokens is not None:
            room = backend.enqueued_tokens - sum(job.tokens for job in under_way)
        most = min(provider.most, backend.requests_per_job)
        requests, hopeless = await self.do(
            _fitting, self.store, backend, most, room, alone=not under_way
        )
        self._ready |= hopeless  # These items have an answer, too: an error.
        if not requests:
            return False
        try:
            reserved = await reserve_round(
                self._budgets,
                backend.model,
                [(r.input_tokens, Options(max_tokens=r.max_tokens)) for r in requests],
            )
        except LimitExceeded as exc:
            self.problem = exc
            return False
        if reserved is None:
            return False
        created = False
        try:
            created = await self._create(provider, requests[: reserved.count], reserved)
        finally:
            if not created:
                reserved.settle(None)
        return created

    async def _create(
        self, provider: _Provider, requests: Sequence[Waiting], reserved: ReservedRound
    ) -> bool:
        backend, store = provider.backend, self.store
        api = backend.api
        job: StoredJob | None = None
        try:
            before = await api.known()
            job = await self.do(
                store.note, uuid4().hex, backend.place, requests, before, self._now()
            )
            intention = intention_of(store, job)
            await self.do(_write, store.upload, store.lines(job, api.line))
            uploaded = await api.upload(intention, store.upload)
            await self.do(store.update, job, stage=JobStage.CREATING)
            # A run that is stopped now may leave the job behind.
            self.states[job.id] = JobState("", "being created", ended=False, total=len(requests))
            self._changed()
            state = await api.create(intention, uploaded)
            await self.do(store.upload.unlink)
        except BackendError as exc:
            # The job does not exist.
            if job is not None:
                await self._void(job)
            if not exc.retryable:
                raise
            provider.later(self._now(), exc.retry_after)
            self._warn_once(f"{backend!r} did not accept a job; trying again: {exc}")
            return False
        self._reserved[job.id] = reserved
        if state is not None:
            await self.do(store.created, job, state)
            self.states[job.id] = state
        self._changed()
        return True

    def _gone(self, job: StoredJob) -> None:
        """Record that a job isn't under way any more."""
        self.states.pop(job.id, None)
        self._changed()

    def _warn_once(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            warn("%s", message)

    # Looking

    async def look_at(self, job: StoredJob) -> set[int]:
        """Poll a job; return the items that it has answered, or an empty set if it hasn't ended."""
        provider = self._providers[job.api]
        backend = provider.backend
        await self._reserve_again(job, backend)
        try:
            if job.stage is not JobStage.AT_WORK:
                found = await self._find(job, backend)
                if found is None:
                    return set()
                state = found
            else:
                state = await backend.api.look(job.provider_id or "")
                if state != self.states.get(job.id):
                    await self.do(self.store.seen, job, state)
            self.states[job.id] = state
            self._changed()
            if not state.ended:
                late = backend.deadline is not None and (self._now() > job.noted + backend.deadline)
                if late and not job.cancelled:
                    warn("%r: cancelling job %s", backend, state.id)
                    await backend.api.cancel(state.id)
                    await self.do(self.store.update, job, cancelled=1)
                return set()
            return await self._ended(job, provider, state)
        except BackendError as exc:
            if not exc.retryable:
                raise
            self._warn_once(f"{backend!r}: can't check on its jobs, which keep running: {exc}")
            return set()

    async def _reserve_again(self, job: StoredJob, backend: BatchJobs) -> None:
        """Reserve the cost of a job from an earlier session, even if it exceeds the budgets."""
        if job.id not in self._reserved:
            costs = await self.do(self.store.costs, job)
            wanted = [(sent, Options(max_tokens=most)) for sent, most in costs]
            reserved = None
            if wanted:
                reserved = await reserve_round(self._budgets, backend.model, wanted, paid=True)
            if reserved is not None:
                self._reserved[job.id] = reserved

    async def _find(self, job: StoredJob, backend: BatchJobs) -> JobState | None:
        """Look for a job whose creation is unconfirmed; if it wasn't created, make it void."""
        found: Any = None
        now = self._now()
        # It may have been created only now, long after it was noted: uploads take time.
        began = self._sought.setdefault(job.id, now)
        if job.stage is JobStage.CREATING:
            found = await backend.api.find(intention_of(self.store, job))
        if isinstance(found, JobState):
            await self.do(self.store.created, job, found)
            return found
        waits = found is not None or (
            job.stage is JobStage.CREATING and now < began + backend.settled
        )
        if not waits:
            await self._void(job)
        return None

    async def _ended(self, job: StoredJob, provider: _Provider, state: JobState) -> set[int]:
        backend, store = provider.backend, self.store
        if state.full:
            await self._void(job)
            provider.later(self._now())
            if not any(other.api == job.api for other in await self._under_way()):
                # This run has no other job under way, so this one may be too large by itself.
                provider.most = max(1, job.requests // 2)
            self._warn_once(f"{backend!r}: its queue is full; jobs wait until others have ended")
            return set()
        self._gone(job)
        provider.refusals = 0
        provider.most *= 2
        if state.errors and not any(state.outputs):
            return await self._refused(job, backend, state)
        patient = backend.deadline is None or self._now() < job.noted + backend.deadline
        await collect(store, job, backend.api, state, self.do, tries=backend.tries, patient=patient)
        cost = await self.do(store.cost, job)
        self._settle(job, cost)
        return await self.do(store.items_of, job)

    async def _refused(self, job: StoredJob, backend: BatchJobs, state: JobState) -> set[int]:
        """Record that a job was refused; return the items at fault, or raise if none is named."""
        lines = [(e.line, f"{e.code}: {e.message}") for e in state.errors if e.line is not None]
        for line, why in lines:
            await self.do(self.store.refuse, job, line, why)
        items = await self.do(self.store.items_of, job)
        await self._void(job)
        if not lines:
            why = "; ".join(f"{error.code}: {error.message}" for error in state.errors)
            msg = f"{backend!r} refused job {state.id}: {why}"
            raise InvalidRequest(msg)
        return items

    async def _void(self, job: StoredJob) -> None:
        """Let a job's requests wait for another one, and release the budget reserved for it."""
        self._gone(job)
        await self.do(self.store.void, job)
        self._settle(job)

    def _settle(self, job: StoredJob, cost: Usage | None = None) -> None:
        reserved = self._reserved.pop(job.id, None)
        if reserved is not None:
            reserved.settle(cost)


def intention_of(store: JobStore, job: StoredJob) -> Intention:
    """Return the facts by which a job can be found at its provider."""
    prefix = f"{store.prefix}{job.id}-"
    return Intention(job.key, prefix, job.requests, job.before)


def _fitting(
    store: JobStore,
    backend: BatchJobs,
    most: float,
    room: int | None,
    *,
    alone: bool,
) -> tuple[list[Waiting], set[int]]:
    """Return the requests for the next job, and the items with a request too large for any job."""
    requests: list[Waiting] = []
    hopeless = set[int]()
    size = tokens = 0
    for request in store.waiting(backend.place):
        own = request.bytes + PACKAGING
        if own > backend.bytes_per_job:
            store.fail(
                request.id,
                f"the request has {own:,} bytes, but a job can have at most"
                f" {backend.bytes_per_job:,}",
            )
            hopeless.add(request.item)
            continue
        if len(requests) >= most or size + own > backend.bytes_per_job:
            break
        # The first request may exceed the room if no other job is under way.
        if room is not None and tokens + request.input_tokens > room and (requests or not alone):
            break
        requests.append(request)
        size += own
        tokens += request.input_tokens
    return requests, hopeless


def _write(path: Path, lines: Iterable[str]) -> None:
    """Write a file that only its owner may read."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


DOWNLOADS = 6
"""The most attempts to download a job's results."""

PAUSE = 2.0
"""The seconds before an interrupted download is tried again; doubled each time."""


async def collect(
    store: JobStore,
    job: StoredJob,
    api: BatchAPI,
    state: JobState,
    do: OneThread,
    *,
    tries: int,
    patient: bool,
) -> None:
    """Store the results of a job that has ended; if a download is cut off, fetch them again.

    If even the last one is incomplete, that is an error while the run is ``patient``. Later, the
    missing requests go into another job (at most ``tries``), although they may have been paid for.
    """
    for download in range(1, DOWNLOADS + 1):
        chunk: list[tuple[JobResult, Usage]] = []
        try:
            async with api.results(state) as results:
                async for result in results:
                    chunk.append((result, api.usage(result.outcome)))
                    if len(chunk) >= MANY:
                        await do(store.take, job, chunk)
                        chunk = []
            await do(store.take, job, chunk)
            break
        except BackendError as exc:
            await do(store.take, job, chunk)
            last = download == DOWNLOADS
            if last and not patient and isinstance(exc, MalformedResponse):
                warn("%r: missing results of job %s go into another job: %s", api, state.id, exc)
                break
            if last or not exc.retryable:
                raise
            warn("%r: fetching the results of job %s again: %s", api, state.id, exc)
            await anyio.sleep(PAUSE * 2 ** (download - 1))
    await do(store.collected, job, state, tries, f"no answer in {plural(tries, 'job')}")
