"""What the scripts of the Python clients share: each is a list of rows that work or don't.

A row is a function of a prompt that raises where the client did not get what it should have. A
script prints a JSON object on a line for each row. Behind the model ``PLAIN`` is one that does as
it is told, behind ``CHECKED`` one whose first draw is wrong wherever it can be.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import traceback
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Callable

BASE_URL = os.environ["GATEWAY_URL"]
UPSTREAM = os.environ["UPSTREAM_URL"]
KEY = "none-needed"
PLAIN, CHECKED = "plain", "checked"
SENTENCE = "It is 21 degrees in Paris and the sky is clear, so leave the umbrella at home today."


class Weather(BaseModel):
    """The weather in a city."""

    city: str
    degrees: int


EXPECTED = Weather(city="Paris", degrees=21)
WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Look the weather up.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}


def user(text: str) -> list[dict[str, str]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


def same(got: object, expected: object) -> None:
    """Raise where something isn't what it should be."""
    if got != expected:
        msg = f"got {got!r}, not {expected!r}"
        raise AssertionError(msg)


def draws_for(prompt: str) -> int:
    """How many requests the upstream has had for a prompt."""
    query = urllib.parse.urlencode({"containing": prompt})
    with urllib.request.urlopen(f"{UPSTREAM}/requests?{query}") as answer:
        return int(json.load(answer)["requests"])


def run(client: str, rows: dict[str, Callable[[str], Any]]) -> None:
    """Run the rows of a client, one after the other, and print what came of each."""
    for name, row in rows.items():
        problem = None
        prompt = f"How is the weather? ({client}: {name})"
        try:
            done = row(prompt)
            if inspect.isawaitable(done):
                asyncio.run(_finish(done))
        except Exception as exc:  # noqa: BLE001 (the test shows it)
            traceback.print_exc()
            problem = f"{type(exc).__name__}: {exc}"
        told = {"client": client, "row": name, "problem": problem, "draws": draws_for(prompt)}
        sys.stdout.write(f"{json.dumps(told)}\n")
        sys.stdout.flush()


async def _finish(done: Any) -> None:
    await done
