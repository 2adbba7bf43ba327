"""What the tests of cancellation at every step share: how a scene is made, run, and judged."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import anyio
from oracle_world import Ask
from steps import Stepper, run_stepped
from storm import INLINE, Draw, Rig, Told, check_record, is_good
from storm_run import Ran, Scene, run_scene

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.core.slice import Outcome, Slice
from mellea_like.limits import LimitedBackend

Scenes = Mapping[str, Callable[[], Scene]]

STORM = bool(os.environ.get("STORM"))
FIRST_STEPS, STRIDE = 6, 40
"""Without ``STORM=1``, each of the first steps is tried, and then about one in so many."""


async def is_good_later(candidate: Any) -> tuple[bool, str]:
    await anyio.sleep(0.5)
    return is_good(candidate), "it is not good"


AWAITED = Requirement("good, looked at for long", is_good_later)
AWAITED_TOO = Requirement("good, looked at again", is_good_later)
BAD = Draw("bad", 0.5)


def make(
    plan: dict[int, Draw],
    ends: type[BaseException] | str,
    *,
    strategy: Any = RejectionSamplingStrategy,
    told: Told | None = None,
    silent: bool = False,
    plugins: Any = (),
    on_slice: Any = None,
    rig: Rig | None = None,
    requirements: Any = (INLINE,),
    winners: Any = (),
    loop: int = 2,
    concurrency: int = 3,
    loop_after: int | None = None,
    default: Draw | None = None,
    limits: Any = (),
    budget: Any = None,
    pooled: bool = False,
    extra: int = 0,
    **settings: Any,
) -> Scene:
    rig = rig or Rig()
    rig.plan = plan
    if default is not None:
        rig.default = default
    told = None if silent else (told or Told())
    chosen = strategy(
        LimitedBackend(rig, *limits) if limits else rig,
        loop_budget=loop,
        concurrency_budget=concurrency,
        plugins=plugins if told is None else [told, *plugins],
        **{"retry": None, **settings},
    )
    return Scene(
        rig,
        told,
        partial(chosen.sample, Ask(), requirements, on_slice=on_slice, budget=budget),
        loop_after or loop,
        concurrency,
        ends,
        set(winners),
        pooled,
        extra,
        [*limits, *([] if budget is None else [budget])],
        not isinstance(settings.get("selection", ""), str),
    )


def check_run(name: str, played: Scene, ran: Ran, mode: str = "scope") -> None:
    """Hold one run against what may come of it.

    Where every task is cancelled at once, the tasks that hooks run in are, too: what is delivered
    to them then is cut short, and all else must hold.
    """
    if ran.cancelled:
        assert ran.hit, "cancelled, and no one asked for it"
    elif isinstance(played.ends, str):
        assert ran.error is None, f"it raised {ran.error!r}"
        assert ran.result is not None
        assert ran.result.stop_reason == played.ends
        if played.winners:
            assert ran.result.best.iteration in played.winners
    else:
        assert isinstance(ran.error, played.ends), f"it gave {ran.result!r} or {ran.error!r}"
        assert not isinstance(ran.error, BaseExceptionGroup)
    if ran.hit and not ran.cancelled:
        assert ran.steps - ran.after <= 2, "it went on as if it had not been cancelled"
    slices = check_told(played.told, ran, mode, slow=name == "reporting_takes_too_long")
    if slices is not None:
        check_record(
            slices,
            played.rig,
            loop_budget=played.loop_budget,
            concurrency=played.concurrency,
            hooked=True,
            pooled=played.pooled,
            extra=played.extra,
            several=played.several,
        )
        if ran.cancelled:
            going = [s for s in slices if s.generation is None and s.error is None]
            assert all(s.outcome is Outcome.CANCELLED for s in going)


def check_told(told: Told | None, ran: Ran, mode: str, *, slow: bool) -> tuple[Slice, ...] | None:
    """Hold what the plugins were told against what happened; return the record."""
    slices = None if ran.result is None else ran.result.slices
    if told is None:
        return slices
    assert len(told.ends) <= told.begun <= 1
    if mode != "everyone":
        assert len(told.ends) == told.begun, "SAMPLING_LOOP_START has no SAMPLING_LOOP_END"
    if told.ends:
        slices = told.ends[0].slices
        assert ran.result is None or ran.result.slices == slices
    elif mode == "everyone":
        return slices
    delivered = [slice_.iteration for slice_ in told.delivered]
    recorded = [] if slices is None else [slice_.iteration for slice_ in slices]
    assert delivered == recorded[: len(delivered)]
    assert delivered == recorded or slow or mode == "everyone"
    return slices


async def cancel_everywhere(
    scenes: Scenes, name: str, mode: str, again: Any, stepper: Stepper
) -> int:
    undisturbed = [await run_scene(scenes[name](), stepper, "scope", -1) for _ in range(2)]
    # Tasks that are cancelled together are cancelled in the order of a set, which shows at times.
    assert abs(undisturbed[0].steps - undisturbed[1].steps) <= 2, "the steps differ each time"
    at, hits, strides = 1, 0, random.Random(f"{name} {mode}")
    while True:
        played = scenes[name]()
        try:
            ran = await run_scene(played, stepper, mode, at, again(at))
            check_run(name, played, ran, mode)
        except BaseException as exc:
            exc.add_note(f"{name}, {mode}: cancelled at step {at}")
            raise
        if not ran.hit:
            break
        hits += 1
        at += 1 if STORM or at < FIRST_STEPS else strides.randint(1, 2 * STRIDE - 1)
    return hits


def once(_: int) -> int:
    return 0


def soon_again(at: int) -> int:
    return 1 + at % 7


WAYS: dict[str, tuple[Literal["asyncio", "trio"], str, Any]] = {
    "by its scope on asyncio": ("asyncio", "scope", once),
    "by its scope on trio": ("trio", "scope", once),
    "natively": ("asyncio", "native", once),
    "natively twice": ("asyncio", "native", soon_again),
    "with every other task": ("asyncio", "everyone", once),
}
"""Who cancels the call, and on which event loop."""


def cancel_case(scenes: Scenes, name: str, way: str) -> None:
    backend, mode, again = WAYS[way]
    hits = run_stepped(partial(cancel_everywhere, scenes, name, mode, again), backend)
    assert hits > 3
