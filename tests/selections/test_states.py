"""Selections as pure states: fed with slices, asked for what they decided."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from engine_kit import a_slice
from hypothesis import given
from hypothesis import strategies as st

from mellea_like import FunctionBackend, Generation, Message, Outcome, judge_score
from mellea_like.core.validation import Candidate
from mellea_like.sampling.selections import (
    BestOf,
    Collect,
    Consensus,
    SelectionFacts,
    Tournament,
    Vote,
    expected_improvement,
    majority_confidence,
)
from mellea_like.sampling.selections.base import keying

P, F, E, C = Outcome.PASSED, Outcome.FAILED, Outcome.ERRORED, Outcome.CANCELLED


def candidate(text: str) -> Candidate:
    return Candidate(text, text, Generation(text), None, Message("user", "do"))


def beta_tail(a: int, b: int) -> float:
    """P(Beta(a, b) > 1/2), by the midpoint rule."""
    steps = 20_000
    xs = [(i + 0.5) / steps for i in range(steps)]
    weights = [x ** (a - 1) * (1 - x) ** (b - 1) for x in xs]
    return sum(w for x, w in zip(xs, weights, strict=True) if x > 0.5) / sum(weights)


def begun(selection, turns=16):
    return selection.begin(SelectionFacts(turns))


def hear_all(state, marks, *, until_decided=True):
    """Let it hear a slice for each mark, None for a failed one; return how many it took."""
    for number, mark in enumerate(marks, 1):
        outcome = F if mark is None else P
        if state.hear(a_slice(iteration=number, outcome=outcome), mark) and until_decided:
            return number
    return len(marks)


def test_what_did_not_pass_is_an_abstention_but_for_the_cancelled():
    state = begun(BestOf(len))
    for number, outcome in enumerate((F, E, C, P), 1):
        state.hear(a_slice(iteration=number, outcome=outcome), (1.0, "") if outcome is P else None)
    decision = state.decide()
    assert decision.abstentions == 2
    assert decision.winners == (4,)


@pytest.mark.parametrize(
    "selection",
    [BestOf(len), Vote(), Collect(2), Consensus(), Tournament()],
    ids=lambda selection: type(selection).__name__,
)
def test_where_none_passed_there_is_no_decision(selection):
    state = begun(selection)
    assert hear_all(state, [None, None]) == 2
    assert state.decide() is None
    assert state.pairs() == []


# --- the best of n ------------------------------------------------------------------------------


@given(st.lists(st.none() | st.integers(0, 5).map(float), max_size=12), st.integers(1, 12))
def test_the_best_has_the_highest_score_and_of_equal_ones_the_lowest_rank(scores, n):
    state = begun(BestOf(len, n=n))
    took = hear_all(state, [None if s is None else (s, "") for s in scores])
    heard = [(s, -i) for i, s in enumerate(scores[:took], 1) if s is not None]
    assert len(heard) <= n
    assert took == len(scores) or len(heard) == n
    decision = state.decide()
    assert (decision and decision.winners) == ((-max(heard)[1],) if heard else None)


def test_a_score_at_the_threshold_ends_it_and_its_note_is_kept():
    state = begun(BestOf(len, threshold=0.9))
    assert hear_all(state, [(0.5, "short"), (0.9, "long"), (1.0, "")]) == 2
    decision = state.decide()
    assert decision.winners == (2,)
    assert decision.reason == "a score of 0.9 reaches 0.9"
    assert decision.notes == {1: "short", 2: "long"}
    assert decision.scores == {1: 0.5, 2: 0.9}


def test_it_draws_on_while_a_draw_pays():
    scores = [0.50, 0.52, 0.48, 0.51, 0.50, 0.49, 0.50]
    costly = begun(BestOf(len, stop="expected-improvement", cost=0.1))
    cheap = begun(BestOf(len, stop="expected-improvement", cost=1e-6))
    marks = [(s, "") for s in scores]
    assert hear_all(costly, marks) == 4
    assert "a further draw would add" in costly.decide().reason
    assert hear_all(cheap, marks) == len(scores)


def test_endless_scores_do_not_hinder_the_stopping_rule():
    state = begun(BestOf(len, stop="expected-improvement", cost=0.1))
    scores = [float("-inf"), 0.50, 0.52, float("inf"), 0.48, 0.51, 0.50]
    assert hear_all(state, [(s, "") for s in scores]) == 6
    assert state.decide().winners == (4,)


def test_the_expected_improvement_is_that_of_draws_from_the_normal_it_takes():
    scores = [1.0, 2.0, 4.0, 3.0, 2.5]
    chance, n = random.Random(3), len(scores)
    mean = sum(scores) / n
    variance = sum((s - mean) ** 2 for s in scores) / (n - 1) * (1 + 1 / n) * (n - 1) / (n - 3)
    draws = [chance.gauss(mean, variance**0.5) for _ in range(200_000)]
    simulated = sum(max(0.0, v - max(scores)) for v in draws) / 200_000
    assert expected_improvement(scores) == pytest.approx(simulated, rel=0.02)
    assert expected_improvement([1.0] * 4) == 0
    # Of scores with a bound, what lies beyond it lies at it.
    simulated = sum(max(0.0, min(v, 4.5) - max(scores)) for v in draws) / 200_000
    assert expected_improvement(scores, 4.5) == pytest.approx(simulated, rel=0.02)
    assert expected_improvement(scores, 4.0) == 0
    assert expected_improvement(scores, 1e9) == pytest.approx(expected_improvement(scores))


def test_near_the_highest_score_a_further_draw_pays_less():
    marks = [(s, "") for s in [5.0, 7.0, 9.5, 6.0, 8.0, 7.5, 6.5, 7.0]]
    stops = {"stop": "expected-improvement", "cost": 0.2}
    assert hear_all(begun(BestOf(len, **stops)), marks) == 6
    assert hear_all(begun(BestOf(len, highest=10, **stops)), marks) == 4
    scorer = judge_score("How nice?", judge=FunctionBackend(str), scale=(1, 10))
    assert hear_all(begun(BestOf(scorer, **stops)), marks) == 4  # A judge's scale has an end.
    assert hear_all(begun(BestOf(scorer, highest=1000, **stops)), marks) == 6


# --- votes --------------------------------------------------------------------------------------


@given(st.lists(st.none() | st.sampled_from("abcd"), min_size=1, max_size=12))
def test_a_certain_vote_gives_what_all_votes_would_have(keys):
    """Whatever the votes were that it did not wait for."""
    state = begun(Vote(n=12, confidence=None), turns=len(keys))
    took = hear_all(state, [None if k is None else (k, 1.0) for k in keys])
    decision = state.decide()
    counts = Counter(k for k in keys if k is not None)
    if not counts:
        assert decision is None
        return
    winner = keys[decision.winners[0] - 1]
    assert counts[winner] == max(counts.values())
    firsts = [keys.index(k) for k in counts if counts[k] == max(counts.values())]
    assert took < len(keys) or decision.winners[0] - 1 == min(firsts)


def test_of_equal_votes_the_lowest_rank_wins_however_they_came():
    orders = itertools.permutations([(1, "b"), (2, "a"), (3, "a"), (4, "b")])
    for order in orders:
        state = begun(Vote(n=4, confidence=None), turns=4)
        for iteration, key in order:
            state.hear(a_slice(iteration=iteration, subsample=iteration, outcome=P), (key, 1.0))
        assert state.decide().winners == (1,)
        assert state.decide().votes == {"b": 2, "a": 2}
        assert state.decide().share == 0.5


def test_confidence_ends_a_vote_earlier_than_certainty():
    keys = [("a", 1.0)] * 16
    assert hear_all(begun(Vote(confidence=None)), keys) == 9
    assert hear_all(begun(Vote(confidence=0.95)), keys) == 4
    assert hear_all(begun(Vote(confidence=0.99)), keys) == 6


@pytest.mark.parametrize("votes", [(0, 0), (1, 0), (4, 0), (5, 2), (9, 9), (30, 20)])
def test_the_confidence_is_the_tail_of_a_beta_distribution(votes):
    first, second = votes
    assert majority_confidence(first, second) == pytest.approx(beta_tail(first + 1, second + 1))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
        ([{"a": 1, "b": 2}], [{"b": 2, "a": 1}]),
    ],
)
def test_equal_values_have_equal_keys_in_whatever_order_they_were_written(one, other):
    value = keying(lambda c: c)
    assert value(one) == value(other)
    assert value(one) != value([other])


def test_weighted_votes_are_all_counted():
    state = begun(Vote(n=3, weight=len))
    assert hear_all(state, [("a", 0.2), ("a", 0.3), ("b", 0.6)]) == 3
    decision = state.decide()
    assert decision.winners == (3,)
    assert decision.share == pytest.approx(0.6 / 1.1)


# --- several ------------------------------------------------------------------------------------


def test_of_equal_keys_only_the_first_counts():
    state = begun(Collect(3, distinct=len))
    assert hear_all(state, ["x", "x", None, "y", "x", "z", "w"]) == 6
    decision = state.decide()
    assert decision.winners == (1, 4, 6)
    assert decision.complete


def test_too_few_are_no_success():
    state = begun(Collect(3))
    hear_all(state, [object(), None, object()])
    assert not state.decide().complete
    assert state.decide().winners == (1, 3)
    assert state.wanted() == 1


def test_the_consensus_is_most_like_the_others():
    texts = ["a b c", "a b c d", "x y", "a b c e"]
    state = begun(Consensus(n=4))
    hear_all(state, [candidate(text) for text in texts])
    decision = state.decide()
    assert decision.winners == (1,)
    assert min(decision.scores, key=decision.scores.get) == 3


# --- tournaments --------------------------------------------------------------------------------


def played(state, strength):
    """Play all comparisons, the stronger of two winning; return how many there were."""
    games = 0
    while pairs := state.pairs():
        for a, b in pairs:
            games += 1
            state.compared((a, b), float(strength[a] > strength[b]))
    return games


@given(st.permutations(range(7)).flatmap(lambda p: st.integers(1, 7).map(lambda n: p[:n])))
def test_a_knockout_finds_the_strongest_in_n_minus_1_games(strength):
    state = begun(Tournament(n=7))
    hear_all(state, [candidate(str(s)) for s in strength])
    assert played(state, strength) == len(strength) - 1
    decision = state.decide()
    assert decision.winners == (strength.index(max(strength)) + 1,)
    assert len(decision.comparisons) == len(strength) - 1


@given(st.permutations(range(7)))
def test_pivots_find_the_strongest_in_n_games_each(strength):
    state = begun(Tournament(n=7, rounds="pivots", pivots=7))
    hear_all(state, [candidate(str(s)) for s in strength])
    assert played(state, strength) == 21
    assert state.decide().winners == (strength.index(6) + 1,)
    few = begun(Tournament(n=7, rounds="pivots", pivots=2))
    hear_all(few, [candidate(str(s)) for s in strength])
    assert played(few, strength) == 6 + 5


# --- what cannot be -----------------------------------------------------------------------------


async def later(*candidates):
    return 1.0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: BestOf(3), "takes a function of a Candidate, not 3"),
        (lambda: BestOf(len, n=0), r"BestOf\(n=...\) is an int of at least 1, not 0"),
        (lambda: BestOf(len, n=True), "at least 1, not True"),
        (lambda: BestOf(len, stop="soon", cost=1), "not 'soon'"),
        (lambda: BestOf(len, stop="expected-improvement"), "needs cost="),
        (lambda: BestOf(len, cost=0.1), "cost is for nothing else"),
        (lambda: BestOf(len, stop="expected-improvement", cost=-1), "a positive number, not -1"),
        (lambda: BestOf(len, highest=1), "is for stop='expected-improvement'"),
        (lambda: Vote("key"), "function of a Candidate, not 'key'"),
        (lambda: Vote(n=-2), "not -2"),
        (lambda: Vote(confidence=95), "lies between 0.5 and 1"),
        (lambda: Collect(0), "Collect"),
        (lambda: Collect(2, distinct="text"), "not 'text'"),
        (lambda: Consensus(5), "two Candidates, not 5"),
        (lambda: Tournament("gpt"), "a backend that compares, not 'gpt'"),
        (lambda: Tournament(rounds="swiss"), "not 'swiss'"),
        (lambda: Tournament(pivots=0), "not 0"),
        (lambda: Tournament(pivots=1.5), "not 1.5"),
        (lambda: BestOf(later, inline=True), "takes no async score"),
        (lambda: BestOf(len, threshold=float("nan")), "threshold is finite"),
        (lambda: BestOf(len, threshold="high"), "threshold is a number"),
        (lambda: Vote(later), "is a synchronous function"),
        (lambda: Collect(2, distinct=later), "is a synchronous function"),
        (lambda: Consensus(later), "is a synchronous function"),
        (lambda: Tournament(type), "a backend that compares"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(make, says):
    with pytest.raises((TypeError, ValueError), match=says):
        make()
