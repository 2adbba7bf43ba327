"""``mellea-like batch``: one prompt for every row of a file, in a run that can be resumed."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mellea_like.batch.journal.reader import read_run
from mellea_like.batch.journal.together import AGAIN
from mellea_like.batch.rows.formats import HALVES
from mellea_like.cli.backends import Backends
from mellea_like.cli.batch.output import Output, refuse_same_file
from mellea_like.cli.batch.progress import BatchView, so_far, summary
from mellea_like.cli.batch.prompt import PromptTemplate, read_text
from mellea_like.cli.batch.results import row_results, with_options
from mellea_like.cli.batch.shards import Shards, refuse_shards, shard_results
from mellea_like.cli.batch.source import RowSource, digest_of
from mellea_like.cli.errors import code_of, in_options, report
from mellea_like.cli.exit_codes import Exit, Problem, fail, misuse
from mellea_like.cli.standard_streams import STANDARD, warn
from mellea_like.core.display import plural
from mellea_like.errors import JournalError, LimitExceeded
from mellea_like.report.views import RunView
from mellea_like.runtime.garbage_collector import relaxed_gc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from mellea_like.cli.batch.options import BatchOptions
    from mellea_like.cli.batch.results import RowResult
    from mellea_like.cli.signals import SignalHandler

MOST_ERRORS_TOLD = 5
"""The maximum number of different row errors that a run shows as they occur."""


def run_batch(options: BatchOptions, signals: SignalHandler) -> int:
    """Run ``mellea-like batch``."""
    batch: _Batch | None = None
    resumable = True
    with relaxed_gc(), ExitStack() as stack:
        try:
            batch = _Batch(options)
            stack.callback(batch.close)
            signals.last_words, signals.at_once = batch.last_words, batch.leave_at_once
            signals.run(batch.run)
            return batch.finish()
        except LimitExceeded as error:
            warn(f"mellea-like: {in_options(str(error))}")
            code = Exit.NOTHING_PASSED
        except Exception as error:  # noqa: BLE001 (said in a sentence; shown with --debug)
            # A journal's error itself says whether and how its run can be resumed.
            resumable = not isinstance(error, JournalError)
            report(with_options(error, options), debug=options.debug)
            code = code_of(error)
        if batch is not None and batch.begun:
            warn(f"Stopped{batch.so_far(resumable=resumable)}")
        return code


class _Batch:
    """Runs ``mellea-like batch`` once. Creating it checks options and input, but sends nothing."""

    def __init__(self, options: BatchOptions) -> None:
        self._options = options
        self.begun = False
        options.make_requirements()  # This reports their errors.
        self._backends = Backends(options)
        self._template = PromptTemplate(
            read_text("--prompt", options.prompt),
            read_text("--system", options.system),
            options.row_checks,
            early=options.early,
        )
        self._source = RowSource(
            options.source,
            self._template,
            on_bad=options.on_bad_line,
            most=options.first,
            again=options.again,
        )
        self._earlier: Mapping[str, Any] = {}
        self._shards = Shards(options) if options.processes > 1 else None
        self._finished = self._look_at_journals()
        self._outputs = self._make_outputs()
        refuse_same_file(
            ("INPUT", None if options.source == STANDARD else options.source),
            ("--journal", options.journal),
            ("--output", options.output),
            ("--failed", options.failed),
        )
        self._source.look_through(quiet=options.quiet)
        self._settings = self._read_settings()
        self._whole = self._finished == 0
        self._view = BatchView(
            self._backends.price,
            total=self._source.total,
            quiet=options.quiet or (options.output == STANDARD and sys.stdout.isatty()),
            lines=options.debug,  # Log records would run into a live view.
        )
        self._handed_on = self._filtered = 0
        self._errors_in_a_row = 0
        self._only_errors = True
        self._told: set[str] = set()

    def close(self) -> None:
        self._source.close()
        if self._shards is not None:
            self._shards.close()

    # --- checks ----------------------------------------------------------------------------------

    def _look_at_journals(self) -> int:
        """Return the number of finished rows; refuse a run that has a journal but isn't resumed."""
        options, path = self._options, self._options.journal
        if path is None or not path.exists():
            return 0
        paths = [path] if self._shards is None else self._shards.begun()
        if self._shards is None:
            refuse_shards(path)
        # Resuming checks the whole file.
        runs = [RunView(read_run(one, check=not options.resume)) for one in paths]
        if runs and not options.resume:
            fail(
                f"the journal {path} already exists: continue its run with the same command and"
                " --resume, or name another file"
            )
        for run in runs:
            self._earlier = run.identity
        return sum(run.finished for run in runs)

    def _make_outputs(self) -> list[Output]:
        options = self._options
        renew = options.resume and bool(self._earlier)
        outputs = [Output("--output", options.output, replace=options.force, renew=renew)]
        if options.failed is not None:
            outputs.append(Output("--failed", options.failed, replace=options.force, renew=renew))
        for output in outputs:
            if output.whole_at_its_end and options.journal is None:
                misuse(
                    f"{output.path} can't be read until it is complete, so a crash would lose"
                    " everything: add --journal FILE, or write JSONL or CSV"
                )
        return outputs

    def _read_settings(self) -> dict[str, Any]:
        """Return the settings that must be the same when a journal's run is resumed."""
        options = self._options
        template = self._template
        settings: dict[str, Any] = {} if template.text is None else {"prompt": template.text}
        if template.system is not None:
            settings["system"] = template.system
        if options.row_checks:
            settings["checks"] = options.row_checks
        if options.spec.json_schema is not None:
            settings["schema"] = options.spec.json_schema
        if options.journal is not None:
            quiet = options.quiet
            settings["input"] = self._source.digest(self._earlier.get("input"))
            if options.again:
                settings[AGAIN] = True
            if options.corpus:
                digests = [digest_of("--corpus", path, quiet=quiet) for path in options.corpus]
                settings["corpus"] = digests
            if options.gguf is not None:
                settings["gguf"] = digest_of("--gguf", options.gguf, quiet=quiet)
        return settings

    # --- the run ---------------------------------------------------------------------------------

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            results = await self._open_results(stack)
            self.begun = True
            ended = False
            try:
                for output in self._outputs:
                    output.begin(self._source.columns, at_once=self._whole)
                with self._view:
                    async for row in results:
                        await self._take(row)
                ended = True
            finally:
                for output in self._outputs:
                    await output.close(keep=ended or (self._whole and output.rows > 0))

    async def _open_results(self, stack: AsyncExitStack) -> AsyncIterator[RowResult]:
        options, template, view = self._options, self._template, self._view
        if self._shards is not None:
            parts = self._shards.parts(template, self._settings)
            return await stack.enter_async_context(
                shard_results(parts, view, self._source.total, ordered=options.in_order)
            )
        await stack.enter_async_context(self._backends.open())
        if not options.quiet:
            warn(f"Backend: {self._backends.description}")
        return await stack.enter_async_context(
            row_results(
                *(options, self._backends, self._source, template, self._settings),
                update=view.update,
                tell=view.tell,
            )
        )

    async def _take(self, row: RowResult) -> None:
        options = self._options
        self._handed_on += 1
        try:
            for record, kept in row.records:
                if options.failed is not None and not record["success"]:
                    await self._outputs[1].write(record)
                elif not kept:
                    self._filtered += 1
                elif options.keep == "all" or (options.keep == "passed") == record["success"]:
                    await self._outputs[0].write(record)
        except Problem:
            self._handed_on -= 1
            raise
        if row.replayed:
            self._finished -= 1
            if self._finished == 0 and not self._whole:
                self._whole = True
                for output in self._outputs:
                    if not output.whole_at_its_end:
                        output.publish()
        else:
            self._note(row)

    def _note(self, row: RowResult) -> None:
        """Report a row's error if it is new; raise a `Problem` after too many in succession."""
        if row.error is None:
            self._errors_in_a_row = 0
            self._only_errors = False
            return
        self._errors_in_a_row += 1
        most = self._options.max_errors
        if most and self._only_errors and row.key_refused:
            raise Problem(row.error)  # Every row would fail.
        if row.error not in self._told and len(self._told) < MOST_ERRORS_TOLD:
            self._told.add(row.error)
            self._view.tell(f"line {row.line}: {row.error}")
        if self._errors_in_a_row == most:
            in_a_row = f"{self._errors_in_a_row} consecutive rows ended in an error"
            fail(f"{in_a_row}, the last with: {row.error}")

    def leave_at_once(self) -> None:
        """Remove temporary output files; called when a second signal ends the process."""
        for output in self._outputs:
            output.remove_leftovers()

    def last_words(self) -> str:
        return f"Interrupted{self.so_far()}"

    def finish(self) -> int:
        progress = self._view.progress
        good = progress.passed == progress.done
        if not (self._options.quiet and good):
            warn(summary(progress, self._backends.price, left_out=self._source.bad))
        if self._filtered and not self._options.quiet:
            rows = plural(self._filtered, "row")
            warn(f"Left out of the results by --drop, --min-chars or --max-chars: {rows}")
        if (halves := sum(output.halves for output in self._outputs)) and not self._options.quiet:
            warn(f"Changed: {HALVES} ({halves})")
        if not good and progress.errored == progress.done:
            return Exit.SETUP
        return Exit.PASSED if good else Exit.NOTHING_PASSED

    def so_far(self, *, resumable: bool = True) -> str:
        """Return the end of a sentence: how far the run got and, if ``resumable``, how to go on."""
        journal = self._options.journal is not None
        # Rows that are done but not yet written are in no file, but perhaps in the journal.
        progress = replace(self._view.progress, done=self._handed_on)
        rest = so_far(progress, journal=journal, resumable=resumable)
        if progress.jobs:
            from mellea_like.cli.jobs import under_way  # noqa: PLC0415 (few runs have jobs)

            rest += under_way(progress.jobs, self._options.journal)
        return rest if self.begun else "."
