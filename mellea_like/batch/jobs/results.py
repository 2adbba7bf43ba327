"""Collecting the results of a job that has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.core.display import plural
from mellea_like.errors import BackendError, MalformedResponse
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.backends import BatchAPI, JobResult, JobState
    from mellea_like.batch.jobs.records import StoredJob
    from mellea_like.batch.jobs.store import JobStore
    from mellea_like.core.generation import Usage

__all__ = ["collect"]

MANY = 500
"""How many results are written together."""

DOWNLOADS = 6
"""How many times results are fetched until that is given up."""

PAUSE = 2.0
"""Seconds until a download that was cut is tried again; doubled each time."""


async def collect(
    store: JobStore,
    job: StoredJob,
    api: BatchAPI,
    state: JobState,
    do: Callable[..., Any],
    *,
    tries: int,
    patient: bool,
) -> None:
    """Keep the results of a job that has ended, fetching them again if a download is cut.

    Args:
        store: where they are kept.
        job: the job.
        api: whose it is.
        state: its state, as the provider has it.
        do: runs a function in the store's thread.
        tries: how many jobs may leave a request without an answer.
        patient: whether results that every download lacks may still come. If not, their requests go
            into another job, although they may have been paid for.

    Raises:
        BackendError: they can't be had.
    """
    pause, strays = PAUSE, 0
    chunk: list[tuple[JobResult, Usage]] = []
    for last in (*[False] * (DOWNLOADS - 1), True):
        try:
            chunk, strays = [], 0
            async with api.results(state) as results:
                async for result in results:
                    chunk.append((result, api.usage(result.outcome)))
                    if len(chunk) >= MANY:
                        strays += await do(store.take, job, chunk)
                        chunk = []
            strays += await do(store.take, job, chunk)
            break
        except BackendError as exc:
            strays += await do(store.take, job, chunk)
            if last and not patient and isinstance(exc, MalformedResponse):
                warn("%r: what is missing of job %s goes into another one: %s", api, state.id, exc)
                break
            if last or not exc.retryable:
                raise
            warn("%r: the results of job %s are fetched again: %s", api, state.id, exc)
            await anyio.sleep(pause)
            pause *= 2
    if strays:
        what = plural(strays, "result")
        warn("%r: job %s has %s of requests that it was never given", api, state.id, what)
    await do(store.collected, job, state, tries, f"no answer in {plural(tries, 'job')}")
