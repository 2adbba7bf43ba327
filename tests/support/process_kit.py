"""What processes of a batch import: strategies, and what they say."""

from __future__ import annotations

import os

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import FunctionBackend


def reply(request):
    text = request.messages[-1].text
    if text == "die":
        os.kill(os.getpid(), 9)
    return f"re {text}"


def make():
    print("made")  # noqa: T201 (it is no message)
    return RejectionSamplingStrategy(FunctionBackend(reply), loop_budget=1)


def make_badly():
    return "no strategy"


def ask(item):
    return item["text"]
