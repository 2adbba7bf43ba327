"""Whatever a schedule answers: its plan keeps to the turns, the width and the order.

The draws here ask no model: they sleep. So each step of the plan is held against a model that
counts for itself.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import anyio
import pytest
from engine_kit import a_slice
from hypothesis import given
from hypothesis import strategies as st
from limits_storm import MAD, Mad, MadCourse, MadError
from schedule_kit import facts

from examples import examples
from mellea_like import Context, Instruction, Outcome
from mellea_like.errors import AuthenticationFailed
from mellea_like.kernel.ports import Ask
from mellea_like.kernel.race import Race
from mellea_like.plans.repairs import Repairs
from mellea_like.plans.scheduled import Scheduled, Turn, TurnPool
from mellea_like.schedules.base import CallProgress, Go
from mellea_like.testing.virtual_clock import run_virtual

pytestmark = pytest.mark.timeout(3600)
storm = examples(25, 500)
Fate = Literal["failed", "errored", "broken", "passed"]


@dataclass(frozen=True)
class Work:
    """What comes of one draw."""

    seconds: float
    fate: Fate


@dataclass
class Link:
    """One draw that ran: how long its chain had waited for it, unless the chain was fresh."""

    chain: int
    turn: Turn
    asked: float | None
    got: float


class Nap:
    """A draw that sleeps."""

    def __init__(self, stage: Stage, ask: Ask) -> None:
        self.ask = ask
        self.stage, self.chain = stage, ask.chain
        self.turn = Turn(ask.iteration, ask.subsample, ask.depth)
        self.work = stage.works[len(stage.links) % len(stage.works)]
        asked = stage.free.pop(ask.chain, None)
        stage.links.append(Link(ask.chain, self.turn, asked, stage.now()))
        stage.at_work[ask.chain] = stage.now()
        stage.most = max(stage.most, len(stage.at_work))

    async def run(self) -> None:
        await anyio.sleep(self.work.seconds)

    def record(self, ended_at: float) -> Any:
        stage, broken = self.stage, self.work.fate == "broken"
        del stage.at_work[self.chain]
        stage.free[self.chain] = stage.now()
        stage.broken += broken
        outcome = Outcome.ERRORED if broken else Outcome(self.work.fate)
        error = AuthenticationFailed("wrong key") if broken else None
        return a_slice(self.turn.iteration, outcome, chain=self.chain, error=error)


@dataclass
class Stage:
    """A plan, its draws and what they did."""

    mad: Mad
    width: int
    loop: int
    works: tuple[Work, ...]
    links: list[Link] = field(default_factory=list)
    at_work: dict[int, float] = field(default_factory=dict)
    free: dict[int, float] = field(default_factory=dict)
    most: int = 0
    broken: int = 0
    began: float = 0.0

    def now(self) -> float:
        return anyio.current_time() - self.began

    @property
    def opened(self) -> set[int]:
        return {link.chain for link in self.links}

    async def run(self) -> None:
        self.began = anyio.current_time()
        spec = SimpleNamespace(action=Instruction("do"), context=Context())
        repairs = Repairs((spec, lambda history: (spec.action, spec.context)), strategy="Mine")
        pool, schedule = TurnPool(self.width, self.loop, pooled=self.mad.pooled), Watcher(self)
        plan = Scheduled(
            schedule, repairs, pool, loop_budget=self.loop, most=self.width, extra=self.mad.extra
        )
        begun = self.began
        race = Race(
            plan,
            lambda ask, _: Nap(self, ask),
            clock=anyio.current_time,
            started=begun,
            tell=[schedule.observe],
        )
        with anyio.fail_after(200_000):
            await race.run()
        self.check(race, pool, schedule)

    def check(self, race: Race, pool: TurnPool, schedule: Watcher) -> None:
        assert not self.at_work
        assert self.opened == set(range(len(self.opened)))
        assert self.most <= self.width + self.mad.extra
        turns = [link.turn for link in self.links]
        assert len(set(turns)) == len(turns) == self.width * self.loop - pool.left
        assert len(race.slices) == len(turns)
        waited = [link for link in self.links if link.asked is not None]
        for link in self.links:
            assert self.mad.pooled or link.turn.subsample == link.chain
        for link in waited:
            for other in waited:
                first_to_wait = link.asked < other.asked
                assert not first_to_wait or link.got <= other.got, "who came later went first"
        for chain in self.opened:
            assert sum(link.chain == chain for link in self.links) <= self.loop
        if race.fatal is not None:
            assert isinstance(race.fatal, MadError)
            return
        # It ends when no turn can start any more, or when the schedule lets all of them lie.
        nothing_left = not pool.left or (not self.mad.pooled and len(self.opened) == self.width)
        assert nothing_left or (schedule.more <= 0 and schedule.due == math.inf)


class Watcher(MadCourse):
    """A mad schedule that knows the draws as well."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.mad, facts(concurrency_budget=stage.width, loop_budget=stage.loop))
        self.stage = stage

    def decide(self, progress: CallProgress) -> Go:
        stage = self.stage
        assert progress.opened == len(stage.opened)
        assert progress.started == len(stage.links)
        assert progress.broken == stage.broken
        assert progress.waiting <= len(stage.free)
        assert len(progress.running) == progress.started - self.observed
        began = Counter(round(at, 6) for at in progress.running)
        assert Counter(round(at, 6) for at in stage.at_work.values()) == began
        return super().decide(progress)


WORKS = st.builds(
    Work,
    st.sampled_from([0.0, 0.5, 1.0, 1.0, 3.0]),
    st.sampled_from(["failed", "failed", "failed", "errored", "broken"]),
)


@pytest.mark.parametrize("library", ["asyncio", "trio"])
@storm
@given(
    MAD, st.integers(1, 4), st.integers(1, 4), st.lists(WORKS, min_size=1, max_size=12).map(tuple)
)
def test_a_plan_keeps_to_turns_width_and_order(library, mad, width, loop, works):
    mad.raised, mad.timing_dependent = 0, True
    run_virtual(Stage(mad, width, loop, works).run, backend=library)
