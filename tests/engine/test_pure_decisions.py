"""The decisions that need no loop, as tables: turns, selection, ending, preparation, merit."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
from engine_kit import a_slice, by_iteration, says, yes
from hypothesis import given
from hypothesis import strategies as st

from mellea_like import (
    BestOf,
    Collect,
    Outcome,
    Requirement,
    SamplingFailed,
    SamplingTimeout,
    ValidationResult,
)
from mellea_like.backends.function import FunctionBackend
from mellea_like.core import StopReason
from mellea_like.errors import (
    BackendError,
    Blocked,
    HookError,
    LimitExceeded,
    RateLimited,
    RequirementError,
)
from mellea_like.kernel.ending import conclude, first_passed
from mellea_like.kernel.ports import Facts, Stop
from mellea_like.options.ordered import Ordered
from mellea_like.options.selected import Selected
from mellea_like.plans.scheduled import TurnPool, turn_of
from mellea_like.requirements.merging import check_judge, check_requirements
from mellea_like.sampling.best_failure import best_failure, choose_failure, deepest_failure
from mellea_like.selections import SelectionFacts

P, F, E, C = Outcome.PASSED, Outcome.FAILED, Outcome.ERRORED, Outcome.CANCELLED
light, heavy, plain = says("a", weight=0.5), says("b", weight=3), says("c")


def facts_of(slices, *, won=False, stopped=None, timed_out=False, broken=False, cancelled=False):
    return Facts(slices, won, stopped, timed_out, broken, cancelled)


def in_order(slices, lanes=2):
    option = Ordered(lanes)
    for slice_ in slices:
        if slice_.outcome is option.hears:
            option.hear(slice_)
    return lambda facts: option.choose(facts) or first_passed(facts)


def good(score=None):
    return ValidationResult(True, "", score)


def bad(score=None):
    return ValidationResult(False, "", score)


# --- selection --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], (0, 0)),
        ([(plain, bad())], (0, 0)),
        ([(plain, good())], (1, 0)),
        ([(light, good()), (heavy, bad())], (0.5, 0)),
        ([(light, good()), (heavy, good()), (plain, bad())], (3.5, 0)),
        ([(plain, bad(0.4)), (light, bad(0.8))], (0, 0.6)),
        ([(plain, bad(0.4)), (light, bad())], (0, 0.4)),
        ([(plain, good(1.0)), (light, bad(0.0))], (1, 0.5)),
        ([(plain, ValidationResult.skipped("s")), (light, bad())], (0, 0)),
        ([(plain, ValidationResult.errored(ValueError())), (light, good())], (0.5, 0)),
    ],
)
def test_merit_is_the_weight_met_then_the_mean_score(verdicts, expected):
    assert a_slice(verdicts=verdicts).merit == pytest.approx(expected)


A_ONE, A_TWO = [(plain, good())], [(plain, good()), (heavy, good())]
LOW, HIGH = [(plain, bad(0.2))], [(plain, bad(0.9))]
TABLE = [
    # slices as (iteration, depth, verdicts); best by default; best of MultiTurn
    ([(1, 0, [])], 0, 0),
    ([(1, 0, A_ONE), (2, 1, A_TWO)], 1, 1),
    ([(1, 0, A_TWO), (2, 1, A_ONE)], 0, 0),
    ([(1, 0, LOW), (2, 1, HIGH)], 1, 1),
    ([(1, 0, HIGH), (2, 1, LOW)], 0, 0),
    ([(1, 0, A_ONE), (2, 1, HIGH)], 0, 0),  # what is met counts before any score
    ([(2, 1, A_ONE), (1, 0, A_ONE)], 1, 0),  # alike: lowest id; deepest
    ([(1, 0, A_ONE), (2, 1, A_ONE), (3, 2, A_ONE)], 0, 2),
    ([(4, 1, A_ONE), (2, 1, A_ONE)], 1, 1),  # equally deep: lowest id
    ([(6, 2, A_ONE), (3, 2, A_ONE), (1, 0, A_TWO)], 2, 2),
    ([(3, 0, []), (5, 2, []), (1, 0, [])], 2, 1),
]


@pytest.mark.parametrize(("slices", "default", "multi_turn"), TABLE)
def test_the_best_failure(slices, default, multi_turn):
    made = [a_slice(i, depth=depth, verdicts=verdicts) for i, depth, verdicts in slices]
    assert best_failure(made) == default
    assert deepest_failure(made) == multi_turn


@pytest.mark.parametrize(
    ("slices", "first", "ordered"),
    [
        ([], None, None),
        ([(1, 0, 0, F), (2, 0, 1, E), (3, 1, 0, C)], None, None),
        ([(1, 0, 0, F), (2, 0, 1, P)], 1, 1),
        ([(4, 1, 1, P), (3, 1, 0, P)], 0, 1),  # the lower depth
        ([(3, 1, 0, P), (1, 0, 0, P)], 0, 1),  # the lower subsample of one depth
        ([(2, 0, 1, P), (3, 1, 0, P)], 0, 1),  # depth counts before subsample
    ],
)
def test_the_first_slice_to_pass(slices, first, ordered):
    made = [a_slice(i, o, subsample=s, depth=d) for i, s, d, o in slices]
    assert first_passed(facts_of(made)).place == first
    assert in_order(made)(facts_of(made)).place == ordered


# --- ending -----------------------------------------------------------------------------------


def end(slices, select=best_failure, choose=first_passed, fatal=None, late=None, **happened):
    return conclude(
        facts_of(slices, **happened),
        choose,
        partial(choose_failure, SimpleNamespace(select_from_failure=select)),
        sampling_id="the id",
        fatal=fatal,
        late=late,
    )


def raising(slices):
    raise RuntimeError("bug")


BOOM, HOOK, BLOCKED = ValueError("fatal"), HookError("hook"), Blocked("blocked")
passed, failed = a_slice(2, P), a_slice(1, F)
errored, cancelled = a_slice(3, E, error=RateLimited("429")), a_slice(4, C)
SPENT = Stop(StopReason.BUDGET, "it is spent", LimitExceeded("it is spent"))
NO_HOPE = Stop(StopReason.HOPELESS, "no hope")
WON, LATE, BROKEN, LEFT = {"won": True}, {"timed_out": True}, {"broken": True}, {"cancelled": True}


@pytest.mark.parametrize(
    ("slices", "arguments", "best", "reason", "error"),
    [
        ([passed], WON, 0, "passed", None),
        ([failed, passed, cancelled], WON, 1, "passed", None),
        ([errored, passed], WON, 1, "passed", None),
        ([passed, errored], WON | BROKEN, 0, "passed", None),
        ([failed], {}, 0, "exhausted", None),
        ([errored, failed], {}, 1, "exhausted", None),
        ([errored], {}, None, "error", errored.error),
        # an error ended one of the lanes
        ([errored, failed], BROKEN, 1, "error", None),
        ([errored], BROKEN, None, "error", errored.error),
        ([errored, failed], BROKEN | LATE, 1, "timeout", None),
        ([errored, failed], BROKEN | {"stopped": SPENT}, 1, "budget", None),
        ([errored, failed], BROKEN | {"stopped": NO_HOPE}, 1, "hopeless", None),
        # time
        ([failed, cancelled], LATE, 0, "timeout", None),
        ([passed, cancelled], WON | LATE, 0, "passed", None),
        ([cancelled], LATE, None, "timeout", SamplingTimeout),
        ([errored, cancelled], LATE, None, "timeout", SamplingTimeout),
        # a budget, or no hope
        ([failed, cancelled], {"stopped": SPENT}, 0, "budget", None),
        ([failed, cancelled], {"stopped": SPENT} | LATE, 0, "budget", None),
        ([cancelled], {"stopped": SPENT}, None, "budget", SPENT.error),
        ([], {"stopped": SPENT}, None, "budget", SPENT.error),
        ([failed, cancelled], {"stopped": NO_HOPE}, 0, "hopeless", None),
        ([errored], {"stopped": NO_HOPE}, None, "error", errored.error),
        ([passed, cancelled], WON | {"stopped": SPENT}, 0, "passed", None),
        # the caller left
        ([cancelled], LEFT, None, "cancelled", None),
        ([failed, cancelled], LEFT, 0, "cancelled", None),
        ([failed, cancelled], LEFT | LATE | BROKEN, 0, "cancelled", None),
        ([passed], LEFT | WON, 0, "passed", None),
        ([], LEFT, None, "cancelled", None),
        # something fatal
        ([cancelled], {"fatal": BOOM}, None, "error", BOOM),
        ([failed], {"fatal": BOOM}, 0, "error", BOOM),
        ([failed], {"fatal": HOOK}, 0, "hook", HOOK),
        ([failed], {"fatal": BLOCKED}, 0, "hook", BLOCKED),
        ([failed], {"fatal": BOOM} | LEFT, 0, "error", BOOM),
        ([failed], {"fatal": BOOM} | LATE, 0, "error", BOOM),
        ([passed, failed], {"fatal": HOOK}, 1, "hook", HOOK),
        ([passed], {"fatal": HOOK}, None, "hook", HOOK),
        ([failed], {"late": HOOK}, 0, "hook", HOOK),
        ([failed], {"late": BOOM} | LATE, 0, "error", BOOM),
        ([passed], {"late": BOOM} | WON, 0, "passed", None),
        # a bug in select_from_failure
        ([failed], {"select": raising}, None, "error", RuntimeError),
        ([passed, failed], {"select": raising} | WON, 0, "passed", None),
        ([errored], {"select": raising}, None, "error", errored.error),
        ([failed], {"select": raising, "fatal": BOOM}, None, "error", BOOM),
        ([failed], {"select": raising} | LEFT, None, "cancelled", None),
        ([failed], {"select": lambda s: 1}, None, "error", ValueError),
        ([failed], {"select": lambda s: None}, None, "error", TypeError),
        # no schedule began anything
        ([], {}, None, "error", SamplingFailed),
        # all were cancelled from outside, though nobody left
        ([cancelled], {}, None, "error", SamplingFailed),
    ],
)
def test_how_a_call_ends(slices, arguments, best, reason, error):
    ending = end(slices, **arguments)
    assert ending.best_index == best
    assert ending.stop_reason == reason == StopReason(reason)
    assert ending.success is (reason == "passed")
    assert ending.stop_detail == (SPENT.detail if reason == "budget" else ending.stop_detail)
    if isinstance(error, type):
        assert type(ending.error) is error
    else:
        assert ending.error is error


def selected(selection, slices):
    state = selection.begin(SelectionFacts(5))
    for slice_ in slices:
        state.hear(slice_, (1.0, "") if slice_.passed else None)
    made = Selected(selection, state, None, lanes=1, seconds=None, warn_if_alike=None)
    return made.choose


@pytest.mark.parametrize(
    ("arguments", "best_of", "too_few", "ordered"),
    [
        # what happened; why it stopped, and "+" if there is an answer
        (WON, "passed +", None, "passed +"),
        ({}, "exhausted +", "exhausted", None),
        (BROKEN, "error +", "error", None),
        (WON | BROKEN, "passed +", None, "passed +"),
        (WON | LATE, "passed +", None, "timeout +"),
        (LATE | BROKEN, "timeout +", "timeout", None),
        (WON | {"stopped": SPENT}, "passed +", None, "budget +"),
        ({"stopped": SPENT} | LATE | BROKEN, "budget +", "budget", None),
        ({"stopped": NO_HOPE}, "hopeless +", "hopeless", None),
        ({"late": BOOM}, "exhausted +", "error", None),
        ({"late": HOOK} | BROKEN, "error +", "hook", None),
        (LEFT | WON, "passed +", None, "cancelled"),
        (LEFT | LATE | BROKEN, "cancelled", "cancelled", None),
        ({"fatal": BOOM}, "error", "error", "error"),
        ({"fatal": HOOK} | WON, "hook", None, "hook"),
    ],
)
def test_why_a_call_with_a_pass_stopped_and_whether_it_has_an_answer(
    arguments, best_of, too_few, ordered
):
    slices = [failed, passed, cancelled]
    for selection, expected in [
        (BestOf(len, inline=True), best_of),
        (Collect(2), too_few),
        ("ordered", ordered),
    ]:
        if expected is None:
            continue
        by_rank = selection == "ordered"
        choose = in_order(slices) if by_rank else selected(selection, slices)
        ending = end(slices, choose=choose, **arguments)
        assert f"{ending.stop_reason}{' +' * ending.success}" == expected
        raised = arguments.get("fatal", None if ending.success else arguments.get("late"))
        assert ending.error is raised
        undecided = ending.stop_reason == "cancelled" or "fatal" in arguments
        assert ending.best_index == (0 if undecided else 1)
        assert (ending.decision is None) == (undecided or by_rank)


BROKE = BackendError("a permanent error")


@pytest.mark.parametrize(
    ("ranks", "lanes", "final"),
    [
        # (attempt, lane) and outcome of each draw; whether the pass of lowest rank can't be beaten
        ({(0, 0): P}, 1, True),
        ({(0, 0): P}, 3, True),
        ({(0, 1): P}, 3, False),
        ({(0, 0): C, (0, 1): P}, 2, False),
        ({(0, 0): F, (0, 1): P}, 2, True),
        ({(0, 0): F, (1, 0): P}, 1, True),
        ({(0, 0): F, (1, 0): P}, 2, False),
        ({(0, 0): F, (0, 1): F, (1, 0): P}, 2, True),
        ({(0, 0): F, (0, 1): F, (1, 0): C, (1, 1): P}, 2, False),
        # A permanent error ends its lane, a passing one does not.
        ({(0, 0): E, (0, 1): F, (1, 1): P}, 2, True),
        ({(0, 0): F, (0, 1): F, (1, 1): P, (0, 2): P}, 3, True),
    ],
)
@pytest.mark.parametrize("cut", [LATE, LEFT, {"stopped": SPENT}], ids=["late", "left", "spent"])
def test_an_ordered_pass_is_final_if_no_draw_of_lower_rank_is_missing(ranks, lanes, final, cut):
    slices = [
        a_slice(i, outcome, depth=depth, subsample=lane, error=BROKE if outcome is E else None)
        for i, ((depth, lane), outcome) in enumerate(ranks.items(), 1)
    ]
    best = min(rank for rank, outcome in ranks.items() if outcome is P)
    choice = in_order(slices, lanes)(facts_of(slices, **cut))
    assert (slices[choice.place].rank, choice.final) == (best, final)
    assert in_order(slices, lanes)(facts_of(slices)).final


def test_a_timeout_names_the_call_and_comes_from_the_first_error():
    ending = end([errored], timed_out=True)
    assert "the id" in str(ending.error)
    assert ending.error.__cause__ is errored.error
    assert end([cancelled], timed_out=True).error.__cause__ is None


# --- preparation ------------------------------------------------------------------------------


def test_an_inline_requirement_needs_something_to_run():
    with pytest.raises(ValueError, match="'x' is inline but has no validator to run"):
        check_requirements([Requirement("x", inline=True)], "requirements")


@pytest.mark.parametrize(
    "requirement",
    [Requirement("be kind"), Requirement("be kind") & yes, ~(yes | ~Requirement("be kind"))],
    ids=lambda r: r.description,
)
def test_a_judged_requirement_needs_a_judge_that_can(requirement):
    deaf = FunctionBackend(lambda r: "x")
    with pytest.raises(RequirementError, match="'be kind' needs a judge, but FunctionBackend"):
        check_judge(requirement, deaf)
    check_judge(requirement, by_iteration({}))


def test_a_requirements_own_judge_counts_before_the_calls():
    deaf, able = FunctionBackend(lambda r: "x"), by_iteration({})
    check_judge(Requirement("be kind", judge=able), deaf)
    with pytest.raises(RequirementError) as caught:
        check_judge(Requirement("be kind", name="kind", judge=deaf), able)
    assert caught.value.requirement == "kind"
    with pytest.raises(TypeError, match="judge must be a backend"):
        check_judge(Requirement("be kind", judge="gpt"), able)


# --- turns -------------------------------------------------------------------------------------


def test_a_chain_takes_the_turns_of_its_own_subsample_in_order():
    pool = TurnPool(2, 3, pooled=False)
    assert [pool.take(1) for _ in range(4)] == [*(turn_of(1, depth, 3) for depth in range(3)), None]
    assert pool.left == 3
    assert pool.take(0) == turn_of(0, 0, 3)


def test_a_fresh_chain_borrows_from_the_subsample_that_has_most_left():
    pool = TurnPool(3, 2, pooled=True)
    pool.take(0)
    assert pool.take(3) == turn_of(1, 0, 2)
    assert pool.take(3) == turn_of(2, 0, 2)
    assert pool.take(4) == turn_of(0, 1, 2)


@given(st.integers(1, 4), st.integers(1, 4), st.booleans(), st.lists(st.integers(0, 6)))
def test_each_turn_is_taken_once_and_keeps_its_id(subsamples, loop_budget, pooled, chains):
    pool = TurnPool(subsamples, loop_budget, pooled=pooled)
    taken = []
    for chain in chains:
        could = pool.has(chain)
        turn = pool.take(chain)
        assert could == (turn is not None)
        if turn is not None:
            taken.append(turn)
            assert turn == turn_of(turn.subsample, turn.depth, loop_budget)
            assert pooled or turn.subsample == chain
    assert len(set(taken)) == len(taken)
    assert pool.left == subsamples * loop_budget - len(taken)
