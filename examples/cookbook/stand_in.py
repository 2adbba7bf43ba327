"""What the programs of the cookbook share: the options that name a model, and what answers without.

Without options, a program draws from its stand-ins: functions that write good and bad replies by
chance, as a model does. Chance goes by the prompt and the attempt's number, so that a program
prints the same each time. A program never looks into its stand-in: it knows a reply by its checks.
"""

from __future__ import annotations

import argparse
import inspect
import os
import random
import sys
from collections.abc import Callable
from typing import Any

import anyio

from mellea_like import Backend, MelleaError, Request
from mellea_like.backends import ScriptedBackend
from mellea_like.batch import ItemResult

StandIn = Callable[[Request, random.Random], Any]


def backend_of(stand_in: StandIn) -> Backend:
    """Make a backend of a stand-in, which is given the request and what to draw from."""

    def answer(request: Request) -> Any:
        prompt = next(message.text for message in request.messages if message.role == "user")
        chance = random.Random(f"{stand_in.__name__} {request.meta.iteration} {prompt}")
        return stand_in(request, chance)

    return ScriptedBackend(answer, model=stand_in.__name__)


def show(name: str, item: ItemResult[Any]) -> None:
    """Print how an item of a batch went: each attempt, and what was wrong with it."""
    print(f"{name}: {item.status}", *([] if item.error is None else [item.error]))
    for draw in () if item.result is None else item.result.slices:
        print(f"  attempt {draw.depth + 1}: {draw.outcome}", *draw.problems, sep="\n      ")


def start(program: Callable[..., Any], purpose: str | None, **stand_ins: StandIn) -> None:
    """Run a program with the models that the command line names, or else with its stand-ins."""
    parser = argparse.ArgumentParser(
        description=purpose, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", help="an OpenAI-compatible server (or: OPENAI_BASE_URL)")
    for role in stand_ins:
        default = "the server's first model" if role == "model" else "the same as --model"
        parser.add_argument(f"--{role}", metavar="NAME", help=f"by default {default}")
    named = vars(parser.parse_args())
    base_url = named.pop("base_url")
    models: dict[str, Any] = {}

    async def run() -> None:
        try:
            await program(**models)
        finally:
            for model in models.values():
                if not isinstance(model, ScriptedBackend):
                    await model.aclose()

    try:
        if base_url or any(named.values()) or os.environ.get("OPENAI_BASE_URL"):
            from mellea_like import OpenAIBackend  # the extra `openai`

            for role, name in named.items():
                models[role] = OpenAIBackend(name or named["model"], base_url=base_url)
        else:
            print("A stand-in plays the model; --model NAME takes a real one.", file=sys.stderr)
            models.update({role: backend_of(stand_in) for role, stand_in in stand_ins.items()})
        if inspect.iscoroutinefunction(program):
            anyio.run(run)
        else:
            program(**models)
    except (MelleaError, ImportError, ValueError) as exc:
        sys.exit(f"It ended early: {exc}")
    except KeyboardInterrupt:
        print("Interrupted; no request is left open.", file=sys.stderr)
        sys.exit(130)
