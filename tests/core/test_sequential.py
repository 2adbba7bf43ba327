"""Sequential tests: wrong answers are as rare as promised, no matter when the test stops."""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Hashable
from functools import cache, partial
from operator import mul
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mellea_like import sequential
from mellea_like.sequential import PairedTest, PassRateTest, compare

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import sequential as benchmark

pytestmark = pytest.mark.anyio


def decided(rate: float, draws: int, decide: Callable[[int, int], Hashable]) -> Counter[Hashable]:
    """Return the exact chance of each decision within so many draws, of which some pass.

    ``decide`` returns the decision after a number of draws and passes; None for no decision.
    """
    found: Counter[Hashable] = Counter()
    open_: dict[int, float] = {0: 1.0}
    for draw in range(1, draws + 1):
        following: Counter[int] = Counter()
        for passes, chance in open_.items():
            following[passes + 1] += chance * rate
            following[passes] += chance * (1 - rate)
        open_ = {}
        for passes, chance in following.items():
            decision = decide(draw, passes)
            if decision is None:
                open_[passes] = chance
            else:
                found[decision] += chance
    return found


@cache
def verdict_after(at_least: float, draws: int, passes: int) -> str | None:
    test = PassRateTest(at_least)
    test.started = test.draws = draws - 1
    test.passes = passes - (passes > 0)
    test.add(passes > 0)
    return test.verdict


def test_the_benchmark_decides_as_the_test_does(monkeypatch):
    monkeypatch.setattr(benchmark, "MOST", 60)
    limits = benchmark.boundaries()
    chance = random.Random(4)
    decided = set()
    for rate in (0.3, 0.7, 1.0) * 20:
        test = PassRateTest(benchmark.THRESHOLD, benchmark.CONFIDENCE)
        while test.verdict is None and test.draws < benchmark.MOST:
            test.add(chance.random() < rate)
            fails, passes = limits[test.draws]
            assert (test.passes <= fails) == (test.verdict == "failed")
            assert (test.passes >= passes) == (test.verdict == "passed")
        decided.add(test.verdict)
    assert decided >= {"passed", "failed"}


@pytest.mark.parametrize("draws", [1, 7, 60])
@pytest.mark.parametrize("rate", [0.01, 0.5, 0.9])
@pytest.mark.parametrize("above", [True, False])
def test_the_expected_capital_against_a_true_rate_stays_what_it_was(draws, rate, above):
    capital = [
        math.exp(sequential._evidence(n, draws - n, rate, above=above)) for n in range(draws + 1)
    ]
    chances = [math.comb(draws, n) * rate**n * (1 - rate) ** (draws - n) for n in range(draws + 1)]
    assert sum(map(mul, capital, chances)) == pytest.approx(1)


@pytest.mark.parametrize("at_least", [0.3, 0.9])
@pytest.mark.parametrize(("below", "wrong"), [(1e-4, "passed"), (0, "failed")])
def test_a_rate_at_the_threshold_gets_the_wrong_verdict_as_rarely_as_promised(
    at_least, below, wrong
):
    found = decided(at_least - below, 200, partial(verdict_after, at_least))
    assert 0.02 < found[wrong] < 0.05  # With more draws, it comes nearer to 5 %.


@pytest.mark.parametrize(("rate", "right"), [(0.99, "passed"), (0.7, "failed"), (0.5, "failed")])
def test_a_clear_rate_is_decided(rate, right):
    assert decided(rate, 300, partial(verdict_after, 0.9))[right] > 0.9998


def test_a_rate_of_one_takes_no_more_than_sixty_draws_and_of_zero_three():
    for passed, verdict, most in ((True, "passed", 60), (False, "failed", 3)):
        test = PassRateTest(0.9)
        while test.verdict is None:
            test.add(passed)
        assert test.verdict == verdict
        assert test.draws <= most
        test.add(not passed)
        assert test.verdict == verdict  # It never changes again.


def test_draws_count_in_the_order_they_started():
    test = PassRateTest(0.5)
    numbers = [test.start() for _ in range(40)]
    for number in numbers[1:]:
        test.end(number, passed=True)  # Quick passes tell nothing about the first run.
    assert (test.draws, test.verdict) == (0, None)
    test.end(0, passed=False)
    assert test.verdict == "passed"
    assert test.draws < 40  # Decided by the first of them, in that order.


def test_a_draw_that_has_not_started_or_has_ended_is_refused():
    test = PassRateTest(0.5)
    number = test.start()
    test.start()
    for wrong in (2, -1):
        with pytest.raises(ValueError, match="has not started, or has already ended"):
            test.end(wrong, passed=True)
    test.end(number, passed=True)
    with pytest.raises(ValueError, match="has not started, or has already ended"):
        test.end(number, passed=True)


@pytest.mark.parametrize("wrong", [0, 1, -0.1, 1.5, math.nan])
def test_a_threshold_or_confidence_out_of_its_range_is_refused(wrong):
    with pytest.raises(ValueError, match="at_least"):
        PassRateTest(wrong)
    with pytest.raises(ValueError, match="confidence"):
        PassRateTest(0.5, wrong)
    with pytest.raises(ValueError, match="confidence"):
        PairedTest(wrong)


