"""``mellea-like report``: a page, or a few lines, about a run or a call."""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, cast

from mellea_like.cli.exits import Exit, Problem
from mellea_like.cli.options import argument, option
from mellea_like.cli.terminal import one_line, printable, replace_file, warn, write_output
from mellea_like.core.result import SamplingResult
from mellea_like.core.trace import FORMAT
from mellea_like.errors import JournalError
from mellea_like.report.format import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["EPILOG", "HELP", "ReportOptions", "run"]

HELP = """Show what happened in a run of many items, or in a single call.

Made of a journal of [bold]mellea-like batch[/bold], finished or not, or of what\
 [bold]mellea-like sample --trace[/bold] wrote.\
 With -o, it is one HTML file that needs no network; without, a few lines of text.

[bold]Examples[/bold]

\b
mellea-like report run.db
mellea-like report run.db -o report.html
mellea-like report run.db --item 17 -o item.html
"""

EPILOG = "Exit codes: 0 done, 2 bad usage, 3 the source or the output is at fault."

SQLITE = b"SQLite format 3\0"
MOST = 64 * 2**20
"""Bytes of a trace: no call has as many, and some files never end."""

LONGEST_TEXT = 2000
"""Characters of a prompt or a reply that are shown among lines; a page has more."""

PIPE = "-"


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The options of ``mellea-like report``."""

    source: str = argument(
        "SOURCE", "A journal, or a call's trace as JSON; - reads standard input."
    )
    output: str | None = option(
        None, "The HTML file to write; - for standard output.", "--output", "-o", metavar="FILE"
    )
    item: int | None = option(
        None, "Only this item of a journal: its call in full.", metavar="N", min=0
    )
    title: str | None = option(None, "The page's title.", metavar="TEXT")
    text: bool = option(False, "Write the few lines, not the page.")
    force: bool = option(False, "Replace a file that isn't a report.")


def run(options: ReportOptions) -> int:
    """Run the command."""
    output = options.output
    if output is not None and output != PIPE:
        try:
            _check_output(Path(output), options)
        except OSError as exc:
            msg = f"{output} can't be written: {exc.strerror or exc}"
            raise Problem(msg) from exc
    made, about = _of(options)
    if output is None or output == PIPE:
        _print(made)
    else:
        _save(made, Path(output))
        size = len(made.encode("utf-8"))
        warn(f"Wrote {output}: {about}, {max(1, round(size / 1000)):,} KB.")
    return Exit.PASSED


def _print(made: str) -> None:
    stdout: TextIO = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):
        stdout.reconfigure(encoding="utf-8")  # As the page says of itself.
    write_output(made)


def _of(options: ReportOptions) -> tuple[str, str]:
    """Make the report, and say what it is about."""
    as_text = options.text or options.output is None
    source = options.source
    try:
        if source != PIPE and _is_journal(Path(source)):
            return _of_journal(Path(source), options, as_text=as_text)
        if options.item is not None:
            msg = (
                f"--item is for journals, and {source} is none"
                if source != PIPE
                else "--item is for journals, which can't be read from a pipe: name the file"
            )
            raise Problem(msg, Exit.USAGE)
        return _of_trace(_read_trace(source), options.title, as_text=as_text), "a call"
    except (JournalError, ValueError) as exc:
        said = one_line(str(exc))
        msg = said if isinstance(exc, JournalError) and source in said else f"{source}: {said}"
        raise Problem(msg) from exc
    except ImportError as exc:
        raise Problem(str(exc)) from exc
    except OSError as exc:
        msg = f"{source} can't be read: {exc.strerror or exc}"
        raise Problem(msg) from exc


def _of_journal(path: Path, options: ReportOptions, *, as_text: bool) -> tuple[str, str]:
    from mellea_like.batch import read_items, read_run  # noqa: PLC0415 (needs sqlite3)

    if options.item is not None:
        trace = _item(read_items(path, only=options.item), options)
        made = _of_trace(trace, options.title, as_text=as_text)
        about = f"item {options.item}"
        return (f"{made}{printable(_exchange(trace))}" if as_text else made), about
    from mellea_like.report import run_text  # noqa: PLC0415 (few commands need it)

    run = read_run(path, check=False)  # Reading its items checks it.
    about = plural(sum(run["counts"].values()), "item")
    if as_text:
        return printable(f"{run_text(run, read_items(path))}\n"), about
    from mellea_like.report import run_report  # noqa: PLC0415 (an extra)

    return run_report(run, read_items(path), options.title), about


def _item(items: Iterator[dict[str, Any]], options: ReportOptions) -> dict[str, Any]:
    for item in items:
        if item["trace"] is None:
            msg = f"{options.source} has no trace of item {options.item}: {item['status']}"
            raise Problem(msg)
        trace: dict[str, Any] = item["trace"]
        return trace
    msg = f"{options.source} has no item {options.item}"
    raise Problem(msg, Exit.USAGE)


def _exchange(trace: Mapping[str, Any]) -> str:
    """Write what was asked and what came of it: the reply that won, else the best, else any."""
    slices: list[dict[str, Any]] = trace["slices"]
    if not slices:
        return ""
    best = trace["best_index"]
    shown = slices[-1 if best is None else best]
    asked: list[dict[str, str]] = trace["prompts"][shown["prompt"]]
    said = "\n".join(message["content"] for message in asked) or shown["action"]["text"]
    return f"Prompt:\n{_indented(said)}Reply:\n{_indented(shown['text'])}"


def _indented(text: str | None) -> str:
    if not text:
        return "  (none is kept)\n"
    lines = text[:LONGEST_TEXT].replace("\r\n", "\n").split("\n")
    more = len(text) - LONGEST_TEXT
    if more > 0:
        lines.append(f"... and {more:,} more characters: -o FILE writes a page")
    return "".join(f"  {line}\n" for line in lines)


def _of_trace(trace: Mapping[str, Any], title: str | None, *, as_text: bool) -> str:
    if as_text:
        from mellea_like.report import call_text  # noqa: PLC0415 (few commands need it)

        return printable(f"{call_text(trace)}\n")
    from mellea_like.report import call_report  # noqa: PLC0415 (an extra)

    return call_report(trace, title)


def _is_journal(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE


def _read_trace(source: str) -> dict[str, Any]:
    """Read a trace from a file or from standard input, and make sure that it is one."""
    if source == PIPE:
        stdin: BinaryIO | None = getattr(sys.stdin, "buffer", None)
        if stdin is None:
            msg = "standard input can't be read"
            raise ValueError(msg)
        raw = stdin.read(MOST + 1)
        if raw.startswith(SQLITE):
            msg = "a journal can't be read from a pipe: name its file"
            raise Problem(msg, Exit.USAGE)
    else:
        with Path(source).open("rb") as file:
            raw = file.read(MOST + 1)
    if len(raw) > MOST:
        msg = f"this isn't a trace of a call: it has more than {MOST // 2**20} MiB"
        raise ValueError(msg)
    expected = "a journal of `mellea-like batch`, or what `mellea-like sample --trace` wrote"
    try:
        data: Any = json.loads(raw)
    except (RecursionError, ValueError) as exc:
        msg = f"this is neither a journal nor a trace of a call: a report is made of {expected}"
        raise ValueError(msg) from exc
    if not (isinstance(data, dict) and "format" in data and data["format"] == FORMAT):
        msg = (
            f"this JSON isn't a trace of a call (format {FORMAT!r}): a report is made of {expected}"
        )
        raise ValueError(msg)
    return SamplingResult[Any].from_dict(cast("dict[str, Any]", data)).to_dict()


def _check_output(path: Path, options: ReportOptions) -> None:
    """Refuse to write over what isn't a report, before any work is done."""
    if path.is_dir():
        msg = f"{path} is a directory: name the file to write"
        raise Problem(msg)
    if not path.is_file():
        return
    source = Path(options.source)
    if options.source != PIPE and source.exists() and path.samefile(source):
        msg = f"the report would replace what it is made of, {path}: name another file"
        raise Problem(msg, Exit.USAGE)
    if options.force or _is_ours(path):
        return
    msg = f"{path} exists and isn't a report: --force replaces it"
    raise Problem(msg)


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        begin = file.read(200)
    return not begin or b"<!-- A report made by mellea-like -->" in begin


def _save(made: str, path: Path) -> None:
    """Write a file so that it is there as a whole, or as it was."""
    try:
        if path.exists() and not path.is_file():  # A pipe, for one.
            path.write_text(made, encoding="utf-8")
            return
        place = path.resolve()
        mode = place.stat().st_mode & 0o777 if place.exists() else 0o666 & ~_umask()
        replace_file(place, made, mode)
    except OSError as exc:
        msg = f"{path} can't be written: {exc.strerror or exc}"
        raise Problem(msg) from exc


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
