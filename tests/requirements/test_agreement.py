"""Agreement: a judge measured against people's labels, and against itself."""

from __future__ import annotations

import json
import math
from operator import mul
from statistics import NormalDist

import pytest

from mellea_like import Budget, FunctionBackend, Generation, LimitExceeded, judge_score
from mellea_like.agreement import (
    Decisions,
    Labelled,
    LabelledPair,
    agreement,
    comparison_agreement,
    score_agreement,
)
from mellea_like.agreement.statistics import best_threshold, ranking
from mellea_like.core import Usage
from mellea_like.errors import AuthenticationFailed, InvalidRequest

pytestmark = pytest.mark.anyio


UNREADABLE = ["I can't say.", "Both are fine.", "?"]


def judge_that(decide, *, key="passed") -> FunctionBackend:
    """A judge that decides on the text of the question."""

    async def answer(request):
        said = decide(request.messages[-1].text)
        if said in UNREADABLE:
            return said
        reply = json.dumps({"reason": "as it says", key: said} if key != "better" else {key: said})
        return Generation(reply, usage=Usage(1, 10, 5))

    return FunctionBackend(answer, can_judge=True)


def text_of(question, tag="text"):
    return question.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]


ROWS = [
    Labelled("Sorry, it is on its way.", True, "Where is my parcel?"),
    Labelled("I am sorry.", True, "Where is my parcel?"),
    Labelled("We apologise.", True, "Where is my parcel?"),
    Labelled("Not our fault.", False, "Where is my parcel?"),
    Labelled("Sorry is for others.", False, "Where is my parcel?"),
]
says_sorry = judge_that(lambda q: "orry" in text_of(q))


@pytest.mark.allow_blocking  # scikit-learn imports much.
async def test_a_judge_is_measured_against_labels():
    seen = []
    judge = judge_that(lambda q: seen.append(q) or "orry" in text_of(q))
    report = await agreement(ROWS, "It apologises.", judges=judge)
    [(name, found)] = report.judges.items()
    assert (name, report.panel) == ("judge", None)
    assert found.decisions == Decisions(2, 1, 1, 1)
    assert found.accuracy.value == 3 / 5
    assert found.wrong_passes.value == 1 / 2
    assert found.wrong_failures.value == 1 / 3
    assert found.wrong == (2, 4)
    assert found.kappa.value == pytest.approx((3 / 5 - 13 / 25) / (1 - 13 / 25))
    assert found.self_agreement is None
    assert report.usage.requests == 5
    assert all("Where is my parcel?" in question for question in seen)
    assert "It apologises." in seen[0]


@pytest.mark.allow_blocking  # scikit-learn imports much.
async def test_a_panel_is_the_majority_of_its_votes():
    judges = {
        "yes": judge_that(lambda q: True),
        "no": judge_that(lambda q: False),
        "sorry": says_sorry,
    }
    report = await agreement(ROWS, "It apologises.", judges=judges)
    assert report.panel.decisions == report.judges["sorry"].decisions
    assert report.judges["yes"].decisions == Decisions(3, 2, 0, 0)
    assert report.judges["yes"].kappa.value == 0
    assert report.usage.requests == 15

    tied = await agreement(ROWS, "It apologises.", judges={k: judges[k] for k in ("yes", "no")})
    assert (tied.panel.undecided, tied.panel.accuracy) == (5, None)


async def test_a_judge_without_a_verdict_is_undecided_and_the_others_count():
    silent = judge_that(lambda q: "I can't say." if "fault" in text_of(q) else True)
    report = await agreement(ROWS, "It apologises.", judges={"silent": silent, "sorry": says_sorry})
    assert report.judges["silent"].undecided == 1
    assert "I can't say." in report.judges["silent"].why_undecided
    assert report.judges["sorry"].why_undecided is None
    assert report.judges["silent"].decisions.count == 4
    assert report.judges["sorry"].decisions.count == 5


async def test_an_empty_reply_fails_without_a_question():
    report = await agreement([Labelled("", False), *ROWS[:1]], "x", judges=says_sorry)
    assert report.judges["judge"].decisions == Decisions(1, 0, 0, 1)
    assert report.usage.requests == 1


async def test_a_judge_is_measured_against_itself():
    asked = {}

    def fickle(question):
        text = text_of(question)
        asked[text] = asked.get(text, 0) + 1
        return "fault" not in text or asked[text] % 2 == 1

    report = await agreement(ROWS, "x", judges=judge_that(fickle), repeats=3, concurrency=1)
    itself = report.judges["judge"].self_agreement
    assert itself.value == pytest.approx((4 + 1 / 3) / 5)
    assert itself.count == 5
    assert report.judges["judge"].decisions.count == 5  # The first draws alone.
    assert report.usage.requests == 15


