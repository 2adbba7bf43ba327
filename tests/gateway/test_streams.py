"""Streamed replies: comments until a draw has passed, then the winner's text."""

from __future__ import annotations

import gc
import weakref

import anyio
import pytest
from gateway_kit import calling, user
from open_responses import OPENAI_EVENT

from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.gateway.chat.endpoint import EventStream

pytestmark = pytest.mark.anyio


async def test_the_winners_text_comes_in_chunks_once_it_has_passed(virtual_clock):
    backend = ScriptedBackend([Reply("a b c", delay=1), Reply("a b", delay=1)])
    async with calling(backend, checks=["words<=2"]) as caller:
        answer = await caller.chat(stream=True)
    assert (answer.status, answer.headers["x-mellea-like-passed"]) == (200, "true")
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    assert int(answer.headers["content-length"]) == len(answer.body)  # It comes in one piece.
    *chunks, done = answer.events
    assert done == "[DONE]"
    assert answer.ended
    assert answer.text == "a b"
    assert {(c["object"], c["model"]) for c in chunks} == {("chat.completion.chunk", "mine")}
    assert len({c["id"] for c in chunks}) == 1
    first, last = chunks[0]["choices"][0], chunks[-1]["choices"][0]
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert first["finish_reason"] is None
    assert (last["delta"], last["finish_reason"]) == ({}, "stop")
    assert last["mellea_like"]["iterations"] == 2
    assert chunks[-1]["mellea_like"]["passed"] is True
    assert all("usage" not in chunk for chunk in chunks)
    assert answer.parts[0][0] == pytest.approx(2, abs=0.01)


async def test_comments_keep_the_connection_alive_before_that(virtual_clock):
    backend = ScriptedBackend([Reply("a", delay=16)])
    async with calling(backend, streaming={"keep_alive": 5}) as caller:
        answer = await caller.chat(stream=True)
    before = [(round(at), part) for at, part in answer.parts if part.startswith(b":")]
    assert before == [
        (5, b": keep-alive\n\n"),
        (10, b": keep-alive\n\n"),
        (15, b": keep-alive\n\n"),
    ]
    assert answer.text == "a"
    # The header was sent too early to tell, so the last chunk does.
    assert "x-mellea-like-passed" not in answer.headers
    assert "content-length" not in answer.headers
    assert answer.events[-2]["mellea_like"]["passed"] is True


async def test_a_reply_before_the_first_comment_leaves_nothing_to_the_collector():
    async def send(message) -> None:
        raise AssertionError(message)

    gc.collect()
    gc.disable()
    try:
        stream = EventStream(send)
        async with stream.kept_alive(10):
            await anyio.lowlevel.checkpoint()
        kept = weakref.ref(stream)
        del stream
        await anyio.lowlevel.checkpoint()
        assert kept() is None
    finally:
        gc.enable()


async def test_a_reply_that_comes_while_a_comment_is_sent_waits_for_it(virtual_clock):
    sent: list[str] = []

    async def send(message) -> None:
        await anyio.sleep(1)
        sent.append(message["type"])

    stream = EventStream(send)
    async with stream.kept_alive(5):
        await anyio.sleep(5.5)  # The first comment is on its way, with the headers before it.
    await stream.write(b"data: [DONE]\n\n", more=False)
    assert sent == ["http.response.start", "http.response.body", "http.response.body"]
    assert virtual_clock.now == pytest.approx(8)


# --- when there is no reply ---------------------------------------------------------------------


in_both_apis = pytest.mark.parametrize(
    ("path", "asked"), [("chat/completions", {"messages": user()}), ("responses", {"input": "Hi."})]
)


@pytest.mark.parametrize("release", ["passed", "prefix"])
@in_both_apis
async def test_what_fails_at_once_has_a_status_of_its_own(path, asked, release):
    config = {"checks": ["words<=2"], "attempts": 1, "streaming": {"release": release}}
    async with calling(ScriptedBackend(["a b c"]), **config) as caller:
        answer = await caller.ask(f"/v1/{path}", {"model": "mine", "stream": True, **asked})
    assert (answer.status, answer.error["code"]) == (422, "nothing_passed")
    assert answer.headers["content-type"] == "application/json"


@in_both_apis
async def test_what_fails_after_the_stream_began_is_its_last_event(path, asked, virtual_clock):
    backend = ScriptedBackend([Reply("a b c", delay=8)])
    config = {"checks": ["words<=2"], "attempts": 1, "streaming": {"keep_alive": 5}}
    async with calling(backend, **config) as caller:
        answer = await caller.ask(f"/v1/{path}", {"model": "mine", "stream": True, **asked})
    assert (answer.status, answer.ended) == (200, True)
    [event] = answer.events
    assert event["error"]["code"] == "nothing_passed"
    assert event["error"]["mellea_like"]["best"]["content"] == "a b c"
    if path == "responses":
        OPENAI_EVENT.validate_python(event)
        assert (event["type"], event["code"]) == ("error", "nothing_passed")
