"""An upstream's refusals: clients get codes that they can act on, and retries don't multiply."""

from __future__ import annotations

import json
import logging
from typing import get_args

import pytest
from gateway_kit import TOKEN, Caller, InTurn, bearer, calling, serving
from guard_kit import key
from http_server import Answer
from openai.types.responses.response_error import ResponseError

from mellea_like.errors import BackendUnavailable, RateLimited
from mellea_like.gateway import GatewayConfig
from mellea_like.gateway.http.app import Gateway
from mellea_like.gateway.redaction import redacted_logs
from mellea_like.gateway.upstream_codes import CODES

pytestmark = pytest.mark.anyio

SECRET = "the-upstream-said-this"
OWN_FAULT = {
    "server_error",
    "rate_limit_exceeded",
    "data_residency_mismatch",
    "vector_store_timeout",
}
"""Codes in the SDK that aren't about a mistake in the request."""


def refusing(status: int, /, **error: object) -> Answer:
    told = {"message": SECRET, "type": None, "param": None, "code": None, **error}
    return Answer(status=status, body=json.dumps({"error": told}).encode())


def test_the_sdks_codes_of_faulty_requests_are_known():
    codes = set(get_args(ResponseError.model_fields["code"].annotation))
    assert codes - OWN_FAULT <= CODES


LENGTH = "context_length_exceeded"
INVALID = "invalid_request_error"
VLLM = f"This model's maximum context length is 8192 tokens. However, {SECRET}"
LLAMA = f"request (9412 tokens) exceeds the available context size (8192 tokens), {SECRET}"


def invalid(code: object, param: str | None = None, status: int = 400) -> Answer:
    return refusing(status, code=code, param=param, type=INVALID)


OLD_VLLM = json.dumps({"object": "error", "message": VLLM, "code": 400}).encode()
OF_LLAMA = "exceed_context_size_error"
ODD = refusing(400, code=SECRET, param=f"{SECRET} said", type=SECRET)
QUOTA = {"code": "insufficient_quota", "type": "insufficient_quota"}
LOAD = {"code": "rate_limit_exceeded", "type": "tokens"}

REFUSALS = {
    "openai": (invalid(LENGTH, "messages"), (400, LENGTH, "messages", INVALID)),
    "openai's value": (
        invalid("unsupported_value", "temperature"),
        (400, "unsupported_value", "temperature", INVALID),
    ),
    "azure": (
        refusing(400, code="content_filter", param="prompt", type=None),
        (400, "content_filter", None, INVALID),
    ),
    "vllm": (
        refusing(400, message=VLLM, type="BadRequestError", code=400),
        (400, LENGTH, None, "BadRequestError"),
    ),
    "vllm of old": (Answer(status=400, body=OLD_VLLM), (400, LENGTH, None, INVALID)),
    "llama.cpp": (
        refusing(400, message=LLAMA, type=OF_LLAMA, code=400),
        (400, LENGTH, None, OF_LLAMA),
    ),
    "no known words": (ODD, (400, "upstream_refused", None, INVALID)),
    "a field of nobody's": (
        invalid("unknown_parameter", "the_system_prompt"),
        (400, "unknown_parameter", None, INVALID),
    ),
    "load": (refusing(429, **LOAD), (429, "rate_limit_exceeded", None, "tokens")),
    "quota": (refusing(429, **QUOTA), (429, "insufficient_quota", None, "insufficient_quota")),
    "the gateway's key": (
        invalid("invalid_api_key", status=401),
        (502, "upstream_authentication", None, "upstream_error"),
    ),
    "the gateway's model": (
        invalid("model_not_found", "model", status=404),
        (502, "upstream_refused", None, "upstream_error"),
    ),
}


