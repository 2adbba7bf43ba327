"""Runs one call of the storm tests, and cancels it at a step or at a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from leftovers import check_at_rest, has_begun, running
from steps import Stepper
from storm import Rig, Told, check_nothing_left

from mellea_like.core.result import SamplingResult
from mellea_like.limits.backoff_gate import JITTER, gate_of


@dataclass
class Scene:
    """One scenario, made anew for each run."""

    rig: Rig
    told: Told | None
    sample: Callable[[], Any]
    loop_budget: int
    concurrency: int
    ends: type[BaseException] | str
    """What comes of it undisturbed: the error's type, or the stop reason."""
    winners: set[int] = field(default_factory=set)
    pooled: bool = False
    extra: int = 0
    limits: Sequence[Any] = ()
    """What must be at rest when the call has ended."""
    several: bool = False
    """Whether several draws are to pass."""


@dataclass
class Ran:
    """What came of one run."""

    steps: int
    hit: bool
    """Whether the cancellation came before the call had ended."""
    after: int
    """Steps between the cancellation and the end."""
    cancelled: bool
    result: SamplingResult[Any] | None = None
    error: BaseException | None = None
    ended: float = 0.0
    """When it ended, in seconds since it began."""


async def run_scene(  # noqa: C901, PLR0915 (one run, from its start to its end)
    played: Scene, stepper: Stepper, mode: str, at: int, again: int = 0, seconds: float = math.inf
) -> Ran:
    """Run a scene and cancel it at a step; check what it left at the very moment it ended."""
    ran = Ran(0, False, 0, False)
    JITTER.seed(0)  # The waits before retries are the same in each run.
    before = running()
    host: list[Any] = []
    started = anyio.current_time()
    scope = anyio.CancelScope(deadline=started + seconds)

    def strike() -> None:
        ran.hit = True
        ran.after = stepper.count
        if mode == "scope":
            scope.cancel()
        elif mode == "everyone":
            for task in asyncio.all_tasks(asyncio.get_running_loop()):
                if id(task) not in before and has_begun(task):
                    task.cancel()
        else:
            host[0].cancel()

    async def call() -> None:
        inside = before | running()
        try:
            with scope:
                stepper.arm({at: strike, **({at + again: strike} if again else {})})
                try:
                    ran.result = await played.sample()
                except Exception as exc:  # noqa: BLE001 (compared with what it should be)
                    ran.error = exc
                except BaseException as exc:
                    ran.cancelled = isinstance(exc, anyio.get_cancelled_exc_class())
                    ran.error = exc
                    if mode == "scope":
                        raise
                finally:
                    stepper.disarm()
                    ran.steps = stepper.count
                    ran.ended = anyio.current_time() - started
                    check_left(inside)
        except asyncio.CancelledError:
            raise AssertionError("the cancellation went on past its scope") from ran.error
        if mode == "scope" and host:
            assert host[0].cancelling() == 0

    def check_left(inside: set[int]) -> None:
        with anyio.CancelScope(shield=True):  # noqa: ASYNC100 (its own deadline is looked at)
            check_nothing_left(inside, played.rig, played.told)
            check_at_rest(*played.limits, gate_of(played.rig))

    if mode == "scope" and anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        await call()
    else:
        host.append(asyncio.get_running_loop().create_task(call()))
        await asyncio.wait(host)
        host[0].result()
    return ran
