"""``mellea-like sample``: one call, from its options to its exit code."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Any, cast

from rich.text import Text

from mellea_like.batch.rows.formats import as_json
from mellea_like.cli.backends import Backends
from mellea_like.cli.console import live_view, make_console
from mellea_like.cli.draw_options import OUTPUT, DrawOptions
from mellea_like.cli.errors import code_of, report
from mellea_like.cli.exit_codes import Exit, Problem, fail, misuse, os_errors
from mellea_like.cli.option_fields import argument, option
from mellea_like.cli.sample.output import (
    as_record,
    models_in,
    slices_table,
    summary,
    why,
    write_text,
)
from mellea_like.cli.sample.progress import Progress, render
from mellea_like.cli.standard_streams import (
    STANDARD,
    check_folder,
    is_special,
    silence,
    warn,
    write_output,
)
from mellea_like.core.display import plural
from mellea_like.core.serialization import FORMAT, to_dict
from mellea_like.errors import BackendError, LimitExceeded, MelleaError, SamplingTimeout
from mellea_like.runtime.atomic_files import replaced

if TYPE_CHECKING:
    from mellea_like.cli.signals import SignalHandler
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.result import SamplingResult

HELP = """\
Only the reply goes to standard output; everything else goes to standard error.

[bold]Examples[/bold]

\b
mellea-like sample "Write about Python classes." \\
    --check "words<=20" --check "contains:class"
mellea-like sample "Write a haiku." --model gpt-4.1-mini \\
    --check lines==3 --require "It mentions autumn." --strategy repair
mellea-like sample "Write a haiku." --model gpt-4.1-mini \\
    --check lines==3 --early --max-tokens 100 \\
    --budget cost=0.01 --price 0.40,1.60 --ledger
mellea-like sample "Is 221 prime? Yes or no." --model gpt-4.1-mini \\
    --select vote:lower --n 9
