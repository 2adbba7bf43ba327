"""Requests and replies of the batch APIs: bodies, refusals, and how replies are read."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import httpx2
import openai
import pytest
from batch_servers.kit import PROVIDERS, ask, make_api, make_server, scene
from batch_servers.world import World
from pydantic import BaseModel

from mellea_like import Message, Tool, backends
from mellea_like.backends import OpenAIBackend, OpenAIBatches
from mellea_like.backends.batch_api import JobOutcome
from mellea_like.core.backend import JUDGE_DEFAULTS, Options, Request
from mellea_like.core.generation import Generation, RequestMeter, Usage
from mellea_like.core.parts import Audio, File, Image
from mellea_like.core.tools import ToolCall
from mellea_like.errors import (
    BackendError,
    BackendUnavailable,
    InvalidRequest,
    MalformedResponse,
)

pytestmark = pytest.mark.anyio

every_provider = pytest.mark.parametrize("provider", PROVIDERS)

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 20
PDF = b"%PDF-1.7 nothing"


class Invoice(BaseModel):
    """A format."""

    total: int
    lines: list[str]
    paid: bool = False


def weather(city: str) -> str:
    """Tell the weather."""
    return city


WEATHER = Tool.of(weather)
CALL = ToolCall("abcdefgh1", "weather", '{"city": "Paris"}')
CALLED = (
    Message("user", "What is the weather?"),
    Message("assistant", "", tool_calls=[CALL], reasoning="I must look."),
    Message("tool", "Rain.", tool_call_id="abcdefgh1"),
)


def request(*messages: Message, **given: Any) -> Request:
    options = {"max_tokens": 50, **given.pop("options", {})}
    return Request(messages or (Message("user", "Hello"),), Options(**options), **given)


GOOD = {
    "the plainest": request(),
    "a system message": request(Message("system", "Be brief."), Message("user", "Hello")),
    "stop texts": request(options={"stop": ("END",)}),
    "a conversation": request(
        Message("user", "Hello"),
        Message("assistant", "Yes?", reasoning="hm"),
        Message("user", "So"),
    ),
    "tools": request(tools=(WEATHER,), tool_choice="auto"),
    "a tool that must be called": request(tools=(WEATHER,), tool_choice="weather"),
    "any tool": request(tools=(WEATHER,), tool_choice="required"),
    "no tool": request(tools=(WEATHER,), tool_choice="none"),
    "an answered call": request(*CALLED, tools=(WEATHER,)),
    "a type": request(format=Invoice),
    "a list": request(format=list[int]),
    "an image by its address": request(
        Message("user", ["Look:", Image("https://example.org/a.png")])
    ),
    "an image": request(Message("user", ["Look:", Image(data=PNG)])),
    "a document": request(Message("user", ["Read:", File(data=PDF, filename="a.pdf")])),
    "a document that was uploaded": request(Message("user", ["Read:", File(file_id="file-1")])),
}


@every_provider
@pytest.mark.parametrize("name", GOOD)
def test_a_body_is_one_that_the_provider_takes(provider, name):
    api = make_api(provider)
    server = make_server(provider, World())
    if provider == "anthropic" and name == "a list":
        api = make_api(provider, output="tool")
    body = api.body(GOOD[name])
    assert json.loads(json.dumps(body)) == body
    line = json.loads(api.line("a-1", body))
    assert line["custom_id"] == "a-1"
    sent = line.get("params") or line["body"]
    assert server.refusal({"model": "m", **sent}) == ""


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("output", ["json_schema", "tool", "prompt"])
def test_responses_are_asked_for_too(name, output):
    api = make_api("openai", api="responses", output=output)
    asked = GOOD[name]
    if asked.options.stop:
        with pytest.raises(InvalidRequest, match="no stop texts"):
            api.body(asked)
        return
    body = api.body(asked)
    assert make_server("openai", World()).refusal(body) == ""
    assert json.loads(api.line("a-1", body))["url"] == "/v1/responses"


def test_responses_have_no_seeds():
    with pytest.raises(InvalidRequest, match="no seed"):
        make_api("openai", api="responses").body(ask(seed=7))


async def test_bodies_are_those_of_the_backend_without_its_stream():
    sent: list[dict[str, Any]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(json.loads(request.content))
        return httpx2.Response(500)

    for asked in GOOD.values():
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
        client = openai.AsyncOpenAI(api_key="k", http_client=http)
        with pytest.raises(BackendError):
            await OpenAIBackend("gpt-test", client=client).generate(asked)
        await client.close()
        api = OpenAIBatches("gpt-test", base_url="https://api.openai.com/v1", api_key="k")
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        assert sent.pop() == {**api.body(asked), **streamed}


WARM = ask(temperature=0.7, top_p=0.9)
NOT_PLAIN = ask(extra={"metadata": {"at": dt.date(2026, 1, 2)}})
EFFORTS: list[tuple[str, dict[str, Any]]] = [
    ("openai", {"reasoning_effort": "high"}),
    ("azure", {"reasoning_effort": "low"}),
    ("mistral", {"reasoning_effort": "high"}),
    ("anthropic", {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}),
    ("anthropic", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
]
WRITTEN: list[tuple[str, Request, dict[str, Any]]] = [
    ("openai", GOOD["stop texts"], {"stop": ["END"]}),
    ("mistral", GOOD["stop texts"], {"stop": ["END"]}),
    ("anthropic", GOOD["stop texts"], {"stop_sequences": ["END"]}),
    ("anthropic", GOOD["a system message"], {"system": "Be brief."}),
    ("azure", GOOD["the plainest"], {"model": "gpt-test", "max_completion_tokens": 50}),
    ("mistral", GOOD["the plainest"], {"max_tokens": 50}),
    ("anthropic", GOOD["the plainest"], {"max_tokens": 50, "model": "claude-test"}),
    ("anthropic", GOOD["any tool"], {"tool_choice": {"type": "any"}}),
    ("anthropic", GOOD["no tool"], {"tool_choice": {"type": "none"}}),
    (
        "anthropic",
        GOOD["a tool that must be called"],
        {"tool_choice": {"type": "tool", "name": "weather"}},
    ),
    ("mistral", GOOD["any tool"], {"tool_choice": "required"}),
    *((p, WARM, {"temperature": 0.7, "top_p": 0.9}) for p in ("openai", "azure", "mistral")),
    ("openai", ask(seed=7), {"seed": 7}),
    ("azure", ask(seed=7), {"seed": 7}),
    ("mistral", ask(seed=7), {"random_seed": 7}),
    ("openai", NOT_PLAIN, {"metadata": {"at": "2026-01-02"}}),
    *((p, request(options={"extra": e, "max_tokens": 4096}), e) for p, e in EFFORTS),
]


@pytest.mark.parametrize(("provider", "asked", "fields"), WRITTEN)
def test_options_have_the_providers_names(provider, asked, fields):
    body = make_api(provider).body(asked)
    assert {key: body[key] for key in fields} == fields
    assert make_server(provider, World()).refusal({"model": "m", **body}) == ""


def test_an_older_version_of_anthropics_api_takes_temperatures():
    import anthropic

    older = {"anthropic-version": "2023-06-01"}
    http = httpx2.AsyncClient()
    client = anthropic.AsyncAnthropic(api_key="k", default_headers=older, http_client=http)
    api = backends.AnthropicBatches("m", client=client)
    body = api.body(WARM)
    assert (body["temperature"], body["top_p"]) == (0.7, 0.9)
    with pytest.raises(InvalidRequest, match="temperature must be between 0 and 1"):
        api.body(ask(temperature=1.2))
    thinks = {"thinking": {"type": "adaptive"}}
    with pytest.raises(InvalidRequest, match="only with a temperature of 1"):
        api.body(ask(temperature=0.5, extra=thinks))


def test_an_effort_and_a_type_go_together():
    extra = {"output_config": {"effort": "low"}}
    body = make_api("anthropic").body(request(format=Invoice, options={"extra": extra}))
    assert body["output_config"].keys() == {"effort", "format"}


def test_turns_of_one_role_are_one():
    body = make_api("anthropic").body(
        request(Message("user", "One"), Message("user", "Two"), *CALLED[1:], Message("user", "So?"))
    )
    roles = [turn["role"] for turn in body["messages"]]
    assert roles == ["user", "assistant", "user"]
    kinds = [[block["type"] for block in turn["content"]] for turn in body["messages"]]
    assert kinds == [["text", "text"], ["tool_use"], ["tool_result", "text"]]


REFUSED: list[tuple[str, Request, str]] = [
    *((p, ask(extra={"stream": True}), "can't set stream") for p in PROVIDERS),
    *((p, ask(extra={"x": float("nan")}), "JSON") for p in PROVIDERS),
    *((p, ask(extra={"x": object()}), "JSON") for p in PROVIDERS),
    *((p, ask(model="another"), "use the same model") for p in ("openai", "azure", "mistral")),
    ("anthropic", Request((Message("user", "Hello"),)), "set the option max_tokens"),
    *(
        ("anthropic", ask(**option), "since 2026-10-21")
        for option in ({"temperature": 1.0}, {"top_p": 0.9}, {"extra": {"top_k": 3}})
    ),
    ("anthropic", ask(seed=7), "support seeds"),
    ("anthropic", ask(max_tokens=50, extra={"max_tokens": 0}), "max_tokens"),
    ("anthropic", ask(stop=["\n"]), "can't be only whitespace"),
    ("anthropic", ask(extra={"speed": "fast"}), "doesn't support fast mode"),
    ("anthropic", request(Message("system", "Hello")), "first message"),
    ("anthropic", request(Message("assistant", "Hello")), "first message"),
    ("anthropic", request(Message("user", " ")), r"message 1 \(user\) is empty"),
    (
        "anthropic",
        request(Message("user", "Hello"), Message("assistant", "I say ")),
        "ends with whitespace",
    ),
    ("anthropic", request(*CALLED[:2]), "aren't answered in the next turn"),
    ("anthropic", request(*CALLED[:2], Message("user", "So?")), "aren't answered in the next turn"),
    ("anthropic", request(CALLED[0], CALLED[2]), "isn't in the turn before it"),
    (
        "anthropic",
        request(CALLED[0], Message("assistant", "", tool_calls=[ToolCall("a b", "x", "{}")])),
        "id 'a b'",
    ),
    ("anthropic", request(Message("user", [Audio(b"x", "wav")])), "has audio"),
    ("anthropic", request(Message("user", [Image(data=PNG, media_type="image/tiff")])), "tiff"),
    (
        "anthropic",
        request(Message("user", [Image(data=PNG + b"0" * 9_000_000)])),
        "larger than 10 MB",
    ),
    (
        "anthropic",
        request(Message("user", [File(data=b"x", filename="a.docx")])),
        "only PDF and text files",
    ),
    (
        "anthropic",
        request(options={"extra": {"thinking": {"type": "enabled", "budget_tokens": 10}}}),
        "budget_tokens",
    ),
    (
        "anthropic",
        request(
            tools=(WEATHER,),
            tool_choice="required",
            options={"extra": {"thinking": {"type": "adaptive"}}},
        ),
        "must be called",
    ),
    (
        "anthropic",
        request(tools=(Tool("x", parameters={"type": "string"}),)),
        "must have the type object",
    ),
    ("mistral", ask(temperature=1.6), "at most 1.5"),
    (
        "mistral",
        request(*CALLED, Message("user", "So?")),
        "followed by a message with the role 'user'",
    ),
    ("mistral", request(CALLED[0], CALLED[1]), "the last message"),
    (
        "mistral",
        request(CALLED[0], Message("assistant", "", tool_calls=[ToolCall("call_1", "x", "{}")])),
        "9 letters or digits",
    ),
]


@pytest.mark.parametrize(("provider", "asked", "words"), REFUSED)
def test_what_would_be_refused_when_it_runs_is_refused_before(provider, asked, words):
    with pytest.raises(InvalidRequest, match=words):
        make_api(provider).body(asked)


def test_a_type_that_anthropic_has_no_schema_for():
    loose = request(format=dict[str, Any])
    assert make_api("anthropic", output="tool").body(loose)["tools"]
    with pytest.raises(InvalidRequest, match="json_object"):
        make_api("anthropic", output="json_object").body(loose)


@every_provider
def test_a_line_is_one_line_whatever_is_in_it(provider):
    api = make_api(provider)
    for text in ("one\ntwo\u2028three", "half a pair: \ud83d", "żółć 🥐"):
        line = api.line("a-1", api.body(ask(text)))
        assert "\n" not in line
        assert text in json.dumps(json.loads(line.encode()), ensure_ascii=False).replace(
            "\\n", "\n"
        )


# --- what is wrong at once ------------------------------------------------------------------------

# Importing Anthropic's SDK takes long, and each process of the tests collects this file.
KINDS = ["OpenAIBatches", "AnthropicBatches", "MistralBatches"]


@pytest.mark.parametrize("name", KINDS)
def test_wrong_arguments_are_told_at_once(name):
    kind = getattr(backends, name)
    with pytest.raises(TypeError, match="model's name"):
        kind("")
    with pytest.raises(TypeError, match="client must be"):
        kind("m", client=object())
    with pytest.raises(ValueError, match="base_url must be a URL"):
        kind("m", base_url="nonsense")
    with pytest.raises(ValueError, match="can't try output modes"):
        kind("m", output="auto")
    with pytest.raises(ValueError, match="output must be 'auto'"):
        kind("m", output="xml")
    with pytest.raises(ValueError, match="timeout"):
        kind("m", timeout=0)


def test_wrong_arguments_of_one_provider():
    with pytest.raises(ValueError, match="api must be 'chat' or"):
        OpenAIBatches("m", api="completions")
    with pytest.raises(ValueError, match="timeout_hours"):
        backends.MistralBatches("m", timeout_hours=1000)


@every_provider
def test_a_ready_client_comes_without_a_key(provider):
    api = make_api(provider)
    given = api._server.given
    with pytest.raises(ValueError, match="combined with base_url or api_key"):
        type(api)("m", client=given, api_key="sk-1")


@every_provider
def test_whose_a_job_is(provider):
    api = make_api(provider, options={"max_tokens": 9}, can_judge=False)
    assert api.name == provider
    assert api.model in repr(api)
    assert api.where in repr(api)
    assert "sk-test" not in repr(api)
    assert not api.where.endswith("/")
    assert api.defaults.max_tokens == 9
    assert not api.can_judge
    assert api.body(Request((Message("user", "Hello"),)))
    assert api.limits.requests >= 50_000
    assert api.limits.bytes > 199_000_000


def test_azure_is_known_by_its_name_too():
    api = OpenAIBatches("m", base_url="https://mine.openai.azure.com/openai/v1", api_key="k")
    assert api.name == "azure"
    assert json.loads(api.line("a", {}))["url"] == "/chat/completions"


@pytest.mark.parametrize("name", KINDS)
async def test_a_missing_key_is_told(name, monkeypatch):
    kind = getattr(backends, name)
    for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "MISTRAL_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    with pytest.raises(BackendError, match="no API key"):
        await kind("m").look("job")
    with pytest.raises(BackendError, match="can't be sent"):
        await kind("m", api_key="a b").look("job")


# --- how replies are read -------------------------------------------------------------------------


@every_provider
@pytest.mark.parametrize("output", ["json_schema", "tool"])
async def test_a_reply_to_each_request_is_read(provider, output, tmp_path, virtual_clock):
    asked = dict(GOOD)
    if provider == "anthropic" and output == "json_schema":
        del asked["a list"]
    async with scene(provider, tmp_path, pass_rate=1.0, given={"output": output}) as s:
        outcomes = await s.collect(await s.end(await s.submit([*asked.values()])))
        for number, (name, given) in enumerate(asked.items()):
            reply = s.api.reply(given, outcomes[f"run-1-{number}"], RequestMeter())
            assert not reply.usage.unknown, name
            check_reply(given, reply)


def check_reply(asked: Request, reply: Generation) -> None:
    if asked.format is Invoice:
        value = Invoice.model_validate_json(reply.text)
        assert (value.total, value.lines, value.paid) == (1, ["right"], True)
    elif asked.format is not None:
        assert json.loads(reply.text) == [1]
    elif asked.tool_choice in ("required", "weather"):
        (call,) = reply.tool_calls
        assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "right"})
        assert reply.finish_reason == "tool_calls"
        return
    else:
        assert reply.text.startswith("right")
    assert not reply.tool_calls
    assert reply.finish_reason == "stop"


@every_provider
async def test_thoughts_and_cut_replies_are_read(provider, tmp_path, virtual_clock):
    extra: dict[str, Any] = {"reasoning_effort": "high"}
    if provider == "anthropic":
        extra = {"thinking": {"type": "adaptive"}}
    cut, thinks = ask(max_tokens=1), ask(extra=extra)
    async with scene(provider, tmp_path) as s:
        outcomes = await s.collect(await s.end(await s.submit([cut, thinks])))
        reply = s.api.reply(cut, outcomes["run-1-0"], RequestMeter())
        assert (reply.finish_reason, reply.usage.output_tokens) == ("length", 1)
        reply = s.api.reply(thinks, outcomes["run-1-1"], RequestMeter())
        if provider in ("anthropic", "mistral"):
            assert reply.reasoning == "let me think about it"
        if provider != "mistral":
            assert reply.usage.reasoning_tokens == 5


@pytest.mark.parametrize("name", ["the plainest", "a type", "any tool"])
async def test_responses_are_read_too(name, tmp_path, virtual_clock):
    async with scene("openai", tmp_path, pass_rate=1.0, given={"api": "responses"}) as s:
        extra = {"reasoning": {"effort": "high"}}
        asked = Request(
            GOOD[name].messages,
            Options(max_tokens=50, extra=extra),
            GOOD[name].format,
            tools=GOOD[name].tools,
            tool_choice=GOOD[name].tool_choice,
        )
        outcomes = await s.collect(await s.end(await s.submit([asked])))
        reply = s.api.reply(asked, outcomes["run-1-0"], RequestMeter())
        assert reply.text or reply.tool_calls
        assert reply.reasoning == "let me think about it"
        assert reply.usage == s.api.usage(outcomes["run-1-0"])
        assert reply.usage.reasoning_tokens == 5


BROKEN = [
    {},
    {"choices": []},
    {"choices": [{}]},
    {"content": None},
    {"content": [{"type": "text"}]},
]


@every_provider
@pytest.mark.parametrize("reply", BROKEN)
def test_a_reply_that_cannot_be_read_has_cost_its_tokens(provider, reply):
    counts = {"prompt_tokens": 5, "completion_tokens": 2}
    counts |= {"input_tokens": 5, "output_tokens": 2}
    meter = RequestMeter()
    outcome = JobOutcome(reply={**reply, "usage": counts})
    api = make_api(provider)
    with pytest.raises(MalformedResponse, match="an invalid reply"):
        api.reply(ask(), outcome, meter)
    assert meter.usage == api.usage(outcome) == Usage(1, 5, 2)


def test_a_response_that_failed_is_an_error():
    api = make_api("openai", api="responses")
    error = {"code": "server_error", "message": "it broke"}
    reply = {"status": "failed", "error": error, "output": []}
    with pytest.raises(BackendError, match="it broke"):
        api.reply(ask(), JobOutcome(reply=reply), RequestMeter())


def test_a_reply_that_paused_or_failed_is_no_answer():
    said = {"content": [{"type": "text", "text": "I look."}], "stop_reason": "pause_turn"}
    reply = make_api("anthropic").reply(ask(), JobOutcome(reply=said), RequestMeter())
    assert (reply.text, reply.finish_reason) == ("I look.", "length")
    choice = {"index": 0, "message": {"content": "I"}, "finish_reason": "error"}
    failed = JobOutcome(reply={"choices": [choice]})
    with pytest.raises(BackendUnavailable, match="ended its reply with an error"):
        make_api("mistral").reply(ask(), failed, RequestMeter())


def test_a_cost_that_is_not_told_is_unknown():
    assert make_api("openai").usage(JobOutcome(reply={"choices": []})).unknown == 1
    assert make_api("anthropic").usage(JobOutcome(reply={"content": []})).unknown == 1


def test_tokens_of_the_cache_are_tokens_of_the_prompt():
    counts = {"input_tokens": 5, "cache_creation_input_tokens": 7, "cache_read_input_tokens": 11}
    usage = {**counts, "output_tokens": 3}
    found = make_api("anthropic").usage(JobOutcome(reply={"usage": usage}))
    assert found == Usage(1, 23, 3, cached_input_tokens=11)


@every_provider
def test_a_temperature_that_nobody_wants_is_left_out_of_the_next_job(provider):
    if provider == "anthropic":
        judged = Request((Message("user", "Is it?"),), JUDGE_DEFAULTS.over(Options(max_tokens=9)))
        assert "temperature" not in make_api(provider).body(judged)
        return
    api = make_api(provider)
    judged = Request((Message("user", "Is it?"),), JUDGE_DEFAULTS.over(Options(max_tokens=9)))
    assert api.body(judged)["temperature"] == 0
    words = "Unsupported value: 'temperature' does not support 0 with this model"
    refused = JobOutcome(error=words, status=400)
    with pytest.raises(InvalidRequest) as caught:
        api.reply(judged, refused, RequestMeter())
    assert caught.value.retryable
    assert "temperature" not in api.body(judged)
    assert make_api(provider).body(judged)["temperature"] == 0
    with pytest.raises(InvalidRequest) as caught:
        make_api(provider).reply(ask(temperature=0.0), refused, RequestMeter())
    assert not caught.value.retryable


# --- the fake servers are like the real ones, as far as the SDKs know -----------------------------


def unknown_fields(model: BaseModel, given: dict[str, Any], path: str = "") -> list[str]:
    """Return the fields of an object that the SDK's type of it doesn't have."""
    known = {f.alias or name for name, f in type(model).model_fields.items()}
    found = [f"{path}{name}" for name in given if name not in known]
    for name, field in type(model).model_fields.items():
        inside, part = getattr(model, name, None), given.get(field.alias or name)
        pairs = zip(inside, part, strict=True) if isinstance(inside, list) else [(inside, part)]
        for each, raw in pairs:
            if isinstance(each, BaseModel) and isinstance(raw, dict):
                found += unknown_fields(each, raw, f"{path}{name}.")
    return found


def sdk_types(provider: str) -> tuple[Any, Any]:
    """Return the SDK's types of a job and of a reply."""
    if provider == "anthropic":
        from anthropic.types import Message as AnthropicMessage
        from anthropic.types.messages import MessageBatch

        return MessageBatch, AnthropicMessage
    if provider == "mistral":
        from mistralai.client.models import BatchJob, ChatCompletionResponse

        return BatchJob, ChatCompletionResponse
    from openai.types import Batch
    from openai.types.chat import ChatCompletion

    return Batch, ChatCompletion


