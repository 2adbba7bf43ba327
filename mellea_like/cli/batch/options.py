"""The options of ``mellea-like batch``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import Annotated, ClassVar, Literal

from typer import Argument, Option

from mellea_like.batch.journal.records import KeptText  # noqa: TC001 (typer reads the annotations)
from mellea_like.batch.rows.formats import RowFormat  # noqa: TC001 (typer reads the annotations)
from mellea_like.cli.draw_options import DRAWS, OUTPUT, PANELS, DrawOptions
from mellea_like.cli.exits import Exit, Problem

__all__ = ["EPILOG", "HELP", "STANDARD", "BatchOptions", "OnBadLine", "run"]

STANDARD = "-"
"""Standard input, or standard output."""

ROWS = "What to ask"
RESULTS = "Where results go"
RUN = "How to run"

HELP = """Ask a model about every row of a file: many at a time, and each until its reply is good.

INPUT has a JSON object a line, or is a CSV, TSV or Parquet file. Each row's prompt is made of its\
 fields, by a Jinja template. A result for each row goes to OUT, as it comes.

With --journal, a run that was interrupted or killed goes on with --resume: what was done is not\
 asked again.

[bold]Examples[/bold]

\b
mellea-like batch reviews.jsonl --prompt "In one word: {{ text }}" \\
    --model gpt-4.1-mini --check "choice:good|bad" -o out.jsonl --journal run.db
mellea-like batch letters.csv --prompt @letter.txt --schema invoice.json \\
    --model gpt-4.1-mini --parallel 32 --budget cost=5 --price 0.40,1.60 \\
    --max-tokens 400 -o out.csv --failed failed.csv --journal run.db --resume
"""

EPILOG = (
    "Exit codes: 0 all rows passed, 1 some did not, or the budget was spent, 2 bad usage, 3 backend"
    " or configuration error, or a file or the journal is at fault, 130 interrupted,"
    " 143 told to end (SIGTERM)."
)

OnBadLine = Literal["stop", "skip"]


@dataclass(frozen=True, kw_only=True)
class BatchOptions(DrawOptions):
    """The options of ``mellea-like batch``."""

    panels: ClassVar = (ROWS, RESULTS, RUN, *PANELS)

    source: Annotated[
        str, Argument(metavar="INPUT", help="The rows: a file, or - for standard input.")
    ]
    prompt: Annotated[
        str,
        Option(
            "--prompt",
            "-p",
            metavar="TEMPLATE",
            help="What to ask for each row, as a Jinja template: {{ text }} stands for the field"
            ' text, {{ row["the text"] }} for one whose name isn\'t a word. @FILE reads it from a'
            " file.",
            rich_help_panel=ROWS,
        ),
    ]
    output: Annotated[
        str,
        Option(
            "--output",
            "-o",
            metavar="OUT",
            help="A file that ends in .jsonl, .csv, .tsv or .parquet, or - for standard output.",
            rich_help_panel=RESULTS,
        ),
    ]
    on_bad_line: Annotated[
        OnBadLine,
        Option(
            metavar="WHAT",
            help="What becomes of a line that can't be read, or lacks a field: stop tells of it"
            " before anything is sent, skip leaves it out.",
            rich_help_panel=ROWS,
        ),
    ] = "stop"
    first: Annotated[
        int | None,
        Option(
            metavar="N", min=1, help="Only the first N rows, to try it out.", rich_help_panel=ROWS
        ),
    ] = None
    input_format: Annotated[
        RowFormat | None,
        Option(
            metavar="FORMAT",
            help="jsonl, csv, tsv or parquet, where INPUT's name does not say.",
            rich_help_panel=ROWS,
        ),
    ] = None
    output_format: Annotated[
        RowFormat | None,
        Option(metavar="FORMAT", help="The same for OUT and --failed.", rich_help_panel=RESULTS),
    ] = None
    failed: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Where rows go that did not pass; by default to OUT too, with success false.",
            rich_help_panel=RESULTS,
        ),
    ] = None
    only_passed: Annotated[
        bool,
        Option("--only-passed", help="Leave rows out that did not pass.", rich_help_panel=RESULTS),
    ] = False
    force: Annotated[
        bool, Option("--force", help="Replace OUT where it is there.", rich_help_panel=RESULTS)
    ] = False
    journal: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Write down what is done, so that the run can be resumed, and looked at with"
            " mellea-like report.",
            rich_help_panel=RUN,
        ),
    ] = None
    resume: Annotated[
        bool,
        Option(
            "--resume",
            help="Go on with the run of the journal, if there is one.",
            rich_help_panel=RUN,
        ),
    ] = False
    journal_text: Annotated[
        KeptText,
        Option(
            metavar="WHOSE",
            help="Whose words the journal keeps: all draws', the best draw's, or none but what"
            " passed.",
            rich_help_panel=RUN,
        ),
    ] = "all"
    parallel: Annotated[
        int, Option(metavar="N", min=1, max=10_000, help="Rows at a time.", rich_help_panel=RUN)
    ] = 8
    ordered: Annotated[
        bool,
        Option(
            "--ordered",
            help="Results in the order of the rows; by default as they come.",
            rich_help_panel=RUN,
        ),
    ] = False
    fail_fast: Annotated[
        bool,
        Option(
            "--fail-fast", help="Stop at the first row that does not pass.", rich_help_panel=RUN
        ),
    ] = False
    max_errors: Annotated[
        int,
        Option(
            metavar="N",
            min=0,
            help="Stop when so many rows in a row end in an error; 0 for never.",
            rich_help_panel=RUN,
        ),
    ] = 10
    loop: Annotated[
        int,
        Option(
            metavar="N",
            help="Draws one after the other for one row, at most.",
            rich_help_panel=DRAWS,
        ),
    ] = 5
    concurrency: Annotated[
        int,
        Option(
            metavar="K",
            help="Draws at a time for one row; more than 1 is quicker for it, and costs more.",
            rich_help_panel=DRAWS,
        ),
    ] = 1
    timeout: Annotated[
        float | None,
        Option(metavar="SECONDS", help="Stop with a row after this long.", rich_help_panel=DRAWS),
    ] = None
    every: Annotated[
        float,
        Option(
            metavar="SECONDS",
            help="Between two lines of progress, where stderr isn't a terminal.",
            rich_help_panel=OUTPUT,
        ),
    ] = 5.0

    def __post_init__(self) -> None:
        if self.resume and self.journal is None:
            msg = "--resume goes on with a journal: name it with --journal FILE"
            raise Problem(msg, Exit.USAGE)
        if not 0 < self.every < float("inf"):
            msg = f"--every takes seconds above 0, not {self.every:g}"
            raise Problem(msg, Exit.USAGE)


def run(options: BatchOptions) -> int:
    """Run the command."""
    try:
        from mellea_like.cli.batch.command import run_batch  # noqa: PLC0415 (jinja2, and all of a batch)
    except ModuleNotFoundError as exc:
        msg = f"batch needs {exc.name}: pip install 'mellea-like[cli]'"
        raise Problem(msg) from exc
    return run_batch(options)
