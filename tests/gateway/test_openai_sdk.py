"""The official OpenAI client against a gateway: a real server, real sockets, a real upstream."""

from __future__ import annotations

import time

import httpx2
import openai
import pytest
from gateway_kit import config_for, running, user
from http_server import Answer, OpenAIServer
from pydantic import BaseModel

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture(scope="module")
def scene():
    """A gateway whose upstream says what the last message asks it to say, and then ``a b``."""

    def choose(number: int, body: dict) -> Answer:
        text = body["messages"][-1]["content"].partition("\n\nRequirements:")[0]
        said = text.removeprefix("Say: ").partition("An earlier")[0].strip()
        tried = sum(r["messages"][-1]["content"] == body["messages"][-1]["content"] for r in asked)
        asked.append(body)
        return Answer(said if tried == 0 else "a b", usage=(10, 3))

    asked: list[dict] = []
    with OpenAIServer(choose=choose) as upstream:
        config = config_for(upstream.url, checks=["words<=2"], loop=3)
        with running(config) as gateway:
            yield upstream, gateway


@pytest.fixture
def client(scene):
    with scene[1].client() as client:
        yield client


def say(text: str) -> list[dict]:
    return user(f"Say: {text}")


def test_a_validated_reply_comes_by_changing_the_base_url(client):
    reply = client.chat.completions.create(model="mine", messages=say("one two three"))
    assert reply.choices[0].message.content == "a b"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == "mine"
    assert reply.usage.model_dump(include={"prompt_tokens", "completion_tokens"}) == {
        "prompt_tokens": 20,
        "completion_tokens": 6,
    }
    assert reply.model_extra["mellea_like"]["iterations"] == 2


def test_the_header_is_there_for_clients_that_look(client):
    raw = client.chat.completions.with_raw_response.create(model="mine", messages=say("x y z 1"))
    assert raw.headers["x-mellea-like-passed"] == "true"
    assert raw.parse().choices[0].message.content == "a b"


def test_a_stream_is_read_with_its_usage(client):
    stream = client.chat.completions.create(
        model="mine",
        messages=say("one two three four"),
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "a b"
    assert chunks[-1].usage.total_tokens == 26
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_the_sdks_own_stream_helper_puts_it_together(client):
    with client.chat.completions.stream(model="mine", messages=say("q w e r")) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "a b"


def test_progress_is_skipped_by_code_that_does_not_know_it(client):
    stream = client.chat.completions.create(
        model="mine",
        messages=say("t y u i"),
        stream=True,
        extra_body={"mellea_like": {"progress": True}},
    )
    chunks = list(stream)
    told = [c.model_extra["mellea_like"] for c in chunks if c.model_extra.get("mellea_like")]
    outcomes = [t["progress"]["outcome"] for t in told if "progress" in t]
    assert outcomes == ["failed", "passed"]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "a b"


def test_requirements_of_a_request_go_into_the_extra_body(client):
    reply = client.chat.completions.create(
        model="mine",
        messages=say("red"),
        extra_body={"mellea_like": {"checks": ["contains:b"]}},
    )
    assert reply.choices[0].message.content == "a b"


def test_nothing_passed_is_an_error_with_the_reasons(client):
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.chat.completions.create(
            model="mine",
            messages=say("green"),
            extra_body={"mellea_like": {"checks": ["contains:xyz"]}},
        )
    error = caught.value.body
    assert error["code"] == "nothing_passed"
    assert error["mellea_like"]["best"]["content"] in {"green", "a b"}
    assert "xyz" in error["mellea_like"]["problems"][0]


def test_a_typed_reply_is_parsed_by_the_sdk(scene, client):
    class Answer(BaseModel):
        n: int

    upstream, _ = scene
    reply = client.chat.completions.parse(
        model="mine", messages=say('{"n":  7}'), response_format=Answer
    )
    assert reply.choices[0].message.parsed == Answer(n=7)
    # The upstream is told the schema by the same field, which keeps it out of the prompt.
    assert upstream.requests[-1]["response_format"]["type"] == "json_schema"
    assert "JSON Schema" not in upstream.requests[-1]["messages"][-1]["content"]


def test_a_models_own_schema_is_told_to_the_upstream():
    with (
        OpenAIServer(Answer("no"), Answer('{"n": 7}')) as upstream,
        running(config_for(upstream.url, json_schema=SCHEMA)) as gateway,
        gateway.client() as client,
    ):
        reply = client.chat.completions.create(model="mine", messages=user())
        told = upstream.requests[0]["response_format"]
        prompt = upstream.requests[0]["messages"][-1]["content"]
    assert "JSON Schema" not in prompt
    assert reply.choices[0].message.content == '{"n": 7}'
    assert told == {"type": "json_schema", "json_schema": {"name": "reply", "schema": SCHEMA}}


def test_several_replies_are_several_choices(client):
    reply = client.chat.completions.create(model="mine", messages=say("s d f g"), n=2)
    assert [choice.message.content for choice in reply.choices] == ["a b", "a b"]


def test_parts_of_text_are_one_text(client):
    parts = [{"type": "text", "text": "Say: "}, {"type": "text", "text": "blue sky"}]
    reply = client.chat.completions.create(
        model="mine", messages=[{"role": "user", "content": parts}]
    )
    assert reply.choices[0].message.content == "blue sky"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"logprobs": True}, "logprobs"),
        ({"temperature": 3.0}, "temperature"),
        ({"extra_body": {"top_k": 3}}, "top_k"),
        ({"extra_body": {"mellea_like": {"loop": 9}}}, "mellea_like.loop"),
    ],
)
def test_what_is_not_supported_is_a_bad_request_that_names_it(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="mine", messages=say("x"), **fields)
    assert caught.value.param == param


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=say("x"))
    assert caught.value.code == "model_not_found"


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["mine"]
    assert client.models.retrieve("mine").object == "model"