@every_provider
async def test_the_fake_servers_objects_are_those_of_the_sdks(provider, tmp_path, virtual_clock):
    batch, message = sdk_types(provider)
    async with scene(provider, tmp_path, error_rate=0.2) as s:
        state = await s.submit([*(ask(f"q {n}") for n in range(10)), GOOD["any tool"]])
        seen = []
        while True:
            given = s.server.batch(s.world.state.jobs[state.id])
            seen.append(given.get("status", given.get("processing_status")))
            assert not unknown_fields(batch.model_validate(given), given)
            if state.ended:
                break
            state = await s.end(state)
        assert len(set(seen)) == 2
        for outcome in (await s.collect(state)).values():
            if outcome.reply is not None:
                read = message.model_validate(outcome.reply)
                assert not unknown_fields(read, outcome.reply)


FAULTY: list[dict[str, Any]] = [
    {"nonsense": 1},
    {"messages": [{"role": "king", "content": "x"}]},
    {"messages": [{"role": "user", "content": "x", "mood": "good"}]},
    {"max_tokens": "many"},
    {"temperature": 9.0},
]


@pytest.mark.parametrize("faulty", FAULTY)
@every_provider
def test_the_fake_servers_refuse_what_is_wrong(provider, faulty):
    server = make_server(provider, World())
    body = {"model": "m", **make_api(provider).body(ask()), **faulty}
    assert server.refusal(body)
