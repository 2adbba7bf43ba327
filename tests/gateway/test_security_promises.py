"""The gateway's security promises from a caller's view: the whole gateway on a real socket.

The other ``test_security_*`` files test each promise in detail.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import socket

import openai
import pytest
from gateway_kit import TOKEN, config_for, running, user
from guard_kit import Caller, request
from http_server import Answer, OpenAIServer

from mellea_like.gateway.config.gateway_config import KeyLimits, ServerConfig
from mellea_like.gateway.http.server import listen

CANARY = "canaryPrompt7391"
UPSTREAM_KEY = "key-of-the-upstream-5512"
DIGEST = hashlib.sha256(TOKEN.encode()).hexdigest()


def key(**limits):
    return {"team": {"sha256": DIGEST, **limits}}


GOOD = Answer("a b")


class Scripted:
    """The upstream's answer, which a test may replace."""

    answer = GOOD


@pytest.fixture(scope="module")
def upstream():
    with OpenAIServer(choose=lambda _number, _body: Scripted.answer) as server:
        yield server


@pytest.fixture
def answers():
    yield Scripted
    Scripted.answer = GOOD


@pytest.fixture(scope="module")
def shared(upstream):
    """A gateway for tests that need no other configuration."""
    config = config_for(
        upstream.url, upstream={"api_key": UPSTREAM_KEY}, keys=key(max_n=3, max_tokens=100)
    )
    with running(config) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def bait():
    """A server that no one should visit."""
    with OpenAIServer() as server:
        yield server
        assert server.accepted == 0


@pytest.fixture
def untouched(upstream):
    """Fail the test if the upstream gets a request."""
    before = upstream.started, upstream.model_lists
    yield
    assert (upstream.started, upstream.model_lists) == before


def ask(gateway, **more):
    with gateway.client() as client:
        return client.chat.completions.create(**{"model": "mine", "messages": user(), **more})


# --- loopback only; another address without an auth token refuses to start -----------------------


def test_loopback_only_by_default():
    assert ServerConfig().host == "127.0.0.1"
    with listen(ServerConfig(port=0), has_keys=False) as listening:
        host, port = listening.getsockname()
        assert host == "127.0.0.1"
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), timeout=5):
            pass


def test_another_address_takes_only_those_with_a_token(upstream):
    with pytest.raises(ValueError, match="no keys are configured"):
        listen(ServerConfig(host="0.0.0.0", port=0), has_keys=False)
    config = config_for(upstream.url, server={"host": "0.0.0.0"}, keys=key())
    with running(config) as gateway, Caller(gateway.port) as caller:
        caller.send(request("/v1/models"))
        assert caller.answer().status == 401
        caller.send(request("/v1/models", token=TOKEN))
        assert caller.answer().status == 200


# --- the upstream's address and key come only from the configuration -----------------------------


@pytest.mark.parametrize("name", ["base_url", "api_base", "api_key", "Base-URL", "apiKey"])
@pytest.mark.parametrize(
    "where",
    [
        lambda field: field,
        lambda field: {"extra_body": field},
        lambda field: {"mellea_like": {"checks": ["json"], **field}},
        lambda field: {"messages": [{"role": "user", "content": "x", **field}]},
    ],
)
@pytest.mark.usefixtures("untouched")
def test_a_request_can_t_choose_the_upstream(shared, name, where):
    body = {"model": "mine", "messages": user(), **where({name: "http://127.0.0.1:9/canary"})}
    with shared.http(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "unknown_parameter"
    assert next(iter(where({name: 0}))) in answer.json()["error"]["param"]
    assert "canary" not in answer.text


def test_what_labels_and_queries_say_of_an_upstream_goes_nowhere(shared, upstream):
    given = {"base_url": "http://127.0.0.1:9/canary", "api_key": "canary"}
    ask(shared, metadata=given, extra_query=given)
    assert "canary" not in str(upstream.requests[-1]) + str(upstream.headers[-1])


def test_a_caller_s_token_and_headers_stay_here(shared, upstream):
    more = {"X-Api-Key": "canary", "Api-Key": "canary", "Cookie": "canary", "X-Forwarded-For": "1"}
    ask(shared, extra_headers=more)
    sent = upstream.headers[-1]
    assert TOKEN not in str(sent)
    assert "canary" not in str(sent)
    assert "x-forwarded-for" not in sent


# --- redirects are off ---------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(shared, bait, answers, status):
    there = {"location": bait.url + "/chat/completions"}
    answers.answer = Answer(status=status, body=b"", headers=there)
    with pytest.raises(openai.InternalServerError) as caught:
        ask(shared)
    assert caught.value.status_code == 502
    assert bait.accepted == 0


# --- no user-given URL is fetched ----------------------------------------------------------------


def parts(url: str):
    yield {"type": "image_url", "image_url": {"url": url}}
    yield {"type": "input_image", "image_url": url}
    yield {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}}
    yield {"type": "file", "file": {"file_data": url}}
    yield {"type": "text", "text": "x", "url": url}


