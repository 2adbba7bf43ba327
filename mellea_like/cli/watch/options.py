"""The options of ``mellea-like watch``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from mellea_like.cli.arguments import as_text
from mellea_like.cli.watch.command import OnBusyName, WatchArguments, run_watch

__all__ = ["EPILOG", "HELP", "WatchCommand", "watch"]

HELP = """Run a command again when files change: once for many changes, one run at a time.

It runs once at the start, and then after each burst of changes. A line on standard error\
 tells of each run, with its reason and its exit status. Ctrl-C ends it all.

[bold]Examples[/bold]

\b
mellea-like watch prompts -- python sample_all.py
mellea-like watch corpus.txt prompts --on-busy restart -- \\
    sh -c 'mellea-like sample - --corpus corpus.txt < prompts/haiku.txt'
"""

EPILOG = (
    "Exit codes: 130 interrupted, 143 told to end, 2 bad usage, 3 a path or the command is missing,"
    " or the state can't be kept."
)


class WatchCommand(TyperCommand):
    """Leaves what stands after two dashes to the command that is run."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments before the two dashes; those after them become the context's object."""
        if "--" in args:
            place = args.index("--")
            args, ctx.obj = args[:place], args[place + 1 :]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Say how the command is used."""
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


def watch(
    context: typer.Context,
    *,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATHS", help="Files, and directories with all that is in them."),
    ],
    quiet_seconds: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Wait until nothing has changed for so long."),
    ] = 0.5,
    max_wait: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Wait no longer than this after the first change."),
    ] = 5.0,
    on_busy: Annotated[
        OnBusyName,
        typer.Option(
            metavar="WHAT",
            help="What changes do during a run: queue lets one more follow, ignore does nothing,"
            " restart stops it and begins again.",
        ),
    ] = OnBusyName.QUEUE,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Names of files and directories that do not count, *.log say, besides .git,"
            " __pycache__, editors' temporary files and the like. Repeatable.",
        ),
    ] = None,
    postpone: Annotated[
        bool, typer.Option("--postpone", help="No run before the first change.")
    ] = False,
    clear: Annotated[
        bool, typer.Option("--clear", help="Clear the screen before each run.")
    ] = False,
    grace: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="How long a run that is to stop has after SIGINT, and again after SIGTERM.",
        ),
    ] = 5.0,
    min_interval: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="From the beginning of a run to that of the next."),
    ] = 0.0,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the counts and the time of the last run in this file, so that"
            " --min-interval holds when the command is started anew. It doesn't count as changed.",
        ),
    ] = None,
    status: Annotated[
        bool,
        typer.Option(
            "--status",
            help="A line whenever something changed, a run begins or has ended: what runs, what"
            " waits and for how long, how many runs there were, and when the last change was.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No line for each run.")] = False,
) -> int:
    """Run a command again when files change: once for many changes, one run at a time."""
    return run_watch(
        WatchArguments(
            paths=paths,
            command=context.obj or [],
            quiet_seconds=quiet_seconds,
            max_wait=max_wait,
            on_busy=on_busy,
            ignore=[as_text(pattern, "--ignore") for pattern in ignore or ()],
            postpone=postpone,
            clear=clear,
            grace=grace,
            min_interval=min_interval,
            state=state,
            status=status,
            quiet=quiet,
        )
    )
