"""For operators of a gateway: request ids, traces, spending of keys, errors of upstreams."""

from __future__ import annotations

import json
import logging
import re
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest
from gateway_kit import TOKEN, Caller, bearer, calling, config_for
from guard_kit import key, request, running
from leftovers import wait_until
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import ValidationError

from mellea_like.backends import FunctionBackend, ScriptedBackend
from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import InvalidRequest
from mellea_like.gateway.http.app import Gateway
from mellea_like.gateway.http.key_state import end_of_period

pytestmark = pytest.mark.anyio

WATCHER = "a-token-for-metrics-alone-012345"


def costing(*usages: Usage) -> FunctionBackend:
    """Make an upstream whose replies cost these amounts in turn; the last one is repeated."""
    left = list(usages)

    def answer(request):
        usage = left.pop(0) if len(left) > 1 else left[0]
        return Generation("one two three", usage=usage)

    return FunctionBackend(answer, inline=True, model="m")


# --- ids and traces ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("req_0123-abc.DEF", True),
        ("a" * 64, True),
        ("a" * 65, False),
        ("short", False),
        ("has a space in it", False),
        ('forged"} 200\t', False),
        (".dotted-in-front", False),
    ],
)
async def test_a_request_s_id_is_the_caller_s_where_it_is_plain(given, kept, caplog):
    caplog.set_level(logging.INFO, logger="mellea_like.gateway")
    async with calling(ScriptedBackend(["one"], cycle=True)) as caller:
        answer = await caller.chat(headers={"x-request-id": given})
        refused = await caller.chat(n=99, headers={"x-request-id": given})
        stream = await caller.chat(stream=True, headers={"x-request-id": given})
    answers = [answer, refused, stream]
    assert [one.status for one in answers] == [200, 400, 200]
    ids = [one.headers["x-request-id"] for one in answers]
    if kept:
        assert ids == [given] * 3
    else:
        assert len(set(ids)) == 3
        assert all(re.fullmatch("[0-9a-f]{32}", each) for each in ids)
    said = [r.getMessage() for r in caplog.records if "answered" in r.getMessage()]
    sampling = answer.json["mellea_like"]["sampling_id"]
    assert said[0].endswith(f"(request {ids[0]}, sampling {sampling})")
    assert said[1].endswith(f"(request {ids[1]})")


async def test_a_request_has_a_span_within_its_caller_s_trace(monkeypatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"x-request-id": "request-1", "traceparent": theirs}
    async with calling(ScriptedBackend(["one"])) as caller:
        await caller.chat(headers=headers)
        await caller.ask("/nothing", method="GET")
    spans = {span.name: span for span in exporter.get_finished_spans()}
    ours = spans["POST /v1/chat/completions"]
    assert format(ours.context.trace_id, "032x") == theirs.split("-")[1]
    assert format(ours.parent.span_id, "016x") == theirs.split("-")[2]
    assert dict(ours.attributes) == {
        "http.response.status_code": 200,
        "mellea_like.request_id": "request-1",
        "mellea_like.gateway.key": "anonymous",
        "mellea_like.gateway.model": "mine",
    }
    below = spans["sampling RejectionSamplingStrategy"]
    assert below.parent.span_id == ours.context.span_id
    assert spans["GET other"].attributes["http.response.status_code"] == 404
    assert spans["GET other"].parent is None


# --- what keys spend -----------------------------------------------------------------------------


