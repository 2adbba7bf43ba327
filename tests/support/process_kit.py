"""What processes of a batch import: strategies, and what they say."""

from __future__ import annotations

import os

import anyio

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import FunctionBackend
from mellea_like.errors import LimitExceeded


def reply(request):
    text = request.messages[-1].text
    if text == "die":
        os.kill(os.getpid(), 9)
    return f"re {text}"


async def die_or_spend(pause, sender):
    """Spend a budget after a pause, or die if there is none."""
    if pause is None:
        os.kill(os.getpid(), 9)
    await anyio.sleep(pause)
    raise LimitExceeded("spent")


def make():
    print("made")  # noqa: T201 (it is no message)
    return RejectionSamplingStrategy(FunctionBackend(reply), loop_budget=1)


def make_badly():
    return "no strategy"


def ask(item):
    return item["text"]
