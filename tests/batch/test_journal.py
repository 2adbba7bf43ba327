"""A journal returns everything that was written, however its run ended."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from journal_kit import (
    IDENTITY,
    bytes_beside,
    check_takes_nothing,
    copy_of,
    finish,
    items_of,
    plain,
    run_of,
    sampled,
    until,
    write_item,
)

from mellea_like import Budget, RejectionSamplingStrategy
from mellea_like.backends import FunctionBackend
from mellea_like.batch import Journal, Progress
from mellea_like.batch.journal import journal as journal_module
from mellea_like.batch.journal.writer import JournalFile
from mellea_like.cli.batch.progress import summary
from mellea_like.core.generation import Generation, Usage
from mellea_like.core.result import SamplingResult
from mellea_like.core.serialization import usage_from_dict
from mellea_like.errors import JournalError
from mellea_like.limits import Price
from mellea_like.report import run_report, run_text

pytestmark = pytest.mark.anyio

PRICE = Price(1, 2, cached_input=0.25)


async def unfinished(path: Path) -> dict[str, Any]:
    """Wait until the journal records that an item was begun."""
    with anyio.fail_after(50):
        while not (run := await run_of(path))["counts"]["unfinished"]:  # noqa: ASYNC110 (nobody tells of it)
            await anyio.sleep(0.01)
    return run


async def kept(path, result, slices=(), **settings) -> dict[str, Any]:
    """Write a journal with a result in it; return the item's record."""
    async with Journal(path, **settings).open(IDENTITY) as store:
        store.begin(0, 1, "digest", "item 0", None)
        for slice_ in slices:
            store.slice(0, 1, slice_)
        await finish(store, 0, 1, result)
    [record] = await items_of(path)
    return record


# --- reading what was written -----------------------------------------------------------------


async def test_slices_of_an_attempt_that_was_killed_are_paid_for_and_not_in_the_result(path):
    slices = []
    await sampled("first", None, slices)
    async with Journal(path).open(IDENTITY) as store:
        store.begin(0, 1, "d", "l", None)
        for slice_ in slices[:2]:
            store.slice(0, 1, slice_)
    async with Journal(path).open(IDENTITY) as store:
        [before] = await store.lookup(0, 1)
        assert before.attempts == 1
        result = await write_item(store, 0, attempt=2)
    [record] = await items_of(path)
    assert record["attempts"] == 2
    assert record["usage"]["requests"] == 2 + len(result.slices)
    assert record["trace"] == plain(result)


async def test_texts_that_utf_8_lacks_and_zeros_and_endless_numbers_come_back(path):
    nasty = "\ud800 \0 \r\n \u202e 😀 ' \" ; DROP TABLE items; --"
    async with Journal(path).open({**IDENTITY, "prompt": nasty}) as store:
        result = await sampled(nasty)
        store.begin(0, 1, nasty.encode("utf-8", "replace").decode(), nasty, {nasty: [10**30]})
        await finish(store, 0, 1, result)
    [record] = await items_of(path)
    assert record["trace"] == plain(result)
    assert record["data"] == {nasty: [10**30]}
    assert record["label"] == nasty.replace("\ud800", "\\ud800")
    assert (await run_of(path))["identity"]["prompt"] == nasty


async def test_cached_and_reasoning_tokens_come_back_and_are_reported(path):
    reply = Generation("yes", usage=Usage(1, 500, 40, 0, 384, 32), model="m")
    backend = FunctionBackend(lambda request: reply)
    budget = Budget(money=1, prices={"m": PRICE}, assume_output_tokens=100)
    strategy = RejectionSamplingStrategy(backend, options={"model": "m"}, budget=budget)
    result = await strategy.sample("Agree.")
    record = await kept(path, result, prices={"m": PRICE})
    assert SamplingResult.from_dict(plain(result)).usage == reply.usage == result.usage
    assert usage_from_dict(record["usage"]) == reply.usage
    cost = pytest.approx(PRICE.cost(reply.usage))
    assert budget.statistics().spent.money == result.ledger({"m": PRICE}).total.cost == cost
    text = run_text(await run_of(path), [record])
    assert "500 in (384 cached), 40 out (32 reasoning)" in text
    page = await to_thread.run_sync(run_report, await run_of(path), [record])
    assert "$1 in ($0.25 cached), $2 out" in page
    progress = Progress(done=1, passed=1, usage=result.usage)
    assert "540 tokens (384 cached, 32 reasoning), cost $" in summary(progress, PRICE)


async def test_a_server_that_counts_beyond_all_numbers_does_no_harm(path):
    slices = []
    result = await sampled("x", None, slices)
    for slice_ in slices:
        object.__setattr__(slice_, "usage", Usage(1, 10**30, 10**30, 0))
    record = await kept(path, result, slices)
    assert record["usage"]["input_tokens"] == 3 * 10**30


