"""Providers' batch APIs on the command line: make their clients, and describe a run's jobs."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Literal, get_args

from mellea_like.batch import BatchJobs
from mellea_like.batch.jobs.records import JobStage
from mellea_like.cli.draw_options import BatchAPIName
from mellea_like.cli.exit_codes import Problem, fail
from mellea_like.core.display import plural
from mellea_like.report.numbers import money, seconds
from mellea_like.specification.section import Name  # noqa: TC001 (pydantic reads it)
from mellea_like.specification.upstream import Upstream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mellea_like.backends import BatchAPI, JobState
    from mellea_like.batch.jobs.overview import JobFile
    from mellea_like.batch.jobs.records import StoredJob
    from mellea_like.core.backend import Backend

MISTRAL_URL = "https://api.mistral.ai/v1"

HOUR = 3600.0


def make_api(name: str, model: str, base_url: str | None) -> BatchAPI:
    """Make a client of a provider's batch API, with the key from the environment."""
    from mellea_like import backends  # noqa: PLC0415 (each provider's SDK is an extra)

    try:
        match name:
            case "openai":
                return backends.OpenAIBatches(model, base_url=base_url)
            case "azure":
                return backends.OpenAIBatches(model, client=backends.azure_client(base_url))
            case "anthropic":
                return backends.AnthropicBatches(model, base_url=base_url)
            case _:  # mistral
                return backends.MistralBatches(model, base_url=base_url)
    except ImportError:
        raise
    except Exception as exc:
        msg = f"--batch-api {name}: {exc}"
        raise Problem(msg) from exc


def api_at(place: str) -> BatchAPI:
    """Make a client from ``place``: a provider, model and URL, as in `BatchJobs.place`."""
    name, model, where = place.split(" ", 2)
    known = get_args(BatchAPIName)
    if name not in known:  # `BatchJobs` takes any `BatchAPI`.
        fail(f"the batch API must be one of {', '.join(known)}, not {name}")
    return make_api(name, model, where)


class JobsUpstream(Upstream):
    """The settings of a model that is used through a provider's batch API."""

    kind: Literal["jobs"]
    api: BatchAPIName
    model: Name
    base_url: str | None = None
    direct_below: int = 0
    canary: bool = False
    job_requests: int | None = None
    jobs_at_once: int = 8
    enqueued_tokens: int | None = None
    job_hours: float | None = None
    poll: float = 30.0

    @property
    def asks_directly(self) -> bool:
        """Whether some requests go to the provider's ordinary API, at its full price."""
        return self.canary or self.direct_below > 0

    def make(self, place: str = "") -> BatchJobs:  # noqa: ARG002 (of a configuration file's section)
        """Make the backend."""
        return BatchJobs(
            make_api(self.api, self.model, self.base_url),
            direct=_direct(self.api, self.model, self.base_url) if self.asks_directly else None,
            direct_below=self.direct_below,
            canary=self.canary,
            requests_per_job=self.job_requests,
            jobs_at_once=self.jobs_at_once,
            enqueued_tokens=self.enqueued_tokens,
            poll=self.poll,
            deadline=None if self.job_hours is None else self.job_hours * HOUR,
        )


def _direct(name: str, model: str, base_url: str | None) -> Backend:
    """Make a backend for the same model at the provider's ordinary API."""
    from mellea_like import backends  # noqa: PLC0415 (each provider's SDK is an extra)

    match name:
        case "openai":
            return backends.OpenAIBackend(model, base_url=base_url)
        case "azure":
            return backends.OpenAIBackend(model, client=backends.azure_client(base_url))
        case "mistral":
            key = os.environ.get("MISTRAL_API_KEY")
            return backends.OpenAIBackend(model, base_url=base_url or MISTRAL_URL, api_key=key)
        case _:
            if base_url is not None:
                os.environ["ANTHROPIC_BASE_URL"] = base_url
            return backends.PydanticAIBackend(f"anthropic:{model}")


def under_way(jobs: Sequence[JobState], journal: object) -> str:
    """Return a sentence about the jobs that a stopped run leaves running; "" if there are none."""
    if not jobs:
        return ""
    them = "it" if len(jobs) == 1 else "them"
    are = "is" if len(jobs) == 1 else "are"
    return (
        f" {plural(len(jobs), 'job')} {are} still running at the provider: collect {them} with"
        f" --resume, or cancel {them} with mellea-like batch cancel {journal}."
    )


def describe(file: JobFile) -> Iterator[str]:
    """Yield lines that describe the jobs of a run."""
    counts = file.counts
    told = [f"{n:,} {status}" for status, n in counts.items() if n]
    rows_of_run = plural(sum(counts.values()), "row")
    yield f"{file.path.name}: {rows_of_run}: {', '.join(told) or 'none yet'}"
    rows = [("job", "model", "status", "answered", "age"), *map(_row, file.jobs)]
    if file.jobs:
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            yield "  ".join(cells).rstrip()
    if file.waiting:
        yield f"Waiting for a job: {plural(file.waiting, 'request')}."
    for what, usage, cost in (
        ("Under way, at most", file.reserved, file.reserved_cost),
        ("Billed for answers so far", file.billed, file.billed_cost),
    ):
        if usage.requests:
            tokens = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
            price = "" if cost is None else f", {money(cost[0], cost[1])}"
            yield f"{what}: {plural(usage.requests, 'request')}, {tokens}{price}."


def _row(job: StoredJob) -> tuple[str, ...]:
    name, model, _ = job.api.split(" ", 2)
    age = seconds(max(0.0, round(time.time() - job.noted)))
    answered = job.state.get("succeeded", 0) + job.state.get("failed", 0)
    status: str = job.stage.value
    if job.stage is JobStage.AT_WORK:
        status = job.state.get("status", "unknown") + ", cancelled" * job.cancelled
    told = f"{answered:,}/{job.requests:,}"
    return job.provider_id or "(unknown)", f"{name} {model}", status, told, age
