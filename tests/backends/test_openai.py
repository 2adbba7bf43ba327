"""OpenAIBackend against a real HTTP server: replies, options, models, clients and event loops."""

from __future__ import annotations

import gc
import sys

import anyio
import openai
import pytest
from anyio.lowlevel import checkpoint
from http_server import Answer, OpenAIServer, serving
from leftovers import wait_until

from mellea_like import Message, OpenAIBackend, Request
from mellea_like.core import Options
from mellea_like.errors import (
    AuthenticationFailed,
    BackendUnavailable,
    InvalidRequest,
    MalformedResponse,
)

pytestmark = pytest.mark.anyio


def ask(text="Say something.", **fields) -> Request:
    return Request((Message("user", text),), **fields)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)


async def test_every_request_is_streamed_with_usage_and_sent_once():
    with OpenAIServer(Answer.error(503), Answer()) as server:
        client = openai.AsyncOpenAI(base_url=server.url, api_key="k", max_retries=5)
        async with client:
            backend = OpenAIBackend("m", client=client)
            with pytest.raises(BackendUnavailable):
                await backend.generate(ask())
            assert server.started == 1, "the SDK retried"
            await backend.generate(ask())
    assert all(body["stream"] for body in server.requests)
    assert all(body["stream_options"] == {"include_usage": True} for body in server.requests)


async def test_options_go_onto_the_wire_over_the_backends_own():
    own = Options(temperature=0.5, max_tokens=9, extra={"top_k": 3, "min_p": 0.1})
    async with serving(options=own) as (server, backend):
        options = Options(
            model="other",
            temperature=0.0,
            top_p=0.9,
            stop="\n\n",
            seed=2**40 + 7,
            extra={"top_k": 4},
        )
        await backend.generate(ask("Hi", options=options))
    (body,) = server.requests
    assert body == {
        "model": "other",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "top_p": 0.9,
        "max_tokens": 9,
        "stop": ["\n\n"],
        "seed": 7,
        "top_k": 4,
        "min_p": 0.1,
    }


@pytest.mark.parametrize(
    ("extra", "sent"),
    [
        ({"include_obfuscation": False}, {"include_usage": True, "include_obfuscation": False}),
        ({"include_usage": False}, {"include_usage": False}),
        (None, None),
    ],
)
async def test_the_usage_is_asked_for_beside_other_options_of_the_stream(extra, sent):
    async with serving() as (server, backend):
        await backend.generate(ask(options=Options(extra={"stream_options": extra})))
    assert server.requests[0]["stream_options"] == sent


async def test_extra_may_not_turn_streaming_off():
    backend = OpenAIBackend("m", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(InvalidRequest, match="always streams"):
        await backend.generate(ask(options=Options(extra={"stream": False})))


def chunks(*choices: str) -> Answer:
    events = tuple(f'{{"choices": [{{"index": 0, {choice}}}]}}' for choice in choices)
    return Answer(events=events, finish_reason=None, usage=None)


A, B = (f'"delta": {{"content": "{text}"}}, "finish_reason": ""' for text in "ab")


@pytest.mark.parametrize(
    ("answer", "text", "reason", "tokens"),
    [
        (Answer("a b", finish_reason="content_filter"), "a b", "content_filter", None),
        (Answer("a b", finish_reason="length"), "a b", "length", None),
        (Answer("a b", finish_reason=None), "a b", None, None),
        (Answer("a b", done=False), "a b", "stop", None),
        (Answer("a b", finish_reason="sensitive"), "a b", "content_filter", None),
        (chunks(A, B, '"delta": {}, "finish_reason": "stop"'), "ab", "stop", 2),
        (
            chunks(
                '"delta": {"refusal": "I can\'t "}',
                '"delta": {"refusal": "do that."}',
                '"delta": {}, "finish_reason": "stop"',
            ),
            "I can't do that.",
            "refusal",
            2,
        ),
    ],
)
async def test_how_a_reply_ended_is_told(answer, text, reason, tokens):
    async with serving(answer) as (_, backend):
        generation = await backend.generate(ask())
    assert (generation.text, generation.finish_reason) == (text, reason)
    assert tokens in {None, generation.usage.output_tokens}


@pytest.mark.parametrize("index", ["0", "null"])
async def test_an_event_of_another_kind_after_the_reply_takes_only_the_usage(index):
    last = f'{{"index": {index}, "delta": {{"content": "a"}}, "finish_reason": "stop"}}'
    events = (f'{{"choices": [{last}]}}', '{"cost": 3}')
    async with serving(Answer(events=events, finish_reason=None, usage=None)) as (_, backend):
        reply = await backend.generate(ask())
    assert (reply.text, reply.finish_reason, reply.usage.unknown) == ("a", "stop", 1)


# --- which model -------------------------------------------------------------------------------


async def test_without_a_model_the_server_is_asked_once_for_its_first():
    with OpenAIServer(models=("first", "second")) as server:
        backend = OpenAIBackend(base_url=server.url)
        assert backend.model is None
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(backend.generate, ask())
        await backend.aclose()
    assert server.model_lists == 1
    assert {body["model"] for body in server.requests} == {"first"}
    assert backend.model == "first"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"data": []}', "lists no models: pass model="),
        *(
            (body, ".")
            for body in (b"", b"[]", b'"x"', b'{"data": 5}', b'{"data": [7]}', b"<html>")
        ),
    ],
)
async def test_a_list_without_models_or_of_something_else_is_an_error(body, says):
    with OpenAIServer(model_list=Answer(body=body)) as server:
        backend = OpenAIBackend(base_url=server.url)
        with pytest.raises((MalformedResponse, InvalidRequest), match=says):
            await backend.generate(ask())
        await backend.aclose()