# --- kept texts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "passing", "words_kept"),
    [
        ("all", 2, {"reply 1", "reply 2", "say x"}),
        ("all", None, {"reply 1", "reply 2", "reply 3", "say x"}),
        ("best", 2, {"reply 2", "say x"}),
        ("best", None, {"reply 1", "say x"}),
        ("none", 2, {"reply 2", "say x"}),
        ("none", None, set()),
    ],
)
async def test_words_are_kept_as_asked_and_the_winner_s_always(path, text, passing, words_kept):
    slices = []
    result = await sampled("x", passing, slices)
    record = await kept(path, result, slices, text=text)
    raw = path.read_bytes()
    for words in ("reply 1", "reply 2", "reply 3", "say x"):
        assert (words.encode() in raw) == (words in words_kept), words
    back = SamplingResult.from_dict(record["trace"])
    assert (back.success, back.value) == (result.success, result.value)
    assert [s.outcome for s in back.slices] == [s.outcome for s in result.slices]
    assert [v.reason for s in back.slices for v in s.verdicts] == [
        v.reason for s in result.slices for v in s.verdicts
    ]
    assert back.usage == result.usage
    prompts = [message["content"] for prompt in record["trace"]["prompts"] for message in prompt]
    assert bool(prompts) == (text != "none")


# --- identity -----------------------------------------------------------------------------------


async def test_a_journal_that_is_there_is_refused_where_it_should_be_new(path):
    async with Journal(path, resume=False).open(IDENTITY) as store:
        await write_item(store, 0)
    before = bytes_beside(path)
    with pytest.raises(JournalError, match="already exists"):
        async with Journal(path, resume=False).open(IDENTITY):
            pass
    assert bytes_beside(path) == before


# --- reading ------------------------------------------------------------------------------------


async def test_reading_changes_no_byte_and_leaves_no_file(path, tmp_path):
    async with Journal(path).open(IDENTITY) as store:
        await write_item(store, 0)
        (tmp_path / "killed").mkdir()
        killed = copy_of(path, tmp_path / "killed" / "run.db")
    for journal, files in ((path, {"run.db"}), (killed, {"run.db", "run.db-wal"})):
        before = bytes_beside(journal)
        assert set(before) == files
        assert (await run_of(journal))["counts"]["passed"] == 1
        assert [item["id"] for item in await items_of(journal)] == [0]
        after = bytes_beside(journal)
        after.pop("run.db-shm", None)
        assert after == before


@pytest.fixture
def commits(monkeypatch):
    """The number of rows in each commit."""
    sizes: list[int] = []
    commit = JournalFile.commit

    def counted(file: JournalFile, rows: Any) -> None:
        commit(file, rows)
        sizes.append(sum(map(len, rows.values())))

    monkeypatch.setattr(JournalFile, "commit", counted)
    return sizes


@pytest.mark.parametrize("reason", ["very many", "somebody waits", "closed"])
async def test_rows_are_written_at_once_where_there_is_a_reason(path, commits, monkeypatch, reason):
    monkeypatch.setattr(journal_module, "LINGER", 3600)
    result = await sampled("x")
    with anyio.fail_after(20):
        async with Journal(path).open(IDENTITY) as store:
            commits.clear()
            for item in range(500 if reason == "very many" else 1):
                store.begin(item, 1, "", "", None)
            if reason == "somebody waits":
                await finish(store, 0, 1, result)
            elif reason == "very many":
                await until(lambda: bool(commits))
            assert bool(commits) == (reason != "closed")


# --- writing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_that_is_cancelled_natively_at_any_moment_leaves_the_journal_free(path):
    result = await sampled("x")
    begun: set[int] = set()
    finished: set[int] = set()

    async def run(number: int) -> None:
        async with Journal(path).open(IDENTITY) as store:
            await store.lookup(0, 100)
            store.begin(number, 1, "", "", None)
            begun.add(number)
            await finish(store, number, 1, result)
            finished.add(number)

    began = time.perf_counter()
    await run(30)
    took = time.perf_counter() - began
    for number in range(30):
        task = asyncio.create_task(run(number))
        await asyncio.sleep(took * number / 29)
        task.cancel()
        if number % 2:
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait([task])
    records = {record["id"]: record["status"] for record in await items_of(path)}
    assert {item for item, status in records.items() if status == "passed"} >= finished
    assert set(records) == begun
    assert begun > {30}


# --- mistakes -----------------------------------------------------------------------------------


async def test_an_item_has_one_result_and_never_another(path):
    with pytest.raises(JournalError, match="UNIQUE"):
        async with Journal(path).open(IDENTITY) as store:
            result = await write_item(store, 0)
            store.begin(1, 1, "", "", None)
            await unfinished(path)
            store.begin(0, 2, "", "", None)
            with pytest.raises(JournalError, match="UNIQUE"):
                await finish(store, 0, 2, result)
    [record, other] = await items_of(path)
    assert (record["attempts"], record["status"]) == (1, "passed")
    assert other["status"] == "unfinished"


async def test_a_journal_that_is_closed_takes_nothing(path):
    async with Journal(path).open(IDENTITY) as store:
        result = await write_item(store, 0)
    await check_takes_nothing(store, result, "closed")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"path": 5}, TypeError, "PathLike"),
        ({"path": "x", "text": "some"}, ValueError, "'all', 'best' or 'none'"),
        ({"path": "x", "prices": {"m": 1}}, TypeError, "Price"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, words):
    with pytest.raises(error, match=words):
        Journal(**arguments)
