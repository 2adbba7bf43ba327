"""Scenes of several calls that share a backend, limiters, budgets and schedules; and their staging.

`SCENES` makes them up, `staged` builds what a scene says, and `perform` runs all of its calls to
their end and sees that none leaves anything behind.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import anyio
from hypothesis import strategies as st
from leftovers import running
from limits_storm import (
    CALLER,
    CAP,
    FAULTS,
    MAD,
    MAX_TOKENS,
    Lot,
    Mad,
    Shared,
    no_rant,
    raises_at_rant,
)
from oracle_world import Ask, on_asyncio
from steps import Stepper
from storm import STAYS, Leaving, Told

from mellea_like import (
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
)
from mellea_like.core.result import SamplingResult
from mellea_like.core.slice import Slice
from mellea_like.limits import (
    AdaptiveLimiter,
    Budget,
    ConcurrencyLimiter,
    LimitedBackend,
    RateLimiter,
    Retry,
)
from mellea_like.limits.budget_accounts import Cancelled
from mellea_like.schedules import Eager, Hedged, Staggered
from mellea_like.schedules.giving_up import PerRequirement, Tally

EVER = 200_000.0
"""Seconds after which a call would go on for ever."""

SECONDS = st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 5.0])
LOTS = st.builds(
    Lot,
    st.sampled_from([*["bad"] * 4, "good", "garbled", "rant", "rant", *FAULTS]),
    SECONDS,
    st.sampled_from([True, True, False]),
)
SCHEDULES = st.one_of(
    st.none(),
    st.builds(Eager, st.booleans()),
    st.builds(Staggered, st.sampled_from([0.3, 1.0, 4.0])),
    st.builds(Hedged, st.sampled_from([0.2, 0.5, 0.8]), st.sampled_from([1, 2])),
    MAD,
    MAD,
)
RETRIES = st.one_of(
    st.none(),
    st.builds(
        Retry,
        st.sampled_from([1, 2, 3]),
        rate_limit_attempts=st.sampled_from([1, 2, 5]),
        max_retry_after=st.just(CAP),
    ),
)


@dataclass(frozen=True)
class Purse:
    """A budget, made up."""

    requests: int | None = None
    output_tokens: int | None = None
    input_tokens: int | None = None
    seconds: float | None = None

    def made(self, cancelled: Cancelled, within: Budget | None = None) -> Budget:
        return Budget(cancelled=cancelled, within=within, **asdict(self))


PURSES = st.one_of(
    st.builds(Purse, requests=st.integers(1, 12)),
    st.builds(Purse, output_tokens=st.integers(6, 50)),
    st.builds(Purse, input_tokens=st.integers(20, 200)),
    st.builds(Purse, seconds=st.sampled_from([0.5, 2.0, 6.0])),
    st.builds(Purse, st.integers(2, 12), st.integers(10, 60), seconds=st.just(9.0)),
)


LEAVINGS = st.one_of(
    st.just(STAYS),
    st.just(STAYS),
    st.builds(Leaving, st.just("scope"), st.integers(1, 150)),
    st.builds(Leaving, st.just("native"), st.integers(1, 150)),
    st.builds(Leaving, seconds=st.sampled_from([0.0, 0.5, 1.0, 1.25, 3.0])),
)


@dataclass(frozen=True)
class Call:
    """One call, made up; by default little is special."""

    strategy: type = RejectionSamplingStrategy
    loop_budget: int = 2
    concurrency: int = 2
    checks: tuple[str, ...] = ()
    schedule: Any = None  # None for all at once; ``shared`` for the scene's.
    retry: Retry | None = None
    purse: Purse | None = None
    strategys_purse: str = "none"  # Or ``the scene's``, or ``a part`` of the scene's.
    purse_within: bool = False
    give_up: bool = False
    ordered: bool = False
    timeout: float | None = None
    iteration_timeout: float | None = None
    told: bool = True
    begins: float = 0.0
    leaving: Leaving = STAYS


CALLS = st.builds(
    Call,
    strategy=st.sampled_from(
        [RejectionSamplingStrategy, RepairTemplateStrategy, MultiTurnStrategy]
    ),
    loop_budget=st.integers(1, 4),
    concurrency=st.integers(1, 4),
    checks=st.lists(
        st.sampled_from(["polite", "polite", "polite", "judged", "awaited", "fatal"]), max_size=2
    ).map(tuple),
    schedule=st.one_of(SCHEDULES, st.just("shared")),
    retry=RETRIES,
    purse=st.one_of(st.none(), st.none(), PURSES),
    strategys_purse=st.sampled_from(["none", "none", "the scene's", "a part"]),
    purse_within=st.booleans(),
    give_up=st.booleans(),
    ordered=st.booleans(),
    timeout=st.sampled_from([None, None, None, 1.0, 2.5, 30.0]),
    iteration_timeout=st.sampled_from([None, None, None, 0.75, 2.0]),
    told=st.sampled_from([True, True, True, False]),
    begins=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    leaving=LEAVINGS,
)


@dataclass(frozen=True)
class Scene:
    """Several calls, made up, and what they share."""

    calls: tuple[Call, ...]
    lots: tuple[Lot, ...]
    limiters: tuple[Callable[[], Any], ...]
    schedule: Any
    purse: Purse | None
    inner: int | None
    """How many requests a budget of the backend's own allows."""
    cancelled: Cancelled = "estimate"
    """What the budgets charge for replies that did not come."""


