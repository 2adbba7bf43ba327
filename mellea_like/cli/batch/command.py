"""``mellea-like batch``: one prompt for every row of a file, in a run that can be resumed."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.batch.journal.journal import Journal
from mellea_like.batch.journal.reader import read_run
from mellea_like.batch.run import sample_many
from mellea_like.cli.arguments import BackendName, read_requirements, read_schema
from mellea_like.cli.batch.identity import another_run, model_files
from mellea_like.cli.batch.output import Output, ReaderLeft
from mellea_like.cli.batch.progress import BatchView
from mellea_like.cli.batch.record import record_of
from mellea_like.cli.batch.source import STANDARD, RowSource
from mellea_like.cli.batch.summary import so_far, summary
from mellea_like.cli.building import call_options, make_budget, make_strategy
from mellea_like.cli.exits import Exit, Interrupted, Problem
from mellea_like.cli.limits import Limits, in_options
from mellea_like.cli.opening import (
    check_options,
    choose_backend,
    named_backend,
    open_backends,
)
from mellea_like.cli.reporting import code_of, logs, report, sentence
from mellea_like.cli.schema import structured_type
from mellea_like.cli.signals import terminable
from mellea_like.cli.template import PromptTemplate
from mellea_like.cli.terminal import is_terminal, one_line, warn
from mellea_like.errors import JournalError, LimitExceeded, SamplingFailed
from mellea_like.runtime.collector import relaxed_gc

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mellea_like.batch.item import ItemResult
    from mellea_like.batch.rows.formats import Row
    from mellea_like.cli.batch.arguments import BatchArguments
    from mellea_like.cli.opening import Backends
    from mellea_like.core.requirement import Requirement

__all__ = ["run_batch"]

MOST_ERRORS_TOLD = 5
"""How many different errors are told one by one."""


def run_batch(arguments: BatchArguments) -> int:
    """Do what ``mellea-like batch`` was asked to do."""
    debug = arguments.sample.debug
    batch: _Batch | None = None
    goes_on = True

    def at_once() -> str:
        return "Interrupted." if batch is None else batch.break_off()

    with (
        logs(debug=debug),
        terminable(at_once=at_once) as ending,
        relaxed_gc(),
        ExitStack() as stack,
    ):
        try:
            batch = _Batch(arguments)
            stack.callback(batch.close)
            ending.run(batch.run)
            return batch.finish()
        except KeyboardInterrupt:
            said = "Interrupted." if batch is None else f"Interrupted{batch.so_far()}"
            raise Interrupted(said, ending.code) from None
        except LimitExceeded as error:
            warn(f"mellea-like: {in_options(str(error))}")
            code = Exit.NOTHING_PASSED
        except SamplingFailed as error:  # With --fail-fast.
            warn(f"mellea-like: {one_line(str(error))}")
            code = Exit.NOTHING_PASSED
        except ReaderLeft:
            warn("mellea-like: nobody reads the results any more")
            code = Exit.NOTHING_PASSED
        except Exception as error:  # noqa: BLE001 (said in a sentence; shown with --debug)
            journal = arguments.journal
            if isinstance(error, JournalError):
                goes_on = False  # Whether it can, and how, is what the error says.
                if error.differences and journal is not None:
                    error = another_run(error, journal)
            report(error, debug=debug)
            code = code_of(error)
        if batch is not None and batch.begun:
            warn(f"Stopped{batch.so_far(goes_on=goes_on)}")
        return code


class _Batch:
    """One run of the command: everything is checked when it is made, and nothing sent before."""

    def __init__(self, arguments: BatchArguments) -> None:
        self._arguments = arguments
        sample = arguments.sample
        self.begun = False
        self._limits = Limits.of(sample.limits)
        self._schema = schema = None if sample.schema is None else read_schema(sample.schema)
        self._requirements: list[Requirement] = read_requirements(sample, schema)
        self._wanted = structured_type(sample, schema)
        if named_backend(sample) is None:
            msg = (
                "batch takes no backend that was not named: add --model NAME, --base-url URL or"
                " --gguf FILE; --backend markov, which understands nothing, is for trying things"
                " out"
            )
            raise Problem(msg, Exit.USAGE)
        check_options(sample)
        self._template = PromptTemplate.given(arguments.prompt)
        self._source = RowSource(
            arguments.source,
            arguments.input_format,
            self._template,
            on_bad=arguments.on_bad_line,
            most=arguments.first,
        )
        self._finished = self._look_at_journal()
        self._outputs = self._make_outputs()
        self._check_places()
        self._source.look_through(quiet=sample.quiet)
        self._digest = self._source.digest() if arguments.journal is not None else None
        self._model_files = {} if arguments.journal is None else model_files(sample)
        self._whole = self._finished == 0
        self._view = BatchView(
            self._limits.price,
            total=self._source.total,
            quiet=sample.quiet or (arguments.output == STANDARD and is_terminal(sys.stdout)),
            lines=sample.debug,  # Log records would run into a live view.
            every=arguments.every,
        )
        self._handed_on = 0
        self._errors_in_a_row = 0
        self._told: set[str] = set()

    def close(self) -> None:
        """Close the input."""
        self._source.close()

    # --- checks ----------------------------------------------------------------------------------

    def _look_at_journal(self) -> int:
        """Return how many rows the journal has finished."""
        arguments, path = self._arguments, self._arguments.journal
        if path is None or not path.exists():
            return 0
        run = read_run(path, check=not arguments.resume)  # Resuming it checks it.
        if not arguments.resume:
            msg = (
                f"the journal {path} is there already: go on with its run by the same command and"
                " --resume, or name another file"
            )
            raise Problem(msg)
        counts: dict[str, int] = run["counts"]
        return sum(n for status, n in counts.items() if status != "unfinished")

    def _make_outputs(self) -> list[Output]:
        arguments = self._arguments
        resumed = arguments.resume and arguments.journal is not None and arguments.journal.exists()
        named = [("--output", arguments.output)]
        if arguments.failed is not None:
            named.append(("--failed", arguments.failed))
        outputs = [
            Output(option, given, arguments.output_format, replace=arguments.force, renew=resumed)
            for option, given in named
        ]
        for output in outputs:
            if output.whole_at_its_end and arguments.journal is None:
                msg = (
                    f"{output.path} can't be read before its end, and a crash would lose all: add"
                    " --journal FILE, or write JSONL or CSV"
                )
                raise Problem(msg, Exit.USAGE)
        return outputs

    def _check_places(self) -> None:
        arguments = self._arguments
        places: list[tuple[str, Path | None]] = [
            ("INPUT", self._source.path),
            ("--journal", arguments.journal),
            *zip(("--output", "--failed"), (o.path for o in self._outputs), strict=False),
        ]
        seen: dict[Path, str] = {}
        for option, path in places:
            if path is None or (path.exists() and not path.is_file()):
                continue
            other = seen.setdefault(path.resolve(), option)
            if other != option:
                msg = f"{other} and {option} are the same file, {path}: name another one"
                raise Problem(msg, Exit.USAGE)
        if arguments.output == arguments.failed == STANDARD:
            msg = "--output and --failed can't both be standard output"
            raise Problem(msg, Exit.USAGE)

    # --- the run ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Sample all rows and write what comes of them."""
        arguments, sample = self._arguments, self._arguments.sample
        if choose_backend(sample) is BackendName.LLAMA and not sample.quiet:
            warn(f"Starting a llama.cpp server for {sample.gguf} ...")
        async with open_backends(sample) as opened:
            if not sample.quiet:
                warn(f"Backend: {opened.name}")
            async with sample_many(
                make_strategy(sample, self._limits, opened),
                self._source.rows(),
                concurrency=arguments.parallel,
                action=self._template.fill,
                requirements=self._requirements,
                format=self._wanted,
                options=call_options(sample, self._limits),
                budget=make_budget(self._limits, opened, "run"),
                ordered=arguments.ordered,
                fail_fast=arguments.fail_fast,
                journal=self._journal(opened),
                keep_errors=False,  # The backend's say nothing about the row.
                on_progress=self._view.update,
                settings=self._settings(),
            ) as results:
                self.begun = True
                ended = False
                try:
                    for output in self._outputs:
                        output.begin(self._source.columns, at_once=self._whole)
                    with self._view:
                        async for item in results:
                            await self._take(item)
                    ended = True
                finally:
                    self._view.update(results.progress)
                    with anyio.CancelScope(shield=True):
                        for output in self._outputs:
                            kept = ended or (self._whole and output.rows > 0)
                            await output.close(keep=kept)

    def _journal(self, opened: Backends) -> Journal | None:
        path = self._arguments.journal
        if path is None:
            return None
        models = [getattr(b, "model", None) for b in (opened.backend, opened.judge)]
        return Journal(
            path,
            resume=self._arguments.resume,
            text=self._arguments.journal_text,
            prices=self._limits.prices(models),
        )

    def _settings(self) -> Mapping[str, Any]:
        said: dict[str, Any] = {"input": self._digest, "prompt": self._template.text}
        said |= self._model_files
        if self._schema is not None:
            said["schema"] = self._schema
        return said

    async def _take(self, item: ItemResult[Any]) -> None:
        arguments = self._arguments
        record = record_of(item, as_value=arguments.sample.schema is not None)
        self._handed_on += 1
        try:
            if item.success or (arguments.failed is None and not arguments.only_passed):
                await self._outputs[0].write(record)
            elif arguments.failed is not None:
                await self._outputs[1].write(record)
        except Problem:
            self._handed_on -= 1
            raise
        if item.replayed:
            self._finished -= 1
            if self._finished == 0 and not self._whole:
                self._whole = True
                for output in self._outputs:
                    if not output.whole_at_its_end:
                        output.publish()
        else:
            self._note(item)

    def _note(self, item: ItemResult[Any]) -> None:
        """Tell of new errors, and stop where nothing else comes."""
        if item.error is None:
            self._errors_in_a_row = 0
            return
        row: Row = item.item
        said = sentence(item.error, debug=self._arguments.sample.debug)
        if said not in self._told and len(self._told) < MOST_ERRORS_TOLD:
            self._told.add(said)
            self._view.say(f"line {row.number}: {said}")
        self._errors_in_a_row += 1
        if self._errors_in_a_row == self._arguments.most_errors:
            msg = f"{self._errors_in_a_row} rows in a row ended in an error, the last with: {said}"
            raise Problem(msg)

    def break_off(self) -> str:
        """Leave nothing useless behind; say how far the run came."""
        for output in self._outputs:
            output.remove_leftovers(keep=False)
        return f"Interrupted{self.so_far()}"

    def finish(self) -> int:
        """Say how the run went."""
        progress = self._view.progress
        good = progress.passed == progress.done
        if not (self._arguments.sample.quiet and good):
            warn(summary(progress, self._limits.price, left_out=self._source.bad))
        if not good and progress.errored == progress.done:
            return Exit.SETUP
        return Exit.PASSED if good else Exit.NOTHING_PASSED

    def so_far(self, *, goes_on: bool = True) -> str:
        """Say how far a run came that was stopped, and how to go on."""
        journal = self._arguments.journal is not None
        # What is done and not handed on stands in no file; the journal may have it.
        progress = replace(self._view.progress, done=self._handed_on)
        said = so_far(progress, journal=journal, goes_on=goes_on)
        return said if self.begun else "."
