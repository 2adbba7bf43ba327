"""The benchmark of policies: its simulation is sound, whatever the machine."""

from __future__ import annotations

import functools
import math
import random
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

import _known_bounds as bounds  # noqa: E402
import _policy_rows as rows  # noqa: E402
import _rate_limit as rate_limit  # noqa: E402
import policies  # noqa: E402

CALLS = 15
POLICIES = list(rows.POLICIES.values())
BOTH_LOOPS = pytest.mark.parametrize("library", ["asyncio", "trio"])


@functools.cache
def verdicts_of(policy):
    return rows.run(policy.name, CALLS, seed=1)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_no_policy_is_better_than_the_bounds(policy):
    verdicts = verdicts_of(policy)
    assert len(verdicts) == CALLS * len(rows.PASS_RATES)
    # So few calls of one rate could break no bound: chance is allowed two standard deviations of
    # the successes at all rates together.
    successes = sum(verdict.success for verdict in verdicts)
    least = successes - 2 * math.sqrt(successes)
    assert sum(v.requests * v.pass_rate for v in verdicts) > least
    work, _ = rows.LATENCY.least_work()
    seconds = sum(v.seconds * v.pass_rate for v in verdicts)
    assert seconds * policy.in_flight / work > least or policy.early


# Which stop before their turns are spent, or draw anew.
OTHER_LUCK = (rows.RESTART, rows.RESTART_HEDGED)


@pytest.mark.parametrize(
    "policy", [p for p in POLICIES if p not in OTHER_LUCK], ids=lambda policy: policy.name
)
def test_every_policy_that_uses_all_turns_has_the_same_luck(policy):
    seen, expected = verdicts_of(policy), verdicts_of(rows.EAGER)
    assert [(v.pass_rate, v.success) for v in seen] == [(v.pass_rate, v.success) for v in expected]


def test_a_policy_better_than_can_be_is_noticed():
    real = verdicts_of(rows.EAGER) * 100
    assert policies.broken_bounds(rows.EAGER, real) == []
    miracle = [v._replace(seconds=0.0, requests=1) for v in real]
    broken = policies.broken_bounds(rows.EAGER, miracle)
    assert "Eager() at 0.05: fewer requests than can be" in broken
    assert "Eager() at 0.05: faster than can be" in broken


def test_the_least_work_of_a_reply_is_that_of_the_best_age_to_leave_it_at():
    latency = bounds.Latency()
    least, age = latency.least_work()
    chance = random.Random(1)
    drawn = [
        latency.median
        * math.exp(latency.sigma * chance.gauss(0, 1))
        * (latency.factor if chance.random() < latency.stragglers else 1)
        for _ in range(50_000)
    ]

    def work(tau: float) -> float:
        return sum(min(seconds, tau) for seconds in drawn) / sum(
            seconds <= tau for seconds in drawn
        )

    assert work(age) == pytest.approx(least, rel=0.02)
    assert latency.mean() == pytest.approx(sum(drawn) / len(drawn), rel=0.02)
    assert least < min(work(0.7 * age), work(1.5 * age), latency.mean())


@BOTH_LOOPS
def test_a_server_with_a_rate_limit_takes_its_rate_and_its_bucket(library):
    burst = rate_limit.run(rate_limit.NOTHING.name, 60, seed=1, backend=library)
    assert burst.successes == 60
    assert burst.refused > 0
    assert burst.taken <= rate_limit.BURST + burst.seconds * rate_limit.RATE + 1


@BOTH_LOOPS
def test_the_oracle_sends_what_the_server_would_take(library):
    burst = rate_limit.run(rate_limit.ORACLE.name, 100, seed=1, backend=library)
    assert (burst.successes, burst.refused) == (100, 0)
    assert burst.taken <= rate_limit.BURST + burst.seconds * rate_limit.RATE + 1


@BOTH_LOOPS
def test_with_an_adaptive_limiter_a_burst_is_as_fast_as_the_rate_allows(library):
    burst = rate_limit.run(rate_limit.ADAPTIVE.name, 200, seed=1, backend=library)
    assert burst.successes == 200
    # Nine calls in ten, because the last ones may be stragglers. Each needs two draws on average.
    ideal = (2 * 180 - rate_limit.BURST) / rate_limit.RATE
    assert sorted(burst.times)[179] <= 1.25 * ideal
    # Three standard deviations more than 400, and the last few siblings.
    assert burst.taken <= 400 + 3 * 20 + 50
    assert burst.refused <= 0.1 * 200
