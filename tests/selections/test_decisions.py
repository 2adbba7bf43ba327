"""Where a decision goes: the ledger, the journal and what is resumed of it, hooks, spans."""

from __future__ import annotations

import json
import re

import anyio
import pytest
from engine_kit import by_iteration, votes_of
from selection_kit import comparing, yes

from mellea_like import (
    BestOf,
    Collect,
    Generation,
    RejectionSamplingStrategy,
    SamplingResult,
    Vote,
)
from mellea_like.backends.function import FunctionBackend
from mellea_like.batch import Journal, read_items, sample_many
from mellea_like.core import Usage
from mellea_like.core.decision import Answer
from mellea_like.core.ledger import LedgerTotal
from mellea_like.core.prices import Price
from mellea_like.selections import Consensus, Tournament

pytestmark = pytest.mark.anyio


def strategy(backend, selection, width=4, **more):
    return RejectionSamplingStrategy(
        backend, **{"loop_budget": 1, "concurrency_budget": width, "selection": selection} | more
    )


def spoken(replies, model="small"):
    """Replies by iteration: seconds to wait, and the text; ten tokens in, two out."""

    async def reply(request):
        wait, text = replies[request.meta.iteration]
        await anyio.sleep(wait)
        return Generation(text, usage=Usage(1, 10, 2), model=model)

    return FunctionBackend(reply)


async def tournament():
    backend = spoken({n: (n, "yes" + "!" * n) for n in (1, 2, 3)})
    judge, _ = comparing(model="dear")
    return await strategy(backend, Tournament(judge, n=3), width=3).sample("do", [yes])


# --- the ledger -------------------------------------------------------------------------------


async def test_the_ledgers_total_is_the_results_usage_comparisons_included(virtual_clock):
    result = await tournament()
    made = result.ledger({"small": Price(1, 1), "dear": Price(100, 100)})
    assert made.comparisons == LedgerTotal(4, 40, 20, 0, 0, 0, pytest.approx(6000e-6))
    total = made.total
    spent = Usage(total.requests, total.input_tokens, total.output_tokens, total.unknown)
    assert spent == result.usage == Usage(7, 70, 26)
    assert total.cost == pytest.approx(6036e-6)
    assert total.wasted_tokens == 0
    lines = str(made).splitlines()
    assert lines[-2].split()[:4] == ["comparisons", "4", "40", "20"]
    assert [line.split()[5] for line in lines[1:-2]] == ["1", "2", "3*"]


LATE = {1: (1, "yes a"), 2: (2, "yes bb"), 3: (3, "no"), 4: (9, "yes a")}


@pytest.mark.parametrize(
    ("selection", "winner", "wasted"),
    [
        ("first", 1, {2, 3, 4}),
        # The losers were needed to know who wins.
        (BestOf(lambda c: len(c.text), inline=True, n=2), 2, {3, 4}),
        (Vote(n=4), 1, {3}),
        (Consensus(n=2), 1, {3, 4}),
        # The second of equal ones is of no use, and is what was waited for in vain.
        (Collect(3, distinct=lambda c: c.text), 1, {3, 4}),
    ],
    ids=["first", "best", "vote", "consensus", "collect"],
)
async def test_only_what_had_no_say_is_wasted(selection, winner, wasted, virtual_clock):
    replies = {**LATE, 2: (2, "yes a")} if isinstance(selection, Vote) else LATE
    result = await strategy(spoken(replies), selection).sample("do", [yes])
    made = result.ledger()
    assert made.winner is not None
    assert made.rows[made.winner].iteration == winner
    spent = {s.iteration: s.usage.total_tokens for s in result.slices}
    unused = {i for i, tokens in spent.items() if i in wasted and tokens}
    assert {row.iteration for row in made.rows if row.wasted_tokens} == unused
    assert made.total.wasted_tokens == sum(spent[i] for i in unused)


async def test_all_that_was_collected_is_marked(virtual_clock):
    result = await strategy(spoken(LATE), Collect(2)).sample("do", [yes])
    made = result.ledger()
    assert [made.rows[place].iteration for place in made.winners] == [1, 2]
    assert [s.iteration for s in result.winners] == [1, 2]
    marks = re.findall(r"^ *attempt 1 of \d, lane (\d\*?)  ", str(made), re.MULTILINE)
    assert {mark for mark in marks if mark.endswith("*")} == {"1*", "2*"}


# --- the record, and repr ---------------------------------------------------------------------


@pytest.mark.parametrize("score", [float("inf"), float("-inf"), -2.5])
async def test_endless_scores_are_written_as_json_has_them(score, virtual_clock):
    backend = by_iteration({1: "yes"})
    chosen = BestOf(lambda _: score, inline=True)
    result = await strategy(backend, chosen, width=1).sample("do")
    written = json.dumps(result.to_dict(), allow_nan=False)
    assert SamplingResult.from_dict(json.loads(written)).decision == result.decision


async def test_a_vote_says_who_voted_for_what(virtual_clock):
    replies = {1: (1, "yes a"), 2: (2, "yes b"), 3: (3, "yes b"), 4: (3, "no")}
    result = await strategy(spoken(replies), Vote(n=4)).sample("do", [yes])
    assert result.decision.answers == (Answer("yes b", 2, (2, 3)), Answer("yes a", 1, (1,)))
    assert result.decision.tied == ()
    assert result.decision.heard == {1, 2, 3}
    again = SamplingResult.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again.decision == result.decision


# --- the journal ------------------------------------------------------------------------------


async def run(path, selection, text, replies=LATE):
    # One after another, since this is on the real clock.
    quick = {n: (0, said) for n, (_, said) in replies.items()}
    many = sample_many(
        strategy(spoken(quick), selection, width=1, loop_budget=4),
        ["do"],
        requirements=[yes],
        concurrency=1,
        journal=Journal(path, text=text),
    )
    async with many as results:
        return [item async for item in results]


async def rows(path):
    return await anyio.to_thread.run_sync(lambda: list(read_items(path)))


@pytest.mark.parametrize("text", ["best", "none"])
async def test_all_that_was_collected_is_kept_whatever_else_is_not(tmp_path, text):
    path = tmp_path / "run.db"
    replies = {1: (1, "yes a"), 2: (2, "no, never"), 3: (30, "yes c"), 4: (60, "yes d")}
    [first] = await run(path, Collect(2), text, replies)
    assert first.values == ("yes a", "yes c")
    [again] = await run(path, Collect(2), text, replies)
    assert again.values == first.values
    assert "no, never" not in json.dumps(await rows(path))


@pytest.mark.parametrize("text", ["best", "none"])
async def test_the_words_of_who_lost_a_vote_are_left_out(tmp_path, text):
    path, vote = tmp_path / "run.db", Vote(n=4, confidence=None)
    [first] = await run(path, vote, text)
    assert votes_of(first.result.decision) == {"yes a": 2, "yes bb": 1}
    [again] = await run(path, vote, text)
    assert votes_of(again.result.decision) == {"yes a": 2, "answer 2": 1}
    raw = b"".join(part.read_bytes() for part in path.parent.glob("run.db*"))
    assert b"yes bb" not in raw