@given(st.lists(st.booleans(), max_size=60))
def test_the_interval_contains_the_rate_that_was_seen(outcomes):
    test = PassRateTest(0.5)
    for passed in outcomes:
        test.add(passed)
    low, high = test.interval
    assert 0 <= low <= (test.passes / test.draws if test.draws else 0.5) <= high <= 1


@given(
    st.lists(st.booleans(), min_size=1, max_size=40),
    st.sampled_from([1e-9, 0.05, 0.5, 0.9, 0.999, 1 - 1e-12]),
    st.sampled_from([0.5, 0.95, 0.999]),
)
def test_the_verdict_is_where_the_interval_is(outcomes, at_least, confidence):
    test = PassRateTest(at_least, confidence)
    for passed in outcomes:
        if test.verdict is None:
            test.add(passed)
    low, high = test.interval
    where = "passed" if low >= at_least else "failed" if high < at_least else None
    assert where == test.verdict


@pytest.mark.parametrize(("draws", "passes"), [(5, 2), (20, 13), (60, 59), (300, 90)])
def test_the_interval_ends_where_the_verdict_changes(draws, passes):
    test = PassRateTest(0.5)
    test.draws, test.passes = draws, passes
    low, high = test.interval
    assert [
        verdict_after(at_least, draws, passes)
        for at_least in (low - 1e-6, low + 1e-6, high - 1e-6, high + 1e-6)
    ] == ["passed", None, None, "failed"]


@pytest.mark.parametrize(("passes", "failures"), [(20, 0), (1, 0), (19, 1), (4, 1)])
def test_how_many_more_draws_it_would_take(passes, failures):
    test = PassRateTest(0.9)
    assert test.more is None
    for passed in [True] * passes + [False] * failures:
        test.add(passed)
    foreseen = test.draws + (test.more or 0)
    while test.verdict is None:  # As often as so far.
        test.add(test.passes * (passes + failures) < passes * (test.draws + 1))
    assert test.more == 0
    assert foreseen == pytest.approx(test.draws, rel=0.25)


def test_draws_at_the_threshold_or_next_to_one_foretell_nothing():
    test = PassRateTest(0.5)
    test.add(passed=True)
    test.add(passed=False)
    assert test.more is None
    test = PassRateTest(1 - 1e-12)
    test.add(passed=True)
    assert test.more is None


def test_two_variants_are_told_apart_by_the_examples_on_which_they_differ():
    test = PairedTest()
    for _ in range(50):
        result = test.add(True, True)
    assert (result.better, result.p_value, result.examples) == (None, 1.0, 50)
    while result.better is None:
        result = test.add(False, True)
    assert result.better == "second"
    assert (result.first, result.second) == (50, result.examples)
    assert result.p_value <= 0.05
    assert result.examples <= 62


def test_two_equal_variants_are_told_apart_as_rarely_as_promised():
    def decide(examples: int, first: int) -> str | None:
        test = PairedTest()
        test._alone = [max(first - 1, 0), examples - max(first, 1)]
        return test.add(first > 0, first == 0).better

    found = decided(0.5, 300, decide)
    assert found["first"] == pytest.approx(found["second"])
    assert 0.025 < found.total() < 0.05


# --- compare


async def test_two_variants_are_compared_until_it_is_clear():
    asked = []

    async def bad(example):
        asked.append(example)
        return example % 4 == 0

    async def good(example):
        return example % 4 != 3

    found = await compare(bad, good, range(1000), concurrency=4)
    assert found.better == "second"
    assert found.examples < 40
    assert len(asked) <= found.examples + 8
    assert (found.first, found.second) == (
        sum(i % 4 == 0 for i in range(found.examples)),
        sum(i % 4 != 3 for i in range(found.examples)),
    )


async def test_a_quick_pass_does_not_count_before_a_slow_failure(virtual_clock):
    """The first examples take long, and the first variant fails on them."""

    async def slow_to_fail(example):
        await anyio.sleep(100 if example < 20 else 1)
        return example >= 20

    async def fails_later(example):
        return example < 20

    found = await compare(slow_to_fail, fails_later, range(200), concurrency=40)
    assert found.better == "second"
    assert found.examples <= 20


async def test_an_error_of_a_variant_is_raised_as_it_is():
    async def broken(example):
        raise ZeroDivisionError

    async def waits(example):
        await anyio.sleep_forever()

    with pytest.raises(ZeroDivisionError):
        await compare(waits, broken, range(5))
    with pytest.raises(ValueError, match="concurrency"):
        await compare(waits, broken, range(5), concurrency=0)


async def test_what_the_examples_raise_is_raised_as_it_is():
    async def passes(example):
        return True

    def examples():
        yield 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await compare(passes, passes, examples())


async def test_a_variant_has_to_say_whether_it_passed_and_may_not_cancel():
    async def passes(example):
        return True

    async def forgets(example):
        pass

    async def cancels(example):
        with anyio.CancelScope() as scope:
            scope.cancel()
            try:
                await anyio.lowlevel.checkpoint()
            except anyio.get_cancelled_exc_class() as exc:
                cancelled.append(exc)
                raise
        raise cancelled[0]

    cancelled = []
    with pytest.raises(TypeError, match="returned None: it must return whether"):
        await compare(passes, forgets, range(5))
    with pytest.raises(RuntimeError, match="a cancellation that no one asked for"):
        await compare(passes, cancels, range(5))
