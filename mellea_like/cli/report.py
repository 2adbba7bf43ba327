"""``mellea-like report``: make a page or a few lines about a run or a call."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from heapq import merge
from itertools import repeat
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mellea_like.cli.errors import reading
from mellea_like.cli.exit_codes import Exit, Problem, fail, misuse, os_errors
from mellea_like.cli.option_fields import argument, option, read_section
from mellea_like.cli.standard_streams import check_folder, warn, write_output
from mellea_like.core.conversation import Message
from mellea_like.core.display import plural, printable
from mellea_like.core.result import SamplingResult
from mellea_like.report.model_shares import ANY_MODEL
from mellea_like.report.page import MADE_BY
from mellea_like.report.views import ItemView, RunView, TraceView, damage
from mellea_like.runtime.atomic_files import replaced
from mellea_like.specification.upstream import Upstream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mellea_like.cli.signals import SignalHandler
    from mellea_like.core.prices import Price
    from mellea_like.export.journaled_run import Run

HELP = """\
Reads a journal of [bold]mellea-like batch[/bold], finished or not, or a trace that\
 [bold]mellea-like sample --trace[/bold] wrote.\
 Prints a few lines of text, or writes a self-contained HTML file with -o.

[bold]Examples[/bold]

\b
mellea-like report run.db
mellea-like report run.db -o report.html
mellea-like report run.db --item 17 -o item.html
mellea-like report shards/ -o report.html
mellea-like report run.db --compare other.db
"""

EPILOG = (
    "Exit codes: 0 done, 2 bad usage, 3 a source or output error, 130 interrupted, 143"
    " terminated (SIGTERM)."
)

SQLITE = b"SQLite format 3\0"
STANDARD = Path("-")
"""The path that means standard input or standard output."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The options of ``mellea-like report``."""

    sources: list[Path] = argument(
        "SOURCE",
        "A journal, or a call's trace as JSON (- for standard input). Several journals and"
        " directories of journals count as one run.",
    )
    output: Path | None = option(
        None, "--output -o FILE", "The HTML file to write; - for standard output."
    )
    item: int | None = option(
        None, "--item N", "Show only this item of a journal, with its whole call.", min=0
    )
    compare: Path | None = option(
        None,
        "--compare RUN",
        "Another run to compare with: its journal, or a directory of journals.",
    )
    price: list[str] = option(
        list,
        "--price [MODEL=]IN,OUT",
        "Price per million input and output tokens, instead of the run's own: IN,OUT for any model,"
        " or MODEL=IN,OUT; 0.15,0.60,EUR for euros. Repeatable.",
    )
    seed: int = option(0, "--seed N", "Seed for choosing which failed items to list.")


def run(options: ReportOptions, _signals: SignalHandler) -> int:
    """Run ``mellea-like report``."""
    output = options.output
    if output is not None and output != STANDARD:
        for source in (*options.sources, *([options.compare] if options.compare else ())):
            _check_output(output, source)
    prices = _prices(options.price)
    [source, *more] = options.sources
    if options.compare is not None:
        made, about = _of_two(options, options.compare, prices)
    elif more or source.is_dir():
        made, about = _of_run(options, prices)
    else:
        made, about = _of_one(options, source, prices)
    if output is None:
        write_output(printable(f"{made}\n"))
        return Exit.PASSED
    if output == STANDARD:
        write_output(made)
        return Exit.PASSED
    _save(made, output)
    size = max(1, round(len(made.encode("utf-8")) / 1000))
    warn(f"Wrote {output}: {about}, {size:,} KB.")
    return Exit.PASSED


def _prices(given: Sequence[str]) -> dict[str, Any]:
    """Return the values of ``--price`` in a journal's format for prices; an empty dict if none."""
    found: dict[str, Price] = {}
    for text in given:
        model, equals, price = text.rpartition("=")
        read = read_section(Upstream, {"price": price}, {"price": "--price"})
        found[model if equals else ANY_MODEL] = cast("Price", read.price)
    if len({price.currency for price in found.values()}) > 1:
        misuse("--price: all prices must be in the same currency")
    return {"prices": {name: price.as_list() for name, price in found.items()}} if found else {}


def _of_one(options: ReportOptions, source: Path, prices: Mapping[str, Any]) -> tuple[str, str]:
    """Return the report on one journal or trace, and a short description of its subject."""
    with reading(source), sys.stdin.buffer if source == STANDARD else source.open("rb") as file:
        begin = file.read(len(SQLITE))
        if begin == SQLITE and source == STANDARD:
            misuse("a journal can't be read from standard input: name its file")
        if begin == SQLITE and options.item is None:
            return _of_run(options, prices)
        if begin == SQLITE:
            return _of_item(options, source, options.item)
        for wrong, name in ((options.item is not None, "--item"), (prices, "--price")):
            if wrong:
                misuse(f"{name} is for journals, but {source} isn't one")
        return _of_trace(options, _read_trace(begin + file.read())), "a call"


def _of_run(options: ReportOptions, prices: Mapping[str, Any]) -> tuple[str, str]:
    """Return the report on the run in the journals, and a short description of its subject."""
    # Few commands need these.
    from mellea_like.export.journaled_run import Run  # noqa: PLC0415
    from mellea_like.report.run_page import run_report  # noqa: PLC0415
    from mellea_like.report.run_summary import run_text  # noqa: PLC0415

    if options.item is not None:
        misuse("--item is for one journal: name the one that has the item")
    with reading(*options.sources):
        run = Run(*options.sources)
        items, about = run.items(parts=False), plural(RunView(run.facts).items, "item")
        if options.sources != list(run.journals):
            about += f" of {plural(len(run.journals), 'journal')}"
            items = (
                {**item.plain, "id": n, "label": f"{item.journal} #{item.id}: {item.label}"}
                for n, item in enumerate(map(ItemView, items))
            )
        make = run_text if options.output is None else run_report
        return make({**run.facts, **prices}, items, seed=options.seed), about


