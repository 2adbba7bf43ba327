"""What the scripts of the Python clients share: each is a list of calls that work or don't.

A call is a function of a prompt. It asks with the prompt, then asks ``AGAIN`` in the same
conversation, with the reply as its client returned it, and raises where it did not get what it
should have. Each runs twice: once where the upstream is strict, once where it is talkative. A
script prints a JSON object on a line for each call. Behind the model ``PLAIN`` is one that does as
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
    from collections.abc import Callable, Iterator, Mapping

BASE_URL = os.environ["GATEWAY_URL"]
UPSTREAM = os.environ["UPSTREAM_URL"]
KEY = "none-needed"
PLAIN, CHECKED = "plain", "checked"
AGAIN = "And the day after?"
SENTENCE = "It is 21 degrees in Paris and the sky is clear, so leave the umbrella at home today."
TALKATIVE = "a talkative server"
SERVERS = ("a strict server", TALKATIVE)


class Weather(BaseModel):
    """The weather in a city."""

    city: str
    degrees: int


EXPECTED = Weather(city="Paris", degrees=21)
ARGUMENTS = {"city": "Paris", "days": 21}
FOUND = "21 degrees"
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


class Asked(list[tuple[str, int]]):
    """The arguments of a tool's call."""

    def get_weather(self, city: str, days: int) -> str:
        """Look the weather up.

        Args:
            city: where.
            days: for how long.
        """
        self.append((city, days))
        return FOUND

    def check(self, times: int) -> None:
        """Raise unless the number of requests is as expected."""
        same(self, [("Paris", 21)] * times)


def user(text: str) -> dict[str, str]:
    """A user's message."""
    return {"role": "user", "content": text}


def turns(prompt: str, message: Callable[[str], Any] = user) -> Iterator[list[Any]]:
    """Yield the conversation twice: with the prompt at its end, and later with ``AGAIN``."""
    messages: list[Any] = []
    for text in (prompt, AGAIN):
        messages.append(message(text))
        yield messages


def same(got: object, expected: object) -> None:
    """Raise if two values differ."""
    if got != expected:
        msg = f"got {got!r}, not {expected!r}"
        raise AssertionError(msg)


def requests(*texts: str) -> dict[str, int]:
    """Ask the upstream for the number of requests whose messages had these texts."""
    query = urllib.parse.urlencode({"containing": texts}, doseq=True)
    with urllib.request.urlopen(f"{UPSTREAM}/requests?{query}") as answer:
        return json.load(answer)


def run(client: str, modes: Mapping[str, Mapping[str, Callable[[str], Any]]]) -> None:
    """Run a client's calls, one after the other, and print the outcome of each."""
    for mode, calls in modes.items():
        for name, call in calls.items():
            problems, wrong = list[str](), 0
            for server in SERVERS:
                prompt = f"How is the weather? ({client}: {mode}, {name}, with {server})"
                try:
                    done = call(prompt)
                    if inspect.isawaitable(done):
                        asyncio.run(_finish(done))
                    if not requests(prompt, AGAIN, '"role": "assistant"')["requests"]:
                        problems.append(f"{server}: there was no second turn")
                except Exception as exc:  # noqa: BLE001 (the test shows it)
                    traceback.print_exc()
                    problems.append(f"{server}: {type(exc).__name__}: {exc}")
                wrong += requests(prompt)["wrong"]
            told = {"client": client, "mode": mode, "call": name, "redrawn": wrong > 0}
            sys.stdout.write(f"{json.dumps({**told, 'problems': problems})}\n")
            sys.stdout.flush()


async def _finish(done: Any) -> None:
    await done