def test_an_error_after_the_stream_began_is_raised_by_the_sdk():
    with (
        OpenAIServer(Answer("a b c d e", seconds=0.4)) as upstream,
        running(
            config_for(upstream.url, checks=["words<=2"], loop=1, streaming={"keep_alive": 0.05})
        ) as gateway,
        gateway.client() as client,
    ):
        stream = client.chat.completions.create(model="mine", messages=user(), stream=True)
        with pytest.raises(openai.APIError) as caught:
            list(stream)
    assert caught.value.code == "nothing_passed"


@pytest.mark.parametrize(
    ("answer", "error", "status"),
    [
        (Answer.error(429, retry_after="3"), openai.RateLimitError, 429),
        (Answer.error(500), openai.InternalServerError, 502),
        (Answer.error(401), openai.InternalServerError, 502),
        (Answer.error(400), openai.BadRequestError, 400),
        (Answer(cut_after=1), openai.InternalServerError, 502),
        (
            Answer(status=307, headers={"location": "http://127.0.0.1:9/"}),
            openai.APIStatusError,
            502,
        ),
    ],
)
def test_an_upstreams_error_is_the_sdks_error(answer, error, status):
    with (
        OpenAIServer(answer) as upstream,
        running(config_for(upstream.url, loop=1)) as gateway,
        gateway.client() as client,
        pytest.raises(error) as caught,
    ):
        client.chat.completions.create(model="mine", messages=user())
    assert caught.value.status_code == status
    if status == 429:
        assert caught.value.response.headers["retry-after"] == "3"


