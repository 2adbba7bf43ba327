"""PydanticAIBackend: offline models, and the real clients of providers against local servers."""

from __future__ import annotations

import json
import pickle
import socket
from contextlib import ExitStack
from types import SimpleNamespace

import anyio
import pytest
from http_server import Answer, OpenAIServer, Send
from messages import PNG
from pydantic import BaseModel
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage

from mellea_like import Generation, Image, Message, Request, Tool
from mellea_like.backends import PydanticAIBackend
from mellea_like.core import Audio, Options, ToolCall, Usage
from mellea_like.errors import (
    AuthenticationFailed,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    InvalidRequest,
    RateLimited,
)
from mellea_like.testing import check_backend

pytestmark = pytest.mark.anyio

KEY = "sk-a-key-that-nobody-may-see"


def ask(text: str = "hello", *, format=None, **options) -> Request:
    return Request((Message("user", text),), Options(**options), format)


def openai_model(server: OpenAIServer, **more) -> OpenAIChatModel:
    provider = OpenAIProvider(base_url=server.url, api_key=KEY)
    return OpenAIChatModel("gpt-test", provider=provider, **more)


def anthropic_model(server):
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(base_url=server.url.removesuffix("/v1"), api_key=KEY)
    return AnthropicModel("claude-sonnet-5-5", provider=provider)


MODELS = {"openai": openai_model, "anthropic": anthropic_model}


def anthropic_answer(*blocks: dict, seconds: float = 0.0, stop_reason: str = "end_turn") -> Answer:
    """A streamed reply of Anthropic's Messages API."""

    async def write(send: Send) -> None:
        async def event(kind: str, **fields) -> None:
            data = f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
            await send.raw(b"%x\r\n%b\r\n" % (len(data), data))

        # The server closes the connection after an answer of one's own.
        send.head(200, "text/event-stream", {"connection": "close"})
        usage = {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 1}
        message = {"id": "m", "type": "message", "role": "assistant", "model": "claude-sonnet-5-5"}
        await event("message_start", message={**message, "content": [], "usage": usage})
        for index, block in enumerate(blocks):
            deltas = block.pop("deltas")
            await event("content_block_start", index=index, content_block=block)
            for delta in deltas:
                await anyio.sleep(seconds / len(deltas))
                await event("content_block_delta", index=index, delta=delta)
            await event("content_block_stop", index=index)
        ended = {"stop_reason": stop_reason, "stop_sequence": None}
        await event("message_delta", delta=ended, usage={"output_tokens": 9})
        await event("message_stop")
        send.end()

    return Answer(write=write)


def text_block(*words: str) -> dict:
    deltas = [{"type": "text_delta", "text": word} for word in words]
    return {"type": "text", "text": "", "deltas": deltas}


@pytest.mark.parametrize("provider", MODELS)
async def test_real_clients_keep_every_promise(provider):
    def choose(number: int, body: dict) -> Answer:
        if "Fail." in json.dumps(body["messages"]):
            return Answer.error(500, "as asked")
        if provider == "anthropic":
            return anthropic_answer(text_block("one ", "two ", "three"), seconds=0.03)
        return Answer("one two three", seconds=0.03)

    with OpenAIServer(choose=choose) as server:
        backend = PydanticAIBackend(MODELS[provider](server))
        sent = lambda: server.started
        rules = await check_backend(lambda: backend, failing_request=ask("Fail."), sent=sent)
        await backend.aclose()
        await server.wait_until(lambda: server.connections == 0)
    assert {"cancellation", "stream", "errors"} <= set(rules)


@pytest.mark.parametrize("provider", MODELS)
async def test_requests_that_never_left_cost_nothing(provider):
    """Eight draws wait for a connection to a port where nobody accepts any, and are cancelled."""
    with socket.socket() as deaf, ExitStack() as stack:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(2):  # Then its queue is full.
            full = stack.enter_context(socket.socket())
            full.setblocking(False)
            full.connect_ex(deaf.getsockname())
        server = SimpleNamespace(url=f"http://127.0.0.1:{deaf.getsockname()[1]}/v1")
        backend = PydanticAIBackend(MODELS[provider](server))
        requests = [ask() for _ in range(8)]
        with anyio.move_on_after(0.3):
            async with anyio.create_task_group() as tasks:
                for request in requests:
                    tasks.start_soon(backend.generate, request)
        await backend.aclose()
    assert sum((request.meter.usage for request in requests), Usage()) == Usage()
    assert all(request.meter.started for request in requests)


async def test_a_model_without_streams_keeps_every_promise():
    async def answer(messages, info) -> ModelResponse:
        await anyio.sleep(0.001)
        usage = RequestUsage(input_tokens=7, output_tokens=2)
        return ModelResponse([ThinkingPart("hm"), TextPart("one "), TextPart("two")], usage=usage)

    backend = PydanticAIBackend(FunctionModel(answer))
    await check_backend(lambda: backend)
    reply = await backend.generate(ask())
    assert (reply.text, reply.usage) == ("one two", Usage(1, 7, 2))