async def test_metrics_have_what_each_key_has_spent_losers_included():
    keys = {"team": key(TOKEN), "others": key(WATCHER)}
    backend = FunctionBackend(
        lambda request: Generation(
            "one two" if request.meta.iteration == 2 else "one two three", usage=Usage(1, 1000, 500)
        ),
        inline=True,
    )
    given = {
        "upstream": {"price": [2, 8, "EUR"]},
        "checks": ["words==2"],
        "attempts": 2,
        "keys": keys,
    }
    async with calling(backend, **given) as caller:
        await caller.chat(headers=bearer(TOKEN))
        answer = await caller.ask("/metrics", method="GET", headers=bearer(TOKEN))
    assert answer.headers["content-type"].startswith("text/plain")
    text = answer.body.decode()
    assert 'mellea_like_gateway_calls_total{model="mine",outcome="passed"} 1.0' in text
    assert 'mellea_like_gateway_iterations_sum{model="mine"} 2.0' in text
    spent = {
        found[1]: float(found[2])
        for found in re.finditer(r"mellea_like_gateway_(\w+_total\{[^}]*key=[^}]*\}) (\S+)", text)
    }
    assert spent['tokens_total{key="team",kind="input",model="mine"}'] == 2000
    assert spent['tokens_total{key="team",kind="output",model="mine"}'] == 1000
    cost = 'cost_total{currency="EUR",key="team",model="mine"}'
    assert spent[cost] == pytest.approx(2 * (1000 * 2 + 500 * 8) / 1e6)
    assert not any("others" in name for name in spent)


@pytest.mark.parametrize("keyed", [True, False])
async def test_the_metrics_key_opens_the_metrics_and_nothing_else(keyed):
    keys = {"team": key(TOKEN)} if keyed else {}
    server = {"metrics_key": key(WATCHER)}
    async with calling(ScriptedBackend(["one"], cycle=True), keys=keys, server=server) as caller:

        async def status(path: str, token: str | None) -> int | None:
            headers = {} if token is None else bearer(token)
            return (await caller.ask(path, method="GET", headers=headers)).status

        assert await status("/metrics", WATCHER) == 200
        assert await status("/metrics", TOKEN) == 401
        assert await status("/metrics", None) == 401
        if keyed:
            assert await status("/v1/models", WATCHER) == 401
            assert (await caller.chat(headers=bearer(WATCHER))).status == 401
            assert (await caller.chat(headers=bearer(TOKEN))).status == 200
        else:
            assert (await caller.chat()).status == 200
            elsewhere = {**bearer(WATCHER), "host": "evil.example"}
            answer = await caller.ask("/metrics", method="GET", headers=elsewhere)
            assert answer.status == 403


def test_the_metrics_key_is_no_other_key():
    given = {"keys": {"team": key(TOKEN)}, "server": {"metrics_key": key(TOKEN)}}
    with pytest.raises(ValueError, match=r"'team' and server\.metrics_key have the same token"):
        Gateway(config_for(**given))


# --- budgets for a period ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("per", "end"),
    [
        ("hour", "2026-12-31T23:00:00"),
        ("day", "2027-01-01T00:00:00"),
        ("week", "2027-01-04T00:00:00"),
        ("month", "2027-01-01T00:00:00"),
    ],
)
def test_a_period_ends_with_the_hour_day_week_or_month_of_utc(per, end):
    expected = datetime.fromisoformat(end).replace(tzinfo=UTC).timestamp()
    for moment in ("2026-12-31T22:00:00", "2026-12-31T22:59:59.9"):
        now = datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()
        assert end_of_period(now, per) == expected
    assert end_of_period(expected, per) > expected


async def test_a_key_s_budget_comes_back_with_its_period():
    clock = [datetime(2026, 2, 28, 22, tzinfo=UTC).timestamp()]
    keys = {
        "team": key(TOKEN, budget={"money": 0.01, "per": "day"}, max_tokens=4096),
        "once": key(WATCHER, budget={"requests": 1}),
    }
    # A request of 1,000 tokens each costs 0.006, which is reserved before it is sent.
    config = config_for(upstream={"price": [1, 5]}, keys=keys)
    gateway = Gateway(config, {"main": costing(Usage(1, 1000, 1000))}, lambda: clock[0])
    async with gateway.open():
        caller = Caller(gateway)

        async def ask(token: str = TOKEN):
            return await caller.chat(max_tokens=1000, headers=bearer(token))

        assert (await ask()).status == 200
        spent = await ask()
        assert (spent.status, spent.error["code"]) == (429, "insufficient_quota")
        assert spent.headers["retry-after"] == "7200"
        assert spent.headers["x-should-retry"] == "false"
        clock[0] += 7199
        assert (await ask()).headers["retry-after"] == "1"
        clock[0] += 1
        assert [(await ask()).status for _ in range(2)] == [200, 429]
        assert [(await ask(WATCHER)).status for _ in range(2)] == [200, 429]
        clock[0] += 400 * 86_400
        assert [(await ask(token)).status for token in (TOKEN, WATCHER)] == [200, 429]


