"""``escalate``: if draws fail, a model of the gateway continues with a bigger upstream."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from gateway_kit import Caller
from pydantic import ValidationError

from mellea_like.backends.function import FunctionBackend
from mellea_like.core.generation import Generation, Usage
from mellea_like.gateway.config.gateway_config import GatewayConfig
from mellea_like.gateway.http.app import Gateway

pytestmark = pytest.mark.anyio

USED = Usage(1, 100, 100)


class Upstream(FunctionBackend):
    """An upstream that always gives the same reply, and keeps the requests."""

    def __init__(self, model: str, text: str) -> None:
        self.requests = []
        self.text = text
        super().__init__(self._answer, inline=True, can_judge=True, model=model)

    def _answer(self, request):
        self.requests.append(request)
        if request.meta.purpose == "judge":
            return '{"passed": true, "reason": "so"}'
        return Generation(self.text, usage=USED, model=request.options.model or self.model)


def config(*stages, upstreams=None, **model) -> GatewayConfig:
    both = {
        name: {"kind": "python", "price": price}
        for name, price in (("small", "1,1"), ("big", "10,10"))
    }
    mine = {"upstream": "small", "retries": 0, "checks": ["words<2"], "escalate": list(stages)}
    return GatewayConfig.model_validate(
        {"upstreams": {**both, **(upstreams or {})}, "models": {"mine": {**mine, **model}}}
    )


@asynccontextmanager
async def calling(made: GatewayConfig):
    small, big = Upstream("s", "two words"), Upstream("b", "fine")
    gateway = Gateway(made, {"small": small, "big": big})
    async with gateway.open():
        yield Caller(gateway), small, big


async def test_a_bigger_upstream_goes_on_with_options_of_its_own():
    stage = {
        "upstream": "big",
        "upstream_model": "b-2",
        "carry": "best",
        "options": {"max_tokens": 50, "extra": {"top_k": 2}},
    }
    options = {"temperature": 0.5, "max_tokens": 20}
    made = config(stage, attempts=2, upstream_model="s-1", options=options)
    async with calling(made) as (caller, small, big):
        answer = await caller.chat()
        assert (answer.status, answer.json["choices"][0]["message"]["content"]) == (200, "fine")
        assert (len(small.requests), len(big.requests)) == (2, 1)
        first, last = small.requests[0].options, big.requests[0].options
        assert (first.model, first.temperature, first.max_tokens) == ("s-1", 0.5, 20)
        assert first.extra == {}
        assert (last.model, last.temperature, last.max_tokens) == ("b-2", 0.5, 50)
        assert last.extra == {"top_k": 2}
        assert "An earlier attempt:\ntwo words" in big.requests[0].messages[-1].content
        await caller.chat(max_tokens=7, temperature=1.0)
        asked = [r.options for r in (*small.requests[2:], *big.requests[1:])]
        assert {(o.max_tokens, o.temperature) for o in asked} == {(7, 1.0)}


async def test_n_choices_escalate_each_on_its_own():
    async with calling(config({"upstream": "big"}, attempts=1)) as (caller, small, big):
        answer = await caller.chat(n=3)
    assert [choice["message"]["content"] for choice in answer.json["choices"]] == ["fine"] * 3
    assert (len(small.requests), len(big.requests)) == (3, 3)


async def test_each_stage_is_judged_by_its_own_upstream_or_by_the_one_that_is_named():
    for judges in ({}, {"judge": "small"}):
        made = config(
            {"upstream": "big", "requirements": ["It is kind."]},
            **{"attempts": 1, "checks": ["words<2"], "requirements": ["It is short."], **judges},
        )
        async with calling(made) as (caller, small, big):
            assert (await caller.chat()).status == 200
        purposes = [[r.meta.purpose for r in one.requests] for one in (small, big)]
        assert [of.count("judge") for of in purposes] == ([2, 0] if judges else [0, 2])


async def test_the_rule_learns_over_all_requests():
    made = config({"upstream": "big"}, attempts=20, escalate_when="cheaper")
    async with calling(made) as (caller, small, big):
        for _ in range(12):
            assert (await caller.chat()).status == 200
        before = len(small.requests)
        await caller.chat()
    assert len(small.requests) == before + 1
    assert len(big.requests) == 13


async def test_a_budget_of_money_counts_each_model_at_its_price():
    money = {"budget": {"money": 0.0021}, "attempts": 1, "options": {"max_tokens": 100}}
    async with calling(config({"upstream": "big", "attempts": 3}, **money)) as (caller, small, big):
        big.text = "two words"
        answer = await caller.chat()
    assert (answer.status, len(small.requests), len(big.requests)) == (422, 1, 1)


NO_PRICE = {"upstreams": {"big": {"kind": "python"}}}
CANT = {"upstreams": {"big": {"kind": "markov"}}}
CHEAPER = {"escalate_when": "cheaper"}
PRICELESS = "upstreams.big has no price"


@pytest.mark.parametrize(
    ("stage", "more", "message"),
    [
        ({"upstream": "huge"}, {}, "models.mine.escalate.0.upstream: there is no such upstream"),
        ({"judge": "x"}, {}, "models.mine.escalate.0.judge: there is no such upstream"),
        ({"upstream": None}, {}, "upstream is missing: write upstream: big"),
        ({"attempts": 0}, {}, "greater than or equal to 1"),
        ({"carry": "all"}, {}, "Input should be 'nothing', 'best' or 'chat'"),
        ({"checks": ["wrds<2"]}, {}, "models.mine.escalate.0.checks"),
        ({}, {"select": "vote"}, "would choose among draws of different models"),
        ({}, {"give_up": True}, "would end a call before the bigger model"),
        ({"attempts": 999}, {"attempts": 2}, "and 999 more attempts times"),
        ({}, {**CHEAPER, **NO_PRICE}, f"models.mine.escalate_when: {PRICELESS}"),
        ({}, {"budget": {"money": 1}, **NO_PRICE}, f"models.mine.budget.money: {PRICELESS}"),
        (
            {"requirements": ["It is kind."]},
            CANT,
            "models.mine.escalate.0.requirements: upstreams.big can't judge",
        ),
        ({}, {**CHEAPER, "select": "ordered"}, "which draws fail first depends on timing"),
    ],
)
def test_a_mistake_names_its_place(stage, more, message):
    with pytest.raises(ValidationError) as raised:
        given = {"upstream": "big", **stage}
        config({name: value for name, value in given.items() if value is not None}, **more)
    assert message in str(raised.value)
