"""Text is sent while a reply arrives, as soon as it is certain to pass."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest
from gateway_kit import calling
from open_responses import OPENAI_EVENT
from openai.types.chat import ChatCompletionChunk

from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.core.generation import Generation, Usage
from mellea_like.core.tools import ToolCall
from mellea_like.errors import BackendUnavailable
from mellea_like.gateway.chat import caller_checks

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]

PREFIX = {"streaming": {"release": "prefix", "keep_alive": 5}}


def texts(answer) -> list[tuple[float, str]]:
    """Return the time and the text of each piece, without the rest of the stream."""
    found = []
    for at, part in answer.parts:
        for event in replace(answer, parts=[(at, part)]).events:
            text = None
            if event != "[DONE]" and event.get("choices"):
                text = event["choices"][0]["delta"].get("content")
            elif event != "[DONE]" and event.get("type") == "response.output_text.delta":
                text = event["delta"]
            found += [(round(at, 2), text)] if text else []
    return found


async def chat(caller, **fields):
    return await caller.chat(stream=True, **fields)


async def respond(caller, **fields):
    body = {"model": "mine", "input": "Hi.", "stream": True, **fields}
    return await caller.ask("/v1/responses", body)


in_both = pytest.mark.parametrize("ask", [chat, respond])


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


@in_both
async def test_text_waits_until_it_is_certain_and_what_failed_is_never_sent(ask):
    replies = [Reply("no no", delay=2), Reply("yes a b", delay=3)]
    config = {"checks": ["starts:yes"], "early": True, "attempts": 2}
    async with calling(ScriptedBackend(replies), **config, **PREFIX) as caller:
        answer = await ask(caller)
    assert texts(answer) == [(2, "yes "), (3, "a "), (4, "b")]
    ended = answer.events[-2] if ask is chat else answer.events[-1]["response"]
    assert ended["mellea_like"]["iterations"] == 2


@pytest.mark.parametrize(
    ("config", "ask", "wishes"),
    [
        ({"checks": ["words<=3"], "early": True}, chat, {}),
        ({}, chat, {"n": 2}),
        ({}, chat, {"logprobs": True}),
        ({}, respond, {"include": ["message.output_text.logprobs"]}),
        ({"streaming": {"release": "passed"}}, chat, {}),
    ],
)
async def test_else_the_text_comes_when_it_has_passed(config, ask, wishes):
    backend = ScriptedBackend([Reply("a b", delay=2)], cycle=True)
    async with calling(backend, **{**PREFIX, **config}) as caller:
        answer = await ask(caller, **wishes)
    assert {text for _, text in texts(answer)} == {"a b"}
    assert {at for at, _ in texts(answer)} == {2}
    assert answer.headers["x-mellea-like-passed"] == "true"


@in_both
async def test_a_reply_that_breaks_after_some_text_ends_with_an_error(ask):
    broken = Reply(BackendUnavailable("x"), delay=2, chunks=["a ", "b"])
    async with calling(ScriptedBackend([broken, "c"]), attempts=2, **PREFIX) as caller:
        answer = await ask(caller)
    assert [text for _, text in texts(answer)] == ["a ", "b"]
    last = answer.events[-1]
    assert last["error"]["code"] == "reply_broken"
    assert answer.ended
    if ask is respond:
        OPENAI_EVENT.validate_python(last)
        assert (last["type"], last["code"]) == ("error", "reply_broken")
        assert last["sequence_number"] == len(answer.events) - 1


@in_both
@pytest.mark.parametrize("separate", [None, "I can't."])
async def test_a_text_that_was_sent_is_not_sent_again_as_a_refusal(ask, separate):
    reply = Generation("I can't.", finish_reason="refusal", refusal=separate)
    backend = ScriptedBackend([Reply(reply, chunks=["I ", "can't."])])
    async with calling(backend, **PREFIX) as caller:
        answer = await ask(caller)
    assert [text for _, text in texts(answer)] == ["I ", "can't."]
    assert b"refusal" not in answer.body


async def test_comments_come_in_the_pauses_between_pieces_too():
    backend = ScriptedBackend([Reply("a b", delay=24)])
    async with calling(backend, **PREFIX) as caller:
        answer = await caller.chat(stream=True)
    comments = [at for at, part in answer.parts if part.startswith(b":")]
    assert comments == [5, 10, 17, 22]
    assert texts(answer) == [(12, "a "), (24, "b")]


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
    assert "iterations_count" not in metrics  # Nobody knows how many draws there were.


# --- with tools ----------------------------------------------------------------------------------

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.fixture
def checks_at_once(monkeypatch):
    """Check calls in this process, because another process has no virtual clock."""

    async def ask(_, question):
        return {**caller_checks._answer(question), "spent": 0.0}

    monkeypatch.setattr(caller_checks.Workers, "ask", ask)


with_tools = pytest.mark.usefixtures("checks_at_once")


def calling_reply(text: str, arguments: str = '{"city": "Rome"}') -> Generation:
    call = ToolCall("c1", "weather", arguments)
    return Generation(text, finish_reason="tool_calls", tool_calls=(call,))


@with_tools
async def test_with_tools_the_text_flows_and_calls_come_when_all_have_passed():
    reply = Reply(calling_reply("I look."), delay=2, chunks=["I ", "look."])
    async with calling(ScriptedBackend([reply] * 2), **PREFIX) as caller:
        response = await respond(caller, tools=[{"type": "function", **WEATHER["function"]}])
        assert texts(response) == [(1, "I "), (2, "look.")]
        whole = response.events[-1]["response"]
        assert [item["type"] for item in whole["output"]] == ["message", "function_call"]
        assert response.events[-2]["item"] == whole["output"][1]
        answer = await caller.chat(stream=True, tools=[WEATHER])
    assert texts(answer) == [(3, "I "), (4, "look.")]
    deltas = [event["choices"][0]["delta"] for event in answer.events[:-1]]
    named, arguments = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert (named["function"]["name"], arguments["function"]["arguments"]) == (
        "weather",
        '{"city": "Rome"}',
    )
    assert answer.events[-2]["choices"][0]["finish_reason"] == "tool_calls"


@with_tools
async def test_a_wrong_call_is_drawn_again_as_long_as_no_text_was_sent():
    replies = [Reply(calling_reply("", "[]"), delay=1), Reply(calling_reply(""), delay=1)]
    async with calling(ScriptedBackend(replies), attempts=2, **PREFIX) as caller:
        answer = await caller.chat(stream=True, tools=[WEATHER])
    assert answer.events[-2]["mellea_like"]["iterations"] == 2
    assert answer.events[-2]["choices"][0]["finish_reason"] == "tool_calls"


@with_tools
async def test_a_wrong_call_after_text_that_was_sent_ends_the_stream():
    replies = [Reply(calling_reply("I look.", "[]"), chunks=["I look."]), Reply("no")]
    async with calling(ScriptedBackend(replies), attempts=2, **PREFIX) as caller:
        answer = await caller.chat(stream=True, tools=[WEATHER])
    assert answer.text == "I look."
    assert answer.events[-1]["error"]["code"] == "reply_broken"


@with_tools
@pytest.mark.parametrize(
    ("config", "wishes", "reply"),
    [
        ({}, {"tool_choice": "required"}, calling_reply("a b")),
        ({"checks": ["words<=3"], "early": True}, {}, "a b"),
    ],
)
async def test_with_tools_a_text_waits_where_it_may_still_fail(config, wishes, reply):
    backend = ScriptedBackend([Reply(reply, delay=2, chunks=["a ", "b"])])
    async with calling(backend, **{**PREFIX, **config}) as caller:
        answer = await caller.chat(stream=True, tools=[WEATHER], **wishes)
    assert texts(answer) == [(2, "a b")]


# --- the Responses API ---------------------------------------------------------------------------


async def test_a_response_flows_as_it_is_written_and_ends_as_the_whole_one():
    reply = Generation("a b c", usage=Usage(1, 10, 3), reasoning="Hm.", finish_reason="length")
    backend = ScriptedBackend([Reply(reply, delay=3, chunks=["a ", "b ", "c"])])
    async with calling(backend, **PREFIX) as caller:
        answer = await respond(caller)
    assert texts(answer) == [(1, "a "), (2, "b "), (3, "c")]
    assert [event["sequence_number"] for event in answer.events] == list(range(len(answer.events)))
    for event in answer.events:
        OPENAI_EVENT.validate_python(event)
    kinds = [event["type"].removeprefix("response.") for event in answer.events]
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * 3,
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added"),
        *("reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"),
        "incomplete",
    ]
    begun, whole = answer.events[0]["response"], answer.events[-1]["response"]
    assert begun["id"] == whole["id"]
    said, thought = whole["output"]
    assert (said["content"][0]["text"], thought["type"]) == ("a b c", "reasoning")
    assert {e["item_id"] for e in answer.events if "text" in e["type"] and "item_id" in e} == {
        said["id"],
        thought["id"],
    }
    assert [e["item"] for e in answer.events if e["type"].endswith("item.done")] == whole["output"]
    assert (whole["usage"]["total_tokens"], whole["mellea_like"]["passed"]) == (13, True)
