"""Judges whose models refuse temperatures: the library leaves out one that nobody else set."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from http_server import Answer, OpenAIServer
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

from mellea_like import BestOf, OpenAIBackend, RejectionSamplingStrategy, judge_score
from mellea_like.backends import PydanticAIBackend, ScriptedBackend
from mellea_like.backends.server_errors import Translator, refuses_preferred
from mellea_like.core.backend import JUDGE_DEFAULTS
from mellea_like.errors import InvalidRequest, RequirementError

pytestmark = pytest.mark.anyio

SAID = "Unsupported value: 'temperature' does not support 0 with this model. Only the default"
YES = json.dumps({"passed": True, "reason": "fine"})


def strict() -> OpenAIServer:
    """A server whose models refuse temperatures."""

    def choose(number: int, body: dict[str, Any]) -> Answer:
        if "temperature" in body:
            return Answer.error(400, SAID, code="unsupported_value")
        return Answer(YES, usage=(7, 2))

    return OpenAIServer(choose=choose)


def openai(server: OpenAIServer, **more: Any) -> OpenAIBackend:
    return OpenAIBackend("o", base_url=server.url, **more)


def pydantic_ai(server: OpenAIServer, kind: Any = OpenAIChatModel) -> PydanticAIBackend:
    provider = OpenAIProvider(base_url=server.url, api_key="sk-test")
    # One that Pydantic AI does not know to refuse it.
    profile = OpenAIModelProfile(openai_supports_reasoning=False)
    return PydanticAIBackend(kind("o", provider=provider, profile=profile))


every_backend = pytest.mark.parametrize(
    "make",
    [
        openai,
        partial(openai, api="responses"),
        pydantic_ai,
        partial(pydantic_ai, kind=OpenAIResponsesModel),
    ],
    ids=["chat", "responses", "chat by Pydantic AI", "responses by Pydantic AI"],
)


def judged_by(judge: Any, **more: Any) -> RejectionSamplingStrategy:
    return RejectionSamplingStrategy(ScriptedBackend(lambda r: "x"), judge=judge, **more)


def temperatures(server: OpenAIServer) -> list[float | None]:
    return [body.get("temperature") for body in server.requests]


@every_backend
async def test_a_judge_that_refuses_the_temperature_is_asked_without_and_that_is_remembered(make):
    with strict() as server:
        judge = make(server)
        for _ in range(2):
            result = await judged_by(judge).sample("do", ["be kind"])
            assert result.success
            [verdict] = result.best.verdicts
            assert verdict.reason == "fine"
        await judge.aclose()
    assert temperatures(server) == [0, None, None]


@every_backend
async def test_a_temperature_that_somebody_asked_for_is_refused_loudly(make):
    with strict() as server:
        judge = make(server)
        strategy = judged_by(judge, judge_options={"temperature": 0.0})
        with pytest.raises(RequirementError, match="temperature"):
            await strategy.sample("do", ["be kind"])
        with pytest.raises(InvalidRequest, match="temperature"):
            await RejectionSamplingStrategy(judge).sample("do", options={"temperature": 0.0})
        await judge.aclose()
    assert temperatures(server) == [0, 0]


@pytest.mark.parametrize(
    ("status", "said", "refused"),
    [
        (400, "Unsupported parameter: 'temperature' is not supported with this model.", True),
        (400, "invalid temperature: only 1 is allowed for this model", True),
        (400, "`temperature` may only be set to 1 when thinking is enabled.", True),
        (422, "Input validation error: `Temperature` must be strictly positive", True),
        (500, "the temperature of the processor is too high", False),
        (400, "Unknown field: 'temperatures'", False),
    ],
)
def test_servers_word_the_refusal_in_their_ways(status, said, refused):
    error = Translator("http://x", "m", 9.0, ()).refusal(status, {}, said)
    assert refuses_preferred(error, JUDGE_DEFAULTS) is refused


async def test_another_refusal_is_raised_as_ever():
    with OpenAIServer(Answer.error(400, "Unknown field: 'seed'")) as server:
        judge = openai(server)
        with pytest.raises(RequirementError, match="seed"):
            await judged_by(judge).sample("do", ["be kind"])
        await judge.aclose()
    assert temperatures(server) == [0]


async def test_a_format_and_a_temperature_may_both_be_refused():
    def choose(number: int, body: dict[str, Any]) -> Answer:
        if "response_format" in body:
            return Answer.error(400, "response_format is not supported")
        if "temperature" in body:
            return Answer.error(400, SAID)
        return Answer('{"reason": "good", "score": 7}')

    with OpenAIServer(choose=choose) as server:
        judge = openai(server, output="auto")
        score = BestOf(judge_score("How kind?", judge=judge), n=1)
        result = await RejectionSamplingStrategy(
            ScriptedBackend(["x"]), loop_budget=1, selection=score
        ).sample("do")
        await judge.aclose()
    assert result.success
