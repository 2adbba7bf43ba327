"""Votes: whom they may believe, what is one answer, and who must win."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from engine_kit import a_slice, after, by_iteration, votes_of
from pydantic import BaseModel, Field, SecretStr

from mellea_like import (
    Collect,
    Outcome,
    RejectionSamplingStrategy,
    SamplingFailed,
    SamplingResult,
    Vote,
)
from mellea_like.core import StopReason, ToolCall
from mellea_like.core.decision import Answer
from mellea_like.core.serialization import decision_from_dict
from mellea_like.errors import RequirementError
from mellea_like.selections import SelectionFacts, majority_confidence
from mellea_like.selections.base import Answers, tool_key

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from _vote_rows import LANES, misses, vote_row

pytestmark = pytest.mark.anyio

P, F, C = Outcome.PASSED, Outcome.FAILED, Outcome.CANCELLED


def begun(selection, turns=16, starts=()):
    state = selection.begin(SelectionFacts(turns))
    for iteration in starts:
        state.start(iteration)
    return state


def hear(state, iteration, key, outcome=P):
    mark = (key, 1.0) if outcome is P else None
    return state.hear(a_slice(iteration=iteration, outcome=outcome), mark)


# --- keys -------------------------------------------------------------------------------------


async def lower(text):
    return text.lower()


@pytest.mark.parametrize(
    "selection",
    [Vote(key=lambda c: lower(c.text)), Collect(1, distinct=lambda c: lower(c.text))],
    ids=["vote", "collect"],
)
async def test_a_key_that_nobody_would_await_is_an_error_and_not_an_answer_of_its_own(selection):
    strategy = RejectionSamplingStrategy(by_iteration({}, "a"), selection=selection)
    with pytest.raises(RequirementError, match=r"key function must be synchronous.*coroutine"):
        await strategy.sample("do")


# --- confidence -------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", LANES)
def test_quick_wrong_answers_win_no_vote_with_confidence_at_any_number_of_lanes(lanes):
    row = vote_row(lanes, 48, 0.95, 1, 120)
    assert row.confident > 0.1
    assert not misses(row, vote_row(lanes, 48, None, 1, 120))


def test_confidence_waits_for_the_first_draw_that_has_not_ended():
    state = begun(Vote(n=40), 40, starts=range(1, 11))
    assert not any(hear(state, n, "quick") for n in range(2, 11))
    assert not hear(state, 1, "slow")  # 9 to 1: they are too few.
    state = begun(Vote(n=40), 40, starts=range(1, 12))
    assert not any(hear(state, n, "quick") for n in range(2, 12))
    assert hear(state, 1, "quick")
    decision = state.decide()
    assert decision.reason == "6 to 0 votes: the majority, with 0.95 confidence"
    assert decision.winners == (1,)
    assert decision.heard == set(range(1, 7))  # What came before its turn has no say.


@pytest.mark.parametrize(("share", "votes"), [(None, 11), (0.9, 11), (0.92, 13), (0.95, 20)])
def test_confidence_is_not_enough_before_the_leading_answer_has_its_share(share, votes):
    # With one vote for another answer, ten are confident.
    state = begun(Vote(n=40, at_least=share), 40, starts=range(1, 22))
    assert not hear(state, 1, "other")
    assert next(n for n in range(2, 22) if hear(state, n, "a")) == votes
    assert state.decide().complete


@pytest.mark.parametrize("outcome", [F, Outcome.ERRORED, C])
def test_a_draw_that_ends_without_a_vote_holds_up_no_other(outcome):
    state = begun(Vote(n=40), 40, starts=range(1, 9))
    assert not any(hear(state, n, "a") for n in range(2, 9))
    assert hear(state, 1, None, outcome)
    assert state.decide().winners == (2,)


def test_draws_that_all_start_together_are_all_waited_for():
    state = begun(Vote(n=16), 16, starts=range(1, 17))
    assert next(n for n in range(1, 17) if hear(state, n, "a")) == 9
    assert "can't be overtaken by 7" in state.decide().reason


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_of_two_equally_frequent_answers_each_leads_with_confidence_as_rarely_as_it_says(
    confidence,
):
    chances, won = {0: 1.0}, {True: 0.0, False: 0.0}
    for votes in range(1, 201):
        following = Counter()
        for first, chance in chances.items():
            for more in (0, 1):
                following[first + more] += chance / 2
        for first in list(following):
            leading = max(first, votes - first)
            if majority_confidence(leading, votes - leading) >= confidence:
                won[first == leading] += following.pop(first)
        chances = following
    assert won[True] == pytest.approx(won[False])
    assert max(won.values()) <= 1 - confidence < sum(won.values())


@pytest.mark.parametrize(
    ("votes", "certainty"),
    [((0, 0), 0), ((1, 1), 0), ((5, 0), 0.9323), ((6, 0), 0.9641), ((9, 1), 0.9444)],
)
def test_certainty_is_that_of_a_bettor_by_krichevsky_and_trofimov(votes, certainty):
    capital, seen = 1.0, [0, 0]
    for side, number in enumerate(votes):
        for _ in range(number):
            capital *= 2 * (seen[side] + 0.5) / (sum(seen) + 1)
            seen[side] += 1
    expected = max(0.0, 1 - 1 / (2 * capital - 1)) if capital > 1 else 0.0
    assert majority_confidence(*votes) == pytest.approx(expected)
    assert majority_confidence(*votes) == pytest.approx(certainty, abs=1e-4)
    assert majority_confidence(900_000, 100_000) == 1


# --- one answer -------------------------------------------------------------------------------


class Bill(BaseModel):
    total: Decimal
    tags: set[int] = Field(default_factory=set)
    note: str = Field("", exclude=True)
    key: SecretStr = SecretStr("")


class Unequal:
    """An answer like NumPy's arrays, which ``==`` can't tell apart."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        raise RuntimeError("ask me not")


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SAME = [
    (Bill(total=Decimal("9.90")), Bill(total=Decimal("9.9"))),
    (Bill(total=Decimal(1), tags={0, 8}), Bill(total=Decimal(1), tags={8, 0})),
    ([NOON], [NOON.astimezone(timezone(timedelta(hours=5)))]),
    ({0, 8}, frozenset({8, 0})),
    (frozenset({0, 8}), {8, 0}),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (True, 1.0),
]
OTHER = [
    (Bill(total=Decimal(1), note="a"), Bill(total=Decimal(1), note="b")),
    (Bill(total=Decimal(1), key=SecretStr("a")), Bill(total=Decimal(1), key=SecretStr("b"))),
    (1, "1"),
    ("x" * 3000 + "a", "x" * 3000 + "b"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_keys_are_one_answer(one, other):
    answers = Answers()
    assert [answers.place(key) for key in ("else", one, [], other, one)] == [0, 1, 2, 1, 1]
    state = begun(Collect(3, distinct=len))
    assert not any(
        state.hear(a_slice(iteration=n, outcome=P), key) for n, key in enumerate((one, other), 1)
    )
    assert state.decide().winners == (1,)


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_keys_that_look_alike_and_are_not_equal_are_two(one, other):
    state = begun(Vote(n=3, confidence=None), 3)
    for iteration, key in enumerate((one, other, other), 1):
        hear(state, iteration, key)
    first, second = state.decide().answers
    assert (first.iteration, first.draws, second.draws) == (2, (2, 3), (1,))


def test_calls_of_tools_are_compared_by_their_arguments_in_any_order():
    def key(*calls):
        candidate: Any = type("Called", (), {"tool_calls": calls})
        return tool_key(candidate)

    one, other = ToolCall("1", "f", '{"a": 1, "b": 2}'), ToolCall("2", "f", '{"b": 2, "a": 1}')
    assert key(one) == key(other)
    assert key(one, ToolCall("3", "g", "")) == key(ToolCall("4", "g", "{}"), other)
    assert key(one) != key(one, other)
    assert repr(key(one)) == 'f({"a": 1, "b": 2})'


def strategy(replies, selection, width=3, **more):
    backend = by_iteration({n: after(n, said) for n, said in enumerate(replies, 1)})
    return RejectionSamplingStrategy(
        backend, loop_budget=1, concurrency_budget=width, selection=selection, **more
    )


class Ambiguous:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise ValueError("more than one element")


@pytest.mark.usefixtures("virtual_clock")
@pytest.mark.parametrize(
    ("key", "says"),
    [
        (lambda _: float("nan"), "does not equal itself"),
        (lambda _: Ambiguous(), "can't be compared so: more than one element"),
    ],
    ids=["nan", "array"],
)
async def test_a_key_that_cannot_be_compared_makes_its_draw_an_errored_one(key, says):
    with pytest.raises(RequirementError, match=says):
        await strategy(["a"], Vote(key, n=1), width=1).sample("do")


async def test_keys_that_raise_when_they_are_compared_end_the_call(virtual_clock):
    with pytest.raises(TypeError, match=r"told apart by ==, and .* can't be compared so: ask me"):
        await strategy(["a", "b"], Vote(lambda _: Unequal(), n=2), width=2).sample("do")


# --- who must win -----------------------------------------------------------------------------


async def test_fifteen_different_answers_are_no_success_where_a_share_is_wanted(virtual_clock):
    replies = [f"answer {n}" for n in range(15)]
    result = await strategy(replies, Vote(n=15, at_least=0.5), 15).sample("do")
    assert not result.success
    assert (result.value, result.winners, result.decision.winners) == (None, (), ())
    assert "the first answer has" in result.decision.reason
    assert "can't become 50 %" in result.decision.reason
    assert result.stop_reason is StopReason.HOPELESS
    assert result.best.iteration == 1
    assert len(result.decision.tied) == len(result.decision.answers)
    assert SamplingResult.from_dict(result.to_dict()).decision == result.decision
    with pytest.raises(SamplingFailed, match="no answer won, the first answer has"):
        result.unwrap()


@pytest.mark.parametrize(
    ("keys", "share", "took", "winners"),
    [
        ("aaab", 0.75, 3, (1,)),
        ("aabb", 0.51, 4, ()),
        ("aabbaa", 0.6, 6, (1,)),
        ("abcdef", 0.6, 4, ()),  # 1 of 4, and two more: at most 3 of 6.
        ("aaaaab", 0.5, 4, (1,)),
        ("aaaaaa", 1.0, 6, (1,)),
    ],
)
def test_a_share_is_that_of_all_votes(keys, share, took, winners):
    state = begun(Vote(n=len(keys), confidence=None, at_least=share), len(keys))
    heard = next(n for n, key in enumerate(keys, 1) if hear(state, n, key))
    assert heard == took
    assert state.decide().winners == winners
    assert state.decide().complete is bool(winners)


async def test_a_key_of_none_abstains(virtual_clock):
    replies = ["dunno", "dunno", "yes", "dunno"]
    chosen = Vote(lambda c: None if c.text == "dunno" else c.text, n=4)
    result = await strategy(replies, chosen, 4).sample("do")
    assert (result.value, result.decision.abstentions) == ("yes", 3)
    assert votes_of(result.decision) == {"yes": 1}
    silent = await strategy(replies[:2], chosen, 2).sample("do")
    assert not silent.success
    assert silent.decision.reason == "all 2 that passed abstained: all attempts were used"


@pytest.mark.parametrize("weight", [float("inf"), float("-inf"), -1.0, float("nan")])
async def test_a_weight_that_is_no_finite_positive_number_is_an_error(weight, virtual_clock):
    with pytest.raises(RequirementError, match=r"weight of a vote must be finite|returned NaN"):
        await strategy(["a"], Vote(n=1, weight=lambda _: weight), 1).sample("do")


@pytest.mark.parametrize("share", [0, -0.5, 1.5, float("nan"), True, "half"])
def test_a_share_is_above_0_and_up_to_1(share):
    with pytest.raises((TypeError, ValueError), match="Vote: at_least must be"):
        Vote(at_least=share)


def test_a_decision_of_an_older_record_is_read():
    usage = {"requests": 0, "input_tokens": 0, "output_tokens": 0, "unknown": 0}
    old = {
        "kind": "vote",
        "winners": [3],
        "reason": "",
        "complete": True,
        "scores": [],
        "notes": [],
        "votes": [["a", 2.0], ["b", 1.0]],
        "share": 0.6,
        "abstentions": 0,
        "comparisons": [],
        "errors": [],
        "usage": {**usage, "cache_hits": 0},
    }
    ballots = [[1, "b"], [2, "a"], [3, "a"]]
    assert decision_from_dict(old).answers == (Answer("a", 2.0, (3,)), Answer("b", 1.0, ()))
    known = decision_from_dict(old | {"ballots": ballots}).answers
    assert known == (Answer("a", 2.0, (3, 2)), Answer("b", 1.0, (1,)))
    assert [answer.iteration for answer in known] == [3, 1]