async def test_what_anthropic_says_becomes_a_generation():
    thought = {"type": "thinking_delta", "thinking": "let me see"}
    thinking = {"type": "thinking", "thinking": "", "signature": "", "deltas": [thought]}
    answer = anthropic_answer(thinking, text_block("a ", "b"), stop_reason="max_tokens")
    with OpenAIServer(answer) as server:
        backend = PydanticAIBackend(
            anthropic_model(server), options={"extra": {"anthropic_metadata": {"user_id": "u"}}}
        )
        asked = ask(max_tokens=9, stop="END", extra={"mine": 1})
        async with backend.stream(asked) as pieces:
            got = [piece async for piece in pieces]
        await backend.aclose()
    *texts, reply = got
    assert texts == ["a ", "b"]
    assert isinstance(reply, Generation)
    # Anthropic counts what it read from its cache apart; here it is a part of the input.
    assert reply.usage == Usage(1, 7, 9, 0, 4)
    assert (reply.text, reply.finish_reason) == ("a b", "length")
    assert (reply.model, backend.provider) == ("claude-sonnet-5-5", "anthropic")
    sent = server.requests[0]
    kept = {"max_tokens": 9, "stop_sequences": ["END"], "mine": 1, "metadata": {"user_id": "u"}}
    assert kept.items() <= sent.items()
    assert sent["stream"] is True


class Reading(BaseModel):
    celsius: float


@pytest.mark.parametrize("mode", ["native", "tool", "prompted"])
async def test_a_format_is_asked_for_as_the_model_can(mode):
    profile = {
        "supports_json_schema_output": mode == "native",
        "supports_tools": mode != "prompted",
    }
    words = '{"celsius": 21.5}'
    call = {"index": 0, "id": "1", "function": {"name": "final_result", "arguments": words}}
    by_tool = json.dumps(
        {"id": "1", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}], "model": "m"}
    )
    answer = Answer(events=(by_tool,), finish_reason="tool_calls")
    with OpenAIServer(answer if mode == "tool" else Answer(words)) as server:
        backend = PydanticAIBackend(openai_model(server, profile=profile))
        reply = await backend.generate(ask("How warm?", format=Reading))
        await backend.aclose()
    assert (reply.text, reply.finish_reason) == (words, "stop")
    sent = server.requests[0]
    where = {"native": "response_format", "tool": "tools", "prompted": "messages"}
    assert [name for name in where.values() if "celsius" in json.dumps(sent.get(name))] == [
        where[mode]
    ]


@pytest.mark.parametrize(
    ("answer", "kind", "retryable", "retry_after"),
    [
        (Answer.error(401, f"the key {KEY} is wrong"), AuthenticationFailed, False, None),
        (Answer.error(429, "slow down", retry_after="7"), RateLimited, True, 7.0),
        (Answer.error(429, "no", code="insufficient_quota"), RateLimited, False, None),
        (Answer.error(408), BackendTimeout, True, None),
        (Answer.error(409), InvalidRequest, True, None),
        (Answer.error(404, "no such model"), InvalidRequest, False, None),
        (Answer.error(503), BackendUnavailable, True, None),
        (Answer(cut_after=1), BackendUnavailable, True, None),
        (Answer(body=b"<html>", content_type="text/html"), BackendError, True, None),
        (Answer(hang_after=1), BackendTimeout, True, None),
    ],
    ids=["401", "429", "quota", "408", "409", "404", "503", "cut", "html", "silent"],
)
async def test_errors_are_this_librarys_and_show_no_key(answer, kind, retryable, retry_after):
    with OpenAIServer(answer) as server:
        timeout = 30.0 if answer.hang_after is None else 1.0
        backend = PydanticAIBackend(openai_model(server), timeout=timeout)
        with pytest.raises(kind) as caught:
            await backend.generate(asked := ask())
        await backend.aclose()
    error = caught.value
    assert (error.retryable, error.retry_after) == (retryable, retry_after)
    assert KEY not in repr(error)
    assert error.__cause__ is None
    assert error.__context__ is None
    assert server.started == 1, "an SDK has tried again"
    assert asked.meter.usage.requests == 1


async def test_what_never_left_is_not_counted():
    with OpenAIServer() as server:
        model = openai_model(server)
    asked = [ask(), ask(stop="END"), ask(model="another")]
    backend = PydanticAIBackend(model)
    with pytest.raises(BackendUnavailable):
        await backend.generate(asked[0])
    with pytest.raises(InvalidRequest, match="can't ask another model"):
        await backend.generate(asked[2])
    model.unsupported_settings = frozenset({"stop_sequences"})
    with pytest.raises(InvalidRequest, match="doesn't support stop_sequences"):
        await backend.generate(asked[1])
    await backend.aclose()
    assert [request.meter.usage.requests for request in asked] == [0, 0, 0]


