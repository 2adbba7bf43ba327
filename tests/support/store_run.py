"""A process that sends requests within a budget and a rate that it shares through a file.

Each request writes a line when it goes and one when it has been charged, at once or not at all.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time

import anyio

from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.core.backend import Options, Request
from mellea_like.core.conversation import Message
from mellea_like.core.generation import Usage
from mellea_like.core.prices import Price
from mellea_like.errors import LimitExceeded
from mellea_like.limits import Budget, RateLimiter, SQLiteStore
from mellea_like.limits.base import RequestEnd

PROMPT = 5
PRICES = {"scripted": Price(1_000_000, 2_000_000)}  # 1 and 2 a token.
BACKEND = ScriptedBackend(["word"], cycle=True)


async def main(path, log, callers, longest, what) -> None:
    store = SQLiteStore(path)
    limits = {name: n for name, n in what.items() if name in {"requests", "output_tokens", "money"}}
    budget = Budget(**limits, prices=PRICES, store=store, name="b") if limits else None
    limiter = None
    if "per_minute" in what:
        rate, burst = what["per_minute"], what["burst"]
        limiter = RateLimiter(requests_per_minute=rate, burst_seconds=burst, store=store, name="r")
    until = time.monotonic() + what.get("seconds", 1e9)

    async def caller() -> None:
        with anyio.move_on_after(max(0, until - time.monotonic())):
            while True:
                most = random.randint(1, 30)
                request = Request((Message("user", "hi"),), Options(max_tokens=most))
                asked = [limit for limit in (budget, limiter) if limit is not None]
                try:
                    permits = [await limit.acquire(request, BACKEND) for limit in asked]
                except LimitExceeded:
                    return
                os.write(log, f"go {time.monotonic()}\n".encode())
                try:
                    await anyio.sleep(random.uniform(0, longest))
                finally:
                    received = random.randint(0, most)
                    for permit in reversed(permits):
                        permit.release(RequestEnd(Usage(1, PROMPT, received), None, None))
                    os.write(log, f"end {received} {PROMPT + 2 * received}\n".encode())

    async with anyio.create_task_group() as tasks:
        for _ in range(callers):
            tasks.start_soon(caller)


if __name__ == "__main__":
    _, loop, path, log, callers, longest, what = sys.argv
    opened = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    anyio.run(main, path, opened, int(callers), float(longest), json.loads(what), backend=loop)