@pytest.mark.parametrize("number", range(5))
@pytest.mark.usefixtures("untouched")
def test_no_url_of_a_message_is_fetched(shared, bait, number):
    part = list(parts(bait.url))[number]
    messages = [{"role": "user", "content": [{"type": "text", "text": "see:"}, part]}]
    with pytest.raises(openai.BadRequestError) as caught:
        ask(shared, messages=messages)
    assert "messages.0.content.1" in str(caught.value.param)
    assert bait.accepted == 0


@pytest.mark.parametrize("where", ["{}/schema.json", "file:///etc/passwd", "ftp://127.0.0.1:9/a"])
@pytest.mark.parametrize("word", ["$ref", "$dynamicRef", "$schema"])
def test_no_url_of_a_schema_is_fetched(shared, bait, word, where):
    url = where.format(bait.url)
    schema = {"type": "object", "properties": {"a": {word: url}}, word: url}
    described = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.APIStatusError) as caught:
        ask(shared, response_format=described)
    assert caught.value.status_code in {400, 422}
    assert bait.accepted == 0


# --- body, header and slow-body bounds, JSON depth cap -------------------------------------------


def test_the_bounds_are_what_they_are_said_to_be():
    server = ServerConfig()
    assert (server.max_body, server.max_bodies) == (32 * 2**20, 256 * 2**20)
    assert (server.header_seconds, server.body_seconds, server.max_depth) == (10, 30, 32)
    limits = KeyLimits()
    assert (limits.max_n, limits.max_tokens) == (4, None)
    assert (limits.concurrency, limits.queue) == (128, 384)


@pytest.mark.usefixtures("untouched")
def test_a_body_over_32_mib_is_refused(shared):
    with pytest.raises(openai.APIStatusError) as caught:
        ask(shared, messages=user("x" * (32 * 2**20)))
    assert (caught.value.status_code, caught.value.code) == (413, "body_too_large")


def test_a_body_of_some_images_is_taken(shared, upstream):
    text = "x" * (12 * 2**20)
    ask(shared, messages=user(text))
    assert upstream.requests[-1]["messages"][-1]["content"] == text


@pytest.mark.parametrize("depth", [33, 100_000])
@pytest.mark.usefixtures("untouched")
def test_deep_json_is_refused(shared, depth):
    raw = b'{"model": "mine", "messages": ' + b"[" * depth + b"]" * depth + b"}"
    with Caller(shared.port) as caller:
        caller.send(request(raw=raw, token=TOKEN))
        answer = caller.answer()
    assert (answer.status, answer.error["code"]) == (400, "invalid_json")


# --- per-key limits: refused, and no upstream call ------------------------------------------------


@pytest.mark.parametrize(
    "more", [{"n": 4}, {"max_tokens": 101}, {"max_completion_tokens": 101}, {"n": 10**15}]
)
@pytest.mark.usefixtures("untouched")
def test_more_than_a_key_may_ever_ask_for_is_400_which_no_client_tries_again(shared, more):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(shared, **more)
    assert "retry-after" not in caught.value.response.headers
    assert caught.value.param in more


def test_as_much_as_a_key_may_ask_for_is_answered(shared, upstream):
    assert len(ask(shared, n=3, max_tokens=100).choices) == 3
    assert upstream.requests[-1]["max_tokens"] == 100
    ask(shared)
    sent = upstream.requests[-1]
    assert (sent.get("max_tokens") or sent.get("max_completion_tokens")) == 100


async def burst(gateway, count: int) -> list[object]:
    async with gateway.async_client() as client:
        calls = [
            client.chat.completions.create(model="mine", messages=user()) for _ in range(count)
        ]
        return await asyncio.gather(*calls, return_exceptions=True)


def test_a_key_s_budget_holds_under_concurrency():
    with OpenAIServer(Answer(seconds=0.02)) as upstream:
        with running(config_for(upstream.url, keys=key(budget={"requests": 5}))) as gateway:
            outcomes = asyncio.run(burst(gateway, 12))
            refused = [o for o in outcomes if isinstance(o, openai.RateLimitError)]
            assert len(refused) == 7
            assert {error.code for error in refused} == {"insufficient_quota"}
            for error in refused:
                assert int(error.response.headers["retry-after"]) >= 1
                assert error.response.headers["x-should-retry"] == "false"
            assert upstream.started == 5
            with pytest.raises(openai.RateLimitError):
                ask(gateway)
        assert upstream.started == 5


# --- any OpenAI client gets OpenAI's errors ------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"model": "unknown"}, openai.NotFoundError),
        ({"messages": []}, openai.BadRequestError),
        ({"n": 0}, openai.BadRequestError),
        ({"n": -1}, openai.BadRequestError),
        ({"max_tokens": -5}, openai.BadRequestError),
        ({"max_tokens": 0}, openai.BadRequestError),
        ({"temperature": 99}, openai.BadRequestError),
        ({"extra_body": {"api_key": "x"}}, openai.BadRequestError),
        ({"model": "mine\r\nX-Evil: 1"}, openai.NotFoundError),
        ({"model": "../../etc/passwd"}, openai.NotFoundError),
        ({"model": "m" * 100_000}, openai.NotFoundError),
    ],
)
@pytest.mark.usefixtures("untouched")
def test_the_official_client_knows_the_errors(shared, more, kind):
    with pytest.raises(kind) as caught:
        ask(shared, **more)
    error = caught.value.body
    assert isinstance(error, dict)
    assert {"message", "type", "param", "code"} <= set(error)
    assert "x-evil" not in caught.value.response.headers


