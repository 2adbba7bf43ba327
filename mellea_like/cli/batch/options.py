"""The options of ``mellea-like batch``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import Annotated

import typer

from mellea_like.batch.rows.formats import RowFormat  # noqa: TC001 (typer reads the annotations)
from mellea_like.cli.arguments import SampleArguments, StrategyName, as_text
from mellea_like.cli.batch.arguments import BatchArguments
from mellea_like.cli.batch.source import OnBadLine
from mellea_like.cli.exits import Problem
from mellea_like.cli.sample import options

__all__ = ["EPILOG", "HELP", "batch"]

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


class KeptTextName(StrEnum):
    """Whose words a journal keeps."""

    ALL = "all"
    BEST = "best"
    NONE = "none"


def batch(  # noqa: PLR0913 (an option each)
    *,
    source: Annotated[
        str,
        typer.Argument(metavar="INPUT", help="The rows: a file, or - for standard input."),
    ],
    prompt: Annotated[
        str,
        typer.Option(
            "--prompt",
            "-p",
            metavar="TEMPLATE",
            help="What to ask for each row, as a Jinja template: {{ text }} stands for the field"
            ' text, {{ row["the text"] }} for one whose name is no word. @FILE reads it from a'
            " file.",
            rich_help_panel=ROWS,
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="A file that ends in .jsonl, .csv, .tsv or .parquet, or - for standard output.",
            rich_help_panel=RESULTS,
        ),
    ],
    on_bad_line: Annotated[
        OnBadLine,
        typer.Option(
            metavar="WHAT",
            help="What becomes of a line that can't be read, or lacks a field: stop says so before"
            " anything is sent, skip leaves it out.",
            rich_help_panel=ROWS,
        ),
    ] = OnBadLine.STOP,
    first: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Only the first N rows, to try it out.", rich_help_panel=ROWS
        ),
    ] = None,
    input_format: Annotated[
        RowFormat | None,
        typer.Option(
            metavar="FORMAT",
            help="jsonl, csv, tsv or parquet, where INPUT's name does not say.",
            rich_help_panel=ROWS,
        ),
    ] = None,
    output_format: Annotated[
        RowFormat | None,
        typer.Option(
            metavar="FORMAT", help="The same for OUT and --failed.", rich_help_panel=RESULTS
        ),
    ] = None,
    failed: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Where rows go that did not pass; by default to OUT too, with success false.",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    only_passed: Annotated[
        bool,
        typer.Option(
            "--only-passed", help="Leave rows out that did not pass.", rich_help_panel=RESULTS
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace OUT where it is there.", rich_help_panel=RESULTS),
    ] = False,
    journal: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write down what is done, so that the run can be resumed, and looked at with"
            " mellea-like report.",
            rich_help_panel=RUN,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run of the journal, if there is one.",
            rich_help_panel=RUN,
        ),
    ] = False,
    journal_text: Annotated[
        KeptTextName,
        typer.Option(
            metavar="WHOSE",
            help="Whose words the journal keeps: all draws', the best draw's, or none but what"
            " passed.",
            rich_help_panel=RUN,
        ),
    ] = KeptTextName.ALL,
    parallel: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=10_000, help="Rows at a time.", rich_help_panel=RUN),
    ] = 8,
    ordered: Annotated[
        bool,
        typer.Option(
            "--ordered",
            help="Results in the order of the rows; by default as they come.",
            rich_help_panel=RUN,
        ),
    ] = False,
    fail_fast: Annotated[
        bool,
        typer.Option(
            "--fail-fast", help="Stop at the first row that does not pass.", rich_help_panel=RUN
        ),
    ] = False,
    max_errors: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Stop when so many rows in a row end in an error; 0 for never.",
            rich_help_panel=RUN,
        ),
    ] = 10,
    require: options.Require = None,
    check: options.Check = None,
    schema: options.Schema = None,
    strategy: options.Strategy = StrategyName.REJECTION,
    loop: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Draws one after the other for one row, at most.",
            rich_help_panel=options.DRAWS,
        ),
    ] = 5,
    concurrency: Annotated[
        int,
        typer.Option(
            metavar="K",
            min=1,
            help="Draws at a time for one row; more than 1 is quicker for it, and costs more.",
            rich_help_panel=options.DRAWS,
        ),
    ] = 1,
    seed: options.Seed = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Stop with a row after this long.",
            rich_help_panel=options.DRAWS,
        ),
    ] = None,
    schedule: options.Schedule = "eager",
    early: options.Early = False,
    give_up: options.GiveUp = False,
    accept_incomplete: options.AcceptIncomplete = False,
    budget: options.Budget = None,
    price: options.Price = None,
    max_tokens: options.MaxTokens = None,
    retries: options.Retries = 2,
    rpm: options.Rpm = None,
    tpm: options.Tpm = None,
    backend: options.Backend = None,
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    gguf: options.Gguf = None,
    corpus: options.Corpus = None,
    judge_model: options.JudgeModel = None,
    judge_base_url: options.JudgeBaseUrl = None,
    every: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Between two lines of progress, where stderr is no terminal.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = 5.0,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Ask a model about every row of a file."""
    shared = options.shared_arguments(locals())
    try:
        from mellea_like.cli.batch.command import run_batch  # noqa: PLC0415 (jinja2, and all of a batch)
    except ModuleNotFoundError as exc:
        msg = f"batch needs {exc.name}: pip install 'mellea-like[cli]'"
        raise Problem(msg) from exc

    return run_batch(
        BatchArguments(
            sample=SampleArguments(instruction="", **shared),
            source=source,
            prompt=as_text(prompt, "--prompt"),
            output=output,
            failed=failed,
            only_passed=only_passed,
            journal=journal,
            journal_text=journal_text.value,
            resume=resume,
            force=force,
            parallel=parallel,
            ordered=ordered,
            fail_fast=fail_fast,
            most_errors=max_errors,
            on_bad_line=on_bad_line,
            input_format=input_format,
            output_format=output_format,
            first=first,
            every=every,
        )
    )
