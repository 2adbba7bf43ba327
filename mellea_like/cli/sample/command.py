"""``mellea-like sample``: one call, from its options to its exit code."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Any, cast

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from mellea_like.batch.rows.formats import as_json
from mellea_like.cli.backends import Backends
from mellea_like.cli.console import live_view, make_console
from mellea_like.cli.draw_options import OUTPUT, DrawOptions
from mellea_like.cli.errors import code_of, in_options, problems_of, rejected_early, report
from mellea_like.cli.exit_codes import Exit, Problem, fail, misuse, os_errors
from mellea_like.cli.option_fields import argument, option
from mellea_like.cli.sample.progress import NARROW, STYLES, Progress, render
from mellea_like.cli.standard_streams import STANDARD, check_folder, silence, warn, write_output
from mellea_like.core.display import one_line, plural, printable
from mellea_like.core.serialization import FORMAT, to_dict
from mellea_like.errors import BackendError, LimitExceeded, MelleaError, SamplingTimeout
from mellea_like.report.numbers import money, seconds
from mellea_like.runtime.atomic_files import replaced

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from mellea_like.cli.signals import SignalHandler
    from mellea_like.core.decision import Decision
    from mellea_like.core.ledger import Ledger
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.result import SamplingResult
    from mellea_like.core.slice import Slice


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

LONGEST_INSTRUCTION = 16 * 2**20
"""The maximum size of standard input, in bytes: no model takes more, and a pipe may never end."""

MOST_KEYS = 5
"""The maximum number of answers to list after a vote."""


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
        calls = plural(progress.cancelled, "call")
        return (
            f"Interrupted: cancelled {calls} in flight." if progress.cancelled else "Interrupted."
        )

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
            progress.tell = _tell
        with view or contextlib.nullcontext():
            return await strategy.sample(
                instruction,
                requirements,
                format=backends.reply_type,
                options=options.request_options,
                on_slice=progress.on_slice,
            )


def _tell(line: str) -> None:
    warn(one_line(line))


def _read_instruction(given: str) -> str:
    text = _read_standard_input() if given == STANDARD else given
    if not text.strip():
        source = "standard input" if given == STANDARD else "the instruction"
        misuse(f"{source} is empty: describe what to generate, in quotes")
    return text


def _read_standard_input() -> str:
    try:
        if sys.stdin.isatty():
            warn("Reading the instruction from the terminal; press Ctrl-D to finish.")
        data = sys.stdin.buffer.read(LONGEST_INSTRUCTION + 1)
        if len(data) > LONGEST_INSTRUCTION:
            misuse(f"standard input is larger than {LONGEST_INSTRUCTION // 2**20} MB")
        return data.decode("utf-8").rstrip("\r\n")
    except (OSError, ValueError) as exc:
        msg = f"standard input can't be read: {exc}; give the instruction in quotes"
        raise Problem(msg, Exit.USAGE) from exc


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
        write_record(as_record(result, ledger, **about))
    elif result.winners:
        for winner in result.winners:
            write_text(winner.text)
    elif result.best_index is not None:
        write_text(result.best.text)
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
            write_record({"success": False, "error": message, **about})
    return code_of(error)


def _check_trace(path: Path) -> None:
    """Before anything is sent, refuse a ``--trace`` file that can't be written or replaced."""
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113 (never raise)
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


# --- the result: as text, as JSON, in sentences, and as a table -----------------------------------


def write_text(text: str) -> None:
    """Write a reply and a newline to standard output; on a terminal, escape control characters."""
    if sys.stdout.isatty():
        text = printable(text)
    write_output(text if text.endswith("\n") else f"{text}\n")


def write_record(record: dict[str, Any]) -> None:
    """Write a record to standard output as a JSON object that is safe for a terminal."""
    write_output(f"{as_json(record)}\n")


def as_record(result: SamplingResult[Any], ledger: Ledger, **about: str) -> dict[str, Any]:
    """Return a result as plain data: the call's trace, ``about``, the outcome and the costs."""
    return {
        **to_dict(result),
        **about,
        "stop_detail": in_options(result.stop_detail),
        "text": None if result.best_index is None else result.best.text,
        "value": result.value,
        "values": list(result.values),
        "ledger": {
            "rows": [row._asdict() for row in ledger.rows],
            "stages": [
                {"stage": stage, "model": model, **total._asdict()}
                for (stage, model), total in ledger.by_stage.items()
            ],
            "comparisons": ledger.comparisons and ledger.comparisons._asdict(),
            "total": ledger.total._asdict(),
            "currency": ledger.currency,
        },
    }


def models_in(result: SamplingResult[Any]) -> list[str | None]:
    """Return the models that drew, judged and compared; a model may occur more than once."""
    compared = None if result.decision is None else result.decision.model
    return [*(model for s in result.slices for model, _ in s.usage_by_model), compared]


