"""``mellea-like sample``: one call, from its arguments to its exit code."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from typing import TYPE_CHECKING, Any

import anyio
from rich.text import Text

from mellea_like.cli.arguments import (
    MOST_ITERATIONS,
    BackendName,
    StrategyName,
    read_instruction,
    read_requirements,
    read_schema,
)
from mellea_like.cli.exits import Exit, Interrupted, Problem
from mellea_like.cli.limits import Limits
from mellea_like.cli.live import LiveView, make_console, slices_table
from mellea_like.cli.opening import check_options, choose_backend, open_backends
from mellea_like.cli.output import (
    as_record,
    refused,
    spent,
    summary,
    why,
    write_record,
    write_text,
)
from mellea_like.cli.progress import Progress
from mellea_like.cli.schema import structured_type
from mellea_like.cli.signals import terminable
from mellea_like.cli.terminal import is_terminal, one_line, silence, warn
from mellea_like.errors import BackendError, LimitExceeded, MelleaError, SamplingTimeout
from mellea_like.sampling.multi_turn import MultiTurnStrategy
from mellea_like.sampling.rejection import RejectionSamplingStrategy
from mellea_like.sampling.repair_template import RepairTemplateStrategy

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractContextManager

    from mellea_like.cli.arguments import SampleArguments
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.result import SamplingResult
    from mellea_like.sampling.base import BaseSamplingStrategy

__all__ = ["run_sample"]

_STRATEGIES: dict[StrategyName, type[BaseSamplingStrategy]] = {
    StrategyName.REJECTION: RejectionSamplingStrategy,
    StrategyName.REPAIR: RepairTemplateStrategy,
    StrategyName.MULTI_TURN: MultiTurnStrategy,
}


def run_sample(arguments: SampleArguments) -> int:
    """Do what ``mellea-like sample`` was asked to do.

    Args:
        arguments: what the user asked for.

    Returns:
        The exit code.

    Raises:
        Interrupted: Ctrl-C was pressed, or the process was told to end.
    """
    progress = Progress(arguments.loop, arguments.concurrency)
    with _logs(arguments), terminable() as terminated:
        try:
            limits = Limits.of(arguments.limits)
            schedule = limits.schedule
            progress.follow(pooled=schedule.pooled, extra=schedule.extra)
            return _run(arguments, limits, progress)
        except KeyboardInterrupt:
            calls = "" if progress.cancelled == 1 else "s"
            what = f"{progress.cancelled} call{calls} in flight cancelled."
            message = f"Interrupted: {what}" if progress.cancelled else "Interrupted."
            code = Exit.TERMINATED if terminated else Exit.INTERRUPTED
            raise Interrupted(message, code) from None
        except Problem as problem:
            return _report(arguments, problem, problem.code)
        except LimitExceeded as error:
            return _report(arguments, error, Exit.NOTHING_PASSED)
        except MelleaError as error:
            return _report(arguments, error, Exit.SETUP)
        except Exception as error:  # noqa: BLE001 (shown with --debug)
            return _report(arguments, error, Exit.SETUP, unexpected=True)


def _run(arguments: SampleArguments, limits: Limits, progress: Progress) -> int:
    schema = None if arguments.schema is None else read_schema(arguments.schema)
    requirements = read_requirements(arguments, schema)
    wanted = structured_type(arguments, schema)
    check_options(arguments)
    instruction = read_instruction(arguments.instruction)
    try:
        result = anyio.run(_sample, arguments, limits, instruction, requirements, wanted, progress)
    except SamplingTimeout as timeout:
        if timeout.result is None:
            raise
        result = timeout.result
    progress.cancelled = 0  # Those that lost were not interrupted.
    return _show(arguments, limits, result)


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
        judge = opened.judge
        judges = [] if judge is None else [judge]
        options: dict[str, Any] = {"seed": arguments.seed, "max_tokens": limits.max_tokens}
        strategy = _STRATEGIES[arguments.strategy](
            limits.limited(opened.backend),
            judge=None if judge is None else limits.limited(judge),
            loop_budget=arguments.loop,
            concurrency_budget=arguments.concurrency,
            max_iterations=MOST_ITERATIONS,
            timeout=arguments.timeout,
            retry=limits.retry,
            schedule=limits.schedule,
            budget=limits.budget_for([opened.backend, *judges]),
            give_up=limits.give_up,
            plugins=[progress],
        )
        if not arguments.quiet:
            warn(f"Backend: {opened.name}")
        with _watched(arguments, progress):
            return await strategy.sample(
                instruction,
                requirements,
                format=wanted,
                options={name: value for name, value in options.items() if value is not None},
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


def _report(
    arguments: SampleArguments, error: Exception, code: int, *, unexpected: bool = False
) -> int:
    message = str(error) or type(error).__name__
    about: dict[str, Any] = {}
    if isinstance(error, LimitExceeded):
        message = spent(error)
        about = {"stop_reason": "budget"}
    elif isinstance(error, BackendError):
        message = refused(error)
        about = {} if error.retry_after is None else {"retry_after": error.retry_after}
    if unexpected:
        hint = "" if arguments.debug else " (--debug shows where)"
        message = f"{type(error).__name__}: {one_line(message)}{hint}"
    if arguments.debug:
        warn("".join(traceback.format_exception(error)).splitlines())
    warn(f"mellea-like: {message}".splitlines())
    if arguments.as_json:
        with contextlib.suppress(Problem):
            write_record({"success": False, "error": message, **about})
    return code


@contextlib.contextmanager
def _logs(arguments: SampleArguments) -> Generator[None]:
    """Keep the library's warnings, which say what progress says, for ``--debug``."""
    logger = logging.getLogger("mellea_like")
    handler = logging.StreamHandler(sys.stderr) if arguments.debug else logging.NullHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
