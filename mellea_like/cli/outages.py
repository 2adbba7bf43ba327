"""Report servers that can't be reached, and end the run if one of them never answers."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from mellea_like.cli.exit_codes import Problem
from mellea_like.runtime.task_scope import task_scope

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from mellea_like.limits.backoff_gate import BackoffGate

LOOK_EVERY = 0.25
"""Seconds between two checks of whether the servers can be reached."""

GIVE_UP_AFTER = 4.0
"""Seconds of an outage after which the run gives up on a server that has never answered."""


@asynccontextmanager
async def watched_servers(
    gates: Sequence[BackoffGate], tell: Callable[[str], object]
) -> AsyncGenerator[None]:
    """Report outages of servers during the block; raise a `Problem` if a server never answers."""
    outages: list[str] = []
    async with task_scope() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(_watch, gates, tell, scope, outages)
            yield
    if scope.cancelled_caught:
        raise Problem(outages[0])


async def _watch(
    gates: Sequence[BackoffGate],
    tell: Callable[[str], object],
    run: anyio.CancelScope,
    outages: list[str],
) -> None:
    began: dict[BackoffGate, float] = {}
    while True:
        for gate in gates:
            outage = gate.outage
            if outage is None:
                began.pop(gate, None)
                continue
            if gate not in began:
                began[gate] = anyio.current_time()
                place = outage.removeprefix("can't reach ")
                tell(f"Waiting for {place}" if place != outage else f"Waiting: {outage}")
            if not gate.reached and anyio.current_time() - began[gate] >= GIVE_UP_AFTER:
                outages.append(outage)
                run.cancel("the server has never answered")
                return
        await anyio.sleep(LOOK_EVERY)
