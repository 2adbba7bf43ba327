"""``stop_reason`` says why a call stopped, ``success`` whether there is an answer."""

from __future__ import annotations

import anyio
import pytest
from engine_kit import after, by_iteration, outcomes, yes

from mellea_like import (
    BestOf,
    Budget,
    Collect,
    Generation,
    RejectionSamplingStrategy,
    Requirement,
    SamplingFailed,
    Vote,
)
from mellea_like.backends.function import FunctionBackend
from mellea_like.errors import AuthenticationFailed, BackendUnavailable
from mellea_like.hooks import HookType
from mellea_like.schedules import Eager, PerRequirement
from mellea_like.selections import Consensus, Tournament
from mellea_like.testing import RecordingPlugin

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]

WRONG_KEY, OVERLOADED = AuthenticationFailed("401", status=401), BackendUnavailable("503")


def strategy(replies, default="no", width=1, loops=5, **more):
    backend = by_iteration(replies, default)
    return RejectionSamplingStrategy(
        backend, loop_budget=loops, concurrency_budget=width, retry=None, **more
    )


def length(candidate):
    return len(candidate.text)


BEST, BEST_OF_5 = BestOf(length, inline=True), BestOf(length, n=5, inline=True)


# --- nothing passed -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replies", "settings", "draws", "reason"),
    [
        ({2: WRONG_KEY}, {}, 2, "error"),
        ({5: WRONG_KEY}, {}, 5, "error"),  # The last turn was no draw either.
        ({1: WRONG_KEY}, {"width": 2}, 6, "error"),  # The other lane spends its turns.
        ({1: WRONG_KEY}, {"width": 2, "schedule": Eager(pool=True)}, 10, "error"),
        ({2: OVERLOADED, 5: OVERLOADED}, {}, 5, "exhausted"),
        ({2: WRONG_KEY}, {"selection": BEST}, 2, "error"),
        ({2: WRONG_KEY}, {"selection": "ordered"}, 2, "error"),
        ({2: WRONG_KEY}, {"give_up": PerRequirement(0.9, 0.8)}, 1, "hopeless"),
    ],
)
async def test_exhausted_is_a_call_none_of_whose_lanes_was_ended_by_an_error(
    replies, settings, draws, reason
):
    result = await strategy(replies, **settings).sample("do", [yes])
    assert (result.success, result.stop_reason, len(result.slices)) == (False, reason, draws)
    assert result.errors == tuple(replies[n] for n in sorted(replies) if n <= draws)
    with pytest.raises(SamplingFailed, match=rf"none of .* \(stopped: {reason}\)") as caught:
        result.unwrap()
    assert caught.value.__cause__ is next(iter(result.errors), None)


async def test_a_lane_of_an_ordered_call_that_a_bug_of_a_validator_ended_had_an_error():
    async def broken(candidate):
        return {}[candidate.text]

    checks = [yes, Requirement("b", broken)]
    ordered = strategy({1: "no"}, "yes", selection="ordered")
    result = await ordered.sample("do", checks)
    assert outcomes(result) == {1: "failed", 2: "errored", 3: "errored"}
    assert result.stop_reason == "error"


# --- an answer, though the selection wanted more --------------------------------------------------


@pytest.mark.parametrize(
    "selection",
    [BEST_OF_5, Vote(n=5, confidence=None), Consensus(n=5), Tournament(by_iteration({}), n=5)],
    ids=lambda selection: type(selection).__name__,
)
async def test_what_a_budget_cut_short_has_an_answer_and_says_budget(selection):
    cut = strategy({}, after(1, "yes"), loops=10, selection=selection)
    result = await cut.sample("do", [yes], budget=Budget(requests=2))
    assert (result.success, result.stop_reason, result.value) == (True, "budget", "yes")
    assert "2 of 2 requests were made" in result.stop_detail
    assert result.decision.reason == result.stop_detail


