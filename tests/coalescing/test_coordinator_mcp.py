"""A tool that samples three times shows its client's user one prompt: the real SDK, end to end."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import mcp_kit
import pytest
from forked_command import can_fork, stand_in
from mcp import Client, StdioServerParameters
from mcp_kit import (
    Books,
    Person,
    all_but_the_second,
    answers_of,
    make_server,
    never,
    over_http,
    refuse,
)

from mellea_like.backends.mcp import DEFAULT_MAX_TOKENS
from mellea_like.backends.scripted import ScriptedBackend

pytestmark = pytest.mark.anyio

ALL = {"one": "ONE (stop)", "two": "TWO (stop)", "three": "THREE (stop)"}
MODES = ["legacy", "2026-07-28"]


async def disconnect_in_mid_batch(server: Any, mode: str, person: Person) -> None:
    async def connect() -> None:
        async with Client(server, mode=mode, sampling_callback=person) as client:
            await client.call_tool("three")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connect)
        await person.asked.wait()
        tasks.cancel_scope.cancel()


# --- in memory --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_each_member_of_a_joint_prompt_has_the_room_that_it_would_have_alone(mode):
    books, person = Books(), Person()
    server = make_server(books, texts=[f"task {number}" for number in range(10)])
    async with Client(server, mode=mode, sampling_callback=person) as client:
        await client.call_tool("three")
    (prompt,) = person.prompts
    assert prompt.max_tokens >= 10 * DEFAULT_MAX_TOKENS


@pytest.mark.parametrize("mode", MODES)
async def test_what_nobody_approves_goes_to_the_fallback_one_by_one_and_at_once(mode):
    books = Books()
    direct = ScriptedBackend(replies=["an answer"] * 2)
    server = make_server(books, texts=("one", "two"), fallback=direct)
    async with Client(server, mode=mode) as client:
        with anyio.fail_after(4):  # No window is waited for.
            answers = answers_of(await client.call_tool("three"))
    assert {text.split(" (")[0] for text in answers.values()} == {"an answer"}
    asked = [[message.content for message in request.messages] for request in direct.requests]
    assert sorted(asked) == [["one"], ["two"]]


# --- over stdio: the server is another process ---------------------------------------------


# Each protocol and each event loop of the server, but not each pair: processes are slow.
OVER_STDIO = pytest.mark.parametrize(
    ("anyio_backend", "mode"), [("asyncio", "2026-07-28"), ("trio", "legacy")]
)


@pytest.fixture(name="server_process")
def _server_process(tmp_path, anyio_backend_name) -> StdioServerParameters:
    program = mcp_kit.__file__
    command, *given = stand_in(program) if can_fork() else (sys.executable, program)
    return StdioServerParameters(
        command=command,
        args=[*given, str(tmp_path / "books.json"), anyio_backend_name],
        env=dict(os.environ),
    )


def written(server: StdioServerParameters) -> list[str]:
    return json.loads(Path(server.args[-2]).read_text(encoding="utf-8"))


@OVER_STDIO
async def test_over_stdio_samples_are_approved_together_and_each_has_its_own_end(
    server_process, mode
):
    person = Person()
    async with Client(server_process, mode=mode, sampling_callback=person) as client:
        assert answers_of(await client.call_tool("three")) == ALL
        assert written(server_process) == ["ok"] * 3
        person.reply = all_but_the_second
        answers = answers_of(await client.call_tool("three"))
        assert answers == {**ALL, "two": "MissingAnswer"}
        assert len(person.prompts) == 2
        if mode == "legacy":
            person.reply = refuse
            answers = answers_of(await client.call_tool("three"))
            assert set(answers.values()) == {"User rejected sampling request (refusal)"}
            assert len(person.prompts) == 3
            assert written(server_process)[-3:] == ["refused"] * 3


@OVER_STDIO
async def test_over_stdio_a_client_that_disconnects_ends_the_work(server_process, mode):
    person = Person(never)
    await disconnect_in_mid_batch(server_process, mode, person)
    statuses = written(server_process)  # The client waits until its server has ended.
    assert len(statuses) == 3
    assert set(statuses) <= {"error", "cancelled"}


# --- over streamable HTTP: in a thread, for uvicorn runs on asyncio alone -----------------------

# On old connections the SDK's HTTP client leaves async generators open, which trio warns of.
OVER_HTTP = pytest.mark.parametrize(
    ("anyio_backend", "mode"),
    [("asyncio", "legacy"), ("asyncio", "2026-07-28"), ("trio", "2026-07-28")],
)
OVER_OLD_HTTP = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@OVER_HTTP
async def test_over_http_three_samples_make_one_approval(mode):
    books, person = Books(), Person()
    with over_http(books) as url:
        async with Client(url, mode=mode, sampling_callback=person) as client:
            assert answers_of(await client.call_tool("three")) == ALL
    assert len(person.prompts) == 1
    assert books.statuses == ["ok"] * 3


@OVER_HTTP
async def test_over_http_work_whose_client_disconnects_comes_to_an_end(mode):
    books, person = Books(), Person(never)
    # A connection of HTTP that is gone may come back: it is the time limits that end the work.
    with over_http(books, timeout=1.0, patience=1.0) as url:
        await disconnect_in_mid_batch(url, mode, person)
        await books.wait_for_the_end()
    assert len(books.statuses) == 3
    assert set(books.statuses) <= {"error", "cancelled"}


@OVER_OLD_HTTP
async def test_over_http_without_streams_there_is_no_sampling_on_old_connections():
    books, person = Books(), Person()
    with over_http(books, json_response=True) as url:
        async with Client(url, mode="legacy", sampling_callback=person) as client:
            answers = answers_of(await client.call_tool("three"))
    assert set(answers.values()) == {"InvalidRequest"}
    assert not person.prompts