@pytest.mark.parametrize(
    ("tokens", "status", "said"),
    [
        (1000, 429, "may take 1,000 output tokens, but this key's whole budget is 500: send a "),
        (
            300,
            429,
            "may take 300 output tokens, but only 200 of this key's budget are left: send a ",
        ),
        (200, 200, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_too_large_for_a_budget_is_not_told_that_it_is_spent(
    tokens, status, said, stream
):
    budget = {"output_tokens": 500, "per": "day"}
    keys = {"team": key(TOKEN, budget=budget, max_tokens=4096)}
    async with calling(costing(Usage(1, 10, 300), Usage(1, 10, 200)), keys=keys) as caller:

        async def ask(tokens: int):
            return await caller.chat(max_tokens=tokens, stream=stream, headers=bearer(TOKEN))

        if tokens < 500:
            assert (await ask(300)).status == 200
        answer = await ask(tokens)
        assert answer.status == status
        if said is not None:
            assert answer.error["code"] == "insufficient_quota"
            assert said in answer.error["message"]
        assert ("retry-after" in answer.headers) == (status == 429 and tokens < 500)
        assert ("x-should-retry" in answer.headers) == (status == 429)
        if status == 200:
            assert (await ask(1)).error["message"] == "this key's budget is spent"


def test_a_key_s_budget_of_money_needs_every_price():
    money = key(TOKEN, budget={"money": 5, "per": "month"})
    with pytest.raises(ValidationError, match=r"keys\.team\.budget\.money: upstreams\.main has"):
        config_for(keys={"team": money})
    with pytest.raises(ValidationError, match=r"server\.limits\.budget\.money: upstr"):
        config_for(server={"limits": {"budget": {"money": 5}}})
    with pytest.raises(ValidationError, match="'hour', 'day', 'week' or 'month'"):
        config_for(keys={"team": key(TOKEN, budget={"requests": 5, "per": "year"})})
    with pytest.raises(ValidationError, match="a budget needs a limit"):
        config_for(keys={"team": key(TOKEN, budget={"per": "day"})})


# --- why an upstream refuses ---------------------------------------------------------------------


@pytest.mark.parametrize("told", [False, True])
async def test_the_log_says_why_an_upstream_refused_only_where_it_is_asked_to(told, caplog):
    why = "no such option: top_k\nERROR forged, key sk-upstream-0123456789"
    upstream = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
    upstream["api_key"] = "sk-upstream-0123456789"
    server = {"log_upstream_errors": told}
    backend = ScriptedBackend([InvalidRequest(why, status=400)], cycle=True)
    async with calling(backend, upstream=upstream, server=server) as caller:
        answer = await caller.chat(headers={"x-request-id": "request-1"})
        stream = await caller.chat(stream=True)
    said = [r.getMessage() for r in caplog.records if r.name == "mellea_like.gateway"]
    shown = [text for text in said if "no such option" in text]
    assert len(shown) == (2 if told else 0)
    for text in shown:
        assert "the upstream 'main' failed with InvalidRequest (request " in text
        assert r"top_k\nERROR forged, key ***" in text
    assert any("may show parts of prompts and replies" in text for text in said) == told
    assert not told or "(request request-1)" in shown[0]
    for each in (answer, stream):
        assert "no such option" not in json.dumps(each.json)
    assert "sk-upstream" not in caplog.text


# --- as many as come -----------------------------------------------------------------------------


def test_two_hundred_callers_at_once_are_all_answered_by_default():
    with running() as gateway, ExitStack() as stack:
        callers = [stack.enter_context(gateway.connect()) for _ in range(200)]
        for caller in callers:
            caller.send(request("/wait", {"model": "m"}))
        state = gateway.guard.keys["anonymous"]
        wait_until(lambda: (state.in_flight, state.waiting) == (128, 72))
        gateway.app.release.set()
        assert [caller.answer(20).status for caller in callers] == [200] * 200
