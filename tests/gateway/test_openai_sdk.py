"""The official OpenAI client against a gateway with real sockets and an HTTP upstream."""

from __future__ import annotations

import json
import threading

import openai
import pytest
from gateway_kit import config_for, running, user
from http_server import Answer, OpenAIServer
from pydantic import BaseModel

from mellea_like.gateway import GatewayConfig

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


MODELS = {
    "mine": {"checks": ["words<=2"], "attempts": 3},
    "once": {"attempts": 1},
    "twice": {"attempts": 2},
    "schema": {"json_schema": SCHEMA},
    "manifest": {"checks": ["contains:v1"], "strategy": "repair"},
}


class Scene:
    """An upstream that replies with the text that the last message asks for, and then ``a b``."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        """What it answers with instead."""
        self._asked: list[str] = []

    def choose(self, _number: int, body: dict) -> Answer:
        if self.answers:
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        told = body["messages"][-1]["content"]
        text = told.partition("\n\nRequirements:")[0]
        said = text.removeprefix("Say: ").partition("An earlier")[0].strip()
        tried = told in self._asked
        self._asked.append(told)
        return Answer("a b" if tried else said, usage=(10, 3))


@pytest.fixture(scope="module")
def scenery():
    scene = Scene()
    with OpenAIServer(choose=scene.choose) as upstream:
        config = config_for(upstream.url).model_dump(exclude_unset=True)
        own = {"upstream": "main", "retries": 0}
        config["models"] = {name: {**own, **model} for name, model in MODELS.items()}
        config["streaming"] = {"keep_alive": 0.1}
        with running(GatewayConfig.model_validate(config)) as gateway:
            yield scene, upstream, gateway


@pytest.fixture
def scene(scenery):
    script, upstream, gateway = scenery
    yield upstream, gateway
    script.answers = []
    # Otherwise, the gateway would soon stop asking an upstream that failed.
    with gateway.client() as client:
        client.chat.completions.create(model="once", messages=user())


@pytest.fixture
def answers(scenery):
    """Set the upstream's answers; the last one is repeated."""

    def answer(*given: Answer) -> None:
        scenery[0].answers = list(given)

    return answer


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


def test_a_typed_reply_is_parsed_by_the_sdk(scene, client):
    class Answer(BaseModel):
        n: int

    upstream, _ = scene
    reply = client.chat.completions.parse(
        model="mine", messages=say('{"n":  7}'), response_format=Answer
    )
    assert reply.choices[0].message.parsed == Answer(n=7)
    # The upstream gets the schema in the same field, so the prompt doesn't have it.
    assert upstream.requests[-1]["response_format"]["type"] == "json_schema"
    assert "JSON Schema" not in upstream.requests[-1]["messages"][-1]["content"]


@pytest.mark.parametrize("asked", [{}, {"response_format": {"type": "json_object"}}])
def test_a_models_own_schema_is_told_to_the_upstream(scene, client, answers, asked):
    answers(Answer("no"), Answer('{"n": 7}'))
    reply = client.chat.completions.create(model="schema", messages=user(), **asked)
    sent = scene[0].requests[-1]
    assert "JSON Schema" not in sent["messages"][-1]["content"]
    assert reply.choices[0].message.content == '{"n": 7}'
    described = {"name": "reply", "schema": SCHEMA}
    assert sent["response_format"] == {"type": "json_schema", "json_schema": described}


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == list(MODELS)
    assert client.models.retrieve("mine").object == "model"


def test_an_error_after_the_stream_began_is_raised_by_the_sdk(client, answers):
    answers(Answer("a b c d e", seconds=0.2))
    stream = client.chat.completions.create(
        model="once",
        messages=user(),
        stream=True,
        extra_body={"mellea_like": {"checks": ["words<=2"]}},
    )
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "nothing_passed"


@pytest.mark.parametrize(
    ("model", "answer", "sent"),
    [
        ("once", Answer.error(500), 3),
        ("once", Answer.error(401), 1),
        ("twice", Answer.error(500), 2),  # The gateway itself has retried it.
    ],
)
def test_the_sdk_tries_again_what_may_pass(monkeypatch, scene, answers, model, answer, sent):
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    upstream, gateway = scene
    answers(answer)
    before = upstream.started
    with (
        gateway.client(max_retries=2) as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        client.chat.completions.create(model=model, messages=user())
    assert upstream.started == before + sent
    told = caught.value.response.headers.get("x-should-retry")
    assert told == (None if sent == 3 else "false")


@pytest.mark.anyio
async def test_the_async_client_works_on_both_event_loops(scene):
    # Streams are left out: on trio, the SDK doesn't close their generators.
    async with scene[1].async_client() as client:
        reply = await client.chat.completions.create(model="mine", messages=say("one two"))
    assert reply.choices[0].message.content


def test_a_stream_is_flushed_as_it_goes(scene, answers):
    release = threading.Event()
    answers(Answer("a", until=release.is_set))
    body = {"model": "once", "messages": user(), "stream": True}
    with scene[1].http() as http, http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": keep-alive"
        release.set()
        assert list(lines)[-2:] == ["data: [DONE]", ""]


def test_the_ordinary_fields_of_a_request_reach_the_upstream(scene, answers):
    names = {"apiVersion": {"type": "string"}, "api_key": {"type": "string"}}
    schema = {"name": "manifest", "schema": {"type": "object", "properties": names}}
    manifest = '{"apiVersion": "v1"}'
    messages = [
        {"role": "user", "content": "Hi.", "name": "Ann"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "A manifest, please.", "name": "Bob"},
    ]
    upstream, gateway = scene
    answers(Answer("{}"), Answer(manifest))
    with gateway.client(default_query={"api-version": "2024-06-01"}) as client:
        reply = client.chat.completions.create(
            model="manifest",
            messages=messages,
            reasoning_effort="low",
            response_format={"type": "json_schema", "json_schema": schema},
        )
    assert reply.choices[0].message.content == manifest
    for sent in upstream.requests[-2:]:
        assert [m.get("name") for m in sent["messages"]] == ["Ann", None, "Bob"]
        assert sent["reasoning_effort"] == "low"


def test_a_call_of_a_tool_comes_and_what_asks_for_it_goes_as_it_was_sent(scene, client, answers):
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    function = {"name": "weather", "parameters": parameters, "strict": True}
    sent = {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        "logit_bias": {"50256": -100},
        "verbosity": "low",
    }
    picture = {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}
    parts = [{"type": "text", "text": "See:"}, {"type": "image_url", "image_url": picture}]
    call = {
        "index": 0,
        "id": "c1",
        "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
    }
    delta = {"reasoning_content": "Hm.", "tool_calls": [call]}
    choice = {"index": 0, "delta": delta, "finish_reason": "tool_calls"}
    answers(Answer(events=(json.dumps({"model": "m", "choices": [choice]}),), finish_reason=None))
    reply = client.chat.completions.create(
        model="once", messages=user(parts), extra_body={"top_k": 5}, user="u", **sent
    )
    got = scene[0].requests[-1]
    assert {name: got.get(name) for name in sent} == sent
    assert (got["top_k"], got["messages"][-1]["content"], "user" in got) == (5, parts, False)
    [made] = reply.choices[0].message.tool_calls
    assert (made.id, made.function.name, made.function.arguments) == (
        "c1",
        *call["function"].values(),
    )
    assert reply.choices[0].message.model_extra["reasoning_content"] == "Hm."