def summary(result: SamplingResult[Any], ledger: Ledger, name: Callable[[Slice], str]) -> list[str]:
    """Sum up a call that passed in one line; if a selection decided, add a line on it."""
    best = result.best
    model = f" ({one_line(best.model)})" if best.stage is not None and best.model else ""
    lines = [f"Passed: {name(best)}{model}; {_cost(result, ledger)}."]
    if result.decision is not None:
        lines.append(_decided(result.decision, [name(winner) for winner in result.winners]))
    return lines


def _decided(decision: Decision, names: list[str]) -> str:
    """Describe in one line which reply was chosen, and how."""
    won = decision.winners[0] if decision.winners else None
    line = f"Decided by {decision.kind}: {'; '.join(names) or 'no winner'}"
    if won is not None and won in decision.scores:
        line += f", score {decision.scores[won]:.6g}, best of {len(decision.scores)}"
        line += f" ({one_line(decision.notes[won], 200)})" if won in decision.notes else ""
    if decision.answers:
        line += f", votes {', '.join(_votes(decision))}"
    if decision.tied:
        line += f", {len(decision.tied)} tied for first place"
    if decision.comparisons:
        line += f", {plural(len(decision.comparisons), 'comparison')}"
    if decision.abstentions:
        line += f", {plural(decision.abstentions, 'abstention')}"
    if decision.errors:
        line += f", {plural(len(decision.errors), 'error')}: {one_line(decision.errors[0], 200)}"
    return f"{line}; {one_line(decision.reason)}."


def _votes(decision: Decision) -> list[str]:
    shown = [f"{one_line(a.label, 40)}: {a.votes:g}" for a in decision.answers]
    return [*shown[:MOST_KEYS], "..."] if len(shown) > MOST_KEYS else shown


def why(result: SamplingResult[Any], ledger: Ledger, name: Callable[[Slice], str]) -> list[str]:
    """Return lines that explain why no reply passed, or too few replies did."""
    reason = {
        "timeout": "time ran out",
        "exhausted": "all attempts were used",
        "error": "an error ended one of the lanes",
    }.get(result.stop_reason, f"stopped: {result.stop_reason}")
    if result.stop_detail:
        reason = one_line(in_options(result.stop_detail))
    if result.decision is not None and result.candidates:
        names = [name(winner) for winner in result.winners]
        few = f"Only {len(names)} passed" if names else "No answer won"
        return [f"{few}: {reason}; {_cost(result, ledger)}.", _decided(result.decision, names)]
    lines = [f"Nothing passed: {reason}; {_cost(result, ledger)}."]
    if result.best_index is None:
        return [*lines, "No reply was judged, so there is none to show."]
    best = result.best
    part = " (rejected early)" if rejected_early(best) else ""
    lines.append(f"The best failure, {name(best)}{part}, did not meet:")
    lines.extend(f"  - {one_line(problem)}" for problem in problems_of(best))
    errors = list(result.errors)
    if errors:
        some = plural(len(errors), "draw")
        lines.append(f"{some} ended in an error, the first with: {one_line(str(errors[0]))}")
    return lines


def _cost(result: SamplingResult[Any], ledger: Ledger) -> str:
    total = ledger.total.cost
    bound = bool(ledger.total.unknown or ledger.total.unpriced)
    cost = "" if total is None else f", cost {money(total, ledger.currency, at_least=bound)}"
    return f"{plural(len(result.slices), 'draw')}, {result.usage}{cost}, {seconds(result.elapsed)}"


def slices_table(slices: tuple[Slice, ...], console: Console) -> Table:
    """Return a table of a call's draws."""
    table = Table(title="Draws, in the order they ended", title_justify="left", box=SIMPLE_HEAD)
    columns = ["lane", "attempt", "model", "outcome", "seconds", "tokens"]
    shown = ["lane", "attempt", "outcome"] if console.width < NARROW else list(columns)
    if not any(s.subsample for s in slices):
        shown.remove("lane")
    if "model" in shown and len({s.model for s in slices}) == 1:
        shown.remove("model")
    for name in shown:
        table.add_column(name, justify="left" if name == "outcome" else "right", no_wrap=True)
    table.add_column("text, and what failed", overflow="fold", ratio=1)
    for s in slices:
        about = Text(one_line(s.text, 300))
        if rejected_early(s):
            about.append(" … (rejected early)", style="dim")
        for problem in problems_of(s):
            about.append(("\n" if about else "") + one_line(f"- {problem}", 300), style="yellow")
        outcome = Text(s.outcome.value, style=STYLES[s.outcome.value])
        tokens = f"{s.usage.input_tokens} + {s.usage.output_tokens}" + "?" * bool(s.usage.unknown)
        cells: tuple[str | Text, ...] = (
            *(str(s.lane), str(s.attempt), one_line(s.model or "?", 30)),
            *(outcome, f"{s.duration:.2f}", tokens),
        )
        row = dict(zip(columns, cells, strict=True))
        table.add_row(*(row[name] for name in shown), about)
    return table
