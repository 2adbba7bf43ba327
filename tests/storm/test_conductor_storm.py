"""Whatever a schedule answers: the scheduler keeps to the turns, the width and the order.

The chains here are no subsamples: they wait for turns and sleep. So each step of the scheduler is
held against a model that counts for itself.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import pytest
from engine_kit import a_slice
from hypothesis import given
from hypothesis import strategies as st
from limits_storm import Mad, MadCourse, MadError
from mellea_like.sampling.scheduler import Scheduler, TurnPool
from schedule_kit import facts

from examples import examples
from mellea_like import Outcome
from mellea_like.errors import AuthenticationFailed
from mellea_like.kernel.ports import Turn
from mellea_like.schedules.base import CallProgress, Go
from mellea_like.testing.virtual_clock import run_virtual

pytestmark = pytest.mark.timeout(3600)
storm = examples(75, 500)
Fate = Literal["failed", "errored", "broken", "passed"]


@dataclass(frozen=True)
class Work:
    """What comes of one iteration."""

    seconds: float
    fate: Fate


@dataclass
class Link:
    """One iteration that ran."""

    chain: int
    turn: Turn
    asked: float
    got: float


@dataclass
class Stage:
    """A scheduler, its chains and what they did."""

    mad: Mad
    width: int
    loop: int
    works: tuple[Work, ...]
    links: list[Link] = field(default_factory=list)
    at_work: dict[int, float] = field(default_factory=dict)
    most: int = 0
    opened: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)
    broken: int = 0
    fatal: BaseException | None = None

    async def run(self) -> None:
        began = anyio.current_time()

        def now() -> float:
            return anyio.current_time() - began

        pool = TurnPool(self.width, self.loop, pooled=self.mad.pooled)
        plan = Watcher(self)
        scheduler = Scheduler(
            plan, pool, most=self.width + self.mad.extra, clock=now, abort=self.abort
        )

        def open_chain(chain: int) -> None:
            self.opened.append(chain)
            tasks.start_soon(self.chain, chain, scheduler, now)

        with anyio.fail_after(200_000):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(scheduler.keep_time)
                scheduler.start(open_chain)
        self.check(pool, plan)

    def abort(self, error: BaseException, source: str) -> None:
        assert source == "the schedule"
        assert self.fatal is None
        self.fatal = error

    async def chain(self, chain: int, scheduler: Scheduler, now: Any) -> None:
        broken = False
        for _ in range(self.loop):
            asked = now()
            self.waiting.add(chain)
            turn = await scheduler.turn_for(chain)
            self.waiting.discard(chain)
            if turn is None:
                break
            work = self.works[len(self.links) % len(self.works)]
            self.links.append(Link(chain, turn, asked, now()))
            self.at_work[chain] = now()
            self.most = max(self.most, len(self.at_work))
            await anyio.sleep(work.seconds)
            del self.at_work[chain]
            broken = work.fate == "broken"
            outcome = Outcome.ERRORED if broken else Outcome(work.fate)
            error = AuthenticationFailed("wrong key") if broken else None
            scheduler.recorded(a_slice(turn.iteration, outcome, chain=chain, error=error))
            if broken:
                break
        self.ended.append(chain)
        self.broken += broken
        scheduler.chain_ended(chain, broken=broken)

    def check(self, pool: TurnPool, plan: Watcher) -> None:
        assert sorted(self.ended) == self.opened == list(range(len(self.opened)))
        assert self.most <= self.width + self.mad.extra
        turns = [link.turn for link in self.links]
        assert len(set(turns)) == len(turns) == self.width * self.loop - pool.left
        for link in self.links:
            assert self.mad.pooled or link.turn.subsample == link.chain
            for other in self.links:
                first_to_wait = link.asked < other.asked
                assert not first_to_wait or link.got <= other.got, "who came later went first"
        for chain in self.opened:
            assert sum(link.chain == chain for link in self.links) <= self.loop
        if self.fatal is not None:
            assert isinstance(self.fatal, MadError)
            return
        # It ends where no turn can start any more, or where the schedule lets all of them lie.
        assert plan.before is not None
        nothing_left = not pool.left or (not self.mad.pooled and len(self.opened) == self.width)
        assert nothing_left or (plan.more <= 0 and plan.due == math.inf)


class Watcher(MadCourse):
    """A mad schedule that knows the chains as well."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.mad, facts(concurrency_budget=stage.width, loop_budget=stage.loop))
        self.stage = stage

    def decide(self, progress: CallProgress) -> Go:
        stage = self.stage
        assert progress.opened == len(stage.opened)
        assert progress.broken == stage.broken
        assert progress.waiting <= len(stage.waiting)
        # All that began and were not observed are running, and nothing else.
        assert len(progress.running) == progress.started - self.observed
        began = Counter(round(at, 6) for at in progress.running)
        assert Counter(round(at, 6) for at in stage.at_work.values()) <= began
        return super().decide(progress)


MADS = st.builds(
    Mad,
    st.lists(
        st.tuples(
            st.sampled_from([-5, 0, 0, 1, 1, 1, 2, 10**9]),
            st.sampled_from([None, None, -3.0, 0.0, 0.5, 1.0, 7.0, math.inf, -math.inf]),
        ),
        min_size=1,
        max_size=8,
    ),
    pooled=st.booleans(),
    extra=st.sampled_from([0, 0, 1, 3]),
    raises_at=st.sampled_from([None, None, None, None, 1, 2, 5, -1, -2]),
)
WORKS = st.builds(
    Work,
    st.sampled_from([0.0, 0.5, 1.0, 1.0, 3.0]),
    st.sampled_from(["failed", "failed", "failed", "errored", "broken"]),
)


@pytest.mark.parametrize("library", ["asyncio", "trio"])
@storm
@given(
    MADS,
    st.integers(1, 4),
    st.integers(1, 4),
    st.lists(WORKS, min_size=1, max_size=12).map(tuple),
)
def test_a_scheduler_keeps_to_turns_width_and_order(library, mad, width, loop, works):
    mad.raised = 0
    run_virtual(Stage(mad, width, loop, works).run, backend=library)