async def test_a_query_in_the_url_is_sent_with_each_request():
    with OpenAIServer() as server:
        backend = OpenAIBackend("m", base_url=f"{server.url}?api-version=7&a=%2F\u00fc")
        await backend.generate(ask())
        await backend.aclose()
    assert server.paths == ["/v1/chat/completions?api-version=7&a=%2F%C3%BC"]


async def test_openais_own_api_needs_a_models_name():
    backend = OpenAIBackend(api_key="k" * 20)
    with pytest.raises(InvalidRequest, match="needs a model name"):
        await backend.generate(ask())
    await backend.aclose()


# --- keys and URLs -----------------------------------------------------------------------------


async def test_credentials_in_the_url_are_used_but_not_shown():
    with OpenAIServer() as server:
        url = server.url.replace("http://", "http://me:pass%20word@")
        backend = OpenAIBackend("m", base_url=url)
        await backend.generate(ask())
        await backend.aclose()
    assert server.headers[0]["authorization"] == "Basic bWU6cGFzcyB3b3Jk"
    assert repr(backend) == f"<OpenAIBackend 'm' at {server.url}>"


@pytest.mark.parametrize(
    "url", ["sk-secret-in-the-wrong-place", "ftp://host/v1", "http://", "http://[h"]
)
def test_a_base_url_that_is_none_is_refused_without_showing_it(url):
    with pytest.raises(ValueError, match=r"base_url must be a URL that starts with http") as caught:
        OpenAIBackend("m", base_url=url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["localhost:80", "http://[h"])
async def test_a_wrong_url_in_the_environment_is_an_invalid_request(monkeypatch, url):
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    assert "OpenAIBackend" in repr(OpenAIBackend("m"))
    with pytest.raises(InvalidRequest, match="OPENAI_BASE_URL must be a URL"):
        await OpenAIBackend("m").generate(ask())


@pytest.mark.parametrize("key", ["sk-söme", "sk-two words", "sk-a\x00b"])
async def test_a_key_that_no_header_can_hold_is_refused_without_showing_it(key):
    backend = OpenAIBackend("m", base_url="http://127.0.0.1:9/v1", api_key=key)
    with pytest.raises(AuthenticationFailed, match="can't be sent in an HTTP header") as caught:
        await backend.generate(ask())
    assert key not in str(caught.value)


# --- clients, connections and event loops --------------------------------------------------------


async def test_a_connection_is_used_again_and_closed_by_aclose():
    async with serving(keep_alive=True) as (server, backend):
        for _ in range(3):
            await backend.generate(ask())
        assert (server.accepted, server.connections) == (1, 1)
        await backend.aclose()
        await server.wait_until(lambda: server.connections == 0)
        await backend.aclose()
        await backend.generate(ask())
        assert server.accepted == 2


async def test_aclose_leaves_a_request_under_way_its_connection():
    with OpenAIServer(Answer("a b c d", seconds=0.2)) as server:
        backend = OpenAIBackend("m", base_url=server.url)
        async with backend.stream(ask()) as reply:
            await anext(reply)
            await backend.aclose()
            rest = [item async for item in reply]
        assert rest[-1].text == "a b c d"
        await server.wait_until(lambda: server.connections == 0)


async def test_a_given_client_stays_open():
    with OpenAIServer() as server:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="k") as client:
            backend = OpenAIBackend("m", client=client)
            await backend.generate(ask())
            await backend.aclose()
            assert (await backend.generate(ask())).text
        with pytest.raises(InvalidRequest, match="closed"):
            await backend.generate(ask())


def test_one_event_loop_after_another_and_each_closes_its_connections(anyio_backend):
    with OpenAIServer() as server:
        backend = OpenAIBackend("m", base_url=server.url, keep_alive=True)
        for round_ in range(1, 4):
            anyio.run(backend.generate, ask(), backend=anyio_backend)
            wait_until(lambda: not server.connections, 2)
            assert server.accepted == round_
        del backend
        gc.collect()  # A socket that was left open would warn here.


def test_a_backend_that_was_dropped_is_closed_with_its_loop(anyio_backend):
    async def drop(server: OpenAIServer) -> None:
        await OpenAIBackend("m", base_url=server.url, keep_alive=True).generate(ask())
        gc.collect()  # A generator that was left suspended would warn here.
        await checkpoint()

    with OpenAIServer() as server:
        anyio.run(drop, server, backend=anyio_backend)
        wait_until(lambda: not server.connections, 2)
        gc.collect()


async def test_a_body_that_does_not_end_after_the_reply_is_not_waited_for():
    async with serving(Answer("a b", linger=30), keep_alive=True) as (server, backend):
        begun = anyio.current_time()
        assert (await backend.generate(ask())).text == "a b"
        assert anyio.current_time() - begun < 2
        await server.wait_until(lambda: server.disconnected == 1)


FIRST = """
import asyncio, sys
from mellea_like import Message, Request
from mellea_like.backends import OpenAIBackend

async def main():
    backend = OpenAIBackend("m", base_url=sys.argv[1], trust_env=False)
    before = set(sys.modules)
    await backend.generate(Request((Message("user", "Say something."),)))
    await backend.aclose()
    print(*sorted(name for name in set(sys.modules) - before if not name.startswith("anyio")))

asyncio.run(main())
"""


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_first_request_imports_nothing_of_the_sdk():
    with OpenAIServer() as server:
        done = await anyio.run_process([sys.executable, "-c", FIRST, server.url])
    assert set(done.stdout.decode().split()) <= {"array"}  # Python 3.14's zoneinfo.
