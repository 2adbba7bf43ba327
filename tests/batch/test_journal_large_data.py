"""Records and journals of conversations with parts and tool calls: nothing lost, data kept once."""

from __future__ import annotations

import base64
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from batch_kit import results_of
from hypothesis import given
from hypothesis import strategies as st
from journal_kit import execute, items_of
from messages import CALLS, MESSAGES, SOME, WORDS

from mellea_like import (
    FunctionBackend,
    Generation,
    Image,
    Journal,
    Message,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    SamplingResult,
    requirement,
)
from mellea_like.batch.journal import large_data as journal_parts
from mellea_like.batch.journal.records import input_row, item_record, result_rows
from mellea_like.core import Audio, File
from mellea_like.errors import JournalError

pytestmark = pytest.mark.anyio

LARGE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40


# --- round trips --------------------------------------------------------------------------------

GENERATIONS = st.builds(
    Generation,
    WORDS,
    tool_calls=st.lists(CALLS, max_size=2).map(tuple),
    refusal=st.none() | SOME,
    reasoning=st.none() | SOME,
)


@given(st.lists(MESSAGES, min_size=1, max_size=3), GENERATIONS)
def test_what_was_said_comes_back_from_records_and_journals(messages, reply):
    backend = FunctionBackend(lambda _: reply, inline=True)
    strategy = RejectionSamplingStrategy(backend, loop_budget=1, accept_incomplete=True)
    result = strategy.sample_sync(messages)
    slices, row, data = result_rows(0, 1, result, result.elapsed, set(), "all")
    item = (0, "digest", "label", None)
    encoded = {sha256: base64.b64encode(found).decode() for sha256, found in data.items()}
    record, _ = item_record(item, row, [(0, 1, "now")], slices, encoded.__getitem__)
    for written in (json.loads(json.dumps(result.to_dict())), record["trace"]):
        (again,) = SamplingResult.from_dict(written).slices
        (first,) = result.slices
        assert again.messages == first.messages == tuple(messages)
        assert again.context == first.context
        assert again.context_after == first.context_after
        got = again.generation
        assert (got.text, got.tool_calls, got.refusal, got.reasoning) == (
            reply.text,
            reply.tool_calls,
            reply.refusal,
            reply.reasoning,
        )


@given(st.lists(MESSAGES, min_size=1, max_size=3))
def test_a_row_of_messages_comes_back_as_it_was(messages):
    plain = [message.as_dict() for message in messages]
    small = journal_parts.LARGE
    journal_parts.LARGE = 1  # So that nothing is too small to be taken out.
    try:
        written, data = input_row(plain)
    finally:
        journal_parts.LARGE = small
    encoded = {sha256: base64.b64encode(found).decode() for sha256, found in data.items()}
    assert journal_parts.restored(json.loads(written), encoded.__getitem__) == plain


# --- in the file --------------------------------------------------------------------------------


@requirement("says that it has looked", inline=True)
def looked(candidate):
    return "looked" in candidate.text


def looks(request):
    if len(request.messages) == 1:
        return "I don't know."
    return "I have looked."


def questions(count):
    picture = Image(data=LARGE)
    return [Message("user", [f"What is on number {n}?", picture]) for n in range(count)]


async def run(path: Path, items: list[object]) -> None:
    strategy = MultiTurnStrategy(FunctionBackend(looks, inline=True), loop_budget=2)
    await results_of(strategy, items, requirements=[looked], concurrency=1, journal=path)


def stored(path: Path) -> list[bytes]:
    with closing(sqlite3.connect(path)) as connection:
        return [data for (data,) in connection.execute("SELECT data FROM parts")]


async def test_data_in_rows_of_the_input_is_kept_once_and_comes_back(path):
    rows = [[message.as_dict()] for message in questions(2)]
    sound = Message("user", [Audio(LARGE, "wav"), File(LARGE, filename="a.txt")]).as_dict()
    await run(path, [*rows, sound])
    assert stored(path) == [LARGE]
    records = await items_of(path)
    assert [record["data"] for record in records] == [*rows, sound]
    assert records[0]["label"] == "What is on number 0? [image/png, 10 KB]"


@pytest.mark.parametrize("text", ["best", "none"])
async def test_a_conversation_that_is_not_kept_leaves_no_data(path, text):
    @requirement("never", inline=True)
    def never(_):
        return False

    backend = FunctionBackend(looks, inline=True)
    strategy = RejectionSamplingStrategy(backend, loop_budget=1)
    other = Message("user", [Image(data=LARGE + b"x")])
    journal = Journal(path, text=text)
    await results_of(strategy, [other], requirements=[never], concurrency=1, journal=journal)
    assert stored(path) == ([LARGE + b"x"] if text == "best" else [])


async def test_data_that_is_missing_is_damage(path):
    await run(path, questions(1))
    execute(path, "DELETE FROM parts")
    with pytest.raises(JournalError, match="is damaged: items 0 to 0 lack a part"):
        await items_of(path)
