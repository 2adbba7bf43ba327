"""``mellea-like watch``: run a command again when files change."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from subprocess import DEVNULL
from typing import TYPE_CHECKING, Any, Literal

import anyio
from typer.core import TyperCommand

from mellea_like.cli.exit_codes import Exit, Problem, fail, misuse, needs_unix
from mellea_like.cli.option_fields import argument, option
from mellea_like.cli.standard_streams import warn
from mellea_like.core.display import one_line

if TYPE_CHECKING:
    from anyio.abc import Process

    from mellea_like.cli.signals import SignalHandler
    from mellea_like.coalescing.rerun.gate import RerunStatus
    from mellea_like.coalescing.rerun.watch import Changes

HELP = """\
The command also runs once at the start. Each run is reported in a line on standard error, with its\
 reason and exit status. Ctrl-C stops everything.

[bold]Examples[/bold]

\b
mellea-like watch prompts -- python sample_all.py
mellea-like watch corpus.txt prompts --on-busy restart -- \\
    sh -c 'mellea-like sample - --corpus corpus.txt < prompts/haiku.txt'
"""

EPILOG = (
    "Exit codes: 130 interrupted, 143 terminated (SIGTERM), 2 bad usage, 3 a path or the command is"
    " missing, or the state can't be saved."
)


class WatchCommand(TyperCommand):
    """A typer command whose arguments after ``--`` are the command to run."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: D102 (click's)
        if "--" in args:
            place = args.index("--")
            ctx.meta["watch"] = {"command": args[place + 1 :]}
            args = args[:place]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: D102 (click's)
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


COMMAND = WatchCommand


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """The options of ``mellea-like watch``, and the command after ``--``."""

    command: list[str] = field(default_factory=list[str])
    paths: list[Path] = argument("PATHS", "Files, and directories with everything in them.")
    quiet_seconds: float = option(
        0.5, "--quiet-seconds SECONDS", "Wait until nothing has changed for this long.", min=0
    )
    max_wait: float = option(
        5.0, "--max-wait SECONDS", "Wait no longer than this after the first change.", min=0
    )
    on_busy: Literal["queue", "ignore", "restart"] = option(
        "queue",
        "--on-busy WHAT",
        "What to do about changes during a run: queue one more run, ignore them, or restart.",
    )
    ignore: list[str] = option(
        list,
        "--ignore PATTERN",
        "Names of files and directories to ignore, such as *.log, in addition to .git, __pycache__,"
        " editors' temporary files and the like. Repeatable.",
    )
    postpone: bool = option(False, "--postpone", "Don't run before the first change.")
    grace: float = option(
        5.0,
        "--grace SECONDS",
        "How long a run may take to stop after SIGINT, and again after SIGTERM.",
        min=0,
    )
    min_interval: float = option(
        0.0, "--min-interval SECONDS", "Shortest time between the starts of two runs.", min=0
    )
    state: Path | None = option(
        None,
        "--state FILE",
        "Save the counts and the time of the last run in this file, so that --min-interval also"
        " applies after a restart. Changes to the file itself are ignored.",
    )
    status: bool = option(
        False,
        "--status",
        "Print a line whenever something changes, or a run starts or ends: what is running, what is"
        " waiting and for how long, the number of runs, and the time of the last change.",
    )
    quiet: bool = option(False, "--quiet -q", "Don't report each run.")

    def __post_init__(self) -> None:
        if not self.command:
            misuse("there is no command to run: add it after two dashes: watch PATHS -- COMMAND")


def run(options: WatchOptions, signals: SignalHandler) -> int:
    """Run the user's command when files change, until Ctrl-C."""
    needs_unix("watch")
    if shutil.which(options.command[0]) is None:
        fail(f"can't run {options.command[0]}: there is no such command")
    for path in options.paths:
        if not os.path.exists(path):  # noqa: PTH110 (Path.exists raises where a name is too long)
            fail(f"can't watch {path}: there is no such file or directory")
    runs = Runs(options)
    signals.last_words, signals.at_once = runs.last_words, runs.kill
    if not options.quiet:
        warn(f"Watching {', '.join(map(str, options.paths))}; press Ctrl-C to stop.")
    try:
        signals.run(_watch, options, runs)
    except OSError as error:
        msg = str(error) if error.strerror is None else f"can't watch: {error.strerror}"
        raise Problem(msg) from error
    return Exit.SETUP


async def _watch(options: WatchOptions, runs: Runs) -> None:
    from mellea_like.coalescing.rerun.watch import watch  # noqa: PLC0415 (an extra)

    await watch(
        options.paths,
        runs.run,
        quiet=options.quiet_seconds,
        max_wait=options.max_wait,
        on_busy=options.on_busy,
        at_start=not options.postpone,
        ignore=options.ignore,
        min_interval=options.min_interval,
        state=options.state,
        on_status=_tell if options.status else None,
    )


def _tell(status: RerunStatus) -> None:
    words = [f"running ({status.last_trigger})" if status.in_flight else "idle"]
    if status.pending:
        soon = f" for {status.window:.1f} s" if status.window else ""
        words.append(f"{status.pending} waiting{soon}")
    words += [f"{status.ticks} runs", f"{status.coalesced} coalesced"]
    if status.last_event is not None:
        words.append(f"last change {status.last_event.astimezone():%Y-%m-%d %H:%M:%S}")
    warn(one_line(f"status: {', '.join(words)}"))


class Runs:
    """Runs the user's command once for each call of `run`, and reports how each run ended."""

    def __init__(self, options: WatchOptions) -> None:
        self._options = options
        self._process: Process | None = None
        self._count = 0
        self._stopped = False

    async def run(self, changes: Changes) -> None:
        """Run the user's command once, and report how it ended."""
        self._count, self._stopped = self._count + 1, False
        started = anyio.current_time()
        try:
            how = await self._run()
        except OSError as error:
            how = f"can't run it: {error.strerror or error}"
        except anyio.get_cancelled_exc_class():
            self._tell_of(changes, "stopped", started)
            raise
        self._tell_of(changes, how, started)

    def kill(self) -> None:
        """Kill the user's command if it is running."""
        if self._process is not None:
            _send(self._process, "SIGKILL")

    def last_words(self) -> str:
        """Return the message for an interrupted watch."""
        return "Interrupted: the command was stopped." if self._stopped else "Interrupted."

    async def _run(self) -> str:
        command = self._options.command
        self._process = process = await anyio.open_process(
            command, stdin=DEVNULL, stdout=None, stderr=None, start_new_session=True
        )
        try:
            status = await process.wait()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._end(process)
            raise
        self._process = None
        if status >= 0:
            return f"exit status {status}"
        return f"ended by signal {-status} ({signal.strsignal(-status)})"

    async def _end(self, process: Process) -> None:
        self._stopped = True
        grace = self._options.grace
        # Children inherit an ignored SIGINT.
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        for name, seconds in (
            ("SIGINT", 0 if ignored else grace),
            ("SIGTERM", grace),
            ("SIGKILL", math.inf),
        ):
            _send(process, name)
            with anyio.move_on_after(seconds):
                await process.wait()
                break
        _send(process, "SIGTERM")  # Its children may still run.
        self._process = None

    def _tell_of(self, changes: Changes, how: str, started: float) -> None:
        if not self._options.quiet:
            took = anyio.current_time() - started
            warn(one_line(f"run {self._count} ({changes.reason}): {how}, {took:.2f} s"))


def _send(process: Process, name: str) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.Signals[name])
