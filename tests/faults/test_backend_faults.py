"""Faults of servers, over real sockets: each has its outcome, and none ends in a pass."""

from __future__ import annotations

import asyncio
import json
import sys

import anyio
import big_reply
import openai
import pytest
from big_reply import event, flood
from command_line import start
from http_server import Answer, OpenAIServer, Send
from limiter_kit import ask

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.backends.openai import OpenAIBackend
from mellea_like.core.slice import Outcome
from mellea_like.errors import BackendError, BackendTimeout, BackendUnavailable, MalformedResponse

ANYTHING = Requirement("anything goes", lambda candidate: True, inline=True)
HEAD = b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
DONE = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'


def drip(*body: bytes, head: bytes = HEAD) -> Answer:
    """Sends the first parts at once, and then the last one for ever, byte by byte."""

    async def write(send: Send) -> None:
        await send.raw(head)
        for part in body[:-1]:
            await send.raw(part)
        while True:
            for byte in body[-1]:
                await asyncio.sleep(0.005)
                await send.raw(bytes([byte]))

    return Answer(write=write)


def raw(*body: bytes, head: bytes = HEAD) -> Answer:
    async def write(send: Send) -> None:
        await send.raw(head + b"".join(body))

    return Answer(write=write)


async def failure(answer: Answer, **arguments) -> BackendError:
    with OpenAIServer(answer) as server:
        backend = OpenAIBackend("m", base_url=server.url, **arguments)
        request = ask()
        with pytest.raises(BackendError) as caught:
            await backend.generate(request)
        assert (request.meter.usage.requests, request.meter.usage.unknown) == (1, 1)
        await server.wait_until(lambda: server.connections == 0)
        await backend.aclose()
    assert caught.value.__context__ is None
    return caught.value


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ({"timeout": 0}, ValueError, "timeout must be greater than 0 seconds"),
        ({"timeout": float("nan")}, ValueError, "timeout must be greater than 0 seconds"),
        ({"total_timeout": -1}, ValueError, "total_timeout must be greater than 0 seconds"),
        ({"max_characters": 0}, ValueError, "max_characters must be at least 1"),
        ({"max_characters": 1.5}, TypeError, "max_characters must be an integer"),
        ({"max_characters": True}, TypeError, "max_characters must be an integer"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(arguments, kind, says):
    with pytest.raises(kind, match=says):
        OpenAIBackend("m", **arguments)


# --- a server that takes its time ----------------------------------------------------------------

pytestmark = pytest.mark.anyio

ENDLESS = b"data: " + b"x" * 10_000


@pytest.mark.parametrize(
    "body",
    [(ENDLESS,), (event(content="a"), ENDLESS), (b": still working\n\n",), (b"\n",)],
    ids=["an event without end", "one after a word", "comments", "blank lines"],
)
async def test_a_byte_now_and_then_is_silence(body):
    error = await failure(drip(*body), timeout=0.15)
    assert type(error) is BackendTimeout
    assert "sent nothing for 0.15 s, the backend's timeout" in str(error)


async def test_the_silence_that_a_given_client_allows_is_not_said_to_be_the_backends():
    with OpenAIServer(Answer("one two", hang_after=1)) as server:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="k", timeout=0.15) as client:
            with pytest.raises(BackendTimeout) as caught:
                await OpenAIBackend("m", client=client).generate(ask())
    assert str(caught.value).endswith("/v1/ sent nothing in time")


async def test_who_is_slow_to_ask_for_the_next_piece_does_not_time_the_server_out():
    with OpenAIServer(Answer("one two", seconds=0.02)) as server:
        backend = OpenAIBackend("m", base_url=server.url, timeout=0.2)
        async with backend.stream(ask()) as pieces:
            assert await anext(pieces) == "one "
            await anyio.sleep(0.3)
            assert await anext(pieces) == "two"
        await backend.aclose()


@pytest.mark.parametrize(
    "answer",
    [
        drip(event(content="on and on ")),
        drip(ENDLESS),
        drip(b"x-more: of this\r\n", head=b"HTTP/1.1 200 X\r\n"),
        drip(b"<p>sorry</p>", head=b"HTTP/1.1 500 X\r\n\r\n"),
        Answer(wait=3600),
    ],
    ids=["words", "an event without end", "headers", "an error", "hang"],
)
async def test_a_request_that_takes_too_long_in_all_is_given_up(answer):
    # On a machine with ten times the work, half a second is too short to send the request.
    error = await failure(answer, timeout=30, total_timeout=1.2)
    assert type(error) is BackendTimeout
    assert "did not finish within 1.2 s, the backend's total_timeout" in str(error)


