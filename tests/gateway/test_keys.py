"""What a key may use, and how much of it."""

from __future__ import annotations

import pytest
from gateway_kit import TOKEN, Caller, user
from guard_kit import key
from pydantic import ValidationError

from mellea_like.backends import FunctionBackend
from mellea_like.gateway.config.gateway_config import GatewayConfig
from mellea_like.gateway.http.app import Gateway

pytestmark = pytest.mark.anyio

ALL = "a-token-for-all-models-0123"


def config(**keys) -> GatewayConfig:
    return GatewayConfig.model_validate(
        {
            "upstreams": {"main": {"kind": "python"}, "dear": {"kind": "python"}},
            "models": {name: {"upstream": "main", "retries": 0} for name in ("a", "b", "c")},
            "keys": keys,
        }
    )


def echo() -> FunctionBackend:
    return FunctionBackend(lambda request: "fine", inline=True, model="m")


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_key_has_the_models_that_it_may_use(path):
    gateway = Gateway(
        config(some=key(TOKEN, models=["c", "a"]), every=key(ALL)), {"main": echo(), "dear": echo()}
    )
    async with gateway.open():
        caller = Caller(gateway)

        async def listed(token: str) -> list[str]:
            answer = await caller.ask("/v1/models", method="GET", headers=bearer(token))
            return [model["id"] for model in answer.json["data"]]

        async def ask(model: str, token: str):
            given = {"messages": user()} if "chat" in path else {"input": "Say something."}
            return await caller.ask(path, {"model": model, **given}, headers=bearer(token))

        async def look(model: str, token: str):
            return await caller.ask(f"/v1/models/{model}", method="GET", headers=bearer(token))

        assert (await listed(TOKEN), await listed(ALL)) == (["a", "c"], ["a", "b", "c"])
        assert [(await ask(m, TOKEN)).status for m in "abc"] == [200, 404, 200]
        assert [(await ask(m, ALL)).status for m in "abc"] == [200, 200, 200]
        assert [(await look(m, TOKEN)).status for m in "abc"] == [200, 404, 200]
        # One that the key may not use is answered as one that isn't there.
        assert (await ask("b", TOKEN)).body == (await ask("nothing", TOKEN)).body
        assert (await look("b", TOKEN)).body == (await look("nothing", TOKEN)).body
        assert (await ask("b", TOKEN)).error["code"] == "model_not_found"


def test_a_key_s_models_are_models():
    with pytest.raises(ValidationError, match=r"keys\.team\.models\.1: there is no such model; "):
        config(team=key(TOKEN, models=["a", "d"]))
