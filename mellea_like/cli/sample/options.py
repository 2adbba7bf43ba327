"""The options that several commands share, and what their values mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mellea_like.cli.arguments import BackendName, StrategyName, as_text
from mellea_like.cli.exits import Exit, Problem
from mellea_like.cli.limits import BUDGETS, LimitArguments
from mellea_like.requirements.expressions import ALLOWED
from mellea_like.sampling.schedules.expressions import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BACKEND", "CHECKS", "COSTS", "DRAWS", "OUTPUT", "shared_arguments"]

CHECKS = "What must hold"
DRAWS = "How to draw"
COSTS = "What it may cost"
BACKEND = "What generates"
OUTPUT = "What is shown"

Require = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT",
        help="What must hold, in words; a model judges it. Repeatable.",
        rich_help_panel=CHECKS,
    ),
]
Check = Annotated[
    list[str] | None,
    typer.Option(
        metavar="EXPR",
        help=f"One of: {'  '.join(ALLOWED)}. Repeatable.",
        rich_help_panel=CHECKS,
    ),
]
Schema = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="A JSON Schema that the reply must meet.", rich_help_panel=CHECKS
    ),
]
Strategy = Annotated[
    StrategyName,
    typer.Option(
        metavar="NAME",
        help="After a failure, rejection asks the same again, repair writes what failed into"
        " the instruction, and multi-turn goes on in the conversation.",
        rich_help_panel=DRAWS,
    ),
]
Loop = Annotated[
    int,
    typer.Option(metavar="N", min=1, help="Draws in a row, at most.", rich_help_panel=DRAWS),
]
Concurrency = Annotated[
    int, typer.Option(metavar="K", min=1, help="Draws at a time.", rich_help_panel=DRAWS)
]
Seed = Annotated[
    int | None,
    typer.Option(
        metavar="S", help="Makes draws repeatable where the model can.", rich_help_panel=DRAWS
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Stop after this long.", rich_help_panel=DRAWS),
]
Schedule = Annotated[
    str,
    typer.Option(
        metavar="WHEN",
        help=f"When draws start: {'  '.join(SCHEDULES)}. Eager starts all at once.",
        rich_help_panel=DRAWS,
    ),
]
Early = Annotated[
    bool,
    typer.Option(
        "--early",
        help="Reject a reply while it arrives, by the checks that can.",
        rich_help_panel=DRAWS,
    ),
]
GiveUp = Annotated[
    bool,
    typer.Option(
        "--give-up",
        help="Stop when something that must hold fails so often that more draws won't help.",
        rich_help_panel=DRAWS,
    ),
]
AcceptIncomplete = Annotated[
    bool,
    typer.Option(
        "--accept-incomplete",
        help="Take a reply that was cut off or refused for an answer, as text completion wants it.",
        rich_help_panel=DRAWS,
    ),
]
Budget = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KIND=N",
        help=f"What all requests together may take, at most: {', '.join(BUDGETS)}. Repeatable.",
        rich_help_panel=COSTS,
    ),
]
Price = Annotated[
    str | None,
    typer.Option(
        metavar="IN,OUT",
        help="Dollars for a million tokens of prompts, and of replies; 0.15,0.60,EUR for euros.",
        rich_help_panel=COSTS,
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Tokens of one reply, at most.", rich_help_panel=COSTS),
]
Retries = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        help="How often a request is tried again after a passing fault; 0 for never.",
        rich_help_panel=COSTS,
    ),
]
Rpm = Annotated[
    float | None,
    typer.Option(
        metavar="N", help="Requests a minute, at most: your quota.", rich_help_panel=COSTS
    ),
]
Tpm = Annotated[
    float | None,
    typer.Option(metavar="N", help="Tokens a minute, at most: your quota.", rich_help_panel=COSTS),
]


def _read_backend(given: str) -> BackendName:
    if given == "local":
        msg = "local is now called markov"
        raise typer.BadParameter(msg)
    if given not in list(BackendName):
        msg = f"{given!r} is not one of {', '.join(map(repr, map(str, BackendName)))}"
        raise typer.BadParameter(msg)
    return BackendName(given)


Backend = Annotated[
    BackendName | None,
    typer.Option(
        metavar="NAME",
        help="markov, a small text generator in this process; openai, any OpenAI-compatible"
        " server; or llama, a llama.cpp server started for a GGUF file. By default openai when"
        " OPENAI_API_KEY or OPENAI_BASE_URL is set; else sample takes markov.",
        parser=_read_backend,
        rich_help_panel=BACKEND,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="The model's name (openai).", rich_help_panel=BACKEND),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The server (openai), http://localhost:8000/v1 say.",
        rich_help_panel=BACKEND,
    ),
]
Gguf = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The model file (llama).", rich_help_panel=BACKEND),
]
Corpus = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", help="Text to learn from (markov); repeatable.", rich_help_panel=BACKEND
    ),
]
JudgeModel = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="The model that judges --require; by default the one that generates.",
        rich_help_panel=BACKEND,
    ),
]
JudgeBaseUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The judge's server; by default that of --base-url.",
        rich_help_panel=BACKEND,
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress on stderr.", rich_help_panel=OUTPUT)
]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Show log records and tracebacks.", rich_help_panel=OUTPUT),
]


def shared_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Read the options above."""
    price = given["price"]
    return {
        "require": [as_text(text, "--require") for text in given["require"] or ()],
        "check": [as_text(expression, "--check") for expression in given["check"] or ()],
        "corpus": given["corpus"] or [],
        "model": _name(given["model"], "--model"),
        "judge_model": _name(given["judge_model"], "--judge-model"),
        "limits": LimitArguments(
            schedule=as_text(given["schedule"], "--schedule"),
            budget=[as_text(text, "--budget") for text in given["budget"] or ()],
            price=None if price is None else as_text(price, "--price"),
            **{name: given[name] for name in ("retries", "max_tokens", "rpm", "tpm", "give_up")},
        ),
        **{name: given[name] for name in _AS_THEY_ARE},
    }


_AS_THEY_ARE = (
    "schema",
    "strategy",
    "loop",
    "concurrency",
    "seed",
    "timeout",
    "early",
    "accept_incomplete",
    "backend",
    "base_url",
    "gguf",
    "judge_base_url",
    "quiet",
    "debug",
)


def _name(given: str | None, option: str) -> str | None:
    if given is None:
        return None
    name = as_text(given, option).strip()
    if not name:
        msg = f"{option} takes a model's name, not an empty one"
        raise Problem(msg, Exit.USAGE)
    return name
