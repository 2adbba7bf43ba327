"""``mellea-like check``: check a file of existing replies, without drawing new ones."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path  # noqa: TC003 (Typer reads the annotations)
from typing import TYPE_CHECKING, Any, ClassVar

from mellea_like.batch import Journal, check_many
from mellea_like.batch.rows.formats import BadRow, free_names, whole
from mellea_like.cli.batch.output import Output, refuse_same_file
from mellea_like.cli.batch.results import with_options
from mellea_like.cli.console import live_view, make_console
from mellea_like.cli.draw_options import (
    CHECK_HELP,
    CHECKS,
    COSTS,
    DEBUG,
    OUTPUT,
    TemplatedChecks,
    requirements_of,
)
from mellea_like.cli.errors import in_options, problems_of
from mellea_like.cli.exit_codes import Exit, Problem, fail, misuse, os_errors
from mellea_like.cli.judge_options import JUDGE, MAX_TOKENS, JudgeOptions, opened, rows_of
from mellea_like.cli.option_fields import argument, option, option_names, read_section
from mellea_like.cli.outages import watched_servers
from mellea_like.cli.standard_streams import STANDARD, warn, write_output
from mellea_like.core.display import one_line, plural, printable
from mellea_like.core.generation import Usage
from mellea_like.core.validation import ValidationStatus
from mellea_like.errors import AuthenticationFailed, JournalError, LimitExceeded
from mellea_like.limits.backoff_gate import gate_of
from mellea_like.requirements.expressions import is_code_check
from mellea_like.specification.strategy import StrategySpec
from mellea_like.specification.upstream import open_upstream

if TYPE_CHECKING:
    from mellea_like.batch import ItemResult
    from mellea_like.cli.signals import SignalHandler
    from mellea_like.core.backend import Backend
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.slice import Slice

HELP = """\
FILE has one JSON object per line, or is a CSV, TSV or Parquet file. One field of each row is the\
 reply. A table shows how many rows passed each requirement, followed by the first rows that failed.

[bold]Examples[/bold]

\b
mellea-like check replies.jsonl --check "words<=50" --check "excludes:sorry"
mellea-like check log.csv --reply answer --prompt question \\
    --require "answers the question" --judge gpt-4.1-mini -o verdicts.jsonl
"""

EPILOG = (
    "Exit codes: 0 all rows passed, 1 some rows failed or could not be decided, 2 bad usage, 3 a"
    " judge, configuration or file error, 130 interrupted, 143 terminated (SIGTERM)."
)

SETTINGS = {
    "validate_all": "--all",
    "requirements": "--check, --require, --schema",
    "judge.model": "--judge",
    "judge_options": "--judge-option",
    "checks": "--check",
}
"""Maps the library's names for settings to the options that set them."""

