"""Text that is sent while a reply arrives, as soon as it is certain to pass."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest
from gateway_kit import calling
from openai.types.chat import ChatCompletionChunk

from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import BackendUnavailable

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]

PREFIX = {"streaming": {"release": "prefix", "keep_alive": 5}}


def texts(answer) -> list[tuple[float, str]]:
    """When each piece of text was sent; the rest of a stream is left out."""
    found = []
    for at, part in answer.parts:
        for event in replace(answer, parts=[(at, part)]).events:
            if event != "[DONE]" and event.get("choices"):
                text = event["choices"][0]["delta"].get("content")
                found += [(round(at, 2), text)] if text else []
    return found


async def test_where_nothing_must_hold_text_flows_as_it_is_written():
    reply = Generation("a b c", usage=Usage(1, 10, 3), reasoning="Hm.", finish_reason="length")
    backend = ScriptedBackend([Reply(reply, delay=3, chunks=["a ", "b ", "c"])])
    async with calling(backend, **PREFIX) as caller:
        answer = await caller.chat(stream=True, stream_options={"include_usage": True})
    assert texts(answer) == [(1, "a "), (2, "b "), (3, "c")]
    *chunks, done = answer.events
    assert (answer.status, done, answer.ended) == (200, "[DONE]", True)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    assert len({(chunk["id"], chunk["model"]) for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert {"reasoning_content": "Hm."} in [c["choices"][0]["delta"] for c in chunks[:-1]]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-2]["mellea_like"]["passed"] is True
    assert chunks[-1]["usage"]["total_tokens"] == 13


async def test_text_waits_until_it_is_certain_and_what_failed_is_never_sent():
    replies = [Reply("no no", delay=2), Reply("yes a b", delay=3)]
    config = {"checks": ["starts:yes"], "early": True, "loop": 2}
    async with calling(ScriptedBackend(replies), **config, **PREFIX) as caller:
        answer = await caller.chat(stream=True)
    assert texts(answer) == [(2, "yes "), (3, "a "), (4, "b")]
    assert answer.events[-2]["mellea_like"]["iterations"] == 2


@pytest.mark.parametrize(
    ("config", "wishes"),
    [
        ({"checks": ["words<=3"], "early": True}, {}),
        ({}, {"n": 2}),
        ({}, {"logprobs": True}),
        ({"streaming": {"release": "passed"}}, {}),
    ],
)
async def test_else_the_text_comes_when_it_has_passed(config, wishes):
    backend = ScriptedBackend([Reply("a b", delay=2)], cycle=True)
    async with calling(backend, **{**PREFIX, **config}) as caller:
        answer = await caller.chat(stream=True, **wishes)
    assert answer.text == "a b"
    assert {at for at, _ in texts(answer)} == {2}
    assert answer.headers["x-mellea-like-passed"] == "true"


async def test_what_fails_before_any_text_has_its_own_status():
    async with calling(ScriptedBackend(["a b c"]), checks=["words<=2"], loop=1, **PREFIX) as caller:
        answer = await caller.chat(stream=True)
    assert (answer.status, answer.error["code"]) == (422, "nothing_passed")


async def test_a_reply_that_breaks_after_some_text_ends_with_an_error():
    broken = Reply(BackendUnavailable("x"), delay=2, chunks=["a ", "b"])
    async with calling(ScriptedBackend([broken, "c"]), loop=2, **PREFIX) as caller:
        answer = await caller.chat(stream=True)
    assert answer.text == "a b"
    assert answer.events[-1]["error"]["code"] == "reply_broken"
    assert answer.ended


async def test_comments_come_until_there_is_text():
    backend = ScriptedBackend([Reply("yes b", delay=12)])
    config = {"checks": ["starts:yes"], "early": True}
    async with calling(backend, **config, **PREFIX) as caller:
        answer = await caller.chat(stream=True)
    assert [part[:1] for _, part in answer.parts[:2]] == [b":", b"d"]
    assert answer.text == "yes b"


async def test_a_caller_who_leaves_in_the_middle_ends_the_request():
    backend = ScriptedBackend([Reply("a b", delay=100)])
    leave = anyio.Event()
    async with calling(backend, **PREFIX) as caller:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: caller.chat(stream=True, leave=leave))
            await anyio.sleep(60)
            assert backend.statistics().in_flight == 1
            leave.set()
            await anyio.sleep(0.01)
            assert backend.statistics().in_flight == 0
        metrics = (await caller.ask("/metrics", method="GET")).body.decode()
    assert 'outcome="cancelled"} 1.0' in metrics
