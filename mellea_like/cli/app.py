"""The commands and their options."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import Annotated

import typer

from mellea_like.cli.arguments import (
    BackendName,
    SampleArguments,
    StrategyName,
    as_text,
)
from mellea_like.cli.exits import Exit, Problem
from mellea_like.cli.limits import BUDGETS, LimitArguments
from mellea_like.cli.sample import run_sample
from mellea_like.cli.watch_options import EPILOG, HELP, WatchCommand, watch
from mellea_like.requirements.expressions import ALLOWED
from mellea_like.sampling.schedules.expressions import SCHEDULES

__all__ = ["app"]

CHECKS = "What must hold"
DRAWS = "How to draw"
COSTS = "What it may cost"
BACKEND = "What generates"
OUTPUT = "What is shown"

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
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="What must hold, in words; a model judges it. Repeatable.",
            rich_help_panel=CHECKS,
        ),
    ] = None,
    check: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXPR",
            help=f"One of: {'  '.join(ALLOWED)}. Repeatable.",
            rich_help_panel=CHECKS,
        ),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A JSON Schema that the reply must meet.", rich_help_panel=CHECKS
        ),
    ] = None,
    strategy: Annotated[
        StrategyName,
        typer.Option(
            metavar="NAME",
            help="After a failure, rejection asks the same again, repair writes what failed into"
            " the instruction, and multi-turn goes on in the conversation.",
            rich_help_panel=DRAWS,
        ),
    ] = StrategyName.REJECTION,
    loop: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Draws in a row, at most.", rich_help_panel=DRAWS),
    ] = 5,
    concurrency: Annotated[
        int, typer.Option(metavar="K", min=1, help="Draws at a time.", rich_help_panel=DRAWS)
    ] = 4,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="S", help="Makes draws repeatable where the model can.", rich_help_panel=DRAWS
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Stop after this long.", rich_help_panel=DRAWS),
    ] = None,
    schedule: Annotated[
        str,
        typer.Option(
            metavar="WHEN",
            help=f"When draws start: {'  '.join(SCHEDULES)}. Eager starts all at once.",
            rich_help_panel=DRAWS,
        ),
    ] = "eager",
    early: Annotated[
        bool,
        typer.Option(
            "--early",
            help="Reject a reply while it arrives, by the checks that can.",
            rich_help_panel=DRAWS,
        ),
    ] = False,
    give_up: Annotated[
        bool,
        typer.Option(
            "--give-up",
            help="Stop when something that must hold fails so often that more draws won't help.",
            rich_help_panel=DRAWS,
        ),
    ] = False,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=N",
            help=f"What all requests together may take, at most: {', '.join(BUDGETS)}. Repeatable.",
            rich_help_panel=COSTS,
        ),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(
            metavar="IN,OUT",
            help="Money for a million tokens of prompts, and of replies: 0.15,0.60 say.",
            rich_help_panel=COSTS,
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Tokens of one reply, at most.", rich_help_panel=COSTS
        ),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="How often a request is tried again after a passing fault; 0 for never.",
            rich_help_panel=COSTS,
        ),
    ] = 2,
    rpm: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="Requests a minute, at most: your quota.", rich_help_panel=COSTS
        ),
    ] = None,
    tpm: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="Tokens a minute, at most: your quota.", rich_help_panel=COSTS
        ),
    ] = None,
    backend: Annotated[
        BackendName | None,
        typer.Option(
            metavar="NAME",
            help="local, a small text generator in this process; openai, any OpenAI-compatible"
            " server; or llama, a llama.cpp server started for a GGUF file. By default openai when"
            " OPENAI_API_KEY or OPENAI_BASE_URL is set, else local.",
            rich_help_panel=BACKEND,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The model's name (openai).", rich_help_panel=BACKEND),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The server (openai), http://localhost:8000/v1 say.",
            rich_help_panel=BACKEND,
        ),
    ] = None,
    gguf: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The model file (llama).", rich_help_panel=BACKEND),
    ] = None,
    corpus: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Text to learn from (local); repeatable.", rich_help_panel=BACKEND
        ),
    ] = None,
    judge_model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The model that judges --require; by default the one that generates.",
            rich_help_panel=BACKEND,
        ),
    ] = None,
    judge_base_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The judge's server; by default that of --base-url.",
            rich_help_panel=BACKEND,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object with all slices.", rich_help_panel=OUTPUT
        ),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Show a table of all slices on stderr.", rich_help_panel=OUTPUT
        ),
    ] = False,
    ledger: Annotated[
        bool,
        typer.Option(
            "--ledger",
            help="Show what each draw cost, wasted and saved on stderr.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress on stderr.", rich_help_panel=OUTPUT)
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show log records and tracebacks.", rich_help_panel=OUTPUT),
    ] = False,
) -> int:
    """Draw replies until one meets every requirement, several at a time."""
    return run_sample(
        SampleArguments(
            instruction=as_text(instruction, "the instruction"),
            require=[as_text(text, "--require") for text in require or ()],
            check=[as_text(expression, "--check") for expression in check or ()],
            schema=schema,
            strategy=strategy,
            loop=loop,
            concurrency=concurrency,
            seed=seed,
            timeout=timeout,
            early=early,
            limits=LimitArguments(
                retries=retries,
                schedule=as_text(schedule, "--schedule"),
                budget=[as_text(text, "--budget") for text in budget or ()],
                price=None if price is None else as_text(price, "--price"),
                max_tokens=max_tokens,
                rpm=rpm,
                tpm=tpm,
                give_up=give_up,
            ),
            backend=backend,
            model=_name(model, "--model"),
            base_url=base_url,
            gguf=gguf,
            corpus=corpus or [],
            judge_model=_name(judge_model, "--judge-model"),
            judge_base_url=judge_base_url,
            as_json=as_json,
            explain=explain,
            ledger=ledger,
            quiet=quiet,
            debug=debug,
        )
    )


app.command("watch", cls=WatchCommand, help=HELP, epilog=EPILOG)(watch)


def _name(given: str | None, option: str) -> str | None:
    if given is None:
        return None
    name = as_text(given, option).strip()
    if not name:
        msg = f"{option} takes a model's name, not an empty one"
        raise Problem(msg, Exit.USAGE)
    return name
