"""The grammar of selections in configuration."""

from __future__ import annotations

import re

import pytest
from engine_kit import after, by_iteration, votes_of

from mellea_like import BestOf, Collect, RejectionSamplingStrategy, Vote
from mellea_like.backends import ScriptedBackend
from mellea_like.batch.journal.identity import identity_of
from mellea_like.errors import RequirementError
from mellea_like.selections import Consensus, Tournament
from mellea_like.specification.selection_expressions import SELECTIONS, parse_selection

JUDGE = ScriptedBackend(["x"])


@pytest.mark.parametrize(
    ("text", "n", "kind", "values"),
    [
        ("best:length", 4, BestOf, {"n": 4, "inline": True}),
        ("best:-words", None, BestOf, {"n": None}),
        (" BEST : json:offer.price", 20, BestOf, {"n": 6}),
        ("best:judge: Is it: kind?", 2, BestOf, {"n": 2, "inline": False}),
        ("vote", None, Vote, {"n": 6, "key": None}),
        ("vote:lower", 5, Vote, {"n": 5}),
        ("collect:3", None, Collect, {"k": 3, "distinct": None}),
        ("collect:3:json:a.b", None, Collect, {"k": 3}),
        ("consensus", None, Consensus, {"n": 6}),
        ("Consensus", 2, Consensus, {"n": 2}),
        ("tournament", 4, Tournament, {"n": 4, "judge": None}),
        ("tournament", None, Tournament, {"n": 6}),
    ],
)
def test_a_selection_is_a_name_and_what_it_goes_by(text, n, kind, values):
    selection = parse_selection(text, n).make(JUDGE, turns=6)
    assert type(selection) is kind
    assert {name: getattr(selection, name) for name in values} == values
    largest = {Vote: 16, Consensus: 8, Tournament: 8}  # As many as Python takes, without an n.
    if n is None and kind in largest:
        assert parse_selection(text).make(JUDGE, 100).n == largest[kind]


@pytest.mark.parametrize(
    "text",
    [
        *("bst:length", "", "best", "best:", "vote:", "first:2", "collect", "best:size"),
        *("best:-judge", "best:json:", "best:json:a..b", "best:length:2", "best:judge:"),
        *("vote:upper", "collect:x", "collect:0", "collect:2:", "collect:2:upper", "collect:lower"),
    ],
)
def test_what_is_no_selection_is_told_what_is_one(text):
    with pytest.raises(ValueError, match=r"^select '.*' isn't one of the known") as caught:
        parse_selection(text)
    for written in (f"Allowed: {'  '.join(SELECTIONS)}", "SCORE: length  words", "KEY: text"):
        assert written in str(caught.value)


@pytest.mark.parametrize("text", ["collect:3", "ordered"])
def test_only_some_selections_take_a_number(text):
    with pytest.raises(ValueError, match=r"^n is for best, vote, consensus, tournament, not for "):
        parse_selection(text, 3)


def test_whether_a_judge_is_asked_is_known_beforehand():
    judged = ["best:judge", "best:judge:Is it kind?", "tournament"]
    others = ["first", "vote:text", "best:length", "best:json:judge"]
    assert all(parse_selection(text).judged for text in judged)
    assert not any(parse_selection(text).judged for text in others)


def test_selections_that_differ_make_runs_that_differ():
    texts = ["best:words", "best:-words", "vote:text", "vote:lower", "best:judge", "best:judge:A?"]

    def identity(text):
        selection = parse_selection(text).make(JUDGE, 3)
        return str(identity_of(RejectionSamplingStrategy(JUDGE, selection=selection)))

    assert len({identity(text) for text in texts}) == len(texts)
    assert identity("best:words") == identity("best:words")


async def chosen(text, *replies, judge=None):
    backend = by_iteration({i: after(i, reply) for i, reply in enumerate(replies, 1)})
    selection = parse_selection(text).make(judge or JUDGE, len(replies))
    strategy = RejectionSamplingStrategy(
        backend, concurrency_budget=len(replies), loop_budget=1, selection=selection
    )
    return await strategy.sample("do")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("text", "replies", "winner", "seen"),
    [
        ("best:length", ["a b c", " abcdefg ", "ab"], 2, {1: 5.0, 2: 7.0, 3: 2.0}),
        ("best:-words", ["a b", "abcdef", "a b c"], 2, {1: -2.0, 2: -1.0, 3: -3.0}),
        ("best:json:a.1.b", ['{"a": [0, {"b": 2}]}', '```\n{"a": [0, {"b": 3.5}]}\n```'], 2, None),
        ("best:-json:a", ['{"a": 2}', '{"a": -1}'], 2, {1: -2.0, 2: 1.0}),
        ("vote:lower", ["No", "yes", "YES "], 2, {"yes": 2.0, "no": 1.0}),
        ("vote:text", ["No", " yes", "YES", "No"], 1, {"No": 2.0, "yes": 1.0, "YES": 1.0}),
        ("vote:json:a", ['{"a": 2}', '{"a": 1, "b": 0}', '{"a": 1}'], 2, {"1": 2.0, "2": 1.0}),
        ("vote:json:a", ['{"a": null}', '{"a": 1.0}', '{"a": 1}', '{"a": null}'], 2, {"1.0": 2.0}),
    ],
)
async def test_scores_and_keys_in_a_call(text, replies, winner, seen, virtual_clock):
    result = await chosen(text, *replies)
    assert result.decision.winners == (winner,)
    if seen is not None:
        assert (result.decision.scores or votes_of(result.decision)) == seen


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("text", "reply", "sentence"),
    [
        ("best:json:a", '{"a": true}', "a in the reply isn't a number"),
        ("best:json:a", "[" * 100_000, "the reply isn't JSON with a in it"),
        ("vote:json:a.9", '{"a": [1]}', "the reply isn't JSON with a.9 in it"),
        ("vote:json:a.b", '{"a": "text"}', "the reply isn't JSON with a.b in it"),
        ("vote:json:x", "no JSON", "the reply isn't JSON with x in it"),
    ],
)
async def test_a_reply_without_the_field_has_errored(text, reply, sentence, virtual_clock):
    with pytest.raises(RequirementError, match=re.escape(sentence)):
        await chosen(text, reply)


@pytest.mark.parametrize("text", ["best:length", "vote", "collect:2", "consensus", "tournament"])
def test_a_selection_excludes_as_text_what_it_excludes_as_an_object(text):
    selection = parse_selection(text)
    assert selection.features == selection.make(JUDGE, turns=6).features
