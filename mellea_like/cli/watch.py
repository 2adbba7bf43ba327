"""``mellea-like watch``: run a command again when files change."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from subprocess import DEVNULL
from typing import TYPE_CHECKING

import anyio

from mellea_like.cli.exits import Exit, Interrupted, Problem
from mellea_like.cli.signals import terminable
from mellea_like.cli.terminal import is_terminal, one_line, warn, write
from mellea_like.errors import CoalescingError

if TYPE_CHECKING:
    from pathlib import Path

    from anyio.abc import Process

    from mellea_like.coalescing.rerun.status import RerunStatus
    from mellea_like.coalescing.rerun.watch import Changes

__all__ = ["OnBusyName", "Runs", "WatchArguments", "ending", "in_words", "run_watch"]

CLEAR = "\x1b[H\x1b[2J\x1b[3J"


class OnBusyName(StrEnum):
    """What changes do while the command runs."""

    QUEUE = "queue"
    IGNORE = "ignore"
    RESTART = "restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchArguments:
    """The arguments of ``mellea-like watch``, as typed."""

    paths: list[Path]
    command: list[str]
    quiet_seconds: float = 0.5
    max_wait: float = 5.0
    on_busy: OnBusyName = OnBusyName.QUEUE
    ignore: list[str] = field(default_factory=list[str])
    postpone: bool = False
    clear: bool = False
    grace: float = 5.0
    min_interval: float = 0.0
    state: Path | None = None
    status: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        if not self.command:
            msg = "watch what for? Give the command after two dashes: watch PATHS -- COMMAND"
            raise Problem(msg, Exit.USAGE)
        seconds = {"quiet-seconds": self.quiet_seconds, "max-wait": self.max_wait}
        seconds |= {"grace": self.grace, "min-interval": self.min_interval}
        for name, given in seconds.items():
            if not 0 <= given < math.inf:
                msg = f"--{name} takes seconds, not {given:g}"
                raise Problem(msg, Exit.USAGE)


def run_watch(arguments: WatchArguments) -> int:
    """Do what ``mellea-like watch`` was asked to do, until Ctrl-C."""
    if shutil.which(arguments.command[0]) is None:
        msg = f"can't run {arguments.command[0]}: there is no such command"
        raise Problem(msg)
    others = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []
    for path in arguments.paths:
        if not os.path.exists(path):  # noqa: PTH110 (Path.exists raises where a name is too long)
            msg = f"can't watch {path}: there is no such file or directory"
            raise Problem(msg)
    runs = Runs(arguments)
    if not arguments.quiet:
        warn(f"Watching {', '.join(map(str, arguments.paths))}; Ctrl-C ends it.")
    with terminable(*others, at_once=runs.kill) as ending:
        try:
            ending.run(_watch, arguments, runs)
        except KeyboardInterrupt:
            raise Interrupted(runs.last_words(), ending.code) from None
        except (CoalescingError, ImportError) as error:
            raise Problem(str(error)) from error
        except OSError as error:
            msg = str(error) if error.strerror is None else f"can't watch: {error.strerror}"
            raise Problem(msg) from error
    return Exit.SETUP


async def _watch(arguments: WatchArguments, runs: Runs) -> None:
    from mellea_like.coalescing.rerun.watch import watch  # noqa: PLC0415 (an extra)

    await watch(
        arguments.paths,
        runs.run,
        quiet=arguments.quiet_seconds,
        max_wait=arguments.max_wait,
        on_busy=arguments.on_busy.value,
        at_start=not arguments.postpone,
        ignore=arguments.ignore,
        min_interval=arguments.min_interval,
        state=arguments.state,
        on_status=_tell if arguments.status else None,
    )


def _tell(status: RerunStatus) -> None:
    warn(one_line(f"status: {in_words(status)}"))


def in_words(status: RerunStatus) -> str:
    """Say what a watch is doing."""
    words = [f"running ({status.last_trigger})" if status.in_flight else "idle"]
    if status.pending:
        soon = f" for {status.window:.1f} s" if status.window else ""
        words.append(f"{status.pending} waiting{soon}")
    words += [f"{status.ticks} runs", f"{status.coalesced} coalesced"]
    if status.last_event is not None:
        words.append(f"last change {status.last_event.astimezone():%Y-%m-%d %H:%M:%S}")
    return ", ".join(words)


class Runs:
    """Runs the command, one time after the other, and says how each run ended."""

    def __init__(self, arguments: WatchArguments) -> None:
        self._arguments = arguments
        self._process: Process | None = None
        self._count = 0
        self._stopped = False

    async def run(self, changes: Changes) -> None:
        """Run the command once."""
        self._count, self._stopped = self._count + 1, False
        started = anyio.current_time()
        if self._arguments.clear and is_terminal(sys.stdout):
            write(CLEAR, sys.stdout)
        try:
            how = await self._run()
        except OSError as error:
            how = f"can't run it: {error.strerror or error}"
        except anyio.get_cancelled_exc_class():
            self._say(changes, "stopped", started)
            raise
        self._say(changes, how, started)

    def kill(self) -> str:
        """Kill what still runs; say how it all ended."""
        if self._process is not None:
            _send(self._process, "SIGKILL")
        return self.last_words()

    def last_words(self) -> str:
        """Say how it all ended."""
        return "Interrupted: the command was stopped." if self._stopped else "Interrupted."

    async def _run(self) -> str:
        command = self._arguments.command
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
        return ending(status)

    async def _end(self, process: Process) -> None:
        self._stopped = True
        grace = self._arguments.grace
        # What ignores SIGINT has its children ignore it too.
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
        _send(process, "SIGTERM")  # What it started and did not end.
        self._process = None

    def _say(self, changes: Changes, how: str, started: float) -> None:
        if not self._arguments.quiet:
            took = anyio.current_time() - started
            warn(one_line(f"run {self._count} ({changes.reason}): {how}, {took:.2f} s"))


def _send(process: Process, name: str) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.Signals[name])
        else:
            process.kill()


def ending(status: int) -> str:
    """Say how a run ended."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"
