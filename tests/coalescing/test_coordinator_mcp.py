"""A tool that samples three times shows its client's user one prompt: the real SDK, end to end."""

from __future__ import annotations

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_kit import Books, Person, all_but_the_second, answers_of, make_server, never, refuse

pytestmark = pytest.mark.anyio

ALL = {"one": "ONE (stop)", "two": "TWO (stop)", "three": "THREE (stop)"}
MODES = ["legacy", "2026-07-28"]


# --- in memory --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_three_samples_make_one_approval(mode):
    books, person = Books(), Person()
    async with Client(make_server(books), mode=mode, sampling_callback=person) as client:
        assert answers_of(await client.call_tool("three")) == ALL
    assert len(person.prompts) == 1
    assert books.statuses == ["ok"] * 3


@pytest.mark.parametrize("mode", MODES)
async def test_an_answer_that_is_missing_fails_its_request_alone(mode):
    books, person = Books(), Person(all_but_the_second)
    async with Client(make_server(books), mode=mode, sampling_callback=person) as client:
        answers = answers_of(await client.call_tool("three"))
    assert answers == {**ALL, "two": "MissingAnswer"}
    assert len(person.prompts) == 1
    assert sorted(books.statuses) == ["missing", "ok", "ok"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_missing_answer_that_is_asked_for_again_makes_a_second_prompt(mode):
    books, person = Books(), Person(all_but_the_second)
    server = make_server(books, again=True)
    async with Client(server, mode=mode, sampling_callback=person) as client:
        answers = answers_of(await client.call_tool("three"))
    assert answers == {**ALL, "two": "two, alone (stop)"}
    assert len(person.prompts) == 2
    assert books.statuses == ["ok"] * 3


async def test_a_refusal_is_told_to_each_and_nobody_is_asked_again():
    books, person = Books(), Person(refuse)
    async with Client(make_server(books), mode="legacy", sampling_callback=person) as client:
        answers = answers_of(await client.call_tool("three"))
    assert set(answers.values()) == {"User rejected sampling request (refusal)"}
    assert len(person.prompts) == 1
    assert books.statuses == ["refused"] * 3


async def test_where_tools_return_their_requests_a_refusal_ends_the_call_and_the_work_after_it():
    books, person = Books(), Person(refuse)
    server = make_server(books, patience=0.2)
    async with Client(server, mode="2026-07-28", sampling_callback=person) as client:
        with pytest.raises(MCPError, match="User rejected"):
            await client.call_tool("three")
        with anyio.fail_after(10):
            await books.ended.wait()  # The client's SDK does not tell the server.
    assert len(person.prompts) == 1
    assert books.statuses == ["error"] * 3


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_disconnects_in_mid_batch_leaves_nothing_behind(mode):
    books, person = Books(), Person(never)
    server = make_server(books)
    async with anyio.create_task_group() as tasks:

        async def connect() -> None:
            async with Client(server, mode=mode, sampling_callback=person) as client:
                await client.call_tool("three")

        tasks.start_soon(connect)
        await person.asked.wait()
        tasks.cancel_scope.cancel()
    with anyio.fail_after(10):
        await books.ended.wait()
    assert len(person.prompts) == 1
    assert len(books.statuses) == 3
    assert set(books.statuses) <= {"error", "cancelled"}
