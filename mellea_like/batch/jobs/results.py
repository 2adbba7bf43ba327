"""Collect the results of a job that has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from mellea_like.core.display import plural
from mellea_like.errors import BackendError, MalformedResponse
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from mellea_like.backends import BatchAPI, JobResult, JobState
    from mellea_like.batch.jobs.records import StoredJob
    from mellea_like.batch.jobs.store import JobStore, OneThread
    from mellea_like.core.generation import Usage

MANY = 500
"""The number of results to write in one transaction."""

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

    ``do`` runs a function in the store's thread. After ``tries`` jobs without an answer, a request
    is given up. Even the last download may be incomplete. With ``patient``, that is an error,
    because the missing results may still come. Without it, their requests go into another job,
    although they may have been paid for.
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