async def test_progress_and_a_budget():
    done = []
    await agreement(ROWS, "x", judges=says_sorry, on_row=lambda: done.append(1))
    assert len(done) == 5
    with pytest.raises(LimitExceeded):
        await agreement(ROWS, "x", judges=says_sorry, budget=Budget(requests=3), concurrency=1)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"labelled": []}, ValueError, "needs rows: at least one"),
        ({"labelled": ["text"]}, TypeError, r"each row must be a Labelled\(...\), not 'text'"),
        ({"judges": {}}, ValueError, "at least one judge"),
        ({"judges": {"a": "gpt"}}, TypeError, "judges must be backends"),
        ({"judges": ["gpt"]}, TypeError, "several backends by name, not"),
        ({"repeats": 0}, ValueError, "repeats"),
        ({"confidence": 1}, ValueError, "confidence"),
    ],
)
async def test_wrong_arguments(change, error, words):
    given = {"labelled": ROWS, "requirement": "x", "judges": says_sorry, **change}
    with pytest.raises(error, match=words):
        await agreement(given.pop("labelled"), given.pop("requirement"), **given)


def refusing(asked) -> FunctionBackend:
    """A judge whose server refuses the key; it counts its requests in a list."""

    def answer(request):
        asked.append(request)
        raise AuthenticationFailed("wrong key")

    return FunctionBackend(answer, can_judge=True, inline=True)


@pytest.mark.parametrize(
    "measure",
    [
        lambda judge: agreement(ROWS, "x", judges=judge, concurrency=1),
        lambda judge: score_agreement(ROWS, judge_score("x", judge=judge), concurrency=1),
        lambda judge: comparison_agreement(PAIRS, judge=judge, concurrency=1),
    ],
    ids=["verdicts", "scores", "comparisons"],
)
async def test_a_key_that_is_refused_ends_the_measurement_at_the_first_row(measure):
    with pytest.raises(AuthenticationFailed, match="wrong key"):
        await measure(refusing(asked := []))
    assert len(asked) == 1


# --- comparisons

PAIRS = [
    LabelledPair("good", "bad", "first", "Where?"),
    LabelledPair("bad", "good", "second"),
    LabelledPair("good", "good too", "neither"),
]


async def test_a_fair_judge_has_no_preference_for_a_position():
    def fair(question):
        a, b = ("good" in text_of(question, tag) for tag in "ab")
        return "neither" if a == b else "a" if a else "b"

    report = await comparison_agreement(PAIRS, judge=judge_that(fair, key="better"))
    assert report.accuracy.value == report.consistent.value == 1
    assert report.prefers_first is None
    assert report.usage.requests == 6


@pytest.mark.parametrize(("always", "share"), [("a", 1.0), ("b", 0.0)])
async def test_a_judge_that_prefers_a_position_is_found_out(always, share):
    judge = judge_that(lambda q: always, key="better")
    report = await comparison_agreement(PAIRS, judge=judge)
    assert report.consistent.value == 0
    assert report.prefers_first.value == share
    assert report.accuracy.value == 1 / 3  # Contradictions count as "neither".


async def test_an_unreadable_comparison_is_asked_once_more_and_then_left_out():
    asked = []
    judge = judge_that(lambda q: asked.append(q) or "Both are fine.", key="better")
    report = await comparison_agreement(PAIRS[:1], judge=judge)
    assert (report.undecided, report.accuracy, report.consistent) == (1, None, None)
    assert len(asked) == 4
    assert "Both are fine." in report.why_undecided
    with pytest.raises(ValueError, match="at least one LabelledPair"):
        await comparison_agreement([], judge=judge)


async def test_comparisons_that_failed_have_a_cost_too():
    def answer(request):
        request.meter.start().settle(input_tokens=10, output_tokens=1)
        raise InvalidRequest("too long")

    report = await comparison_agreement(PAIRS[:1], judge=FunctionBackend(answer, inline=True))
    assert (report.undecided, report.usage) == (1, Usage(2, 20, 2))


# --- scores


async def test_scores_have_a_threshold_tested_on_other_rows():
    rows = [Labelled(f"reply {i}", i >= 12, "Where?") for i in range(20)]
    judge = judge_that(lambda q: int(text_of(q, "answer").split()[1]) / 2, key="score")
    report = await score_agreement(rows, judge_score("Is it late?", judge=judge, scale=(0, 10)))
    assert report.scores[:3] == (0, 0.5, 1)
    assert report.ranking == 1
    assert report.threshold == (11 / 2 + 12 / 2) / 2
    # Without row 11, the bar is between rows 10 and 12: on row 11, it decides wrongly.
    assert report.decisions == Decisions(8, 1, 0, 11)
    assert (report.undecided, report.usage.requests) == (0, 20)


async def test_every_scorer_of_a_best_of_can_be_measured():
    rows = [Labelled(f"reply {i}", i >= 2) for i in range(4)]

    def plain(candidate):
        return int(candidate.text[-1])

    async def alone(candidate):  # As a reward model does, it gives no reason.
        return plain(candidate)

    async def reasoned(candidate):
        return plain(candidate), "so"

    for scorer in (plain, alone, reasoned):
        report = await score_agreement(iter(rows), scorer)
        assert (report.scores, report.undecided, report.threshold) == ((0, 1, 2, 3), 0, 1.5)
    with pytest.raises(TypeError, match="needs a function of a Candidate, not None"):
        await score_agreement(rows, None)
    with pytest.raises(TypeError, match="must be a Labelled"):
        await score_agreement(["reply 1"], plain)


