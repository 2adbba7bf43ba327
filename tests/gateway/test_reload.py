"""A configuration replaces another one while requests are under way."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
from gateway_kit import TOKEN, Caller, bearer
from guard_kit import key

from mellea_like.backends import FunctionBackend
from mellea_like.gateway.config import upstreams as config_upstreams
from mellea_like.gateway.config.gateway_config import GatewayConfig
from mellea_like.gateway.http.app import Gateway

pytestmark = pytest.mark.anyio

OTHER = "another-token-0123456789"


class Slow(FunctionBackend):
    """An upstream that replies with its name after ten seconds, if it is still open."""

    def __init__(self, name: str) -> None:
        self.name, self.is_open = name, True
        super().__init__(self._answer)

    async def _answer(self, request):
        await anyio.sleep(10)
        assert self.is_open, "it was closed too early"
        return self.name


@pytest.fixture
def opened(monkeypatch):
    """The opened upstreams, in order. Opening one with the name ``broken`` fails."""
    made: list[Slow] = []

    @asynccontextmanager
    async def open_upstream(spec, place):
        if spec.backend == "m:broken":
            msg = f"{place}backend: it is broken"
            raise ValueError(msg)
        made.append(Slow(spec.backend.removeprefix("m:")))
        mine = made[-1]
        yield mine
        mine.is_open = False
        if spec.backend == "m:stuck":
            raise OSError("it did not stop")

    monkeypatch.setattr(config_upstreams, "open_upstream", open_upstream)
    return made


def config(keys=None, **models: str) -> GatewayConfig:
    """Make models by name, each with its own upstream, which replies with the given text."""
    return GatewayConfig.model_validate(
        {
            "upstreams": {
                name: {"kind": "python", "backend": f"m:{says}"} for name, says in models.items()
            },
            "models": {name: {"upstream": name, "retries": 0} for name in models},
            "keys": keys or {"team": key(TOKEN)},
        }
    )


async def ask(gateway: Gateway, model: str, token: str = TOKEN) -> str | int | None:
    """Return the reply's text, or the status of a refusal."""
    answer = await Caller(gateway).chat(model=model, headers=bearer(token))
    if answer.status != 200:
        return answer.status
    return answer.json["choices"][0]["message"]["content"]


async def models_of(gateway: Gateway, token: str = TOKEN) -> list[str]:
    answer = await Caller(gateway).ask("/v1/models", method="GET", headers=bearer(token))
    return [model["id"] for model in answer.json["data"]]


async def replaced(gateway: Gateway, by: GatewayConfig, group: anyio.abc.TaskGroup) -> None:
    """Begin to reload, and wait until new requests use the new configuration."""
    before = gateway.serving
    group.start_soon(gateway.reload, by)
    while gateway.serving is before:
        await anyio.lowlevel.checkpoint()  # No virtual time passes.


async def test_requests_under_way_end_with_the_old_configuration(virtual_clock, opened):
    gateway = Gateway(config(stays="same", goes="gone", changes="old"))
    replies: dict[str, object] = {}

    async def come(name: str, model: str, token: str = TOKEN) -> None:
        replies[name] = await ask(gateway, model, token)

    async with gateway.open(), anyio.create_task_group() as group:
        for model in ("stays", "goes", "changes"):
            group.start_soon(come, f"before {model}", model)
        await anyio.sleep(5)
        keys = {"team": key(TOKEN), "new": key(OTHER)}
        await replaced(gateway, config(keys, stays="same", changes="new", comes="more"), group)
        await anyio.sleep(1)
        assert await models_of(gateway) == ["stays", "changes", "comes"]
        for model in ("stays", "goes", "changes", "comes"):
            group.start_soon(come, f"after {model}", model, OTHER)
        await anyio.sleep(3)
        assert [upstream.is_open for upstream in opened] == [True] * 5
        await anyio.sleep(2)  # The old requests have ended.
        now = {each.name for each in opened if each.is_open}
        assert (len(opened), now) == (5, {"same", "new", "more"})
    assert replies == {
        "before stays": "same",
        "before goes": "gone",
        "before changes": "old",
        "after stays": "same",
        "after goes": 404,
        "after changes": "new",
        "after comes": "more",
    }
    assert not any(upstream.is_open for upstream in opened)


async def test_an_upstream_that_does_not_open_leaves_the_old_configuration_in_force(opened):
    gateway = Gateway(config(one="one"))
    async with gateway.open():
        with pytest.raises(ValueError, match=r"upstreams\.two\.backend: it is broken"):
            await gateway.reload(config(three="three", two="broken"))
        assert [(each.name, each.is_open) for each in opened] == [("one", True), ("three", False)]
        assert await models_of(gateway) == ["one"]
        await gateway.reload(config(one="one", four="four"))
        assert await models_of(gateway) == ["one", "four"]
    assert not any(upstream.is_open for upstream in opened)


async def test_an_upstream_that_does_not_close_keeps_no_other_open(opened, caplog):
    gateway = Gateway(config(one="stuck", two="old"))
    async with gateway.open():
        await gateway.reload(config(three="new"))
        assert [(each.name, each.is_open) for each in opened] == [
            ("stuck", False),
            ("old", False),
            ("new", True),
        ]
    assert "the upstream 'one' could not be closed: it did not stop" in caplog.text
    assert "not reloaded" not in caplog.text


async def test_a_key_that_stays_keeps_its_requests_and_one_that_goes_opens_nothing(
    virtual_clock, opened
):
    def keys(concurrency: int, **more):
        return {"team": key(TOKEN, concurrency=concurrency, queue=0), **more}

    gateway = Gateway(config(keys(2, gone=key(OTHER)), m="m"))
    async with gateway.open(), anyio.create_task_group() as group:
        group.start_soon(ask, gateway, "m")
        group.start_soon(ask, gateway, "m")
        await anyio.sleep(1)
        assert await ask(gateway, "m") == 429
        await replaced(gateway, config(keys(3), m="m"), group)
        assert await ask(gateway, "m", OTHER) == 401
        group.start_soon(ask, gateway, "m")
        await anyio.sleep(1)
        assert await ask(gateway, "m") == 429
        metrics = await Caller(gateway).ask("/metrics", method="GET", headers=bearer(TOKEN))
        text = metrics.body.decode()
        assert 'in_flight{key="team"} 3.0' in text
        assert 'requests_total{key="team",model="other",status="429"} 2.0' in text


async def test_the_server_stays_as_it_was(opened):
    gateway = Gateway(config(m="m"))
    async with gateway.open():
        other = GatewayConfig.model_validate(
            {**config(m="m").model_dump(exclude={"server"}), "server": {"max_body": 1}}
        )
        await gateway.reload(other)
        assert await models_of(gateway) == ["m"]
        assert gateway.serving.config.server.max_body > 1