async def test_what_the_time_cut_short_has_an_answer_and_says_timeout():
    cut = strategy({}, after(1, "yes"), selection=BEST_OF_5, timeout=3.5)
    result = await cut.sample("do", [yes])
    assert (result.success, result.stop_reason, len(result.candidates)) == (True, "timeout", 3)
    assert result.decision.reason == "the time was up"


async def test_what_is_hopeless_after_a_pass_has_an_answer_and_says_hopeless():
    hopeless = strategy({1: "yes"}, loops=20, selection=BEST_OF_5, give_up=PerRequirement(0.5))
    result = await hopeless.sample("do", [yes])
    assert (result.success, result.stop_reason) == (True, "hopeless")
    assert "further draws are unlikely to help" in result.stop_detail


@pytest.mark.parametrize(
    ("replies", "reason", "why"),
    [
        ({2: "no"}, "exhausted", "all attempts were used"),
        ({2: OVERLOADED}, "exhausted", "all attempts were used"),
        ({4: WRONG_KEY}, "error", "an error ended one of the lanes"),
        ({}, "passed", "5 passed"),
    ],
)
async def test_fewer_passes_than_wanted_are_an_answer_and_no_reason_to_stop(replies, reason, why):
    result = await strategy(replies, "yes", selection=BEST).sample("do", [yes])
    assert (result.success, result.stop_reason, result.decision.reason) == (True, reason, why)


@pytest.mark.parametrize("reason", ["timeout", "budget", "passed"])
async def test_an_ordered_call_that_was_cut_short_has_a_winner_that_might_have_been_beaten(reason):
    replies = {1: after(3, "yes"), 6: "no", 7: after(1, "yes")}  # The second lane passes first.
    if reason == "budget":
        replies |= {1: after(0.5, "no")}  # Its next draw is refused.
    ordered = strategy(
        replies, width=2, selection="ordered", timeout=2 if reason == "timeout" else None
    )
    budget = Budget(requests=3) if reason == "budget" else None
    result = await ordered.sample("do", [yes], budget=budget)
    assert (result.success, result.stop_reason) == (True, reason)
    assert result.best.iteration == (1 if reason == "passed" else 7)


async def test_too_few_for_collect_are_no_answer_whatever_stopped_it():
    few = strategy({1: "yes", 3: WRONG_KEY}, selection=Collect(2))
    result = await few.sample("do", [yes])
    assert (result.success, result.stop_reason) == (False, "error")
    assert result.decision.reason == "1 of 2 passed: an error ended one of the lanes"


# --- the last hook is told the same ---------------------------------------------------------------


def judge(seconds=10.0):
    async def compare(request):
        await anyio.sleep(seconds)
        return Generation('{"better": "a"}')

    return FunctionBackend(compare)


@pytest.mark.parametrize(
    ("selection", "leaves"),
    [
        (Tournament(judge(), n=2), 5),  # while it compares
        (Tournament(judge(), n=2), 1.5),  # while it draws
        (BEST_OF_5, 2.5),
        (Collect(3), 2.5),
        ("ordered", 2.5),
    ],
    ids=["comparing", "drawing", "best-of", "collect", "ordered"],
)
async def test_a_caller_who_leaves_before_there_is_a_winner_is_told_of_as_cancelled(
    selection, leaves
):
    told = RecordingPlugin()
    replies = {1: after(9, "yes")} if selection == "ordered" else {}
    drawing = strategy(
        replies,
        after(1, "yes"),
        width=2 if selection == "ordered" else 1,
        selection=selection,
        plugins=[told],
    )
    with anyio.move_on_after(leaves) as scope:
        await drawing.sample("do", [yes])
    assert scope.cancelled_caught
    [end] = told.of(HookType.SAMPLING_LOOP_END)
    assert (end.success, end.stop_reason, end.best, end.decision) == (
        False,
        "cancelled",
        None,
        None,
    )
    assert any(s.passed for s in end.slices)
