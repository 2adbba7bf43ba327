"""Asking checks of code about replies, in sandboxes that a module of tests shares."""

from __future__ import annotations

import anyio
from engine_kit import candidate

from mellea_like.requirements.code import Sandbox


async def decided(check, text):
    return await check.validator(candidate(text))


def python(code):
    return f"Here it is:\n\n```python\n{code}\n```\n"


def sandbox(**settings):
    """For a fixture: a sandbox that is closed at its end."""
    made = Sandbox(**{"seconds": 5, "concurrency": 2} | settings)
    yield made
    anyio.run(made.aclose)
