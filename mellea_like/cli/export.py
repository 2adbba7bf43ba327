"""``mellea-like export``: make training data or a table from a run's journal."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from mellea_like.cli.exit_codes import Exit, Problem, fail, misuse
from mellea_like.cli.option_fields import REQUIRED, argument, option, option_names
from mellea_like.cli.standard_streams import STANDARD, check_folder, is_special, warn, writing
from mellea_like.core.display import one_line, printable

# typer reads the annotations.
from mellea_like.export.example_selection import ExampleRules, Pairs, Prompt, Reasoning, Select
from mellea_like.export.formats import Format  # noqa: TC001

if TYPE_CHECKING:
    from mellea_like.cli.signals import SignalHandler

HELP = """\
RUN is a journal of [bold]mellea-like batch[/bold] with its texts, finished or not, or a directory\
 of journals. Several count as one run.

[bold]Examples[/bold]

\b
mellea-like export run.db --format dpo -o pairs.jsonl
mellea-like export run.db --format sft --select shortest -o train.parquet
mellea-like export shards/ --format dpo --pairs all --max-per-item 4 --details -o -
mellea-like export run.db --format parquet -o draws.parquet
"""

EPILOG = (
    "Exit codes: 0 done, 1 nothing to write, or the reader closed the pipe, 2 bad usage, 3 a"
    " journal or output error, 130 interrupted, 143 terminated (SIGTERM). No partial file is left"
    " behind."
)

CHOICE, FILE = "Selection", "Output"


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of ``mellea-like export``."""

    runs: list[Path] = argument("RUN", "Journals, or directories of journals.")
    format: Format = option(
        REQUIRED,
        "--format FORMAT",
        "The format of rows. TRL: sft, prompt-completion, dpo, kto, reward. OpenAI: openai,"
        " openai-dpo. All draws: jsonl, csv, parquet.",
    )
    output: str = option(
        REQUIRED,
        "--output -o FILE",
        "The file to write; - for standard output. TRL's formats are written as Parquet if it ends"
        " in .parquet, otherwise as JSONL.",
        FILE,
    )
    pairs: Pairs = option(
        "best-worst",
        "--pairs WHICH",
        "Pairs of an item: best-worst; one, the best reply with a random worse one; or all.",
        CHOICE,
    )
    min_margin: float = option(
        0.0,
        "--min-margin D",
        "Leave out pairs that differ by less than this in their scores or, without scores, in the"
        " share of requirements that they met (0 to 1).",
        CHOICE,
        min=0.0,
    )
    max_per_item: int | None = option(
        None,
        "--max-per-item N",
        "Maximum rows of one item. Default: its winners, and all pairs and labels.",
        CHOICE,
        min=1,
    )
    select: Select = option(
        "best",
        "--select WHICH",
        "Which of the replies that passed come first: best, shortest or random.",
        CHOICE,
    )
    seed: int = option(0, "--seed S", "Seed for random choices.", CHOICE, min=0)
    keep_repairs: bool = option(
        False,
        "--keep-repairs",
        "Use the conversation in which a reply was repaired instead of the item's prompt.",
        CHOICE,
    )
    reasoning: Reasoning | None = option(
        None,
        "--reasoning WHERE",
        "Where to write the model's reasoning: to the message's reasoning_content (field), in"
        " <think> tags before the text (inline), or nowhere (drop). Default: field, which OpenAI's"
        " formats don't have.",
        CHOICE,
    )
    drop: list[str] = option(
        list,
        "--drop WHICH",
        "Leave out replies that are incomplete (cut off, filtered or refused) or empty."
        " Repeatable.",
        CHOICE,
    )
    min_chars: int | None = option(
        None,
        "--min-chars N",
        "Leave out replies with fewer characters, not counting reasoning.",
        CHOICE,
        min=0,
    )
    max_chars: int | None = option(
        None, "--max-chars N", "Leave out replies with more characters.", CHOICE, min=0
    )
    prompt: Prompt = option(
        "sent",
        "--prompt WHICH",
        "Prompts as they were sent, or bare, without the list of requirements.",
        CHOICE,
    )
    details: bool = option(
        False,
        "--details",
        "Add columns for human readers: items, draws, models, scores, margins, and reasons for"
        " rejection.",
        CHOICE,
    )
    no_card: bool = option(False, "--no-card", "Don't write a data card, FILE.card.md.", FILE)
    force: bool = option(False, "--force", "Replace FILE if it exists.", FILE)
    quiet: bool = option(False, "--quiet -q", "Don't show progress.", FILE)


def run(options: ExportOptions, _signals: SignalHandler) -> int:
    """Run ``mellea-like export``."""
    # Few commands need them.
    from mellea_like.cli.console import live_view  # noqa: PLC0415
    from mellea_like.export.api import check_arguments, export  # noqa: PLC0415

    output = _output(options)
    given: dict[str, Any] = {name: getattr(options, name) for name in ExampleRules._fields}
    given["drop"] = tuple(options.drop)
    rules = ExampleRules(**given)
    path = output if isinstance(output, Path) else None
    # Rows and a view can't share a terminal.
    rows_shown = options.output == STANDARD and sys.stdout.isatty()
    quiet = options.quiet or rows_shown
    done = total = 0

    def update(*numbers: int) -> None:
        nonlocal done, total
        done, total = numbers

    view = None if quiet else live_view(lambda _: f"{done:,}/{total:,} items")
    try:
        names = option_names(ExportOptions)
        check_arguments(options.format, rules, path, details=options.details, options=names)
        with writing(options.output), view or contextlib.nullcontext():
            made = export(
                options.runs,
                output,
                format=options.format,
                **rules._asdict(),
                details=options.details,
                card=not options.no_card,
                on_progress=update,
            )
            if options.output == STANDARD:
                sys.stdout.flush()
    except ValueError as exc:
        raise Problem(one_line(str(exc)), Exit.USAGE) from exc
    card = "" if made.card is None else f" {made.card} describes where it comes from."
    if not options.quiet or not made.rows:
        where = "" if options.output == STANDARD else f"Wrote {options.output}: "
        warn(one_line(f"{where}{made}.{card}"))
    return Exit.PASSED if made.rows else Exit.NOTHING_PASSED


def _output(options: ExportOptions) -> Path | BinaryIO:
    """Check the output before doing any work, and return its path or stream."""
    if options.output == STANDARD:
        if options.format == "parquet":
            misuse("Parquet can't be written to standard output: name a file")
        terminal = sys.stdout.isatty()
        return cast("BinaryIO", _Terminal()) if terminal else sys.stdout.buffer
    path = Path(options.output)
    if path.is_dir():
        fail(f"{path} is a directory: name the file to write")
    if not is_special(path):  # A pipe or a device is written to directly.
        check_folder("--output", path.resolve())
    card = path.with_name(f"{path.name}.card.md")
    for file in (path,) if options.no_card else (path, card):
        if file.is_file() and not options.force:
            fail(f"{file} already exists: name another file, or replace it with --force")
    return path


class _Terminal:
    """Writes rows to a terminal, with their control characters escaped."""

    def write(self, data: bytes) -> None:
        sys.stdout.write(printable(data.decode("utf-8", "replace")))