# --- keys and prompts in no log, error or metric -------------------------------------------------

ECHO = f"you said {CANARY} with {UPSTREAM_KEY}"


class Everything(logging.Handler):
    """Keeps everything that the process logs, with tracebacks."""

    def __init__(self) -> None:
        super().__init__(0)
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record) + repr(record.args) + repr(record.__dict__))


@pytest.fixture
def logged(monkeypatch):
    monkeypatch.setenv("OPENAI_LOG", "debug")
    handler = Everything()
    root = logging.getLogger()
    level = root.level
    root.setLevel(1)
    root.addHandler(handler)
    yield handler.lines
    root.removeHandler(handler)
    root.setLevel(level)


ANSWERS = {
    "a reply": Answer(f"{CANARY} again"),
    "an error that echoes": Answer.error(400, ECHO),
    "a key that is wrong": Answer.error(401, ECHO),
    "a server that fails": Answer.error(500, ECHO),
    "too many requests": Answer.error(429, ECHO),
    "a stream that breaks off": Answer(CANARY + " b c d", cut_after=2),
    "an answer that can't be read": Answer(body=ECHO.encode(), content_type="text/event-stream"),
    "a stream with an error in it": Answer(
        events=(json.dumps({"error": {"message": ECHO, "code": 500}}),)
    ),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_keys_and_prompts_are_in_no_log_error_or_metric(shared, answers, answer, stream, logged):
    answers.answer = answer
    body = {
        "model": "mine",
        "messages": [{"role": "user", "content": f"Say {CANARY}"}],
        "stream": stream,
        "mellea_like": {"checks": [f"contains:{CANARY}X", f"excludes:{CANARY}"]},
    }
    with shared.http(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        said = http.post(f"/v1/chat/completions?q={CANARY}", json=body)
        asked = http.post("/v1/chat/completions", json={**body, "mellea_like": {CANARY: 1}})
        broken = http.post("/v1/chat/completions", json={**body, "n": CANARY})
        unknown = http.post(f"/v1/{CANARY}", json={**body, "model": CANARY})
        metrics = http.get("/metrics").text
    answers.answer = GOOD
    ask(shared)  # Otherwise, the gateway would soon stop asking the upstream.
    assert said.status_code >= 400 or stream
    assert [a.status_code for a in (asked, broken, unknown)] == [400, 400, 404]
    text = "\n".join(logged)
    assert "mellea_like.gateway" in text  # Something was logged, and the handler saw it.
    for secret in (CANARY, UPSTREAM_KEY, TOKEN, DIGEST):
        assert secret not in text
        assert secret not in metrics
    for answer_ in (said, asked, broken, unknown):
        assert UPSTREAM_KEY not in answer_.text
        assert TOKEN not in answer_.text
    if answer is not ANSWERS["a reply"]:  # Its text is the caller's own.
        assert "the upstream 'main' " in text
        assert "you said" not in said.text


# --- model output can't forge headers, logs or SSE frames ----------------------------------------

FORGED = [
    "a\r\nSet-Cookie: evil=1\r\n\r\n<html>",
    'a\n\ndata: {"choices": []}\n\ndata: [DONE]\n\n',
    "a\r\rdata: [DONE]\r\r",
    "a\u2028data: [DONE]\u2029\u0085b",
    "a\x00b\x1b[2J\x07",
    "\u202ereversed \ufeff",
]


@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_model_output_forges_no_header_log_or_frame(shared, answers, forged, stream, caplog):
    caplog.set_level(logging.INFO)
    answers.answer = Answer(forged, finish_reason=forged, model=forged)
    asked = {"checks": ["contains:never"], "when_nothing_passed": "best"}
    body = {"model": "mine", "messages": user(), "stream": stream, "mellea_like": asked}
    with Caller(shared.port) as caller:
        caller.send(request(body=body, token=TOKEN, connection="close"))
        caller.closed_after()
        raw = caller.received
    head, _, rest = raw.partition(b"\r\n\r\n")
    assert raw.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"set-cookie" not in head.lower()
    assert raw.isascii()
    if stream:
        frames = rest.decode().splitlines()
        assert frames.count("data: [DONE]") == 1
        assert frames[-2] == "data: [DONE]"
        events = [json.loads(f.removeprefix("data: ")) for f in frames[:-2] if f]
        deltas = [c["delta"].get("content") or "" for e in events for c in e["choices"]]
        assert "".join(deltas) == forged
    else:
        assert json.loads(rest)["choices"][0]["message"]["content"] == forged
    assert all(record.getMessage().isprintable() for record in caplog.records)
