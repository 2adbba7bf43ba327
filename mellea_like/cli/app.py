"""The commands and their options."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import Annotated

import typer

from mellea_like.cli import report as reports
from mellea_like.cli import serve as serving
from mellea_like.cli.arguments import SampleArguments, StrategyName, as_text
from mellea_like.cli.batch import options as batches
from mellea_like.cli.sample import options
from mellea_like.cli.sample.command import run_sample
from mellea_like.cli.watch.options import EPILOG, HELP, WatchCommand, watch

__all__ = ["app"]

SAMPLE_HELP = """Draw replies until one meets every requirement, several at a time.

The reply alone goes to standard output; everything else goes to standard error.

[bold]Examples[/bold]

\b
mellea-like sample "Write about Python classes." \\
    --check "words<=20" --check "contains:class"
mellea-like sample "Write a haiku." --model gpt-4.1-mini \\
    --check lines==3 --require "It mentions autumn." --strategy repair
mellea-like sample "Write a haiku." --model gpt-4.1-mini \\
    --check lines==3 --early --max-tokens 100 \\
    --budget cost=0.01 --price 0.40,1.60 --ledger
mellea-like sample - --gguf model.gguf --schema invoice.json < letter.txt
"""

app = typer.Typer(
    name="mellea-like",
    help="Results from language models that meet stated requirements.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 (typer's signature)
    if wanted:
        typer.echo(f"mellea-like {version('mellea-like')}")
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    *,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    del show_version


@app.command(
    help=SAMPLE_HELP,
    epilog="Exit codes: 0 passed, 1 nothing passed, 2 bad usage, 3 backend or configuration error,"
    " 130 interrupted.",
)
def sample(  # noqa: PLR0913 (an option each)
    *,
    instruction: Annotated[
        str,
        typer.Argument(
            metavar="INSTRUCTION", help="What to generate; - reads it from standard input."
        ),
    ],
    require: options.Require = None,
    check: options.Check = None,
    schema: options.Schema = None,
    strategy: options.Strategy = StrategyName.REJECTION,
    loop: options.Loop = 5,
    concurrency: options.Concurrency = 4,
    seed: options.Seed = None,
    timeout: options.Timeout = None,
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
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object with all slices.", rich_help_panel=options.OUTPUT
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the record of the call to a file, for mellea-like report; prompts and"
            " replies stand in it.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Show a table of all slices on stderr.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    ledger: Annotated[
        bool,
        typer.Option(
            "--ledger",
            help="Show what each draw cost, wasted and saved on stderr.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Draw replies until one meets every requirement, several at a time."""
    return run_sample(
        SampleArguments(
            instruction=as_text(instruction, "the instruction"),
            as_json=as_json,
            trace=trace,
            explain=explain,
            ledger=ledger,
            **options.shared_arguments(locals()),
        )
    )


app.command("batch", help=batches.HELP, epilog=batches.EPILOG)(batches.batch)
app.command("watch", cls=WatchCommand, help=HELP, epilog=EPILOG)(watch)
app.command("report", help=reports.HELP, epilog=reports.EPILOG)(reports.report)
app.command("serve", help=serving.HELP, epilog=serving.EPILOG)(serving.serve)