async def test_a_client_for_asyncio_alone_says_so_on_trio(anyio_backend_name):
    async def on_asyncio(messages, info) -> ModelResponse:
        import asyncio

        asyncio.get_running_loop()
        return ModelResponse([TextPart("hello")])

    backend = PydanticAIBackend(FunctionModel(on_asyncio))
    if anyio_backend_name == "asyncio":
        assert (await backend.generate(ask())).text == "hello"
    else:
        with pytest.raises(InvalidRequest, match="runs only on asyncio"):
            await backend.generate(ask())


async def test_bugs_and_the_callers_exceptions_stay_what_they_are():
    async def broken(messages, info):
        raise ZeroDivisionError
        yield

    with pytest.raises(ZeroDivisionError):
        await PydanticAIBackend(FunctionModel(stream_function=broken)).generate(ask())
    with pytest.raises(NotImplementedError, match="the caller's"):
        async with PydanticAIBackend("test").stream(ask()) as pieces:
            async for _ in pieces:
                raise NotImplementedError("the caller's")


def test_a_backend_survives_event_loops_and_pickling(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with OpenAIServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        for model in (openai_model(server), "openai-chat:m"):
            backend = PydanticAIBackend(model)
            # A ready model's lock is of one kind of event loop.
            for loop in ("asyncio", "trio" if isinstance(model, str) else "asyncio", "asyncio"):
                assert anyio.run(backend.generate, ask(), backend=loop).usage == Usage(1, 7, 4)
        again = pickle.loads(pickle.dumps(backend))
        assert anyio.run(again.generate, ask()).text == "one two three four"
        assert again.limit_key == backend.limit_key
        assert repr(again) == "<PydanticAIBackend openai:m>"


@pytest.mark.parametrize(
    ("model", "error", "says"),
    [
        ("no-such-provider:x", ValueError, "no-such-provider"),
        ("anthropic:claude-sonnet-5-5", ValueError, "ANTHROPIC_API_KEY"),
        (7, TypeError, "a pydantic_ai Model"),
    ],
)
def test_mistakes_are_found_at_once(model, error, says, monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(error, match=says):
        PydanticAIBackend(model)


async def test_a_conversation_with_parts_and_tools_is_written_as_the_provider_has_it():
    weather = Tool("weather", "How it is.", {"type": "object", "properties": {"city": {}}})
    photo, sound = Image(data=PNG, detail="low"), Audio(b"RIFF", "wav")
    messages = (
        Message("system", "Be brief."),
        Message("user", ["What is this?", photo, Image("https://example.org/a.png"), sound]),
        Message("assistant", "", tool_calls=[ToolCall("c1", "weather", '{"city":"Rome"}')]),
        Message("tool", "21 degrees", tool_call_id="c1"),
    )
    call = {"index": 0, "id": "c2", "function": {"name": "weather", "arguments": '{"city": '}}
    more = {"index": 0, "function": {"arguments": '"Oslo"}'}}
    events = [
        json.dumps({"id": "1", "choices": [{"index": 0, "delta": {"tool_calls": [part]}}]})
        for part in (call, more)
    ]
    answer = Answer(events=tuple(events), finish_reason="tool_calls")
    with OpenAIServer(answer) as server:
        backend = PydanticAIBackend(openai_model(server))
        request = Request(messages, tools=(weather, Tool("other")), tool_choice="weather")
        reply = await backend.generate(request)
        await backend.aclose()
    assert reply.tool_calls == (ToolCall("c2", "weather", '{"city": "Oslo"}'),)
    assert (reply.text, reply.finish_reason) == ("", "tool_calls")
    sent = server.requests[0]
    wanted = [message.as_dict() for message in messages]
    assert sent["messages"][0] == wanted[0]
    assert sent["messages"][1]["content"] == wanted[1]["content"]
    assert sent["messages"][2]["tool_calls"] == wanted[2]["tool_calls"]
    assert sent["messages"][3] == {"role": "tool", "tool_call_id": "c1", "content": "21 degrees"}
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["weather", "other"]
    assert sent["tool_choice"]["function"] == {"name": "weather"}


async def test_a_refusal_is_a_reply():
    refused = {"id": "1", "choices": [{"index": 0, "delta": {"refusal": "I can't."}}]}
    with OpenAIServer(Answer(events=(json.dumps(refused),))) as server:
        backend = PydanticAIBackend(openai_model(server))
        async with backend.stream(ask()) as pieces:
            text, reply = [piece async for piece in pieces]
        await backend.aclose()
    assert text == "I can't."
    assert isinstance(reply, Generation)
    assert (reply.text, reply.refusal, reply.finish_reason) == (text, text, "refusal")
