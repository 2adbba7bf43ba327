"""``mellea-like batch``: one prompt for every row of a file, in a run that can be resumed."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio

from mellea_like.batch.api import sample_many
from mellea_like.batch.differences import Difference
from mellea_like.batch.journal.journal import Journal
from mellea_like.batch.journal.reader import read_run
from mellea_like.batch.journal.together import AGAIN
from mellea_like.cli.backends import Backends
from mellea_like.cli.batch.options import STANDARD, BatchOptions
from mellea_like.cli.batch.output import Output, ReaderLeft
from mellea_like.cli.batch.progress import BatchView, so_far, summary
from mellea_like.cli.batch.prompt import PromptTemplate
from mellea_like.cli.batch.source import RowSource, digest_of
from mellea_like.cli.errors import code_of, in_options, logs, problems_of, report, sentence
from mellea_like.cli.exit_codes import Exit, Problem
from mellea_like.cli.option_fields import option_names
from mellea_like.cli.standard_streams import is_terminal, warn
from mellea_like.core.display import plural
from mellea_like.core.format import strip_fence
from mellea_like.core.generation import Usage
from mellea_like.core.serialization import usage_to_dict
from mellea_like.errors import AuthenticationFailed, JournalError, LimitExceeded
from mellea_like.export.example_selection import ExampleRules
from mellea_like.export.formats import with_thoughts
from mellea_like.runtime.garbage_collector import relaxed_gc
from mellea_like.runtime.task_scope import task_scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mellea_like.batch.item import ItemResult
    from mellea_like.batch.rows.formats import Row
    from mellea_like.cli.signals import SignalHandler
    from mellea_like.core.slice import Slice
    from mellea_like.export.example_selection import Drop
    from mellea_like.limits.backoff_gate import BackoffGate

__all__ = ["run_batch"]

OPTIONS = {
    "loop_budget": "--loop",
    "concurrency_budget": "--concurrency",
    "provider": "--backend",
    "requirements": "--check, --require",
    "judge": "--judge-model",
    "format": "--schema",
    "checks": "--check",
    "input": "INPUT",
}
"""Parts of a run that the library calls otherwise than the options do."""

LOOK_EVERY = 0.25
"""Seconds between two looks at whether the servers can be reached."""

GIVE_UP_AFTER = 4.0
"""Seconds of an outage after which a server that has never answered isn't waited for."""

MOST_ERRORS_TOLD = 5
"""How many different errors are told one by one."""


def run_batch(options: BatchOptions, signals: SignalHandler) -> int:
    """Do what ``mellea-like batch`` was asked to do."""
    debug = options.debug
    batch: _Batch | None = None
    resumable = True
    with logs(debug=debug), relaxed_gc(), ExitStack() as stack:
        try:
            batch = _Batch(options)
            stack.callback(batch.close)
            signals.last_words, signals.at_once = batch.last_words, batch.leave_at_once
            signals.run(batch.run)
            return batch.finish()
        except LimitExceeded as error:
            warn(f"mellea-like: {in_options(str(error))}")
            code = Exit.NOTHING_PASSED
        except ReaderLeft:
            warn("mellea-like: nobody reads the results any more")
            code = Exit.NOTHING_PASSED
        except Exception as error:  # noqa: BLE001 (said in a sentence; shown with --debug)
            # Whether a journal's run can be resumed, and how, is what its error says.
            resumable = not isinstance(error, JournalError)
            report(_with_options(error), debug=debug)
            code = code_of(error)
        if batch is not None and batch.begun:
            warn(f"Stopped{batch.so_far(resumable=resumable)}")
        return code