def test_an_upstream_that_is_not_there_is_a_502():
    with (
        running(config_for("http://127.0.0.1:9/v1", loop=1)) as gateway,
        gateway.client() as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        client.chat.completions.create(model="mine", messages=user())
    assert caught.value.status_code == 502
    assert "127.0.0.1" not in str(caught.value)


def test_the_sdk_tries_again_what_may_pass_and_not_what_will_not():
    answers = (Answer.error(500), Answer("a"))
    with (
        OpenAIServer(*answers) as upstream,
        running(config_for(upstream.url, loop=1)) as gateway,
        gateway.client(max_retries=2) as client,
    ):
        reply = client.chat.completions.create(model="mine", messages=user())
        assert reply.choices[0].message.content == "a"
        assert upstream.started == 2
    with (
        OpenAIServer(Answer.error(401)) as upstream,
        running(config_for(upstream.url, loop=1)) as gateway,
        gateway.client(max_retries=2) as client,
        pytest.raises(openai.InternalServerError),
    ):
        client.chat.completions.create(model="mine", messages=user())
    assert upstream.started == 1


@pytest.mark.anyio
async def test_the_async_client_works_on_both_event_loops(scene):
    # Not its streams: on trio, the SDK leaves their generators behind.
    async with scene[1].async_client() as client:
        reply = await client.chat.completions.create(model="mine", messages=say("one two"))
    assert reply.choices[0].message.content


def test_connections_are_kept_and_used_again(scene):
    _, gateway = scene
    with gateway.http() as http:
        body = {"model": "mine", "messages": say("kept")}
        for _ in range(3):
            answer = http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200
            assert answer.headers.get("connection") != "close"


def test_a_stream_is_flushed_as_it_goes():
    with (
        OpenAIServer(Answer("a", wait=0.6)) as upstream,
        running(config_for(upstream.url, streaming={"keep_alive": 0.1})) as gateway,
        gateway.http() as http,
        http.stream(
            "POST",
            "/v1/chat/completions",
            json={"model": "mine", "messages": user(), "stream": True},
            timeout=httpx2.Timeout(20.0),
        ) as answer,
    ):
        began = time.monotonic()
        lines = answer.iter_lines()
        assert next(lines) == ": keep-alive"
        assert time.monotonic() - began < 0.5
        assert list(lines)[-2:] == ["data: [DONE]", ""]


def test_the_ordinary_fields_of_a_request_reach_the_upstream():
    names = {"apiVersion": {"type": "string"}, "api_key": {"type": "string"}}
    schema = {"name": "manifest", "schema": {"type": "object", "properties": names}}
    manifest = '{"apiVersion": "v1"}'
    messages = [
        {"role": "user", "content": "Hi.", "name": "Ann"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "A manifest, please.", "name": "Bob"},
    ]
    with (
        OpenAIServer(Answer("{}"), Answer(manifest)) as upstream,
        running(config_for(upstream.url, checks=["contains:v1"], strategy="repair")) as gateway,
        gateway.client(default_query={"api-version": "2024-06-01"}) as client,
    ):
        reply = client.chat.completions.create(
            model="mine",
            messages=messages,
            reasoning_effort="low",
            response_format={"type": "json_schema", "json_schema": schema},
        )
    assert reply.choices[0].message.content == manifest
    for sent in upstream.requests:
        assert [m.get("name") for m in sent["messages"]] == ["Ann", None, "Bob"]
        assert sent["reasoning_effort"] == "low"


def test_what_the_gateway_has_tried_again_its_clients_do_not_try_again():
    with (
        OpenAIServer(Answer.error(500)) as upstream,
        running(config_for(upstream.url, loop=2)) as gateway,
        gateway.client(max_retries=2) as client,
    ):
        for most in (2, 4):
            with pytest.raises(openai.InternalServerError) as caught:
                client.chat.completions.create(model="mine", messages=user())
            assert upstream.started <= most
        assert caught.value.response.headers["x-should-retry"] == "false"


def test_an_upstream_that_is_down_is_left_alone_and_callers_are_told_for_how_long():
    with (
        OpenAIServer(Answer.error(500)) as upstream,
        running(config_for(upstream.url, loop=4, retries=2)) as gateway,
        gateway.client() as client,
    ):
        for _ in range(3):
            with pytest.raises(openai.InternalServerError) as caught:
                client.chat.completions.create(model="mine", messages=user())
        assert upstream.started <= 9
    assert caught.value.status_code == 503
    assert int(caught.value.response.headers["retry-after"]) >= 1
