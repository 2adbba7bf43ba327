"""``mellea-like batch cancel``: cancel a run's jobs at providers' batch APIs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING

from anyio import to_thread

from mellea_like.batch.jobs.overview import JobFile, cancel_jobs
from mellea_like.cli.exit_codes import Exit
from mellea_like.cli.jobs import api_at, describe
from mellea_like.cli.option_fields import argument, option

if TYPE_CHECKING:
    from mellea_like.cli.signals import SignalHandler

HELP = """\
RUN is the journal of a [bold]mellea-like batch --batch-api[/bold] run that isn't in progress.\
 Providers take a few minutes to cancel a job. Answers that are ready by then are billed, and are\
 used when the run is resumed.
"""

EPILOG = "Exit codes: 0 done, 2 bad usage, 3 a provider or file error, 130 interrupted."


@dataclass(frozen=True, kw_only=True)
class CancelOptions:
    """The options of ``mellea-like batch cancel``."""

    journal: Path = argument("RUN", "The journal of the run.")
    poll: float = option(
        15.0, "--poll SECONDS", "How often to check whether the jobs have ended.", min=0.05
    )


def run(options: CancelOptions, signals: SignalHandler) -> int:
    """Run ``mellea-like batch cancel``."""
    signals.last_words = lambda: (
        "Interrupted. Cancelled jobs stay cancelled; run the same command again for the rest."
    )
    signals.run(_cancel, options)
    return Exit.PASSED


async def _cancel(options: CancelOptions) -> None:
    await cancel_jobs(options.journal, api_at, poll=options.poll)
    print("\n".join(describe(await to_thread.run_sync(JobFile.read, options.journal))))