class _Batch:
    """One run of the command: everything is checked when it is made, and nothing sent before."""

    def __init__(self, options: BatchOptions) -> None:
        self._options = options
        self.begun = False
        self._requirements = options.make_requirements()
        self._backends = Backends(options)
        self._template = PromptTemplate.given(
            options.prompt, options.system, options.row_checks, early=options.early
        )
        self._source = RowSource(
            options.source,
            self._template,
            on_bad=options.on_bad_line,
            most=options.first,
            again=options.again,
        )
        self._earlier: dict[str, Any] = {}
        self._finished = self._look_at_journal()
        self._outputs = self._make_outputs()
        self._check_places()
        self._source.look_through(quiet=options.quiet)
        self._settings = self._read_settings()
        self._whole = self._finished == 0
        self._view = BatchView(
            self._backends.price,
            total=self._source.total,
            quiet=options.quiet or (options.output == STANDARD and is_terminal(sys.stdout)),
            lines=options.debug,  # Log records would run into a live view.
        )
        self._handed_on = self._filtered = 0
        self._filters = ExampleRules(
            drop=cast("list[Drop]", options.drop),  # They were checked.
            min_chars=options.min_chars,
            max_chars=options.max_chars,
        )
        self._errors_in_a_row = 0
        self._only_errors = True
        self._told: set[str] = set()
        self._outage = ""

    def close(self) -> None:
        """Close the input."""
        self._source.close()

    # --- checks ----------------------------------------------------------------------------------

    def _look_at_journal(self) -> int:
        """Return how many rows the journal has finished."""
        options, path = self._options, self._options.journal
        if path is None or not path.exists():
            return 0
        run = read_run(path, check=not options.resume)  # Resuming it checks it.
        if not options.resume:
            msg = (
                f"the journal {path} is there already: go on with its run by the same command and"
                " --resume, or name another file"
            )
            raise Problem(msg)
        self._earlier = run["identity"]
        counts: dict[str, int] = run["counts"]
        return sum(n for status, n in counts.items() if status != "unfinished")

    def _make_outputs(self) -> list[Output]:
        options = self._options
        renew = options.resume and options.journal is not None and options.journal.exists()
        outputs = [Output("--output", options.output, replace=options.force, renew=renew)]
        if options.failed is not None:
            outputs.append(Output("--failed", options.failed, replace=options.force, renew=renew))
        for output in outputs:
            if output.whole_at_its_end and options.journal is None:
                msg = (
                    f"{output.path} can't be read before its end, and a crash would lose all: add"
                    " --journal FILE, or write JSONL or CSV"
                )
                raise Problem(msg, Exit.USAGE)
        return outputs

    def _check_places(self) -> None:
        """Make sure that no file is named twice, or is both read and written."""
        options = self._options
        seen: dict[Path, str] = {}
        for option, given in (
            ("INPUT", None if options.source == STANDARD else options.source),
            ("--journal", options.journal),
            ("--output", options.output),
            ("--failed", options.failed),
        ):
            path = None if given is None else Path(given).resolve()
            if path is None or (path.exists() and not path.is_file()):
                continue
            other = seen.setdefault(path, option)
            if other != option:
                msg = f"{other} and {option} are the same file, {given}: name another one"
                raise Problem(msg, Exit.USAGE)

    def _read_settings(self) -> dict[str, Any]:
        """Say what makes the run what it is, besides the strategy, where a journal keeps it."""
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
            # A run that was begun before there was this mark goes on without it.
            if options.again and (AGAIN in self._earlier or not self._earlier):
                settings[AGAIN] = True
            if options.corpus:
                digests = [digest_of("--corpus", path, quiet=quiet) for path in options.corpus]
                settings["corpus"] = digests
            if options.gguf is not None:
                settings["gguf"] = digest_of("--gguf", options.gguf, quiet=quiet)
        return settings

    # --- the run ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Sample all rows and write what comes of them."""
        async with self._backends.open():
            if not self._options.quiet:
                warn(f"Backend: {self._backends.description}")
            async with task_scope() as tasks:
                with anyio.CancelScope() as scope:
                    tasks.start_soon(self._watch_servers, scope)
                    await self._sample_rows()
            if scope.cancelled_caught:
                raise Problem(self._outage)

    async def _watch_servers(self, run: anyio.CancelScope) -> None:
        """Tell of each outage once; end the run where a server has never answered."""
        began: dict[BackoffGate, float] = {}
        while True:
            for gate in self._backends.gates:
                outage = gate.outage
                if outage is None:
                    began.pop(gate, None)
                    continue
                if gate not in began:
                    began[gate] = anyio.current_time()
                    place = outage.removeprefix("can't reach ")
                    self._view.tell(
                        f"Waiting for {place}" if place != outage else f"Waiting: {outage}"
                    )
                if not gate.reached and anyio.current_time() - began[gate] >= GIVE_UP_AFTER:
                    self._outage = outage
                    run.cancel("the server has never answered")
                    return
            await anyio.sleep(LOOK_EVERY)

    async def _sample_rows(self) -> None:
        options, backends = self._options, self._backends
        async with sample_many(
            backends.make_strategy(),
            self._source.rows(often=options.order == "breadth"),
            concurrency=options.parallel,
            action=cast("Callable[[Row], str]", self._template.fill),
            requirements=self._requirements,
            format=backends.reply_type,
            options=options.request_options,
            budget=backends.make_budget("this run"),
            ordered=options.ordered,
            order=options.order,
            journal=self._journal(),
            unique=options.similarity,
            keep_errors=False,  # The backend's say nothing about the row.
            on_progress=self._view.update,
            settings=self._settings,
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

    def _journal(self) -> Journal | None:
        options, backends = self._options, self._backends
        if options.journal is None:
            return None
        prices = backends.prices(backends.models)
        text, resume = options.journal_text, options.resume
        return Journal(options.journal, resume=resume, text=text, prices=prices)

    async def _take(self, item: ItemResult[Any]) -> None:
        options = self._options
        self._handed_on += 1
        try:
            for record, kept in self._records_of(item):
                if options.failed is not None and not record["success"]:
                    await self._outputs[1].write(record)
                elif not kept:
                    self._filtered += 1
                elif options.keep == "all" or (options.keep == "passed") == record["success"]:
                    await self._outputs[0].write(record)
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

    def _records_of(self, item: ItemResult[Any]) -> Iterator[tuple[dict[str, Any], bool]]:
        """Write a row's replies as plain data, and whether the filters let each pass."""
        options, result = self._options, item.result
        records = _records_of(item, as_value=options.json_schema is not None)
        replies: list[Slice | None] = []
        if result is not None:
            best = () if result.best_index is None else (result.best,)
            collected = result.decision is not None and result.decision.kind == "collect"
            replies = list(result.winners if collected else best)
        for record, reply in zip_longest(records, replies):
            generation = None if reply is None else reply.generation
            if generation is None:
                yield record, True
                continue
            thoughts = generation.reasoning
            if thoughts and options.reasoning == "inline":
                record["output"] = with_thoughts(record["output"], thoughts)
            elif thoughts and options.reasoning != "drop":
                record["reasoning"] = thoughts  # Columns have no room for it.
            yield (
                record,
                self._filters.allow(
                    generation.text, generation.finish_reason, calls=bool(generation.tool_calls)
                ),
            )

    def _note(self, item: ItemResult[Any]) -> None:
        """Tell of new errors, and stop where nothing else comes."""
        if item.error is None:
            self._errors_in_a_row = 0
            self._only_errors = False
            return
        row: Row = item.item
        message = sentence(item.error, debug=self._options.debug)
        self._errors_in_a_row += 1
        most = self._options.max_errors
        if most and self._only_errors and isinstance(item.error, AuthenticationFailed):
            raise Problem(message)  # No row would fare better.
        if message not in self._told and len(self._told) < MOST_ERRORS_TOLD:
            self._told.add(message)
            self._view.tell(f"line {row.number}: {message}")
        if self._errors_in_a_row == most:
            msg = (
                f"{self._errors_in_a_row} rows in a row ended in an error, the last with: {message}"
            )
            raise Problem(msg)

    def leave_at_once(self) -> None:
        """Leave nothing useless behind."""
        for output in self._outputs:
            output.remove_leftovers()

    def last_words(self) -> str:
        """Say how far the run came that was interrupted."""
        return f"Interrupted{self.so_far()}"

    def finish(self) -> int:
        """Say how the run went."""
        progress = self._view.progress
        good = progress.passed == progress.done
        if not (self._options.quiet and good):
            warn(summary(progress, self._backends.price, left_out=self._source.bad))
        if self._filtered and not self._options.quiet:
            warn(f"Left out of the results by their length or end: {plural(self._filtered, 'row')}")
        if (halves := sum(output.halves for output in self._outputs)) and not self._options.quiet:
            from mellea_like.batch.rows.formats import HALVES  # noqa: PLC0415 (with the batch)

            warn(f"Changed: {HALVES} ({halves})")
        if not good and progress.errored == progress.done:
            return Exit.SETUP
        return Exit.PASSED if good else Exit.NOTHING_PASSED

    def so_far(self, *, resumable: bool = True) -> str:
        """Say how far a run came that was stopped, and how to go on."""
        journal = self._options.journal is not None
        # What is done and not handed on stands in no file; the journal may have it.
        progress = replace(self._view.progress, done=self._handed_on)
        rest = so_far(progress, journal=journal, resumable=resumable)
        return rest if self.begun else "."


def _records_of(item: ItemResult[Any], *, as_value: bool = False) -> list[dict[str, Any]]:
    """Write what came of a row as plain data: a record, or one for each reply that it collected.

    Where too few were collected, the last one says so. The first has what all of them cost.
    """
    whole = _record_of(item, as_value=as_value)
    result = item.result
    decision = None if result is None else result.decision
    if result is None or decision is None or decision.kind != "collect" or not decision.winners:
        return [whole]
    passed: dict[str, Any] = {"success": True, "status": "passed", "reasons": [], "error": None}
    outputs = (_output(winner.text, as_value=as_value) for winner in result.winners)
    records = [whole | passed | {"output": output} for output in outputs]
    if not item.success:
        too_few = f"only {len(records)} passed"
        records.append(whole | {"output": None, "reasons": [too_few]})
    nothing: dict[str, Any] = {"iterations": 0, "elapsed": 0.0, "usage": usage_to_dict(Usage())}
    return [records[0], *(record | nothing for record in records[1:])]


def _record_of(item: ItemResult[Any], *, as_value: bool) -> dict[str, Any]:
    row: Row = item.item
    result = item.result
    best = None if result is None or result.best_index is None else result.best
    reasons = [] if item.success or best is None else problems_of(best)
    output = None if best is None else _output(best.text, as_value=as_value)
    return {
        "id": item.id if row.id is None else row.id,
        "line": row.number,
        "input": dict(row),
        "output": output,
        "success": item.success,
        "status": item.status,
        "reasons": reasons,
        "error": None if item.error is None else _error(item.error),
        "iterations": 0 if result is None else len(result.slices),
        "elapsed": 0.0 if result is None else round(result.elapsed, 6),
        "usage": usage_to_dict(item.usage),
    }


def _error(error: Exception) -> dict[str, str]:
    return {"type": type(error).__name__, "message": sentence(error, debug=True)}


def _output(text: str, *, as_value: bool) -> Any:
    if as_value:
        try:
            return json.loads(strip_fence(text), parse_constant=_no_number)
        except (ValueError, RecursionError):
            return text
    return text


def _no_number(text: str) -> Any:
    raise ValueError(text)


def _with_options(error: Exception) -> Exception:
    """Say in options how the run differs from the one that its journal has."""
    if not isinstance(error, JournalError) or not error.differences:
        return error
    from mellea_like.batch.unique import UNIQUE  # noqa: PLC0415 (few runs need it)

    message = str(error)
    options = option_names(BatchOptions) | OPTIONS
    for one in error.differences:
        told = Difference(*one)
        name = told.name.removeprefix("options.")
        if (told.was or told.now or "").startswith(f'"{UNIQUE}'):
            name = "unique"  # It is a requirement that no --check names.
        if name in options:
            message = message.replace(str(told), str(told._replace(name=options[name])))
        elif name.partition(".")[0] == "selection":
            message = message.replace(str(told), _of_selection(told))
    worded = JournalError(message, error.differences)
    worded.__cause__ = error
    return worded


def _of_selection(told: Difference) -> str:
    part = told.name.rpartition(".")[2]
    if part not in {"by", "k", "n"}:  # Its values are in the words of Python.
        return "--select is not the same"
    return str(told._replace(name="--n" if part == "n" else "--select"))