mellea-like sample - --gguf model.gguf --schema invoice.json < letter.txt
"""

EPILOG = (
    "Exit codes: 0 passed, 1 nothing passed, 2 bad usage, 3 backend or configuration error,"
    " 130 interrupted, 143 terminated (SIGTERM)."
)


@dataclass(frozen=True, kw_only=True)
class SampleOptions(DrawOptions):
    """The options of ``mellea-like sample``."""

    instruction: str = argument(
        "INSTRUCTION", "The instruction, or - to read it from standard input."
    )
    as_json: bool = option(
        False, "--json", "Print a JSON object with the record of each draw.", OUTPUT
    )
    trace: Path | None = option(
        None,
        "--trace FILE",
        "Write the call's record, with prompts and replies, to a file for mellea-like report."
        " Replaces the trace of an earlier call.",
        OUTPUT,
    )
    explain: bool = option(False, "--explain", "Show a table of all draws on stderr.", OUTPUT)
    ledger: bool = option(
        False, "--ledger", "Show on stderr how much each draw cost, wasted and saved.", OUTPUT
    )


def run(options: SampleOptions, signals: SignalHandler) -> int:
    """Run ``mellea-like sample``."""
    try:
        return _run(options, signals)
    except Exception as error:  # noqa: BLE001 (worded in a sentence; shown with --debug)
        return _report(options, error)


def _run(options: SampleOptions, signals: SignalHandler) -> int:
    requirements = options.make_requirements()
    progress = Progress(options.spec.all_attempts, options.lanes)

    def last_words() -> str:
        cancelled = f": cancelled {plural(progress.cancelled, 'call')} in flight"
        return f"Interrupted{cancelled if progress.cancelled else ''}."

    signals.last_words = last_words
    backends = Backends(options, default="markov")
    if options.trace is not None:
        _check_trace(options.trace)
    instruction = _read_instruction(options.instruction)
    try:
        result = signals.run(_sample, options, backends, instruction, requirements, progress)
    except SamplingTimeout as timeout:
        if timeout.result is None:
            raise
        result = timeout.result
    progress.cancelled = 0  # Losing draws don't count as interrupted.
    code = _show(options, backends, result, progress)
    if options.trace is not None:
        _write_trace(options.trace, result)
    return code


async def _sample(
    options: SampleOptions,
    backends: Backends,
    instruction: str,
    requirements: list[Requirement],
    progress: Progress,
) -> SamplingResult[Any]:
    async with backends.open():
        budget = backends.make_budget("this call")
        strategy = backends.make_strategy(budget=budget, plugins=[progress])
        if not options.quiet or backends.named is None:
            warn(f"Backend: {backends.description}")
        # Log records would run into a live view.
        shown = not (options.quiet or options.debug)
        view = live_view(lambda console: render(progress, console)) if shown else None
        if view is None and not options.quiet:
            progress.tell = warn
        with view or contextlib.nullcontext():
            return await strategy.sample(
                instruction,
                requirements,
                format=backends.reply_type,
                options=options.request_options,
                on_slice=progress.on_slice,
            )


def _read_instruction(given: str) -> str:
    source, text = "the instruction", given
    if given == STANDARD:
        source = "standard input"
        try:
            if sys.stdin.isatty():
                warn("Reading the instruction from the terminal; press Ctrl-D to finish.")
            text = sys.stdin.buffer.read().decode("utf-8-sig").rstrip("\r\n")
        except (OSError, ValueError) as exc:
            msg = f"standard input can't be read: {exc}; give the instruction in quotes"
            raise Problem(msg, Exit.USAGE) from exc
    if not text.strip():
        misuse(f"{source} is empty: describe what to generate, in quotes")
    return text


def _show(
    options: SampleOptions, backends: Backends, result: SamplingResult[Any], progress: Progress
) -> int:
    ledger = result.ledger(backends.prices(models_in(result)))
    console = make_console(sys.stderr)
    try:
        if options.explain:
            console.print(slices_table(result.slices, console))
        if options.ledger:
            console.print(Text(str(ledger), no_wrap=True, overflow="ellipsis"))
    except OSError:
        silence(sys.stderr)
    if not result.success:
        warn(why(result, ledger, progress.called))
    elif not options.quiet:
        warn(summary(result, ledger, progress.called))
    if options.as_json:
        about = {"strategy": options.strategy, "backend": str(backends.kind)}
        write_output(f"{as_json(as_record(result, ledger, **about))}\n")
    elif result.best_index is not None:
        for shown in result.winners or (result.best,):
            write_text(shown.text)
    return Exit.PASSED if result.success else Exit.NOTHING_PASSED


def _report(options: SampleOptions, error: Exception) -> int:
    message = report(error, debug=options.debug)
    record: SamplingResult[Any] | None = None
    if isinstance(error, MelleaError):  # Some have a record.
        record = getattr(error, "result", None)
    if options.trace is not None and record is not None:
        try:
            _write_trace(options.trace, record)
        except Problem as problem:
            report(problem, debug=options.debug)
    if options.as_json:
        about: dict[str, Any] = {}
        if isinstance(error, LimitExceeded):
            about = {"stop_reason": "budget"}
        elif isinstance(error, BackendError) and error.retry_after is not None:
            about = {"retry_after": error.retry_after}
        with contextlib.suppress(Problem):
            write_output(f"{as_json({'success': False, 'error': message, **about})}\n")
    return code_of(error)


def _check_trace(path: Path) -> None:
    """Before anything is sent, refuse a ``--trace`` file that can't be written or replaced."""
    if is_special(path):
        fail(f"--trace: {path} isn't a file")
    check_folder("--trace", path)
    if os.path.isfile(path) and not _replaceable(path):  # noqa: PTH113 (never raises)
        misuse(f"--trace: {path} already exists and isn't the trace of a call: name another file")


def _replaceable(path: Path) -> bool:
    """Return whether a file is empty, or the trace of an earlier call."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        record: object = json.loads(text) if text else {"format": FORMAT}
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(record, dict) and cast("dict[str, Any]", record).get("format") == FORMAT


def _write_trace(path: Path, result: SamplingResult[Any]) -> None:
    """Write a call's record, which contains prompts, to a file that only its owner may read."""
    with os_errors(f"--trace: can't write {path}"), replaced(path, 0o600) as file:
        file.write(f"{json.dumps(to_dict(result))}\n".encode())
