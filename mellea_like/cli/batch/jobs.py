"""Providers' batch APIs on the command line: ``batch --batch-api``, ``batch status`` and ``cancel``."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import anyio
from anyio import to_thread

from mellea_like.batch import BatchJobs
from mellea_like.batch.jobs.overview import JobFile, cancel_jobs
from mellea_like.cli.exit_codes import Exit, Problem
from mellea_like.cli.option_fields import argument, option
from mellea_like.cli.standard_streams import one_line, warn
from mellea_like.core.display import plural
from mellea_like.report.numbers import money, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mellea_like.backends import BatchAPI, JobState
    from mellea_like.batch.jobs.overview import KnownJob
    from mellea_like.cli.batch.options import BatchOptions
    from mellea_like.cli.signals import SignalHandler
    from mellea_like.core.backend import Backend

__all__ = ["BatchAPIName", "CancelOptions", "StatusOptions", "jobs_of", "make_api", "under_way"]

BatchAPIName = Literal["openai", "azure", "anthropic", "mistral"]

HOUR = 3600.0


def make_api(name: str, model: str, base_url: str | None) -> BatchAPI:
    """Make a provider's batch API; its key is in the provider's environment variable."""
    from mellea_like import backends  # noqa: PLC0415 (each provider's SDK is an extra)

    try:
        match name:
            case "openai":
                return backends.OpenAIBatches(model, base_url=base_url)
            case "azure":
                import openai  # noqa: PLC0415

                azure: Any = {} if base_url is None else {"azure_endpoint": base_url}
                return backends.OpenAIBatches(model, client=openai.AsyncAzureOpenAI(**azure))
            case "anthropic":
                return backends.AnthropicBatches(model, base_url=base_url)
            case "mistral":
                return backends.MistralBatches(model, base_url=base_url)
            case _:
                msg = f"--batch-api is one of {', '.join(get_args(BatchAPIName))}, not {name}"
                raise Problem(msg, Exit.USAGE)
    except ImportError as exc:
        raise Problem(str(exc)) from exc
    except Problem:
        raise
    except Exception as exc:
        msg = f"--batch-api {name}: {exc}"
        raise Problem(msg) from exc


def jobs_of(options: BatchOptions, direct: Backend | None) -> BatchJobs:
    """Make the backend that ``--batch-api`` asks for."""
    assert options.batch_api is not None  # noqa: S101 (the caller has looked)
    if options.model is None:
        msg = f"--batch-api {options.batch_api} needs the name of a model: --model NAME"
        raise Problem(msg, Exit.USAGE)
    hours = options.job_hours
    return BatchJobs(
        make_api(options.batch_api, options.model, options.base_url),
        direct=direct,
        direct_below=options.direct_below,
        canary=options.canary,
        requests_per_job=options.job_requests,
        jobs_at_once=options.jobs_at_once,
        enqueued_tokens=options.enqueued_tokens,
        poll=options.poll,
        deadline=None if hours is None else hours * HOUR,
    )


def under_way(jobs: Sequence[JobState], journal: object) -> str:
    """Say what becomes of the jobs of a run that ends; empty without jobs."""
    if not jobs:
        return ""
    them = "it" if len(jobs) == 1 else "them"
    go_on = "goes on" if len(jobs) == 1 else "go on"
    return (
        f" {plural(len(jobs), 'job')} {go_on} at the provider: --resume collects {them}, and"
        f" mellea-like batch cancel {journal} cancels {them}."
    )


# --- batch status, batch cancel -------------------------------------------------------------------

STATUS_HELP = """Show the jobs of a run: their ages, how far they are, and what they may cost.

RUN is the journal of a run of [bold]mellea-like batch --batch-api[/bold]. The provider is asked\
 for the jobs under way if its key is set; otherwise you see what the run saw last.
"""

CANCEL_HELP = """Cancel the jobs of a run, and keep what they have answered by then.

RUN is the journal of a run of [bold]mellea-like batch --batch-api[/bold] that isn't running now.\
 Cancelling takes a provider some minutes; answers that are there by then were paid for, and are\
 used when the run is resumed.
"""

EPILOG = "Exit codes: 0 done, 2 bad usage, 3 an error of the provider or a file, 130 interrupted."


@dataclass(frozen=True, kw_only=True)
class StatusOptions:
    """The options of ``mellea-like batch status``."""

    panels: ClassVar = ()

    run: Path = argument("RUN", "The journal of the run.")


@dataclass(frozen=True, kw_only=True)
class CancelOptions:
    """The options of ``mellea-like batch cancel``."""

    panels: ClassVar = ()

    run: Path = argument("RUN", "The journal of the run.")
    poll: float = option(
        15.0, "--poll SECONDS", "How often to ask whether the jobs have ended.", min=0.05
    )


def run_status(options: StatusOptions, signals: SignalHandler) -> int:
    """Run ``mellea-like batch status``."""
    signals.run(partial(_status, options.run))
    return Exit.PASSED


def run_cancel(options: CancelOptions, signals: SignalHandler) -> int:
    """Run ``mellea-like batch cancel``."""
    signals.last_words = lambda: (
        "Interrupted. What was cancelled stays cancelled: the same command collects the rest."
    )
    signals.run(partial(_cancel, options.run, options.poll))
    return Exit.PASSED


async def _status(run: Path) -> None:
    file = await to_thread.run_sync(JobFile.read, run)
    for place in file.places:
        await _ask(file, place)
    print("\n".join(_lines(file)))


async def _ask(file: JobFile, place: str) -> None:
    """Ask a provider for the present state of a run's jobs there."""
    name, model, where = place.split(" ", 2)
    try:
        api = make_api(name, model, where)
        try:
            await file.refresh(place, api)
        finally:
            await api.aclose()
    except Exception as exc:  # noqa: BLE001 (what was seen last is shown)
        warn(f"mellea-like: {name} can't be asked, so these are the states seen last: {exc}")


async def _cancel(run: Path, poll: float) -> None:
    def told(line: str) -> None:
        warn(one_line(line))

    def api_at(place: str) -> BatchAPI:
        name, model, where = place.split(" ", 2)
        return make_api(name, model, where)

    await cancel_jobs(run, api_at, poll=poll, tell=told)
    file = await to_thread.run_sync(JobFile.read, run)
    print("\n".join(_lines(file)))


def _lines(file: JobFile) -> Iterator[str]:
    """Describe the jobs of a run."""
    counts = file.counts
    told = [f"{n:,} {status}" for status, n in counts.items() if n]
    yield f"{file.path.name}: {plural(sum(counts.values()), 'row')}: {', '.join(told) or 'none yet'}"
    rows = [("job", "model", "status", "answered", "age"), *map(_row, file.jobs)]
    if file.jobs:
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            yield "  ".join(cells).rstrip()
    if file.waiting:
        yield f"{plural(file.waiting, 'request')} wait for a job."
    for what, usage, cost in (
        ("Under way, at most", file.reserved, file.reserved_cost),
        ("Billed for answers so far", file.billed, file.billed_cost),
    ):
        if usage.requests:
            tokens = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
            price = "" if cost is None else f", {money(cost[0], cost[1])}"
            yield f"{what}: {plural(usage.requests, 'request')}, {tokens}{price}."


def _row(job: KnownJob) -> tuple[str, ...]:
    name, model, _ = job.place.split(" ", 2)
    age = seconds(max(0.0, round(time.time() - job.noted)))
    answered = f"{job.answered:,}/{job.requests:,}"
    return job.provider_id or "(not known)", f"{name} {model}", job.status, answered, age
