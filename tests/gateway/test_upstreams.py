"""Upstreams are opened once, only from the configuration, and closed at the end."""

from __future__ import annotations

import sys
import types
from contextlib import asynccontextmanager

import pytest
from gateway_kit import Caller, calling, config_for
from http_server import Answer, OpenAIServer

from mellea_like.backends.function import FunctionBackend
from mellea_like.backends.openai import OpenAIBackend
from mellea_like.core.backend import Request
from mellea_like.core.conversation import Message
from mellea_like.gateway import GatewayConfig, make_app
from mellea_like.gateway.config.upstreams import OpenUpstreams, check_upstreams
from mellea_like.gateway.http.app import Gateway

pytestmark = pytest.mark.anyio

ASK = Request((Message("user", "Hi."),))


def upstreams(**configs: object):
    config = GatewayConfig.model_validate(
        {"upstreams": configs, "models": {"m": {"upstream": next(iter(configs))}}}
    )
    return config.upstreams


@asynccontextmanager
async def open_upstreams(specs):
    async with OpenUpstreams({}, spent=lambda usage, price: None) as upstreams:
        yield {upstream.name: upstream for upstream in await upstreams.open(specs)}


@pytest.fixture
def upstream():
    with OpenAIServer(Answer("a b")) as server:
        yield server


async def test_the_key_and_the_address_come_from_the_configuration_alone(upstream, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("MY_KEY", "sk-mine")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    at = {"kind": "openai", "base_url": upstream.url, "model": "x"}
    configs = upstreams(
        none=at, given={**at, "api_key": "sk-given"}, named={**at, "api_key_env": "MY_KEY"}
    )
    async with open_upstreams(configs) as opened:
        for one in opened.values():
            await one.backend.generate(ASK)
    sent = [headers["authorization"] for headers in upstream.headers]
    assert sent == ["Bearer no-key-needed", "Bearer sk-given", "Bearer sk-mine"]


async def test_openais_own_server_is_meant_where_no_address_is_given(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    async with open_upstreams(upstreams(main={"kind": "openai", "model": "x"})) as opened:
        inner = opened["main"].backend.inner.inner
    assert inner.base_url == "https://api.openai.com/v1"


async def test_connections_are_closed_at_the_end(upstream):
    configs = upstreams(
        main={"kind": "openai", "base_url": upstream.url, "model": "x", "keep_alive": True}
    )
    async with open_upstreams(configs) as opened:
        await opened["main"].backend.generate(ASK)
        assert upstream.connections == 1
    await upstream.wait_until(lambda: upstream.connections == 0)


async def test_a_provider_is_asked_through_pydantic_ai(monkeypatch):
    async with open_upstreams(upstreams(main={"kind": "pydantic-ai", "model": "test"})) as opened:
        reply = await opened["main"].backend.generate(ASK)
    assert reply.text == "success (no tool calls)"
    # A provider's own API has no response_format, so the prompt has the schema.
    assert not opened["main"].constrains
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    wrong = upstreams(main={"kind": "pydantic-ai", "model": "anthropic:claude-sonnet-5-5"})
    (problem,) = check_upstreams(wrong)
    assert problem.place == ("upstreams", "main")
    assert problem.what.startswith("model: Set the `ANTHROPIC_API_KEY`")


@pytest.mark.allow_blocking  # The configuration looks for its files.
async def test_a_corpus_is_what_the_markov_text_is_made_of(tmp_path):
    (tmp_path / "corpus.txt").write_text("Ships sail. Ships sink.", encoding="utf-8")
    configs = upstreams(toy={"kind": "markov", "corpus": [str(tmp_path / "corpus.txt")]})
    async with open_upstreams(configs) as opened:
        reply = await opened["toy"].backend.generate(ASK)
    assert reply.text.startswith("Ships s")


# --- backends in Python -------------------------------------------------------------------------


@pytest.fixture
def module(monkeypatch, tmp_path):
    module = types.ModuleType("backends_of_a_test")
    module.made = []

    def make() -> FunctionBackend:
        module.made.append(FunctionBackend(lambda _: "made", inline=True))
        return module.made[-1]

    module.make = make
    module.ready = FunctionBackend(lambda _: "ready", inline=True)
    module.inner = types.SimpleNamespace(ready=module.ready)
    module.number = 3
    module.wrong = lambda: 3
    module.fails = lambda: 1 / 0
    monkeypatch.setitem(sys.modules, "backends_of_a_test", module)
    (tmp_path / "broken_backends.py").write_text("1 / 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("where", "text"), [("ready", "ready"), ("make", "made"), ("inner.ready", "ready")]
)
async def test_a_backend_may_be_written_in_python(module, where, text):
    configs = upstreams(mine={"kind": "python", "backend": f"backends_of_a_test:{where}"})
    async with open_upstreams(configs) as opened:
        assert (await opened["mine"].backend.generate(ASK)).text == text


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("backends_of_a_test:number", "is neither a backend"),
        ("backends_of_a_test:wrong", "is neither a backend"),
        ("backends_of_a_test:missing", "can't be imported"),
        ("backends_of_a_test:fails", "backends_of_a_test:fails raised ZeroDivisionError: division"),
        ("broken_backends:x", "importing broken_backends raised ZeroDivisionError: division"),
        ("no_such_module:x", "can't be imported"),
        (None, r"upstreams\.mine\.backend is missing"),
    ],
)
async def test_a_backend_that_is_none_is_named(module, where, said):
    config = {"kind": "python"} if where is None else {"kind": "python", "backend": where}
    with pytest.raises(ValueError, match=said):
        async with open_upstreams(upstreams(mine=config)):
            pass


async def test_a_backend_that_was_handed_over_stays_open_and_says_whether_it_judges():
    closed = []

    class Closing(FunctionBackend):
        async def aclose(self) -> None:
            closed.append(self)

    backend = Closing(lambda _: "a", inline=True, can_judge=False)
    async with calling(backend) as caller:
        refused = await caller.chat(mellea_like={"requirements": ["It rhymes."]})
    assert refused.error["param"] == "mellea_like.requirements"
    assert closed == []


def test_a_backend_for_no_upstream_is_a_mistake():
    with pytest.raises(ValueError, match="the configuration has no upstream named 'mian'"):
        make_app(config_for(), backends={"mian": FunctionBackend(lambda _: "a")})


async def test_upstreams_that_are_open_are_not_opened_again(module):
    made = sys.modules["backends_of_a_test"].made
    gateway = Gateway(config_for(upstream={"backend": "backends_of_a_test:make"}))
    async with gateway.open(), gateway.open():
        assert (await Caller(gateway).chat()).status == 200
    assert len(made) == 1


async def test_a_lifespan_opens_the_upstreams():
    app = make_app(config_for(), backends={"main": FunctionBackend(lambda _: "a", inline=True)})
    sent: list[str] = []
    statuses: list[int | None] = []

    async def receive() -> dict[str, str]:
        if sent:
            statuses.append((await Caller(app).chat()).status)
        return {"type": "lifespan.shutdown" if sent else "lifespan.startup"}

    async def send(message) -> None:
        sent.append(message["type"])

    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    await app(scope, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert statuses == [200]
    assert (await Caller(app).ask("/healthz", method="GET")).status == 503


async def test_money_can_not_be_counted_where_no_model_has_a_name():
    config = config_for(upstream={"price": [1, 2]}, budget={"money": 1}, options={"max_tokens": 9})
    gateway = Gateway(config, {"main": OpenAIBackend(base_url="http://127.0.0.1:9/v1")})
    with pytest.raises(ValueError, match="its backend doesn't name its model"):
        async with gateway.open():
            pass
