"""The progress of a batch, and the function that is told about it."""

from __future__ import annotations

import anyio
import pytest
from batch_kit import MemoryJournal, Plan, results_of, strategy

from mellea_like.batch import Progress, sample_many
from mellea_like.core import Usage
from mellea_like.errors import AuthenticationFailed

pytestmark = pytest.mark.anyio


# --- the numbers ---------------------------------------------------------------------------------


async def test_progress_counts_items_by_what_came_of_them(virtual_clock):
    backend = Plan({"fails": "no", "raises": AuthenticationFailed("no key"), "slow": 50})
    prompts = ["fine", "fails", "raises", "slow", "waits"]
    async with sample_many(strategy(backend), prompts, concurrency=4) as results:
        assert results.progress == Progress(total=5)
        await anyio.sleep(1.5)
        now = results.progress
        assert (now.total, now.taken, now.done, now.handed_on) == (5, 5, 4, 0)
        assert (now.passed, now.failed, now.errored) == (2, 1, 1)
        assert now.in_flight == 1
        assert now.elapsed == 1.5
        assert now.rate == 4 / 1.5
        assert now.seconds_left == 1.5 / 4
        assert now.pass_rate == 1 / 2
        assert now.usage == Usage(3, 6, 9), "of what raised, nobody knows"
        await anext(results)
        assert results.progress.handed_on == 1
        assert len([item async for item in results]) == 4
        assert results.progress.done == 5
        await anyio.sleep(100)
    assert results.progress.elapsed == 50, "the run has ended, and its time with it"


async def test_what_comes_from_the_journal_does_not_count_in_the_rate(virtual_clock):
    journal = MemoryJournal()
    await results_of(strategy(), ["a", "b", "c"], concurrency=3, journal=journal)
    journal.items[2].result = None
    async with sample_many(strategy(), ["a", "b", "c"], concurrency=3, journal=journal) as results:
        assert len([item async for item in results]) == 3
        now = results.progress
    assert (now.done, now.replayed) == (3, 2)
    assert now.rate == 1
    assert now.usage == Usage(1, 2, 3)
    assert now.replayed_usage == Usage(2, 4, 6)


async def test_progress_of_nothing():
    nothing = Progress(total=3)
    assert (nothing.rate, nothing.pass_rate, nothing.seconds_left) == (0, None, None)


async def test_the_last_call_comes_before_the_iteration_ends(virtual_clock):
    calls: list[Progress] = []
    async with sample_many(
        strategy(Plan({"x": 0.25})), ["x"], concurrency=1, on_progress=calls.append
    ) as results:
        assert len([item async for item in results]) == 1
        assert calls[-1].handed_on == 1
        told = len(calls)
    assert len(calls) == told, "and not once more when the block is left"


# --- on_progress ---------------------------------------------------------------------------------


async def test_what_it_raises_is_logged_and_ends_nothing(virtual_clock, caplog):
    calls = []

    def tell(progress: Progress) -> None:
        calls.append(progress.done)
        raise OSError("no terminal")

    items = await results_of(
        strategy(), [str(n) for n in range(9)], concurrency=1, on_progress=tell
    )
    assert len(items) == 9
    assert "on_progress failed, and won't be called again: OSError: no terminal" in caplog.text
    assert len(calls) == 1


async def test_an_interrupt_in_it_leaves_the_block(virtual_clock):
    def tell(progress: Progress) -> None:
        if progress.done == 2:
            raise KeyboardInterrupt

    backend = Plan()
    with pytest.raises(KeyboardInterrupt):
        await results_of(strategy(backend), map(str, range(99)), concurrency=1, on_progress=tell)
    assert len(backend.asked) < 5
    assert backend.in_flight == 0
