"""Rule 15 of the engine: seeds, and a winner that does not depend on timing."""

from __future__ import annotations

import pytest
from engine_kit import after, by_iteration, outcomes, yes
from hypothesis import given
from hypothesis import strategies as st

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.backends.simulated import SimulatedBackend, passes
from mellea_like.core.seeds import derive_seed
from mellea_like.errors import RateLimited
from mellea_like.limits import Retry
from mellea_like.testing import run_virtual

pytestmark = pytest.mark.anyio


async def test_rule_15_each_iteration_has_a_seed_derived_from_the_calls_and_its_id(virtual_clock):
    backend = by_iteration({})
    strategy = RejectionSamplingStrategy(
        backend, loop_budget=2, concurrency_budget=3, options={"seed": 7}
    )
    await strategy.sample("do", [yes])
    seeds = {r.meta.iteration: r.options.seed for r in backend.requests}
    assert seeds == {i: derive_seed(7, i) for i in range(1, 7)}
    assert len(set(seeds.values())) == 6
    backend.requests.clear()
    await strategy.sample("do", [yes], options={"seed": 8})
    assert {r.options.seed for r in backend.requests}.isdisjoint(seeds.values())


async def test_rule_15_judges_have_seeds_of_their_own(virtual_clock):
    judge = ScriptedBackend(lambda request: '{"passed": false, "reason": ""}')
    backend = by_iteration({})
    strategy = RejectionSamplingStrategy(
        backend, loop_budget=2, judge=judge, options={"seed": 1}, validate_all=True
    )
    await strategy.sample("do", ["a", "b"])
    seeds = [r.options.seed for r in (*backend.requests, *judge.requests)]
    assert len(set(seeds)) == len(seeds) == 6


@pytest.mark.parametrize("seed", [0, 1, -5, 2**80])
def test_rule_15_derived_seeds_are_fixed_and_fit_every_server(seed):
    seeds = [derive_seed(seed, i) for i in range(1, 200)]
    assert seeds == [derive_seed(seed, i) for i in range(1, 200)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= s < 2**31 for s in seeds)


def test_rule_15_derived_seeds_stay_the_same_between_versions():
    derived = [derive_seed(0, 1), derive_seed(0, 2), derive_seed(1, 1, "judge x")]
    assert derived == [1366595671, 1493080390, 713217572]


def trace_of(library, seed, concurrency, loops, **how):
    simulated = SimulatedBackend(seed=1, pass_rate=0.15, error_rate=0.2, sigma=1.0)
    strategy = RejectionSamplingStrategy(
        simulated, loop_budget=loops, concurrency_budget=concurrency, options={"seed": seed}, **how
    )

    async def main():
        try:
            result = await strategy.sample("do", [passes])
        except Exception as exc:  # noqa: BLE001 (compared)
            return [repr(exc)], []
        trace = [(s.iteration, s.outcome, s.text) for s in result.slices]
        return trace, [s.ended_at for s in result.slices]

    return run_virtual(main, backend=library)


@given(seed=st.integers(0, 10**6), concurrency=st.integers(1, 5), loops=st.integers(1, 4))
def test_rule_15_same_seed_same_replies_same_clock_same_trace(seed, concurrency, loops):
    # Trio shuffles what happens at one instant; latencies that differ leave nothing to shuffle,
    # but for requests that wait together until an open circuit breaker's probe has ended.
    how = {"retry": Retry(trip_after=None)}
    trace, times = trace_of("asyncio", seed, concurrency, loops, **how)
    assert trace_of("asyncio", seed, concurrency, loops, **how) == (trace, times)
    # Its clock does not start at 0, so that times differ by what rounding makes of them.
    again = trace_of("trio", seed, concurrency, loops, **how)
    assert again == (trace, pytest.approx(times))


def test_rule_15_requests_that_wait_for_a_probe_together_go_on_in_the_order_they_came():
    runs = [trace_of("asyncio", 226811, 4, 1) for _ in range(8)]
    assert runs == [runs[0]] * 8


@given(data=st.data(), loop=st.sampled_from(["asyncio", "trio"]))
def test_rule_15_the_ordered_winner_does_not_depend_on_timing(data, loop):
    concurrency, loops = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    kinds = st.sampled_from(["no", "no", "yes", "transient", "permanent"])
    fates = [data.draw(kinds) for _ in range(concurrency * loops)]
    contents = {"transient": RateLimited("again"), "permanent": ValueError("bug")}

    # What the rule says: by depth, then by subsample, over the turns that each subsample reaches.
    reached = []
    for subsample in range(concurrency):
        for depth in range(loops):
            fate = fates[subsample * loops + depth]
            reached.append((depth, subsample, fate))
            if fate in {"yes", "permanent"}:
                break
    passing = sorted((d, s) for d, s, fate in reached if fate == "yes")
    expected = passing[0][1] * loops + passing[0][0] + 1 if passing else None

    for _ in range(2):
        delays = [data.draw(st.floats(0, 3)) for _ in fates]
        replies = {
            i: after(delay, contents.get(fate, fate))
            for i, (fate, delay) in enumerate(zip(fates, delays, strict=True), 1)
        }
        strategy = RejectionSamplingStrategy(
            by_iteration(replies),
            loop_budget=loops,
            concurrency_budget=concurrency,
            selection="ordered",
        )

        async def main(strategy=strategy):
            try:
                return await strategy.sample("do", [yes])
            except (ValueError, RateLimited):
                return None

        result = run_virtual(main, backend=loop)
        winner = result.best.iteration if result is not None and result.success else None
        assert winner == expected


async def test_rule_15_ordered_waits_for_lower_ranks_and_cancels_higher_ones(virtual_clock):
    # Turns by rank: 1, 4, 7 (depth 0), 2, 5, 8 (depth 1), 3, 6, 9 (depth 2).
    backend = by_iteration(
        {
            1: after(1, "no"),
            2: after(9, "yes"),  # depth 1 of subsample 0: lower than the first to pass
            4: after(1, "no"),
            5: after(1, "yes"),  # the first to pass, at 2 s
            7: after(1, "no"),
            8: after(99, "yes"),  # higher than that: cancelled at 2 s
        }
    )
    strategy = RejectionSamplingStrategy(
        backend, loop_budget=3, concurrency_budget=3, selection="ordered"
    )
    result = await strategy.sample("do", [yes])
    assert result.best.iteration == 2
    ended = {s.iteration: s.ended_at for s in result.slices}
    assert ended == pytest.approx({1: 1, 4: 1, 7: 1, 5: 2, 8: 2, 2: 10})
    assert outcomes(result)[8] == "cancelled"
    assert outcomes(result)[5] == "passed"
    assert result.elapsed == pytest.approx(10)
