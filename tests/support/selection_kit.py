"""Helpers for tests of selections: a requirement, and a judge that compares."""

from __future__ import annotations

import anyio

from mellea_like import Generation, Requirement
from mellea_like.backends.function import FunctionBackend
from mellea_like.core import Usage

yes = Requirement("starts with yes", lambda c: c.text.startswith("yes"), inline=True)


def longer(a, b):
    return "a" if len(a) > len(b) else "b"


def comparing(act=None, *, prefer=longer, model=None):
    """A judge of two texts, and what it was asked; what ``act`` returns or raises comes before."""
    asked = []

    async def generate(request):
        question = request.messages[-1].content
        a, b = (question.split(f"<{x}>")[1].split(f"</{x}>")[0] for x in "ab")
        asked.append((a, b))
        number = len(asked)
        await anyio.sleep(1)
        if act is not None:
            await act(request, number)
        return Generation(f'{{"better": "{prefer(a, b)}"}}', usage=Usage(1, 10, 5), model=model)

    return FunctionBackend(generate), asked