def _of_two(options: ReportOptions, other: Path, prices: Mapping[str, Any]) -> tuple[str, str]:
    """Return a comparison of two runs, and a short description of its subject."""
    from mellea_like.batch.journal.differences import differences  # noqa: PLC0415 (few commands need it)
    from mellea_like.export.journaled_run import Run  # noqa: PLC0415 (needs sqlite3)
    from mellea_like.report.comparison import comparison_report, comparison_text  # noqa: PLC0415

    if options.item is not None:
        misuse("--item can't be combined with --compare: it shows an item of a single run")
    if STANDARD in (*options.sources, other):
        misuse("a journal can't be read from standard input: name its file")
    with reading(*options.sources):
        one = Run(*options.sources)
    with reading(other):
        runs = (one, Run(other))
        make = comparison_text if options.output is None else comparison_report
        made = make(
            *(({**run.facts, **prices}, _apart(run)) for run in runs),
            names=(", ".join(map(str, options.sources)), str(other)),
            differences=[
                f"{name}: A has {was or 'none'}, B has {now or 'none'}"
                for name, was, now in differences(*(RunView(run.facts).identity for run in runs))
            ],
        )
    return made, "two runs"


def _apart(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the items of a run's journals by ascending ids that are unique across the journals."""
    from mellea_like.batch.journal.together import JournalsTogether  # noqa: PLC0415 (needs sqlite3)
    from mellea_like.batch.process_run import (  # noqa: PLC0415 (needs sqlite3)
        journal_of,
        processes_of,
    )

    folder = run.journals[0].parent
    count = processes_of(folder)
    shards = [journal_of(folder, number, count) for number in range(count)]
    if sorted(shards) == sorted(run.journals):
        yield from merge(*map(_of_shard, shards, range(count), repeat(count)), key=itemgetter("id"))
        return
    for path, item in JournalsTogether(run.journals).items(parts=False):
        yield {**item.plain, "id": run.journals.index(path) * 2**40 + item.id}


def _of_shard(path: Path, number: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield the items of one of several processes, with their places in the whole run as ids."""
    from mellea_like.batch.journal.reader import read_items  # noqa: PLC0415 (needs sqlite3)

    for item in map(ItemView, read_items(path, parts=False)):
        yield {**item.plain, "id": item.id * count + number}


def _of_item(options: ReportOptions, path: Path, item: int | None) -> tuple[str, str]:
    """Return the report on one item of a journal, and a short description of its subject."""
    from mellea_like.batch.journal.reader import read_items  # noqa: PLC0415 (needs sqlite3)

    found = next(map(ItemView, read_items(path, only=item)), None)
    trace = None if found is None else found.trace
    if found is None or trace is None:
        why = "no such item" if found is None else f"no trace of it: {found.status}"
        msg = f"{path}: item {item}: {why}"
        raise Problem(msg, Exit.USAGE if found is None else Exit.SETUP)
    made = _of_trace(options, trace.plain)
    if options.output is None:
        made += f"\n{_exchange(trace)}"
    return made, f"item {item}"


def _of_trace(options: ReportOptions, trace: Mapping[str, Any]) -> str:
    from mellea_like.report.call import call_report, call_text  # noqa: PLC0415 (few commands need it)

    return (call_text if options.output is None else call_report)(trace)


def _exchange(trace: TraceView) -> str:
    """Return the prompt and the reply of the best draw, or else of the last draw."""
    if not trace.slices:
        return ""
    shown = trace.best or trace.slices[-1]
    said = "\n".join(Message.from_dict(message).text for message in trace.sent(shown.prompt))
    reply = {"role": "assistant", "content": shown.text, "tool_calls": shown.tool_calls}
    answered = Message.from_dict(reply).text
    return f"Prompt:\n{_indented(said or shown.action)}\nReply:\n{_indented(answered)}"


def _indented(text: str | None) -> str:
    return "\n".join(f"  {line}" for line in (text or "(not kept)").splitlines())


def _read_trace(raw: bytes) -> dict[str, Any]:
    """Parse a call's trace; raise a `ValueError` if the data isn't a trace."""
    try:
        result = SamplingResult[Any].from_dict(json.loads(raw))
    except (RecursionError, UnicodeDecodeError, json.JSONDecodeError) as exc:
        msg = (
            "this is neither a journal of `mellea-like batch` nor a trace written by `mellea-like"
            " sample --trace`"
        )
        raise ValueError(msg) from exc
    with damage("trace of a call"):  # Not all values have been checked.
        return result.to_dict()


def _check_output(path: Path, source: Path) -> None:
    """Refuse a path that is a directory, the source, or a file with anything but a report."""
    with os_errors(f"{path} can't be written"):
        if path.is_dir():
            fail(f"{path} is a directory: name the file to write")
        if not path.exists():
            check_folder("--output", path)
        if not path.is_file():
            return
        if source.exists() and path.samefile(source):
            misuse(f"the report would overwrite its own source, {path}: name another file")
        with path.open("rb") as file:
            begin = file.read(200)
    if begin and MADE_BY.encode() not in begin:
        fail(f"{path} exists and isn't a report: name another file")


def _save(made: str, path: Path) -> None:
    with os_errors(f"{path} can't be written"), replaced(path) as file:
        file.write(made.encode())