def _narrow(limit: int) -> Callable[[], Any]:
    return partial(ConcurrencyLimiter, limit)


LIMITERS = st.one_of(
    st.builds(_narrow, st.integers(1, 4)),
    st.just(partial(RateLimiter, requests_per_minute=60)),
    st.just(partial(RateLimiter, requests_per_minute=600, tokens_per_minute=600)),
    st.just(partial(AdaptiveLimiter, 2, maximum=5)),
)
SCENES = st.builds(
    Scene,
    calls=st.lists(CALLS, min_size=1, max_size=3).map(tuple),
    lots=st.lists(LOTS, min_size=1, max_size=24).map(tuple),
    limiters=st.lists(LIMITERS, max_size=2).map(tuple),
    schedule=SCHEDULES,
    purse=st.one_of(st.none(), PURSES),
    inner=st.sampled_from([None, None, None, None, 1, 4, 9]),
    cancelled=st.sampled_from(["estimate", "estimate", "reserved", "received"]),
)


def is_good(candidate: Any) -> tuple[bool, str]:
    return candidate.text.startswith("good"), "it is not good"


async def is_long(candidate: Any) -> tuple[bool, str]:
    await anyio.sleep(0.25)
    return len(candidate.text) > 3, "it is short"


def is_polite(candidate: Any) -> tuple[bool, str]:
    return "rant" not in candidate.text, "it rants"


CHECKS: dict[str, Callable[[], Requirement]] = {
    "polite": lambda: Requirement("polite", is_polite, inline=True, stream=no_rant),
    "fatal": lambda: Requirement(
        "fatal", is_polite, inline=True, stream=raises_at_rant, on_error="raise"
    ),
    "judged": lambda: Requirement("the judge likes it"),
    "awaited": lambda: Requirement("long", is_long),
}


@dataclass(frozen=True)
class NotedGivingUp(PerRequirement):
    """Gives up like its base class, and notes the draws that begin (ids) and end (records)."""

    events: list[int | Slice] = field(default_factory=list, compare=False, repr=False)

    @property
    def added(self) -> list[Slice]:
        return [event for event in self.events if isinstance(event, Slice)]

    def begin(self) -> Tally:
        return _NotedTally(self)


class _NotedTally(Tally):
    def __init__(self, config: NotedGivingUp) -> None:
        super().__init__(config.threshold, config.confidence)
        self.events = config.events

    def start(self, iteration: int) -> None:
        self.events.append(iteration)
        super().start(iteration)

    def add(self, slice_: Slice) -> str | None:
        self.events.append(slice_)
        return super().add(slice_)