@pytest.mark.parametrize(("answer", "told"), REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("stream", [False, True])
async def test_code_param_and_type_are_kept_if_they_are_known_and_nothing_else(
    answer, told, stream
):
    async with serving(answer, attempts=1) as (caller, _):
        refused = await caller.chat(stream=stream)
    error = refused.error
    assert (refused.status, error["code"], error["param"], error["type"]) == told
    assert SECRET.encode() not in refused.body


@pytest.mark.parametrize(("told", "wait"), [({"retry_after": "7"}, "7"), ({}, "3600")])
async def test_an_upstream_s_quota_is_not_taken_for_the_key_s_budget(told, wait):
    keys = {"team": key(TOKEN, budget={"requests": 9, "per": "month"})}
    answer = Answer.error(429, code="insufficient_quota", **told)
    async with serving(answer, attempts=1, keys=keys) as (caller, _):
        refused = await caller.chat(headers=bearer(TOKEN))
    assert (refused.status, refused.headers["retry-after"]) == (429, wait)


async def test_what_a_stream_is_broken_off_with_is_told_in_the_same_words():
    error = json.dumps({"error": {"message": SECRET, "code": LENGTH, "type": INVALID}})
    async with serving(Answer(events=(error,)), attempts=1) as (caller, _):
        refused = await caller.chat()
    assert (refused.status, refused.error["code"]) == (400, LENGTH)
    assert SECRET.encode() not in refused.body


FUNCTIONS = [{"type": "function", "name": name} for name in ("f", "g")]
TOOLS = [{"type": "custom", "name": "c"}, {"type": "namespace", "name": "n", "tools": FUNCTIONS}]


@pytest.mark.parametrize(
    ("param", "named"),
    [
        ("max_completion_tokens", "max_output_tokens"),
        ("tools.2.function.name", "tools.1.tools.1.name"),
        ("tools.9.function.name", "tools.9.function.name"),
        ("tool_choice.function.name", "tool_choice.name"),
    ],
)
async def test_a_field_is_named_as_the_caller_of_responses_knows_it(param, named):
    answer = refusing(400, code="invalid_value", param=param, type=INVALID)
    async with serving(answer, attempts=1) as (caller, _):
        given = {"model": "mine", "input": "Hi.", "max_output_tokens": 5, "tools": TOOLS}
        refused = await caller.ask("/v1/responses", given)
    assert (refused.status, refused.error["param"]) == (400, named)
    assert refused.error["message"].startswith("the upstream rejected the request")


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
OTHER = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
BAD_FORMAT = refusing(400, param="response_format", message=f"Invalid schema: {SECRET}")
NO_PARAM = refusing(400, message=f"failed to parse grammar: {SECRET}")

BAD_OPTION, BAD_FIELD = refusing(400, param="temperature"), refusing(400, param="top_k")
OWN = {"json_schema": SCHEMA}
ANY_OBJECT = {"response_format": {"type": "json_object"}}
WARM = {"options": {"temperature": 0.3}}
EXTRA = {"options": {"extra": {"top_k": 3}}}

FAULTS = {
    "the model's schema": (BAD_FORMAT, OWN, {}, "json_schema"),
    "the model's schema, unnamed": (NO_PARAM, OWN, {}, "json_schema"),
    "the model's schema, of an object": (BAD_FORMAT, OWN, ANY_OBJECT, "json_schema"),
    "the caller's schema": (BAD_FORMAT, OWN, {"response_format": OTHER}, None),
    "the model's option": (BAD_OPTION, WARM, {}, "options.temperature"),
    "the caller's option": (BAD_OPTION, WARM, {"temperature": 0.4}, None),
    "the model's field": (BAD_FIELD, EXTRA, {}, "options.extra.top_k"),
}


FORMAT_OF_RESPONSE = {"type": "json_schema", **OTHER["json_schema"]}
EXTRAS = {"extra": {"response_format": {"type": "text"}, "reasoning": {"enabled": True}}}
BAD_REASONING = refusing(400, param="reasoning")

FAULTS_OF_RESPONSES = {
    "the caller's format": (BAD_FORMAT, {"text": {"format": FORMAT_OF_RESPONSE}}, 400),
    "the model's format": (BAD_FORMAT, {"text": {"format": {"type": "text"}}}, 502),
    # The caller's effort is sent as ``reasoning_effort``.
    "the model's reasoning": (BAD_REASONING, {"reasoning": {"effort": "low"}}, 502),
}


@pytest.mark.parametrize(
    ("answer", "asked", "status"), FAULTS_OF_RESPONSES.values(), ids=FAULTS_OF_RESPONSES
)
async def test_a_response_is_refused_only_for_fields_that_its_caller_sent(answer, asked, status):
    async with serving(answer, attempts=1, options=EXTRAS) as (caller, _):
        body = {"model": "mine", "input": "Hi.", **asked}
        refused = await caller.ask("/v1/responses", body)
    assert refused.status == status


@pytest.mark.parametrize(("answer", "model", "asked", "place"), FAULTS.values(), ids=FAULTS)
async def test_a_refusal_that_the_configuration_caused_is_told_to_the_operator(
    answer, model, asked, place, caplog
):
    caplog.set_level(logging.WARNING, "mellea_like.gateway")
    async with serving(answer, attempts=1, **model) as (caller, _):
        refused = await caller.chat(**asked)
    [*said] = (r.getMessage() for r in caplog.records if r.name == "mellea_like.gateway")
    if place is None:
        assert (refused.status, said) == (400, [])
        return
    assert (refused.status, refused.error["code"]) == (502, "upstream_misconfigured")
    assert refused.headers["x-should-retry"] == "false"
    assert place not in refused.error["message"]
    assert any(f"change models.mine.{place} in the configuration" in line for line in said)
    assert SECRET not in "".join(said)


async def test_an_outage_is_told_to_the_operator_in_numbers(virtual_clock, caplog):
    down = InTurn(BackendUnavailable(SECRET, status=503))
    with redacted_logs():
        async with calling(down, attempts=9) as caller:
            await caller.chat()
    opened, *_ = caplog.messages
    assert ": not reachable, 4 requests in a row failed; the next try is in 0.2 s;" in opened
    assert SECRET not in caplog.text


async def test_a_setting_that_makes_no_sense_is_told_to_the_operator(caplog):
    with redacted_logs():
        async with calling(InTurn("a"), select="vote", options={"temperature": 0}) as caller:
            await caller.chat()
    assert any("at temperature 0 they are all alike" in said for said in caplog.messages)


# --- load ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "requests"),
    [
        ({"retries": 2}, 3),  # As in a bare {upstream: main}, with three draws.
        ({"retries": 0}, 1),
        ({"retries": 2, "lanes": 2}, 6),
        ({"retries": 1, "strategy": "repair", "checks": ["excludes:x"]}, 2),
    ],
)
async def test_an_upstream_that_answers_429_gets_no_more_than_the_retries_of_each_draw(
    config, requests, virtual_clock
):
    upstream = InTurn(RateLimited("no", status=429, retry_after=1.0))
    async with calling(upstream, attempts=3, **config) as caller:
        refused = await caller.chat()
    assert len(upstream.requests) == requests
    assert (refused.status, refused.error["code"]) == (429, "upstream_rate_limit")
    assert refused.headers["x-should-retry"] == "false"
    assert refused.headers["retry-after"] == "1"


async def test_other_faults_are_tried_as_often_and_the_next_draw_goes_on(virtual_clock):
    refused, failed = RateLimited("no", status=429), BackendUnavailable("no", status=500)
    upstream = InTurn(refused, refused, failed, "a b")
    async with calling(upstream, attempts=2, retries=2) as caller:
        reply = await caller.chat()
    assert (reply.status, len(upstream.requests)) == (200, 4)
    assert reply.json["mellea_like"]["iterations"] == 2


async def test_after_a_429_the_bigger_model_goes_on():
    small, big = InTurn(RateLimited("no", status=429)), InTurn("a b")
    python = {"kind": "python"}
    model = {"upstream": "main", "retries": 0, "escalate": [{"upstream": "big"}]}
    config = GatewayConfig.model_validate(
        {"upstreams": {"main": python, "big": python}, "models": {"mine": model}}
    )
    gateway = Gateway(config, {"main": small, "big": big})
    async with gateway.open():
        reply = await Caller(gateway).chat()
    assert (reply.status, len(small.requests), len(big.requests)) == (200, 1, 1)
