"""``mellea-like batch status``: show a run's jobs at providers' batch APIs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING

from anyio import to_thread

from mellea_like.batch.jobs.overview import JobFile
from mellea_like.cli.exit_codes import Exit
from mellea_like.cli.jobs import api_at, describe
from mellea_like.cli.option_fields import argument
from mellea_like.cli.standard_streams import warn
from mellea_like.core.display import one_line

if TYPE_CHECKING:
    from mellea_like.cli.signals import SignalHandler

HELP = """\
RUN is the journal of a [bold]mellea-like batch --batch-api[/bold] run. The provider is asked about\
 unfinished jobs if its key is set; otherwise, you see the last known state.
"""

EPILOG = "Exit codes: 0 shown, 2 bad usage, 3 a file error, 130 interrupted."


@dataclass(frozen=True, kw_only=True)
class StatusOptions:
    """The options of ``mellea-like batch status``."""

    journal: Path = argument("RUN", "The journal of the run.")


def run(options: StatusOptions, signals: SignalHandler) -> int:
    """Run ``mellea-like batch status``."""
    signals.run(_show, options.journal)
    return Exit.PASSED


async def _show(journal: Path) -> None:
    file = await to_thread.run_sync(JobFile.read, journal)
    for place in file.places:
        await _refresh(file, place)
    print("\n".join(describe(file)))


async def _refresh(file: JobFile, place: str) -> None:
    """Ask the provider at ``place`` for the current states of the run's jobs."""
    try:
        api = api_at(place)
        try:
            await file.refresh(place, api)
        finally:
            await api.aclose()
    except Exception as exc:  # noqa: BLE001 (what was seen last is shown)
        who = place.split(" ", 1)[0]
        warn(one_line(f"can't ask {who}, so this is the last known state: {exc}"))
