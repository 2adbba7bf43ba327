"""Every failure between OpenAIBackend and a server becomes an error of the library's tree."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anyio
import h11
import httpx2
import openai
import pytest
from http_server import Answer, OpenAIServer, serving

from mellea_like import Message, OpenAIBackend, Request
from mellea_like.backends.server_errors import ServerError, Translator, retry_after
from mellea_like.core import Options, Usage
from mellea_like.errors import (
    AuthenticationFailed,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    InvalidRequest,
    MalformedResponse,
    RateLimited,
)

pytestmark = pytest.mark.anyio

URL = "http://127.0.0.1:8080/v1"
KEY = "sk-planted-0123456789abcdef"
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def ask(text="Say something.", **fields) -> Request:
    return Request((Message("user", text),), **fields)


def translator(**changes) -> Translator:
    return Translator(**{"url": URL, "model": "m", "timeout": 5.0, "secrets": (KEY,), **changes})


# --- exceptions of the SDK, and of what lies beneath it ------------------------------------------

REQUEST = httpx2.Request("POST", URL)


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (openai.APIConnectionError(request=REQUEST), BackendUnavailable),
        (openai.APITimeoutError(REQUEST), BackendTimeout),
        (
            openai.APIStatusError("no", response=httpx2.Response(418, request=REQUEST), body=None),
            InvalidRequest,
        ),
        (openai.OpenAIError("no"), InvalidRequest),
        (openai.OpenAIError("no credentials were given"), AuthenticationFailed),
        (httpx2.ReadTimeout("slow"), BackendTimeout),
        (httpx2.ConnectTimeout("nobody there"), BackendUnavailable),
        (httpx2.PoolTimeout("full"), BackendTimeout),
        (TimeoutError(), BackendTimeout),
        (httpx2.ReadError("broken"), BackendUnavailable),
        (httpx2.RemoteProtocolError("peer closed"), BackendUnavailable),
        (httpx2.DecodingError("bad gzip"), BackendUnavailable),
        (httpx2.StreamClosed(), BackendUnavailable),
        (h11.RemoteProtocolError("no"), BackendUnavailable),
        (ssl.SSLError("handshake"), BackendUnavailable),
        (anyio.EndOfStream(), BackendUnavailable),
        (ConnectionResetError(), BackendUnavailable),
        (socket.gaierror(-2, "Name or service not known"), BackendUnavailable),
        (KeyError("choices"), MalformedResponse),
        (ServerError("it broke"), BackendUnavailable),
        (RateLimited("as it is"), RateLimited),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_every_exception_has_its_place(exc, expected):
    assert type(translator().of(exc)) is expected


# --- Retry-After -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after-ms": "-1", "retry-after": "9"}, 9.0),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e308"}, 86_400.0),
        ({"retry-after": ""}, None),
        ({"retry-after": " 7 "}, 7.0),
        ({"retry-after": "9" * 5000}, None),
        ({"retry-after": "3, 5"}, None),
        ({"retry-after": "Sunday, 06-Nov-94 08:49:37 GMT"}, 0.0),
        ({"retry-after": "Tue, 01 Jan 99999999999999999999 00:00:00 GMT"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": format_datetime(NOW + timedelta(seconds=90), usegmt=True)}, 90.0),
        ({"retry-after": format_datetime(NOW - timedelta(seconds=90), usegmt=True)}, 0.0),
        ({"retry-after": "Tue, 01 Jan 2030 00:00:07"}, 7.0),
        ({"retry-after": "Tue, 01 Jan 9999 00:00:00 GMT"}, 86_400.0),
        ({"retry-after": "Tue, 99 Jan 2030 00:00:00 GMT"}, None),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 -2359"}, 86_400.0),
    ],
)
def test_retry_after_is_read_or_left_out(headers, seconds):
    assert retry_after(headers, NOW) == seconds


def test_a_connection_that_breaks_in_a_retry_does_not_tell_of_the_try_before():
    broken = httpx2.RemoteProtocolError("peer closed connection")
    broken.__context__ = RateLimited("answered 429: slow down", status=429)
    error = translator().of(broken)
    assert str(error) == f"can't reach {URL}: the connection failed (peer closed connection)"


# --- statuses, over the wire -------------------------------------------------------------------


async def failure(answer: Answer, **arguments) -> BackendError:
    with OpenAIServer(answer) as server:
        backend = OpenAIBackend("m", base_url=server.url, api_key=KEY, keep_alive=True, **arguments)
        with pytest.raises(BackendError) as caught:
            await backend.generate(ask())
        await server.wait_until(lambda: server.in_flight == 0)
        await backend.aclose()
        await server.wait_until(lambda: server.connections == 0)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    return caught.value


@pytest.mark.parametrize(
    ("status", "kind", "retryable", "code"),
    [
        (400, InvalidRequest, False, None),
        (401, AuthenticationFailed, False, None),
        (403, AuthenticationFailed, False, None),
        (404, InvalidRequest, False, None),
        (408, BackendTimeout, True, None),
        (409, InvalidRequest, True, None),
        (429, RateLimited, True, None),
        (429, RateLimited, False, "insufficient_quota"),
        (500, BackendUnavailable, True, None),
        (503, BackendUnavailable, True, None),
    ],
)
async def test_each_status_has_its_error(status, kind, retryable, code):
    error = await failure(Answer.error(status, "because", retry_after="7", code=code))
    assert type(error) is kind
    assert (error.status, error.retryable, error.retry_after) == (status, retryable, 7.0)
    assert "because" in str(error)


async def test_why_a_gateway_lets_nothing_pass_is_told():
    problems = {"problems": ["words: it has 3 words", "rhymes: it doesn't"]}
    error = {"message": "no reply met all requirements: see there", "mellea_like": problems}
    refused = await failure(Answer(status=422, body=json.dumps({"error": error}).encode()))
    said = "422: no reply met all requirements: words: it has 3 words; rhymes: it doesn't"
    assert said in str(refused)


@pytest.mark.parametrize("status", [200, 400])
async def test_the_reason_of_a_provider_behind_openrouter_is_told(status):
    why = '{"error": {"message": "temperature: only 1 is allowed"}}'
    error = {"message": "Provider returned error", "code": 400, "metadata": {"raw": why}}
    body = json.dumps({"error": error})
    streamed = Answer(events=(body,), finish_reason=None, usage=None)
    refused = await failure(streamed if status == 200 else Answer(status=400, body=body.encode()))
    assert type(refused) is InvalidRequest
    assert "answered 400: Provider returned error: " in str(refused)
    assert "only 1 is allowed" in refused.said


@pytest.mark.parametrize(
    ("details", "wait"),
    [
        ([{"@type": "x/Help"}, {"@type": "x/RetryInfo", "retryDelay": "34.5s"}], 34.5),
        ([{"retryDelay": "soon"}, None], None),
        ("none", None),
    ],
)
async def test_googles_lists_of_one_error_are_read(details, wait):
    error = {"code": 429, "message": "You exceeded your quota.", "details": details}
    body = json.dumps([{"error": error}]).encode()
    refused = await failure(Answer(status=429, body=body))
    assert type(refused) is RateLimited
    assert str(refused).endswith("answered 429: You exceeded your quota.")
    assert refused.retry_after == wait


async def test_a_header_goes_before_googles_delay():
    error = {"message": "slow", "details": [{"retryDelay": "34s"}]}
    refused = await failure(
        Answer(status=429, body=json.dumps({"error": error}).encode(), headers={"retry-after": "2"})
    )
    assert refused.retry_after == 2


@pytest.mark.parametrize("status", [301, 307, 308])
async def test_a_redirect_is_followed_only_if_it_may(status):
    with OpenAIServer(Answer("there")) as other:
        moved = Answer(
            status=status, body=b"", headers={"location": f"{other.url}/chat/completions"}
        )
        error = await failure(moved, follow_redirects=False)
        assert (type(error), error.status) == (InvalidRequest, status)
        assert f"it redirects to {other.url}/chat/completions; check the base URL" in str(error)
        assert other.accepted == 0
        if status == 301:  # Clients ask again with GET.
            assert str(await failure(moved)).partition(" ")[2] == str(error).partition(" ")[2]
        else:
            async with serving(moved, api_key=KEY) as (_, backend):
                assert (await backend.generate(ask())).text == "there"
            assert "authorization" not in other.headers[-1]


# --- bodies that are no reply ------------------------------------------------------------------

WRONG_EVENTS = [
    "null",
    "{}",
    '{"choices": 1}',
    '{"choices": [null]}',
    '{"choices": [{"delta": {"content": 5}}]}',
    '{"choices": [], "usage": {"prompt_tokens": "many"}}',
    "\udcff\udcfe",
]


@pytest.mark.parametrize("event", WRONG_EVENTS)
async def test_an_event_that_is_no_chunk_is_a_malformed_response(event):
    answer = Answer(events=(event,), finish_reason=None, usage=None, done=False)
    error = await failure(answer)
    assert type(error) is MalformedResponse
    assert error.retryable


async def test_at_most_200_escaped_characters_of_a_body_are_shown():
    error = await failure(Answer(body=b"\x1b[31mA" * 5000))
    shown = str(error).partition("without a reply: ")[2]
    assert shown.startswith("\\x1b[31mA")
    assert len(shown) <= 200
    assert shown.isprintable()


async def test_a_server_that_broke_off_was_reached():
    said = str(await failure(Answer(cut_after=2)))
    assert "sent an incomplete reply (peer closed connection" in said
    assert "can't reach" not in said


@pytest.mark.parametrize("reason", ["abort", "insufficient_system_resource", "network_error"])
async def test_a_reply_that_the_server_broke_off_is_no_reply(reason):
    error = await failure(Answer("a b", finish_reason=reason))
    assert type(error) is BackendUnavailable
    assert f"ended its reply with an error: {reason}" in str(error)


async def test_a_finish_reason_without_text_ends_no_reply():
    events = ('{"choices": [{"delta": {"content": "a"}, "finish_reason": ""}]}',)
    error = await failure(Answer(events=events, finish_reason=None, usage=None, done=False))
    assert type(error) is MalformedResponse
    assert "an incomplete reply" in str(error)


async def test_a_server_that_does_not_stream_is_said_not_to():
    body = b'{"choices": [{"message": {"content": "hey"}, "finish_reason": "stop"}]}'
    said = str(await failure(Answer(body=body, content_type="application/json")))
    assert "sent JSON, not the stream of events that was requested: {" in said


async def test_an_endless_line_is_given_up():
    error = await failure(Answer(events=("x" * 5_000_000,)))
    assert type(error) is MalformedResponse
    assert "longer than" in str(error)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ('{"error": {"message": "oops", "type": "server_error"}}', BackendUnavailable),
        ('{"error": {"message": "full", "code": 503}}', BackendUnavailable),
        ('{"error": {"message": "slow", "type": "rate_limit_error"}}', RateLimited),
        ('{"error": {"message": "bad", "type": "invalid_request_error"}}', InvalidRequest),
        ('{"error": {"message": "long", "code": 400, "type": "exceeds"}}', InvalidRequest),
        ('{"error": "just text"}', BackendUnavailable),
        (
            '{"choices": [{"delta": {"content": "a"}, "finish_reason": "error"}]}',
            BackendUnavailable,
        ),
        ('{"error": ["a"]}', BackendUnavailable),
    ],
)
async def test_an_error_in_the_midst_of_a_reply_is_told_apart(event, kind):
    assert type(await failure(Answer(events=(event,)))) is kind


USED = '"usage": {"prompt_tokens": 30, "completion_tokens": 20}'
USED_IN_RESPONSES = '"usage": {"input_tokens": 30, "output_tokens": 20}'


@pytest.mark.parametrize(
    ("api", "events"),
    [
        ("chat", ['{"choices": [{"delta": {}, "finish_reason": "error"}], ' + USED + "}"]),
        (
            "chat",
            [
                '{"choices": [{"delta": {"content": "a"}, "finish_reason": "error"}]}',
                '{"choices": [], ' + USED + "}",
            ],
        ),
        (
            "responses",
            ['{"type": "response.failed", "response": {' + USED_IN_RESPONSES + "}}"],
        ),
    ],
)
async def test_a_reply_that_ends_with_an_error_costs_what_the_server_says(api, events):
    answer = Answer(events=tuple(events), finish_reason=None, usage=None)
    async with serving(answer, api=api) as (_, backend):
        request = ask()
        with pytest.raises(BackendUnavailable):
            await backend.generate(request)
    assert request.meter.usage == Usage(1, 30, 20)


async def test_a_request_that_can_not_be_written_is_an_invalid_request():
    backend = OpenAIBackend("m", base_url=URL)
    with pytest.raises(InvalidRequest, match="can't be encoded"):
        await backend.generate(ask("\ud800"))
    with pytest.raises(InvalidRequest, match="can't be encoded"):
        await backend.generate(ask(options=Options(extra={"x": object()})))
    await backend.aclose()


async def test_a_server_that_is_not_there_is_named_without_credentials():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    backend = OpenAIBackend("m", base_url=f"http://me:password@127.0.0.1:{port}/v1?key={KEY}")
    with pytest.raises(BackendUnavailable) as caught:
        await backend.generate(ask())
    await backend.aclose()
    said = f"can't reach http://127.0.0.1:{port}/v1: connection refused; is the server running?"
    assert str(caught.value) == said


async def test_a_proxy_that_is_not_there_is_named(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("no_proxy", "")
    backend = OpenAIBackend("m", base_url="http://models.example/v1")
    with pytest.raises(BackendUnavailable) as caught:
        await backend.generate(ask())
    await backend.aclose()
    why = "connection refused; is the server running, and the environment's proxy, if it is used?"
    assert str(caught.value) == f"can't reach http://models.example/v1: {why}"


# --- keys --------------------------------------------------------------------------------------

ECHOES = [
    Answer.error(401, f"Incorrect API key provided: {KEY}."),
    Answer.error(400, f"{'x' * 190} {KEY}"),
    Answer(status=500, body=f"<p>{KEY}</p>".encode(), content_type="text/html"),
    Answer(body=f"{KEY}\n".encode()),
    Answer(events=(f'{{"error": {{"message": "{KEY}"}}}}',)),
    Answer(events=(f'{{"choices": "{KEY}"}}',)),
    Answer(KEY, cut_after=1),
    Answer("a b", hang_after=1),
]


@pytest.mark.parametrize("answer", ECHOES, ids=lambda answer: str(answer.status))
async def test_no_key_shows_in_an_error_a_log_record_or_a_repr(answer, caplog):
    caplog.set_level(logging.DEBUG)
    error = await failure(answer, timeout=0.1)
    text = "".join(traceback.format_exception(error))
    shown = [str(error), repr(error), text, caplog.text, *map(repr, caplog.records)]
    shown += [str(record.__dict__) for record in caplog.records]
    assert not [text for text in shown if KEY[:12] in text]
    backend = OpenAIBackend("m", base_url=URL, api_key=KEY)
    assert KEY not in repr(backend)
    assert KEY not in str(vars(backend))


async def test_a_key_that_the_client_fetches_for_each_request_does_not_show_either():
    async def fetch() -> str:
        return KEY

    with OpenAIServer(Answer.error(401, f"wrong key {KEY}")) as server:
        async with openai.AsyncOpenAI(base_url=server.url, api_key=fetch) as client:
            backend = OpenAIBackend("m", client=client)
            with pytest.raises(AuthenticationFailed, match=r"wrong key \*\*\*") as caught:
                await backend.generate(ask())
            await backend.aclose()
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(caught.value)


async def test_what_came_before_an_error_in_the_same_bytes_is_handed_over_before_it():
    async def write(send):
        send.head(200, "text/event-stream", {})
        good = 'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
        both = f'{good}event: error\ndata: {{"message": "overloaded", "code": 503}}\n\n'.encode()
        await send.raw(b"%x\r\n%b\r\n0\r\n\r\n" % (len(both), both))

    pieces = []
    async with serving(Answer(write=write)) as (_, backend):
        with pytest.raises(BackendUnavailable, match="overloaded"):
            async with backend.stream(ask()) as reply:
                async for piece in reply:
                    pieces.append(piece)  # noqa: PERF401 (the error comes in between)
        with pytest.raises(BackendUnavailable, match="overloaded"):
            await backend.generate(ask())
    assert pieces == ["a"]
