"""Whatever limits, schedules, faults and cancellations meet: the engine keeps its rules.

Hypothesis makes up several calls at a time that share a backend, limiters, budgets and schedules,
and runs them in virtual time on asyncio and on trio. With ``STORM=1`` in the environment it makes
up many more, and never the same ones.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from limits_checks import check_play
from limits_scene import KNOWN, SCENES, Scene, perform, staged
from oracle_world import Ask
from steps import Stepper, run_stepped
from storm import INLINE, Draw, Rig

from examples import examples
from mellea_like import RejectionSamplingStrategy
from mellea_like.limits import Retry
from mellea_like.schedules import Staggered
from mellea_like.testing.virtual_clock import run_virtual

pytestmark = pytest.mark.timeout(3600)
storm = examples(30, 400)


def run_scene(scene: Scene, backend: Any) -> None:
    async def main(stepper: Stepper) -> None:
        play = staged(scene)
        await perform(play, stepper)
        check_play(play)

    run_stepped(main, backend)


@storm
@given(SCENES)
def test_calls_within_limits_keep_the_rules_on_asyncio(scene):
    run_scene(scene, "asyncio")


@storm
@given(SCENES)
def test_calls_within_limits_keep_the_rules_on_trio(scene):
    assume(all(call.leaving.mode != "native" for call in scene.calls))
    run_scene(scene, "trio")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("name", KNOWN)
def test_scenes_that_chance_seldom_makes_keep_the_rules_too(name, backend):
    run_scene(KNOWN[name], backend)


# --- what a schedule must not change ------------------------------------------------------------

KINDS = st.sampled_from(["good", "bad", "bad", "bad", "garbled", "transient", "permanent"])
DRAWS = st.lists(st.builds(Draw, KINDS, st.integers(1, 40).map(lambda n: n / 8)), max_size=12)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@examples(15, 300)
@given(DRAWS, st.integers(1, 3), st.integers(1, 4), st.sampled_from([0.2, 1.0, 3.0, 100.0]))
@example([Draw("transient", 1 / 8)] * 4, 2, 3, 1.0)
def test_the_winner_of_an_ordered_call_does_not_depend_on_when_its_chains_start(
    backend, draws, loop, concurrency, delay
):
    winners: list[int | None] = []

    async def main() -> None:
        for schedule in (None, Staggered(delay)):
            rig = Rig({i + 1: draw for i, draw in enumerate(draws)}, Draw("bad"))
            call = RejectionSamplingStrategy(
                rig,
                loop_budget=loop,
                concurrency_budget=concurrency,
                selection="ordered",
                schedule=schedule,
                # One try, without a circuit breaker: when that opens is a matter of time.
                retry=Retry(1, trip_after=None),
            )
            try:
                result = await call.sample(Ask(), [INLINE])
            except Exception:  # noqa: BLE001 (which is the first error may depend on timing)
                winners.append(None)
            else:
                winners.append(result.best.iteration if result.success else 0)
            assert rig.max_drawing <= concurrency

    run_virtual(main, backend=backend)
    assert winners[0] == winners[1]