SHOWN = 10
"""The most rows to list below the table, of those that did not pass."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions(TemplatedChecks, JudgeOptions):
    """The options of ``mellea-like check``."""

    panels: ClassVar = (CHECKS, JUDGE, COSTS, OUTPUT)

    source: str = argument("FILE", "The replies: a file, or - for JSONL on standard input.")
    checks: list[str] = option(
        list,
        "--check EXPR",
        f"{CHECK_HELP}\n\nA check that contains {{{{ }}}} is a Jinja template, and is filled in for"
        " each row: contains:{{ answer }}.",
        CHECKS,
    )
    requirements: list[str] = option(
        list, "--require TEXT", "A requirement in words, which the judge decides.", CHECKS
    )
    json_schema: Path | None = option(
        None, "--schema FILE", "A JSON Schema that replies must match.", CHECKS
    )
    every: bool = option(
        False, "--all", "Check every requirement, even after one has failed.", CHECKS
    )
    judge: str | None = option(None, "--judge MODEL", "The model that judges.", JUDGE)
    workers: int = option(16, "--workers N", "How many rows to check at the same time.", min=1)
    journal: Path | None = option(
        None,
        "--journal FILE",
        "Keep verdicts in this file. With the same file, the next run checks only what is missing.",
    )
    output: str | None = option(
        None,
        "--output -o OUT",
        "Write each row with its verdicts to this file as JSONL; - for standard output, without"
        " the table.",
        OUTPUT,
    )
    force: bool = option(False, "--force", "Replace OUT if it exists.", OUTPUT)
    quiet: bool = option(False, "--quiet -q", "Print no table, and don't show progress.", OUTPUT)
    debug: bool = option(*DEBUG)

    @cached_property
    def spec(self) -> StrategySpec:
        """The requirements, without code checks and templates."""
        given = {
            "requirements": self.requirements,
            "checks": [one for one in self.fixed_checks if not is_code_check(one)],
            "json_schema": self.json_schema and str(self.json_schema),
        }
        return read_section(StrategySpec, given, option_names(type(self)))


def run(options: CheckOptions, signals: SignalHandler) -> int:
    """Run ``mellea-like check``."""
    try:
        return _Checks(options).run(signals)
    except JournalError as error:
        raise with_options(error, options, SETTINGS) from error


class _Checks:
    """Runs ``mellea-like check`` once. Creating it checks the options, but reads nothing."""

    def __init__(self, options: CheckOptions) -> None:
        from mellea_like.cli.batch.prompt import PromptTemplate  # noqa: PLC0415 (it needs jinja2)

        self._options = options
        self._requirements = requirements_of(
            options.spec, options.fixed_checks, options.json_schema
        )
        self._template = PromptTemplate(None, checks=options.row_checks)
        if not self._requirements and not options.row_checks:
            misuse("there is nothing to check: add --check, --require or --schema")
        judged = [r.description for r in self._requirements if r.judged]
        if judged and options.judge is None and options.judge_base_url is None:
            misuse(
                f"--require {judged[0]!r} needs a judge: add --judge MODEL or --judge-base-url URL"
            )
        if not judged and (options.judge or options.judge_base_url or options.judge_option):
            misuse("there is nothing to judge: add --require TEXT")
        self._judge = options.upstream(options.judge) if judged else None
        if not judged and (options.budget or options.price):
            misuse("--budget and --price are for judges: add --require TEXT")
        self._budget = options.make_budget([options.judge])
        # In the order of a row's verdicts: the row's own checks come first.
        names = [*options.row_checks, *(r.name for r in self._requirements)]
        self._counts = [(name, Counter[ValidationStatus]()) for name in names]
        """For each requirement, its name, and the number of rows with each status."""
        self._statuses: Counter[str] = Counter()
        self._unread = 0
        self._wrong: list[tuple[int, str]] = []
        """The numbers of the first rows that did not pass, and the reasons."""
        self._usage = Usage()
        self._output: Output | None = None
        if options.output is not None:
            if options.output != STANDARD and not options.output.endswith((".jsonl", ".ndjson")):
                misuse(f"--output: {options.output} does not end in .jsonl")
            refuse_same_file(
                ("FILE", None if options.source == STANDARD else options.source),
                ("--journal", options.journal),
                ("--output", options.output),
            )
            self._output = Output("--output", options.output, replace=options.force)

    def run(self, signals: SignalHandler) -> int:
        signals.last_words = lambda: f"Interrupted after {plural(self._statuses.total(), 'row')}."
        options, spent = self._options, None
        try:
            signals.run(self._check_all)
        except LimitExceeded as error:
            spent = error
        if not self._statuses.total() and spent is None:
            fail(f"{options.source} has no rows")
        if options.output != STANDARD and not options.quiet:
            self._show()
        if spent is not None:
            warn(f"mellea-like: stopped early: {in_options(str(spent), MAX_TOKENS)}")
            return Exit.NOTHING_PASSED
        if self._statuses["errored"] == self._statuses.total():
            return Exit.SETUP
        passed = self._statuses["passed"] == self._statuses.total()
        return Exit.PASSED if passed else Exit.NOTHING_PASSED

    async def _check_all(self) -> None:
        options = self._options
        async with AsyncExitStack() as stack:
            judge: Backend | None = None
            if self._judge is not None:
                judge = await stack.enter_async_context(
                    open_upstream(self._judge, follow_redirects=True)
                )
            file = stack.enter_context(opened(options.source))
            gates = [] if judge is None else [gate_of(judge)]
            await stack.enter_async_context(watched_servers(gates, warn))
            results = await stack.enter_async_context(
                check_many(
                    rows_of(options.source, file),
                    self._row_checks if options.row_checks else self._requirements,
                    concurrency=options.workers,
                    reply=options.reply_of,
                    action=None if options.prompt is None else options.task_of,
                    judge=judge,
                    judge_options=options.request_options,
                    budget=self._budget,
                    validate_all=options.every,
                    journal=None if options.journal is None else Journal(options.journal),
                    keep_errors=False,  # The next run checks those again.
                    settings=self._settings,
                    in_order=True,
                )
            )
            if self._output is not None:
                self._output.begin(None, at_once=True)
                stack.push_async_callback(self._output.close, keep=True)
            if not options.quiet and (
                view := live_view(lambda _: f"{plural(self._statuses.total(), 'row')} checked")
            ):
                stack.enter_context(view)
            async for item in results:
                refused = None if item.error is None else item.error.__cause__
                if isinstance(refused, AuthenticationFailed):
                    raise refused  # Every other row would be refused too.
                self._count(item)
                if self._output is not None:
                    await self._output.write(_record(item))

    @property
    def _settings(self) -> dict[str, Any]:
        """The settings that must be the same when a journal is used again."""
        checks = self._options.row_checks
        return {"checks": [*checks, *self._options.fixed_checks]} if checks else {}

    def _row_checks(self, row: Any) -> list[Requirement]:
        try:
            return [*self._template.requirements_of(row), *self._requirements]
        except BadRow as exc:
            raise Problem(str(exc).removeprefix(f"{row.where}: ")) from exc

    def _count(self, item: ItemResult[Any]) -> None:
        self._statuses[item.status] += 1
        self._usage += item.usage
        problems = [] if item.error is None else [str(item.error)]
        record = _slice_of(item)
        if record is not None:
            problems = problems_of(record)
            self._unread += not record.verdicts
            for (_, counts), verdict in zip(self._counts, record.verdicts, strict=False):
                counts[verdict.status] += 1
        if not item.success and len(self._wrong) < SHOWN:
            self._wrong.append((_number(item), one_line("; ".join(problems))))

    def _show(self) -> None:
        from rich.table import Table  # noqa: PLC0415 (few need it)

        total = self._statuses.total()
        console = make_console(sys.stdout)
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("requirement", overflow="fold")
        names = ("passed", "failed", "errored", "skipped")
        for name in names:
            table.add_column(name, justify="right")
        for requirement, counts in self._counts:
            row = [counts[ValidationStatus(name)] for name in names]
            table.add_row(printable(requirement), *(f"{n:,}" if n else "" for n in row))
        others = [f"{n:,} {name}" for name in ("failed", "errored") if (n := self._statuses[name])]
        passed = f"{self._statuses['passed']:,} of {plural(total, 'row')} passed"
        line = ", ".join([passed, *others])
        if self._unread:
            line += f"; {plural(self._unread, 'row')} could not be read as a whole reply"
        if self._usage.requests:
            line += f"; {self._usage}"
            if (cost := self._options.cost_of(self._usage)) is not None:
                line += f", {cost}"
        # Even a console that captures writes to its stream at the end: an empty text.
        with os_errors("can't write to standard output"), console.capture() as shown:
            console.print(table)
            console.print(f"{line}.", soft_wrap=True)
            for number, problem in self._wrong:
                console.print(f"row {number}: {printable(problem)}", soft_wrap=True)
            if more := total - self._statuses["passed"] - len(self._wrong):
                console.print(f"... and {plural(more, 'more row')}.")
        write_output(shown.get())


def _slice_of(item: ItemResult[Any]) -> Slice | None:
    """Return the record of a row's check, or None if the check could not start."""
    return None if item.result is None else item.result.slices[0]


def _number(item: ItemResult[Any]) -> int:
    """Return the line on which a row begins or, if unknown, the row's number in the file."""
    return int(getattr(item.item, "number", item.id + 1))


def _record(item: ItemResult[Any]) -> dict[str, Any]:
    """Return a row with its verdicts, as plain data for the output."""
    record, row = _slice_of(item), whole(dict(item.item))
    told = {
        "status": item.status,
        "reason": "" if record is None else record.reason,
        "error": None if item.error is None else str(item.error),
        "verdicts": [
            {
                "requirement": requirement.name,
                "status": verdict.status.value,
                "reason": verdict.reason,
                "score": verdict.score,
            }
            for requirement, verdict in (() if record is None else record.validations)
        ],
    }
    return {**row, **dict(zip(free_names(list(row), list(told)), told.values(), strict=True))}
