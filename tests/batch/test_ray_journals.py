"""With a shard's journal, a restarted actor skips finished rows. These tests run in real time."""

from __future__ import annotations

from functools import partial

import anyio
import pyarrow as pa
import pytest
from shard_kit import Calls, block, sampler

from mellea_like import FunctionBackend, RejectionSamplingStrategy, Requirement
from mellea_like.errors import JournalError

pytestmark = pytest.mark.anyio


@pytest.fixture
def quick():
    return Calls(seconds=0.0)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr("mellea_like.batch.ray.shards.JOURNAL_POLL", 0.01)


async def begun(calls):
    while not calls.asked:  # noqa: ASYNC110 (for a journal's threads)
        await anyio.sleep(0.005)


async def test_the_same_shard_again_samples_only_what_is_not_finished(tmp_path, quick):
    more = {"journal_dir": str(tmp_path / "journals"), "calls": 2}
    before = sampler(quick.strategy, **more)
    quick.seconds = 0.02
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(before, block(0, 10))
        while len(quick.asked) < 6:  # noqa: ASYNC110 (for a journal's threads)
            await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    asked = len(quick.asked)
    assert 0 < asked < 10
    rows = (await sampler(quick.strategy, **more)(block(0, 10))).to_pylist()
    assert [row["status"] for row in rows] == ["passed"] * 10
    assert [row["output"] for row in rows] == ["yes"] * 10
    replayed = sum(row["replayed"] for row in rows)
    assert replayed > 0
    assert len(quick.asked) <= 10 + 2
    assert len(quick.asked) - asked == 10 - replayed


async def test_rows_with_a_key_are_found_wherever_they_stand(tmp_path, quick):
    actor = sampler(quick.strategy, journal_dir=str(tmp_path), key="id")
    await actor(pa.table({"id": [1, 2]}))
    rows = (await actor(pa.table({"id": [1, 2]}))).to_pylist()
    assert len(quick.asked) == 2
    assert all(row["replayed"] for row in rows)


async def test_with_more_and_more_turns_each_row_of_all_shards_has_a_draw_before_any_has_another(
    tmp_path,
):
    drawn = []
    third = Requirement("the third", lambda c: c.text == "3", inline=True, check_only=True)

    def reply(request):
        drawn.append((request.messages[-1].content, request.meta.iteration))
        return str(request.meta.iteration)

    for turns in (1, 2, 3):
        make = partial(
            RejectionSamplingStrategy,
            FunctionBackend(reply),
            loop_budget=turns,
            requirements=[third],
        )
        actor = sampler(make, journal_dir=str(tmp_path), calls=1)
        rows = [row for at in (0, 2) for row in (await actor(block(at, at + 2))).to_pylist()]
        assert {row["success"] for row in rows} == {turns == 3}
    assert drawn == [(f"row {n}", turn) for turn in (1, 2, 3) for n in range(4)]
    assert {row["requests"] for row in rows} == {3}


async def test_a_journals_directory_that_cannot_be_is_told(tmp_path, quick):
    (tmp_path / "file").write_text("", encoding="utf-8")
    actor = sampler(quick.strategy, journal_dir=str(tmp_path / "file" / "journals"))
    with pytest.raises(JournalError, match=r"directory .* can't be created"):
        await actor(block(0, 1))


async def test_a_shard_waits_for_a_journal_that_a_dying_process_still_has(tmp_path, quick):
    before = sampler(quick.strategy, journal_dir=str(tmp_path), calls=1)
    after = sampler(quick.strategy, journal_dir=str(tmp_path), calls=1)
    quick.seconds = 0.03
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(before, block(0, 3))
        await begun(quick)
        rows = (await after(block(0, 3))).to_pylist()
    assert len(quick.asked) == 3
    assert all(row["replayed"] for row in rows)


async def test_a_journal_that_stays_in_use_is_an_error(tmp_path, quick):
    before = sampler(quick.strategy, journal_dir=str(tmp_path), calls=1)
    after = sampler(quick.strategy, journal_dir=str(tmp_path), calls=1, journal_wait=0.02)
    quick.seconds = 60.0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(before, block(0, 1))
        await begun(quick)
        with pytest.raises(JournalError, match="is in use by"):
            await after(block(0, 1))
        tasks.cancel_scope.cancel()