@pytest.mark.parametrize("limit", ["timeout", "total_timeout"])
async def test_time_that_is_up_after_the_end_of_a_reply_takes_only_the_usage(limit):
    with OpenAIServer(drip(event(content="all"), DONE, b": bye\n")) as server:
        backend = OpenAIBackend("m", base_url=server.url, **{limit: 0.2})
        generation = await backend.generate(ask())
        await server.wait_until(lambda: server.connections == 0)
        await backend.aclose()
    assert (generation.text, generation.usage.unknown) == ("all", 1)


# --- a reply that can't be read ------------------------------------------------------------------

WORD = event(content="half ")
LONG = b"\x1b[31m<&" * 500

BROKEN = {
    "cut between events": Answer("a b c", cut_after=2),
    "cut inside an event": raw(WORD, WORD[:20]),
    "no end": raw(WORD, WORD),
    "invalid JSON": raw(WORD, b'data: {"choices": [{"ind\n\n', DONE),
    "another shape": raw(WORD, b'data: {"choices": {"a": 1}}\n\n', DONE),
    "long invalid JSON": raw(WORD, b"data: {" + LONG + b"\n\n", DONE),
    "invalid UTF-8": raw(WORD, b'data: {"choices": "\xff\xfe\xfa"}\n\n', DONE),
    "half a character": raw(WORD, b'data: "\xe2\x82"\n\n', DONE),
    "JSON without end": raw(WORD, b"data: " + b"[" * 100_000 + b"\n\n", DONE),
    "no reply at all": raw(LONG),
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
async def test_a_reply_that_can_not_be_read_never_passes_and_the_next_turn_runs(answer):
    with OpenAIServer(answer, Answer("good")) as server:
        backend = OpenAIBackend("m", base_url=server.url)
        strategy = RejectionSamplingStrategy(backend, loop_budget=2, concurrency_budget=1)
        result = await strategy.sample("Say something.", [ANYTHING])
        await backend.aclose()
    # Two requests: it was not tried again inside its iteration.
    assert server.started == 2
    assert [s.outcome for s in result.slices] == [Outcome.ERRORED, Outcome.PASSED]
    error = result.slices[0].error
    assert type(error) is MalformedResponse
    assert error.__context__ is None
    # Little of it is shown.
    assert str(error).isprintable()
    assert len(str(error)) < 350
    assert str(error).count("31m") * 8 <= 200
    assert result.errors == (error,)
    assert result.value == "good"


# --- a reply without end -------------------------------------------------------------------------


async def test_a_reply_up_to_the_bound_is_a_reply_and_one_character_more_is_none():
    text = "x" * 5000
    for bound, kind in ((5000, None), (4999, MalformedResponse)):
        with OpenAIServer(raw(event(content=text), DONE)) as server:
            backend = OpenAIBackend("m", base_url=server.url, max_characters=bound)
            if kind is None:
                assert (await backend.generate(ask())).text == text
            else:
                with pytest.raises(kind, match="longer than 4,999 characters"):
                    await backend.generate(ask())
            await backend.aclose()


async def test_thoughts_count_too():
    thoughts = raw(*[event(reasoning_content="hm " * 100)] * 10, DONE)
    assert "1,000 characters" in str(await failure(thoughts, max_characters=1000))


async def test_an_endless_error_keeps_its_status_and_closes_its_request():
    error = await failure(flood("error"))
    assert (type(error), error.status) == (BackendUnavailable, 500)
    assert "<p>sorry</p>" in str(error)
    assert len(str(error)) < 350


async def test_an_endless_list_of_models_is_given_up():
    models = Answer(body=b'{"data": [' + b'{"id": "m"},' * 200_000)
    with OpenAIServer(model_list=models) as server:
        backend = OpenAIBackend(base_url=server.url)
        with pytest.raises(MalformedResponse):
            await backend.generate(ask())
        await server.wait_until(lambda: server.connections == 0)
        await backend.aclose()


@pytest.mark.allow_blocking
@pytest.mark.timeout(200)  # A busy machine takes long to send that much.
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("library", "kind"),
    # Not all of them on both: it takes a second each.
    [("asyncio", "emoji"), ("trio", "comments"), ("asyncio", "one line"), ("trio", "error")],
)
def test_an_answer_of_128_mebibytes_takes_less_than_48(library, kind):
    with start(library, kind, script=big_reply.__file__, text=True) as process:
        out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    answer = json.loads(out)
    assert answer["said"].startswith(("MalformedResponse", "BackendUnavailable"))
    assert answer["grown"] < 48
