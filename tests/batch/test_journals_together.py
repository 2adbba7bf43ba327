"""Two journals that are read as one run: the later run sampled the failed rows again."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial

import anyio
import pytest
from batch_kit import results_of

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.backends import FunctionBackend
from mellea_like.estimate import plan
from mellea_like.export import Run, export

GOOD = Requirement("is good", lambda c: c.text == "good", inline=True)


def sampled(path, items, replies, *, again=False, checked=True):
    """Sample items with one reply each; return the journal's path."""
    left = iter(replies)
    strategy = RejectionSamplingStrategy(
        FunctionBackend(lambda _: next(left)),
        loop_budget=2,
        concurrency_budget=1,
        requirements=[GOOD] if checked else [],
    )
    settings = {"again": True} if again else {}
    anyio.run(partial(results_of, strategy, items, concurrency=1, journal=path, settings=settings))
    return path


@pytest.fixture
def first(tmp_path):
    # The same row twice: of these, one passes.
    return sampled(tmp_path / "1.db", ["a", "b", "a"], ["bad", "worse", "no", "no", "good"])


def test_an_item_has_the_draws_of_both_runs_and_the_result_of_the_later(first, tmp_path):
    second = sampled(tmp_path / "2.db", ["a", "b"], ["hm", "good", "no", "never"], again=True)
    run = Run(first, second)
    assert run.facts["counts"] == {"passed": 2, "failed": 1, "errored": 0, "unfinished": 0}
    items = list(run.items())
    assert [(i["journal"], i["id"], i["status"], i["attempts"]) for i in items] == [
        ("1.db", 0, "passed", 2),
        ("1.db", 1, "failed", 2),
        ("1.db", 2, "passed", 1),
    ]
    trace = items[0]["trace"]
    assert [s["text"] for s in trace["slices"]] == ["bad", "worse", "hm", "good"]
    assert trace["slices"][trace["best_index"]]["text"] == "good"
    assert len({s["iteration"] for s in trace["slices"]}) == 4
    assert items[0]["usage"]["requests"] == trace["usage"]["requests"] == 4
    assert plan([first, second]).draws == 9
    made = export([first, second], tmp_path / "pairs.jsonl", format="dpo", pairs="all")
    assert made.rows == 3, "the draws that failed in the first run are rejected replies"


def test_draws_under_another_prompt_stay_apart_and_their_cost_counts(first, tmp_path):
    second = sampled(tmp_path / "2.db", ["b"], ["other"], again=True, checked=False)
    items = list(Run(first, second).items())
    assert [item["status"] for item in items] == ["failed", "passed", "passed"]
    assert [s["text"] for s in items[1]["trace"]["slices"]] == ["other"]
    assert items[1]["usage"]["requests"] == 3


def test_an_item_that_is_being_asked_again_is_what_it_was(first, tmp_path):
    second = sampled(tmp_path / "2.db", ["a", "b"], ["good", "good"], again=True)
    with closing(sqlite3.connect(second)) as connection, connection:
        connection.execute("DELETE FROM results WHERE item = 1")
    run = Run(first, second)
    assert run.facts["counts"] == {"passed": 2, "failed": 1, "errored": 0, "unfinished": 0}
    assert [item["status"] for item in run.items()] == ["passed", "failed", "passed"]


def test_runs_over_the_same_items_that_do_not_ask_again_are_apart(first, tmp_path):
    second = sampled(tmp_path / "2.db", ["a", "b"], ["good", "good"])
    assert len(list(Run(first, second).items())) == 5
