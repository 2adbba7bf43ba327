"""Faults of validators: none is a pass, holds anyone up, or leaves anything running.

See ``tests/engine/test_rule_08_validators.py`` and ``test_rule_13_threads.py`` for each rule alone.
"""

from __future__ import annotations

import threading

import anyio
import pytest
from aftermath import aftermath
from engine_kit import after as later
from engine_kit import by_iteration, outcomes
from limiter_kit import ask

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.core.slice import Outcome
from mellea_like.errors import LimitExceeded, RequirementError
from mellea_like.limits import LimitedBackend
from mellea_like.limits.budget import Budget
from mellea_like.runtime.threads import run_in_thread, thread_statistics

pytestmark = pytest.mark.anyio
virtual = pytest.mark.usefixtures("virtual_clock")


def strategy(backend, **settings) -> RejectionSamplingStrategy:
    return RejectionSamplingStrategy(backend, **{"loop_budget": 2, **settings})


# --- it hangs ------------------------------------------------------------------------------------


async def hangs_on_bad(candidate):
    if candidate.text == "bad":
        await anyio.sleep_forever()
    return True


@virtual
@pytest.mark.parametrize(
    ("own", "settings"), [({"timeout": 3}, {}), ({}, {"iteration_timeout": 3})]
)
async def test_a_validator_that_hangs_errors_its_turn_when_the_time_is_up(own, settings):
    backend = by_iteration({1: "bad", 2: "yes"})
    async with aftermath(backend) as after:
        check = Requirement("check", hangs_on_bad, **own)
        result = await after.sample(strategy(backend, **settings), "do", [check])
    assert outcomes(result) == {1: "errored", 2: "passed"}
    assert result.elapsed == pytest.approx(3)
    # The reply was there, and its cost is known.
    assert result.usage.unknown == 0


@pytest.mark.parametrize("ends_by", ["its timeout", "the iteration's timeout", "a win"])
async def test_a_thread_that_hangs_is_abandoned_and_counted(ends_by):
    release = threading.Event()

    def hangs(candidate):
        return candidate.text == "yes" or release.wait(20)

    await run_in_thread(int)  # Now a thread is idle, and the validator really begins in time.
    own = {"timeout": 0.2} if ends_by == "its timeout" else {}
    settings = {"iteration_timeout": 0.2} if ends_by == "the iteration's timeout" else {}
    backend = by_iteration({1: "bad", 2: "yes", 3: later(0.2, "yes")}, default=later(0.2, "yes"))
    before = thread_statistics().abandoned
    try:
        async with aftermath(backend, abandoned=1) as after:
            wide = 2 if ends_by == "a win" else 1
            call = strategy(backend, concurrency_budget=wide, **settings)
            result = await after.sample(call, "do", [Requirement("hangs", hangs, **own)])
        assert thread_statistics().abandoned == before + 1
    finally:
        release.set()
    assert result.success
    expected = Outcome.CANCELLED if ends_by == "a win" else Outcome.ERRORED
    assert {s.iteration: s.outcome for s in result.slices}[1] is expected
    with anyio.fail_after(5):
        while thread_statistics().abandoned > before:  # noqa: ASYNC110 (a thread ends)
            await anyio.sleep(0.005)


# --- the judge -----------------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("where", ["the call's budget", "the judge's own"])
async def test_a_judge_that_can_not_be_paid_ends_the_call_and_its_error_can_be_read(where):
    own = where == "the judge's own"
    backend, inner = by_iteration({}, default="a text"), ScriptedBackend(["never asked"])
    spent = Budget(requests=1, name="judging")
    if own:
        spent_on = LimitedBackend(ScriptedBackend(["first"]), spent)
        await spent_on.generate(ask())
    judge = LimitedBackend(inner, spent) if own else inner
    async with aftermath(backend, inner, spent) as after:
        call = strategy(backend, judge=judge)
        with pytest.raises(LimitExceeded) as caught:
            await after.sample(call, "do", ["be kind"], budget=None if own else spent)
        [slice_] = after.slices
    # The slice's error came of the budget's, and what is raised came of the slice's.
    assert isinstance(caught.value.__cause__, RequirementError)
    assert caught.value.__cause__ is slice_.error
    assert caught.value is not slice_.error.__cause__
    assert isinstance(slice_.error.__cause__, LimitExceeded)
    assert inner.statistics().started == 0