@dataclass
class Ran:
    """What came of one call."""

    call: Call
    told: Told
    budgets: list[Budget]
    schedule: Any
    requirements: list[Requirement]
    strategy: Any
    give_up: NotedGivingUp | None = None
    began: float = 0.0
    budgeted: float | None = None
    """The seconds that its budgets had left when it began."""
    ended: float = math.nan
    hit: bool = False
    steps_after: int = 0
    cancelled: bool = False
    result: SamplingResult[Any] | None = None
    error: BaseException | None = None

    @property
    def record(self) -> tuple[Slice, ...] | None:
        if self.result is not None:
            return self.result.slices
        if self.told.ends:
            return self.told.ends[0].slices
        result = getattr(self.error, "result", None)
        return None if result is None else result.slices

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass
class Play:
    """A scene on the stage."""

    scene: Scene
    rig: Shared
    limiters: list[Any]
    purse: Budget | None
    inner: list[Budget]
    runs: list[Ran] = field(default_factory=list)

    @property
    def budgets(self) -> list[Budget]:
        found = {id(b): b for ran in self.runs for b in ran.budgets}
        if self.purse is not None:
            found[id(self.purse)] = self.purse
        return list(found.values())


def staged(scene: Scene) -> Play:
    rig = Shared(scene.lots)
    limiters = [made() for made in scene.limiters]
    inner = [] if scene.inner is None else [Budget(requests=scene.inner, cancelled=scene.cancelled)]
    limits = [*inner, *limiters]
    backend: Any = LimitedBackend(rig, *limits) if limits else rig
    purse = None if scene.purse is None else scene.purse.made(scene.cancelled)
    play = Play(scene, rig, limiters, purse, inner)
    for call in scene.calls:
        ran = _prepared(call, backend, scene, purse)
        ran.budgets += inner
        play.runs.append(ran)
    return play


def _prepared(call: Call, backend: Any, scene: Scene, purse: Budget | None) -> Ran:
    schedule = scene.schedule if call.schedule == "shared" else call.schedule
    standing = None
    if purse is not None and call.strategys_purse != "none":
        standing = purse if call.strategys_purse == "the scene's" else Budget(within=purse)
    own = None
    if call.purse is not None:
        own = call.purse.made(scene.cancelled, purse if call.purse_within else None)
    # What depends on timing is refused with an ordered selection.
    timely = any(getattr(schedule, name, False) for name in ("timing_dependent", "pooled"))
    ordered = call.ordered and not call.give_up and not timely
    told = Told()
    give_up = NotedGivingUp(0.5, 0.7) if call.give_up else None
    options = {"max_tokens": MAX_TOKENS, "seed": 7}
    strategy = call.strategy(
        backend,
        loop_budget=call.loop_budget,
        concurrency_budget=call.concurrency,
        schedule=schedule,
        retry=call.retry,
        budget=standing,
        give_up=give_up,
        selection="ordered" if ordered else "first",
        timeout=call.timeout,
        iteration_timeout=call.iteration_timeout,
        options=options,
        judge_options=options,
        plugins=[told] if call.told else [],
    )
    checks = [Requirement("good", is_good, inline=True), *(CHECKS[what]() for what in call.checks)]
    budgets = [b for given in (standing, own) if given is not None for b in given.chain]
    ran = Ran(call, told, budgets, schedule, checks, strategy, give_up)
    ran.strategy = partial(strategy.sample, Ask(), checks, budget=own), strategy
    return ran


async def perform(play: Play, stepper: Stepper) -> None:  # noqa: C901 (a scene, from start to end)
    """Run all calls together to their end."""
    before = running()
    hosts: dict[int, Any] = {}
    scopes = [anyio.CancelScope() for _ in play.runs]

    def strike(index: int) -> None:
        ran = play.runs[index]
        if index in hosts and math.isnan(ran.ended):
            ran.hit = True
            ran.steps_after = stepper.count
            if ran.call.leaving.mode == "native":
                hosts[index].cancel()
            else:
                scopes[index].cancel()

    async def one(index: int) -> None:
        ran = play.runs[index]
        CALLER.set(index)
        await anyio.sleep(ran.call.begins)
        ran.began = anyio.current_time()
        left = [seconds for b in ran.budgets if (seconds := b.seconds_left()) is not None]
        ran.budgeted = min(left, default=None)
        scopes[index].deadline = ran.began + ran.call.leaving.seconds
        hosts[index] = asyncio.current_task() if on_asyncio() else None
        sample, _ = ran.strategy
        with scopes[index]:
            try:
                ran.result = await sample()
            except Exception as exc:  # noqa: BLE001 (compared with what it should be)
                ran.error = exc
            except BaseException as exc:
                ran.cancelled = isinstance(exc, anyio.get_cancelled_exc_class())
                ran.error = exc
                if ran.call.leaving.mode != "native":
                    raise
            finally:
                ran.ended = anyio.current_time()
                if ran.hit:
                    ran.steps_after = stepper.count - ran.steps_after
                _nothing_of_it_runs(ran, index, play.rig)

    at: dict[int, list[int]] = {}
    for index, ran in enumerate(play.runs):
        at.setdefault(ran.call.leaving.step, []).append(index)
    stepper.arm({step: partial(_each, strike, who) for step, who in at.items()})
    with anyio.fail_after(EVER):
        async with anyio.create_task_group() as tasks:
            for index in range(len(play.runs)):
                tasks.start_soon(one, index)
    stepper.disarm()
    assert running() <= before, "the calls left tasks behind"