async def test_a_row_without_a_score_is_left_out():
    rows = [Labelled(f"reply {i}", i >= 2) for i in range(4)]
    judge = judge_that(lambda q: "?" if "reply 3" in q else 5, key="score")
    report = await score_agreement(rows, judge_score("x", judge=judge))
    assert report.scores == (5, 5, 5, None)
    assert report.undecided == 1
    assert report.why_undecided.startswith("requirement 'has a score' could not be decided: ")
    assert "JSON" in report.why_undecided
    assert report.ranking == 0.5


# --- statistics


def test_kappa_of_perfect_agreement_has_a_width():
    few, many = (Decisions(n, 0, 0, n).kappa for n in (5, 500))
    assert few.value == many.value == few.high == 1
    assert few.low < 0.75
    assert many.low > 0.98


@pytest.mark.parametrize("cells", [(9, 0, 0, 0), (0, 0, 0, 9), (0, 0, 0, 0)])
def test_kappa_is_unknown_if_all_have_one_label(cells):
    assert Decisions(*cells).kappa is None


def test_one_label_has_no_ranking_and_no_threshold():
    assert ranking([1, 2], [True, True]) is None
    assert best_threshold([1, 2], [True, True]) is None


async def test_decisions_are_made_of_all_rows_even_if_one_label_comes_at_each_tenth():
    rows = [Labelled(f"reply {i}", i % 10 > 0) for i in range(100)]
    right = {row.reply: float(row.label) for row in rows}

    async def score(candidate):
        return right[candidate.text], "so"

    report = await score_agreement(rows, score)
    both = report.decisions
    assert (both.both_passed, both.both_failed) == (90, 10)
    assert both.accuracy.value == 1


def test_scores_that_are_the_wrong_way_round_pass_nothing():
    assert best_threshold([1, 2, 3, 4], [True, True, False, False]) == math.inf


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize(
    "cells", [(4500, 900, 600, 4000), (8000, 300, 900, 800), (500, 4000, 3500, 2000)]
)
def test_the_interval_of_kappa_is_that_of_its_standard_error_if_there_are_many_rows(
    cells, confidence
):
    """The standard error is that of Fleiss, Cohen and Everitt, Psychological Bulletin 72, 1969."""
    found = Decisions(*cells, confidence=confidence).kappa
    n = sum(cells)
    a, b, c, d = (cell / n for cell in cells)
    judged, labelled = (a + b, c + d), (a + c, b + d)
    by_chance = sum(map(mul, judged, labelled))
    kappa = (a + d - by_chance) / (1 - by_chance)
    apart = 1 - kappa
    variance = (
        sum(share * (1 - (judged[i] + labelled[i]) * apart) ** 2 for i, share in enumerate((a, d)))
        + apart**2 * (b * (labelled[0] + judged[1]) ** 2 + c * (labelled[1] + judged[0]) ** 2)
        - (kappa - by_chance * apart) ** 2
    ) / (n * (1 - by_chance) ** 2)
    half = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(variance)
    assert found.value == pytest.approx(kappa)
    assert (found.low, found.high) == pytest.approx((kappa - half, kappa + half), abs=0.04 * half)


async def test_scores_that_are_no_numbers_are_undecided():
    given = iter([9.0, math.nan, "8", 2.0, 8.0, 3.0])

    async def score(candidate):
        return next(given), "so"

    rows = [Labelled(f"reply {i}", label) for i, label in enumerate([True, True, True, False])]
    rows += [Labelled("good", True), Labelled("bad", False)]
    report = await score_agreement(rows, score, concurrency=1)
    assert report.scores == (9.0, None, None, 2.0, 8.0, 3.0)
    assert (report.undecided, report.threshold, report.ranking) == (2, 5.5, 1.0)
    assert "a scorer returned NaN" in report.why_undecided


def test_one_error_among_thousands_is_not_written_as_none():
    nearly, hardly = Decisions(2999, 0, 1, 0), Decisions(0, 1, 0, 2999)
    assert str(nearly.accuracy) == "> 0.999 (0.998 to > 0.999, n = 3000)"
    assert str(hardly.wrong_passes) == "< 0.001 (< 0.001 to 0.002, n = 3000)"
    assert str(Decisions(3, 0, 0, 0).accuracy) == "1.000 (0.439 to 1.000, n = 3)"


def test_labels_that_are_no_labels_are_refused():
    with pytest.raises(TypeError, match="a label must be True or False, not 'no'"):
        Labelled("good", "no")
    with pytest.raises(
        ValueError, match="better must be 'first', 'second', 'neither' or None, not 'a'"
    ):
        LabelledPair("good", "bad", "a")
