"""Selections as pure states: fed with slices, asked for what they decided."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial

import anyio
import pytest
from engine_kit import a_slice, candidate
from hypothesis import given
from hypothesis import strategies as st

from mellea_like import Outcome
from mellea_like.core.decision import Answer
from mellea_like.selections import (
    BestOf,
    Collect,
    Consensus,
    SelectionFacts,
    SelectionState,
    Tournament,
    Vote,
    word_overlap,
)

P, F, E, C = Outcome.PASSED, Outcome.FAILED, Outcome.ERRORED, Outcome.CANCELLED


def begun(selection, turns=16):
    return selection.begin(SelectionFacts(turns))


def hear_all(state, marks, *, until_decided=True):
    """Let it hear a slice for each mark, None for a failed one; return how many it took."""
    for number, mark in enumerate(marks, 1):
        outcome = F if mark is None else P
        if state.hear(a_slice(iteration=number, outcome=outcome), mark) and until_decided:
            return number
    return len(marks)


@pytest.mark.parametrize("kind", [Consensus, Tournament, Vote, partial(BestOf, len)])
def test_without_n_as_many_draws_are_wanted_as_the_call_may_make(kind):
    assert begun(kind(n=None), turns=40).wanted() == 40


def test_what_did_not_pass_is_an_abstention_but_for_the_cancelled():
    state = begun(BestOf(len))
    for number, outcome in enumerate((F, E, C, P), 1):
        state.hear(a_slice(iteration=number, outcome=outcome), (1.0, "") if outcome is P else None)
    decision = state.decide()
    assert decision.abstentions == 2
    assert decision.winners == (4,)


@pytest.mark.parametrize("name", ["start", "hear", "wanted", "enough", "decide"])
def test_a_step_of_a_selection_that_nobody_would_await_is_refused_with_its_class(name):
    async def step(self, *arguments):
        return ""

    with pytest.raises(TypeError, match=rf"Own\.{name} can't be async: only settle may wait"):
        type("Own", (SelectionState,), {name: step})


# --- the best of n ------------------------------------------------------------------------------


@given(st.lists(st.none() | st.integers(0, 5).map(float), max_size=12), st.integers(1, 12))
def test_the_best_has_the_highest_score_and_of_equal_ones_the_lowest_rank(scores, n):
    state = begun(BestOf(len, n=n))
    took = hear_all(state, [None if s is None else (s, "") for s in scores])
    heard = [(s, -i) for i, s in enumerate(scores[:took], 1) if s is not None]
    assert len(heard) <= n
    assert took == len(scores) or len(heard) == n
    if heard:
        assert state.decide().winners == (-max(heard)[1],)


def test_a_score_at_the_threshold_ends_it_and_its_note_is_kept():
    state = begun(BestOf(len, threshold=0.9))
    assert hear_all(state, [(0.5, "short"), (0.9, "long"), (1.0, "")]) == 2
    decision = state.decide()
    assert decision.winners == (2,)
    assert decision.reason == "a score of 0.9 reaches 0.9"
    assert decision.notes == {1: "short", 2: "long"}
    assert decision.scores == {1: 0.5, 2: 0.9}


# --- votes --------------------------------------------------------------------------------------


@given(st.lists(st.none() | st.sampled_from("abcd"), min_size=1, max_size=12))
def test_a_certain_vote_gives_what_all_votes_would_have(keys):
    """Whatever the votes were that it did not wait for."""
    state = begun(Vote(n=12, confidence=None), turns=len(keys))
    took = hear_all(state, [None if k is None else (k, 1.0) for k in keys])
    counts = Counter(k for k in keys if k is not None)
    if not counts:
        return
    decision = state.decide()
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
        answers = (Answer("b", 2, (1, 4)), Answer("a", 2, (2, 3)))
        assert state.decide().answers == state.decide().tied == answers
        assert state.decide().share == 0.5


# --- several ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "similarity", "quick"),
    [
        (["a b c"] * 4, word_overlap, True),
        (["a b c " * 20] * 4, word_overlap, True),
        (["a b c " * 200] * 2, word_overlap, False),
        (["a"] * 15, word_overlap, True),
        (["a"] * 40, word_overlap, False),
        (["a b c"] * 4, partial(word_overlap), False),  # Nobody knows how long it takes.
    ],
)
def test_only_few_short_texts_are_compared_on_the_event_loop(texts, similarity, quick):
    state = begun(Consensus(similarity, n=len(texts)), len(texts))
    hear_all(state, [candidate(text) for text in texts])
    assert state.quick is quick


# --- tournaments --------------------------------------------------------------------------------


class Played:
    """Comparisons of which the stronger draw wins."""

    halted = False

    def __init__(self, strength):
        self._strength = strength
        self.games = 0

    async def compare(self, pairs, criterion, judge):
        self.games += len(pairs)
        return {(a, b): float(self._strength[a] > self._strength[b]) for a, b in pairs}


def played(state, strength):
    """Play all comparisons, the stronger of two winning; return how many there were."""
    comparisons = Played(strength)
    anyio.run(state.settle, comparisons)
    return comparisons.games


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
    # Of those that beat both pivots, the first wins, although a pivot may have won more games.
    pivot = max(strength[:2])
    best = next((other for other in strength[2:] if other > pivot), pivot)
    assert few.decide().winners == (strength.index(best) + 1,)


# --- what cannot be -----------------------------------------------------------------------------


async def later(*candidates):
    return 1.0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: BestOf(3), "score must be a function of a Candidate, not 3"),
        (lambda: BestOf(len, n=0), "BestOf: n must be at least 1, not 0"),
        (lambda: BestOf(len, n=True), "n must be an integer, not True"),
        (lambda: Vote("key"), "function of a Candidate, not 'key'"),
        (lambda: Vote(n=-2), "not -2"),
        (lambda: Vote(confidence=95), "must be at least 0.5 and less than 1, not 95"),
        (lambda: Vote(confidence="high"), "must be a number, not 'high'"),
        (lambda: Collect(0), "Collect: k must be at least 1, not 0"),
        (lambda: Collect(None), "k must be an integer, not None"),
        (lambda: Collect(2, ahead=0), "ahead must be at least 1, not 0"),
        (lambda: Collect(2, ahead=1.5), "ahead must be an integer, not 1.5"),
        (lambda: Collect(2, distinct="text"), "not 'text'"),
        (lambda: Consensus(5), "two Candidates, not 5"),
        (lambda: Consensus(n=0), "Consensus: n must be at least 1, not 0"),
        (lambda: Tournament(n="8"), "Tournament: n must be an integer, not '8'"),
        (lambda: Tournament("gpt"), "must be a backend, .*not 'gpt'"),
        (lambda: Tournament(rounds="swiss"), "not 'swiss'"),
        (lambda: Tournament(pivots=0), "not 0"),
        (lambda: Tournament(pivots=1.5), "not 1.5"),
        (lambda: BestOf(later, inline=True), "needs a synchronous score function"),
        (lambda: BestOf(len, threshold=float("nan")), "threshold must be finite"),
        (lambda: BestOf(len, threshold="high"), "threshold must be a number"),
        (lambda: Vote(later), "must be a synchronous function"),
        (lambda: Collect(2, distinct=later), "must be a synchronous function"),
        (lambda: Consensus(later), "must be a synchronous function"),
        (lambda: Tournament(type), "must be a backend"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(make, says):
    with pytest.raises((TypeError, ValueError), match=says):
        make()