def _each(strike: Callable[[int], None], who: list[int]) -> None:
    for index in who:
        strike(index)


def _nothing_of_it_runs(ran: Ran, index: int, rig: Shared) -> None:
    assert rig.drawing.get(index, 0) == 0
    assert all(s.ended is not None for s in rig.sent if s.caller == index), "a request runs on"
    assert ran.told.running == 0
    ids = {end.sampling_id for end in ran.told.ends}
    if ran.result is not None:
        ids.add(ran.result.sampling_id)
    left = [t for t in anyio.get_running_tasks() if any(i in str(t.name) for i in ids)]
    assert not left, f"the call left tasks behind: {left}"


# --- scenes that chance seldom makes ------------------------------------------------------------


def a_scene(*lots: Lot, calls: list[Call], purse: Purse | None = None) -> Scene:
    return Scene(tuple(calls), lots, (), None, purse, None)


def _mad(*script: tuple[int, float | None], pooled: bool = True, timing: bool = True) -> Mad:
    # The first answer is the script's second.
    return Mad(script, pooled, 0, timing_dependent=timing)


KNOWN = {
    "the time is up in the step in which a requirement has failed too often": a_scene(
        Lot("bad", 1.0, True),
        calls=[
            Call(
                RepairTemplateStrategy,
                loop_budget=1,
                concurrency=3,
                checks=("judged",),
                purse=Purse(requests=4),
                purse_within=True,
                give_up=True,
            )
        ],
        purse=Purse(seconds=2.0),
    ),
    "a stream check raises what ends the call": a_scene(
        Lot("rant"), calls=[Call(checks=("fatal",))]
    ),
    "a budget denies another try": a_scene(
        Lot("down"), calls=[Call(concurrency=1, retry=Retry(3), purse=Purse(requests=2))]
    ),
    "a call finds the gate closed that another one closed": a_scene(
        Lot("told", 0.0),
        Lot("good"),
        calls=[
            Call(concurrency=1, retry=Retry()),
            Call(concurrency=1, retry=Retry(), begins=0.5),
            Call(concurrency=1, retry=Retry(), begins=1.5),
        ],
    ),
    "a request is given up before its server can ask for patience": a_scene(
        Lot("told", 2.0),
        calls=[Call(concurrency=1, loop_budget=3, retry=Retry(1), iteration_timeout=0.75)],
    ),
    "every chain is broken": a_scene(
        Lot("permanent"), calls=[Call(schedule=Eager(pool=True), loop_budget=3)]
    ),
    "a budget is spent while the schedule wants to wait": a_scene(
        Lot("bad"),
        calls=[
            Call(
                concurrency=1,
                loop_budget=3,
                purse=Purse(requests=1),
                schedule=_mad((0, 1000.0), (1, None), (1, None)),
            )
        ],
    ),
    "a chain is cancelled while the schedule holds it back": a_scene(
        Lot("good", 2.0),
        Lot("bad", 1.0),
        calls=[
            Call(
                ordered=True,
                schedule=_mad(
                    (1, None), (2, None), (0, 7.0), (0, 7.0), (1, None), pooled=False, timing=False
                ),
            )
        ],
    ),
}
