"""``mellea-like sample``: one call, from its arguments to its exit code."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from rich.text import Text

from mellea_like.cli.arguments import (
    BackendName,
    read_instruction,
    read_requirements,
    read_schema,
)
from mellea_like.cli.building import call_options, make_budget, make_strategy
from mellea_like.cli.exits import Exit, Interrupted, Problem
from mellea_like.cli.limits import Limits
from mellea_like.cli.live import LiveView, make_console, slices_table
from mellea_like.cli.opening import (
    check_options,
    choose_backend,
    named_backend,
    open_backends,
)
from mellea_like.cli.reporting import code_of, logs, report
from mellea_like.cli.sample.output import as_record, summary, why, write_record, write_text
from mellea_like.cli.sample.progress import Progress
from mellea_like.cli.sample.trace_file import check_trace, write_trace
from mellea_like.cli.schema import structured_type
from mellea_like.cli.signals import Ending, terminable
from mellea_like.cli.terminal import is_terminal, one_line, silence, warn
from mellea_like.errors import BackendError, LimitExceeded, MelleaError, SamplingTimeout

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mellea_like.cli.arguments import SampleArguments
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.result import SamplingResult

__all__ = ["run_sample"]


def run_sample(arguments: SampleArguments) -> int:
    """Do what ``mellea-like sample`` was asked to do."""
    progress = Progress(arguments.loop, arguments.concurrency)
    with logs(debug=arguments.debug), terminable() as ending:
        try:
            limits = Limits.of(arguments.limits)
            schedule = limits.schedule
            progress.follow(pooled=schedule.pooled, extra=schedule.extra)
            return _run(arguments, limits, progress, ending)
        except KeyboardInterrupt:
            calls = "" if progress.cancelled == 1 else "s"
            what = f"{progress.cancelled} call{calls} in flight cancelled."
            message = f"Interrupted: {what}" if progress.cancelled else "Interrupted."
            raise Interrupted(message, ending.code) from None
        except Exception as error:  # noqa: BLE001 (said in a sentence; shown with --debug)
            return _report(arguments, error)


def _run(arguments: SampleArguments, limits: Limits, progress: Progress, ending: Ending) -> int:
    schema = None if arguments.schema is None else read_schema(arguments.schema)
    requirements = read_requirements(arguments, schema)
    wanted = structured_type(arguments, schema)
    check_options(arguments)
    if arguments.trace is not None:
        check_trace(arguments.trace)
    instruction = read_instruction(arguments.instruction)
    try:
        result = ending.run(_sample, arguments, limits, instruction, requirements, wanted, progress)
    except SamplingTimeout as timeout:
        if timeout.result is None:
            raise
        result = timeout.result
    progress.cancelled = 0  # Those that lost were not interrupted.
    code = _show(arguments, limits, result)
    if arguments.trace is not None:
        write_trace(arguments.trace, result)
    return code


async def _sample(
    arguments: SampleArguments,
    limits: Limits,
    instruction: str,
    requirements: list[Requirement],
    wanted: type[Any] | None,
    progress: Progress,
) -> SamplingResult[Any]:
    if choose_backend(arguments) is BackendName.LLAMA and not arguments.quiet:
        warn(f"Starting a llama.cpp server for {arguments.gguf} ...")
    async with open_backends(arguments) as opened:
        strategy = make_strategy(
            arguments, limits, opened, budget=make_budget(limits, opened), plugins=[progress]
        )
        if not arguments.quiet or named_backend(arguments) is None:
            warn(f"Backend: {opened.name}")
        with _watched(arguments, progress):
            return await strategy.sample(
                instruction,
                requirements,
                format=wanted,
                options=call_options(arguments, limits),
                on_slice=progress.on_slice,
            )


def _watched(arguments: SampleArguments, progress: Progress) -> AbstractContextManager[object]:
    if arguments.quiet:
        return contextlib.nullcontext()
    # Log records would run into a live view.
    if is_terminal(sys.stderr) and not arguments.debug:
        console = make_console(sys.stderr)
        if not console.is_dumb_terminal:
            return LiveView(progress, console)
    progress.say = _say
    return contextlib.nullcontext()


def _say(line: str) -> None:
    warn(one_line(line))


def _show(arguments: SampleArguments, limits: Limits, result: SamplingResult[Any]) -> int:
    replies = (s.generation for s in result.slices if s.generation is not None)
    ledger = result.ledger(limits.prices(reply.model for reply in replies))
    console = make_console(sys.stderr)
    try:
        if arguments.explain:
            console.print(slices_table(result.slices, console))
        if arguments.ledger:
            console.print(Text(str(ledger), no_wrap=True, overflow="ellipsis"))
    except OSError:
        silence(sys.stderr)
    if result.success:
        if not arguments.quiet:
            warn(summary(result, ledger))
    else:
        warn(why(result, ledger))
    if arguments.as_json:
        names = {"strategy": arguments.strategy.value, "backend": choose_backend(arguments).value}
        write_record(as_record(result, ledger, **names))
    elif result.best_index is not None:
        write_text(result.best.text)
    return Exit.PASSED if result.success else Exit.NOTHING_PASSED


def _report(arguments: SampleArguments, error: Exception) -> int:
    message = report(error, debug=arguments.debug)
    record: SamplingResult[Any] | None = None
    if isinstance(error, MelleaError):  # Some carry the record of their call.
        record = getattr(error, "result", None)
    if arguments.trace is not None and record is not None:
        try:
            write_trace(arguments.trace, record)
        except Problem as problem:
            report(problem, debug=arguments.debug)
    if arguments.as_json:
        about: dict[str, Any] = {}
        if isinstance(error, LimitExceeded):
            about = {"stop_reason": "budget"}
        elif isinstance(error, BackendError) and error.retry_after is not None:
            about = {"retry_after": error.retry_after}
        with contextlib.suppress(Problem):
            write_record({"success": False, "error": message, **about})
    return code_of(error)
