"""A batch with a journal: items that are replayed, sampled again, or refused."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from batch_kit import MemoryJournal, Plan, ids, into, results_of, strategy

from mellea_like.batch import item as item_module
from mellea_like.batch import sample_many
from mellea_like.errors import AuthenticationFailed, JournalError

pytestmark = pytest.mark.anyio

PROMPTS = ["a", "b", "c", "d", "e", "f"]


async def broken_off(journal: MemoryJournal, finished: int, prompts: Any = PROMPTS) -> None:
    """Run until some items are finished, and leave while the next one is being sampled."""
    async with sample_many(strategy(), prompts, concurrency=1, journal=journal) as results:
        for _ in range(finished):
            await anext(results)
        await anyio.sleep(0.5)
    assert journal.finished == list(range(finished))


# --- replayed items ------------------------------------------------------------------------------


async def test_items_are_looked_up_in_blocks_and_no_further_than_the_journal_goes(
    virtual_clock, monkeypatch
):
    monkeypatch.setattr(item_module, "BLOCK", 5)
    journal = MemoryJournal()
    prompts = [str(n) for n in range(24)]
    await results_of(strategy(), prompts[:12], concurrency=10, journal=journal)
    assert journal.lookups == [(0, 5)]
    journal.lookups.clear()
    await results_of(strategy(), prompts[:12], concurrency=10, journal=journal)
    assert journal.lookups == [(0, 5), (5, 5), (10, 5), (12, 1)]
    journal.lookups.clear()
    with pytest.raises(JournalError, match="ended after 10 items"):
        await results_of(strategy(), prompts[:10], concurrency=10, journal=journal)
    journal.lookups.clear()
    await results_of(strategy(), prompts, concurrency=10, journal=journal)
    assert journal.lookups == [(0, 5), (5, 5), (10, 5), (15, 5)]


# --- calls on the journal --------------------------------------------------------------------


async def test_what_raised_is_sampled_anew_unless_errors_are_kept(virtual_clock):
    journal = MemoryJournal()
    backend = Plan({"a": "no", "b": AuthenticationFailed("no key")})
    for again in (False, True):
        items = await results_of(
            strategy(backend),
            ["a", "b"],
            concurrency=1,
            in_order=True,
            journal=journal,
            keep_errors=False,
        )
        assert [item.status for item in items] == ["failed", "errored"]
        assert [item.replayed for item in items] == [again, False]
        assert journal.finished == [0]
    assert items[1].attempt == 2


async def test_an_error_that_is_not_kept_overtakes_nothing_that_was_finished_before(path):
    backend = Plan({"a": 0, "b": AuthenticationFailed("no key"), "c": 0})
    items = await results_of(
        strategy(backend),
        ["a", "b", "c"],
        concurrency=1,
        journal=path,
        keep_errors=False,
    )
    assert [item.id for item in items] == [0, 1, 2]


# --- refused journals ----------------------------------------------------------------------------


async def test_another_item_at_a_position_is_refused_and_the_position_named(virtual_clock):
    journal = MemoryJournal()
    await broken_off(journal, 4)
    backend = Plan(lambda prompt: 50)
    journal.items[0].result = None
    seen: list[Any] = []
    with pytest.raises(JournalError, match="item 3 differs from the one in the journal: "):
        await into(
            seen,
            sample_many(
                strategy(backend), ["a", "b", "c", "X", "e", "f"], concurrency=6, journal=journal
            ),
        )
    assert ids(seen) == [1, 2]
    assert virtual_clock.now < 5
    assert backend.asked == backend.cancelled
    assert backend.in_flight == 0


@pytest.mark.parametrize("lacks", ["slices", "stop_reason"])
async def test_a_record_that_can_not_be_read_is_refused(virtual_clock, lacks):
    journal = MemoryJournal()
    await broken_off(journal, 2)
    del journal.items[1].result["trace"][lacks]
    with pytest.raises(JournalError, match="record of item 1 can't be read"):
        await results_of(strategy(), PROMPTS, concurrency=1, journal=journal)


# --- a journal that fails ------------------------------------------------------------------------


@pytest.mark.parametrize("keep_errors", [True, False])
async def test_a_journal_that_fails_while_an_item_is_sampled_stops_the_run(
    virtual_clock, keep_errors
):
    backend = Plan(lambda prompt: "no" if prompt == "a" else 50)
    seen: list[Any] = []

    class Full(MemoryJournal):
        def slice(self, *args: Any) -> None:
            raise JournalError("the disk is full")

    batch = sample_many(
        strategy(backend, loop_budget=3),
        PROMPTS,
        concurrency=4,
        journal=Full(),
        keep_errors=keep_errors,
    )
    with pytest.raises(JournalError, match="the disk is full"):
        await into(seen, batch)
    assert seen == []
    assert virtual_clock.now < 5
    assert backend.in_flight == 0


@pytest.mark.parametrize(
    ("commit", "begun", "handed_on"),
    [(0.5, [0, 1, 2, 3], [1.5, 2.5, 3.5, 4.5]), (5, [0, 1, 6, 7], [6, 7, 12, 13])],
    ids=["a quick disk", "a slow disk"],
)
async def test_a_worker_goes_on_while_its_commit_is_under_way(
    virtual_clock, commit, begun, handed_on
):
    started = []

    def plan(prompt):
        started.append(anyio.current_time())
        return "yes"

    batch = sample_many(
        strategy(Plan(plan)), ["a", "b", "c", "d"], concurrency=1, journal=MemoryJournal(commit)
    )
    async with batch as results:
        times = [anyio.current_time() async for _ in results]
    assert started == pytest.approx(begun), "two items at most are not handed on"
    assert times == pytest.approx(handed_on)
