"""The replies and pairs that an export chooses from an item's record."""

from __future__ import annotations

from itertools import product

import pytest
from export_kit import item_of

from mellea_like.core.decision import Answer
from mellea_like.export.example_selection import ExampleRules, ItemExamples
from mellea_like.report.views import ItemView

GOOD = [{"text": "a good one"}, {"text": "short"}, {"text": "the third"}]
BAD = [{"text": "nearly", "met": 0.75}, {"text": "hopeless", "met": 0.25}]


def examples(item, how):
    return ItemExamples(ItemView(item), how)


def texts(found):
    return found if isinstance(found, str) else [draw.text for draw, _ in found]


def pairs(found):
    return found if isinstance(found, str) else [(p.chosen.text, p.rejected.text) for p in found]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, ["a good one"]),
        ({"max_per_item": 2}, ["a good one", "short"]),
        ({"max_per_item": 9}, ["a good one", "short", "the third"]),
        ({"select": "shortest"}, ["short"]),
        ({"select": "shortest", "max_per_item": 2}, ["short", "the third"]),
    ],
)
def test_by_default_the_winner_is_kept_and_else_what_was_asked_for(how, expected):
    item = item_of(*BAD, *GOOD)
    assert texts(examples(item, ExampleRules(**how)).kept()) == expected
    all_won = item_of(*GOOD, won=(3, 1), kind="collect")
    assert texts(examples(all_won, ExampleRules()).kept()) == ["the third", "a good one"]


def test_chance_depends_on_the_seed_and_the_item_alone():
    several = [item_of(*GOOD, position=n) for n in range(30)]
    how = ExampleRules(select="random", seed=7)
    chosen = [texts(examples(item, how).kept())[0] for item in several]
    assert len(set(chosen)) == 3
    assert [texts(examples(item, how).kept())[0] for item in several[::-1]] == chosen[::-1]
    how = ExampleRules(select="random", seed=8)
    assert [texts(examples(item, how).kept())[0] for item in several] != chosen


@pytest.mark.parametrize(
    ("draws", "how", "expected"),
    [
        ([*BAD, *GOOD], {}, [("a good one", "hopeless")]),
        ([*BAD, *GOOD], {"select": "shortest"}, [("short", "hopeless")]),
        (
            [*BAD, *GOOD[:1]],
            {"pairs": "all"},
            [("a good one", "hopeless"), ("a good one", "nearly")],
        ),
        ([*BAD, *GOOD], {"pairs": "all", "max_per_item": 1}, [("a good one", "hopeless")]),
        (
            [*BAD, *GOOD],
            {"pairs": "all", "min_margin": 0.5, "select": "shortest"},
            [("short", "hopeless"), ("the third", "hopeless"), ("a good one", "hopeless")],
        ),
        ([*BAD, *GOOD], {"min_margin": 0.8}, "the margin is too small"),
        (BAD, {}, "no reply passed"),
        (GOOD, {}, "no reply to prefer it to"),
        # Said twice, and judged differently: neither is better than itself.
        ([{"text": "same"}, {"text": "same", "met": 0.5}], {}, "no reply to prefer it to"),
        # Closed while it arrived: nobody knows what it would have been.
        ([GOOD[0], {**BAD[0], "finish_reason": "rejected"}], {}, "no reply to prefer it to"),
        ([GOOD[0], {"text": "", "met": 0.0}], {}, "no reply to prefer it to"),
    ],
)
def test_a_reply_that_passed_is_paired_with_a_worse_one(draws, how, expected):
    assert pairs(examples(item_of(*draws), ExampleRules(**how)).paired()) == expected


def test_where_none_failed_scores_say_what_is_worse():
    item = item_of(*GOOD, won=(2,), scores={1: 0.5, 2: 3.0, 3: 0.1})
    assert pairs(examples(item, ExampleRules()).paired()) == [("short", "the third")]
    wide = examples(item, ExampleRules(pairs="all", min_margin=2.5)).paired()
    assert [(p.rejected.text, round(p.margin, 3)) for p in wide] == [
        ("the third", 2.9),
        ("a good one", 2.5),
    ]


def test_a_vote_says_which_answers_are_worse():
    item = item_of(
        *GOOD, won=(1,), kind="vote", answers=(Answer("x", 2.0, (1, 3)), Answer("x", 1.0, (2,)))
    )
    assert pairs(examples(item, ExampleRules()).paired()) == [("a good one", "short")]
    assert texts(examples(item, ExampleRules(max_per_item=2)).kept()) == [
        "a good one",
        "the third",
    ]


def test_one_pair_is_the_best_with_any_that_is_worse():
    rules = [ExampleRules(pairs="one", seed=seed) for seed in range(20)]
    item = item_of(*BAD, *GOOD)
    found = {pair for how in rules for pair in pairs(examples(item, how).paired())}
    assert found == {("a good one", "nearly"), ("a good one", "hopeless")}


def test_random_replies_are_any_of_either_kind():
    rules = [
        ExampleRules(pairs="all", select="random", max_per_item=1, seed=seed) for seed in range(40)
    ]
    chosen = [examples(item_of(*BAD, *GOOD), how) for how in rules]
    good, bad = ({d["text"] for d in kind} for kind in (GOOD, BAD))
    assert {d.text for one in chosen for d, _ in one.labelled()} == good | bad
    assert {pair for one in chosen for pair in pairs(one.paired())} == set(product(good, bad))


def test_labels_are_for_replies_of_both_kinds_the_worst_failure_first():
    both = examples(item_of(*BAD, *GOOD), ExampleRules(max_per_item=1))
    assert [(d.text, d.record.passed) for d, _ in both.labelled()] == [
        ("a good one", True),
        ("hopeless", False),
    ]


def test_with_repairs_kept_only_replies_to_the_same_prompt_are_paired():
    item = item_of(
        {"text": "first", "met": 0.5},
        {"text": "second", "met": 0.6, "depth": 1, "prompt": 2},
        {"text": "mended", "depth": 1, "prompt": 2},
    )
    item["trace"]["prompts"].append([{"role": "user", "content": "Mend it."}])
    together = examples(item, ExampleRules(pairs="all")).paired()
    assert pairs(together) == [("mended", "first"), ("mended", "second")]
    assert {pair.prompt[0]["content"] for pair in together} == {"Say a word."}
    apart = examples(item, ExampleRules(pairs="all", keep_repairs=True)).paired()
    assert [(p.rejected.text, p.prompt[0]["content"]) for p in apart] == [("second", "Mend it.")]


def test_a_reply_whose_prompt_is_not_kept_is_not_used():
    item = item_of({"text": "first", "met": 0.5}, {"text": "mended", "depth": 1, "prompt": 2})
    item["trace"]["prompts"] = [[], [], [{"role": "user", "content": "Mend it."}]]
    assert examples(item, ExampleRules()).kept() == "the prompt is not kept"
    assert examples(item, ExampleRules()).paired() == "the prompt is not kept"
    assert texts(examples(item, ExampleRules(keep_repairs=True)).kept()) == ["mended"]
    unfinished = {**item, "trace": None, "status": "unfinished"}
    assert examples(unfinished, ExampleRules()).paired() == "not finished"
    errored = {**unfinished, "status": "errored"}
    assert examples(errored, ExampleRules()).paired() == "ended in an error"
