"""``mellea-like plan``: estimate from an earlier run how many draws the next run needs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING

from mellea_like.cli.errors import reading
from mellea_like.cli.exit_codes import Exit, misuse
from mellea_like.cli.option_fields import argument, option
from mellea_like.cli.standard_streams import write_output
from mellea_like.core.display import printable

if TYPE_CHECKING:
    from mellea_like.cli.signals import SignalHandler

HELP = """\
Reads a journal of [bold]mellea-like batch[/bold], finished or not. Shows the coverage by number\
 of draws, the values of --attempts and --lanes to use, their cost, the check that fails most\
 often, and the items that are probably hopeless.

[bold]Examples[/bold]

\b
mellea-like plan run.db
mellea-like plan run.db --target 0.99 --json
mellea-like plan shards/
"""

EPILOG = (
    "Exit codes: 0 done, 2 bad usage, 3 a source that can't be read or has no draws, 130"
    " interrupted, 143 terminated (SIGTERM)."
)


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of ``mellea-like plan``."""

    sources: list[Path] = argument(
        "RUN", "A journal. Several journals and directories of journals count as one run."
    )
    target: float = option(
        0.95, "--target SHARE", "The share of items that should pass, between 0 and 1."
    )
    json: bool = option(False, "--json", "Print one JSON object.")


def run(options: PlanOptions, _signals: SignalHandler) -> int:
    """Run ``mellea-like plan``."""
    if not 0 < options.target < 1:
        misuse(f"--target must be between 0 and 1, not {options.target:g}")
    from mellea_like.estimate.planner import plan  # noqa: PLC0415 (few commands need it)

    with reading(*options.sources):
        made = plan(options.sources, options.target)
    text = json.dumps(made.to_dict()) if options.json else printable(str(made))
    write_output(f"{text}\n")
    return Exit.PASSED
