"""A key's models, rates and budgets."""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import UTC, datetime

import anyio
import pytest
from gateway_kit import TOKEN, Caller, bearer, user
from guard_kit import key
from pydantic import ValidationError

from mellea_like.backends import FunctionBackend
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.core.backend import Backend
from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import StoreError
from mellea_like.gateway.config.gateway_config import GatewayConfig
from mellea_like.gateway.http.app import Gateway
from mellea_like.limits import MemoryStore, SQLiteStore

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


def echo(tokens: int = 0) -> FunctionBackend:
    """Make an upstream whose replies cost ``tokens``."""
    usage = Usage(1, tokens // 2, tokens - tokens // 2)
    reply = Generation("fine", usage=usage) if tokens else "fine"
    return FunctionBackend(lambda _: reply, inline=True, model="m")


def gateway_for(backend: Backend, *, more=None, **keys) -> Gateway:
    given = {"main": backend, "dear": backend}
    return Gateway(config(**keys), given, **(more or {}))


async def ask(gateway: Gateway, token: str = TOKEN, **fields):
    return await Caller(gateway).chat(headers=bearer(token), **{"model": "a", **fields})


@pytest.fixture
def store_in_file(tmp_path):
    """Make stores that share one file, as in several processes, and close them at the end."""
    made: list[SQLiteStore] = []

    def make() -> SQLiteStore:
        made.append(SQLiteStore(tmp_path / "spent.db"))
        return made[-1]

    yield make
    for store in made:
        store.close()


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
        # The answer doesn't tell a model that the key may not use from one that doesn't exist.
        assert (await ask("b", TOKEN)).body == (await ask("nothing", TOKEN)).body
        assert (await look("b", TOKEN)).body == (await look("nothing", TOKEN)).body
        assert (await ask("b", TOKEN)).error["code"] == "model_not_found"


def test_a_key_s_models_are_models():
    with pytest.raises(ValidationError, match=r"keys\.team\.models\.1: there is no such model; "):
        config(team=key(TOKEN, models=["a", "d"]))


# --- a minute ------------------------------------------------------------------------------------


async def test_requests_a_minute_are_those_of_the_caller(virtual_clock):
    keys = {"team": key(TOKEN, requests_per_minute=3), "other": key(ALL, requests_per_minute=600)}
    gateway = gateway_for(echo(), **keys)
    async with gateway.open():
        # With n, one request from the caller makes several upstream.
        answers = [await ask(gateway, n=2) for _ in range(4)]
        assert [answer.status for answer in answers] == [200, 200, 200, 429]
        assert answers[3].error["code"] == "rate_limit_exceeded"
        assert "is limited to 3 requests a minute" in answers[3].error["message"]
        assert answers[3].headers["retry-after"] == "20"
        assert "x-should-retry" not in answers[3].headers
        told = [
            (
                answer.headers["x-ratelimit-limit-requests"],
                answer.headers["x-ratelimit-remaining-requests"],
                answer.headers["x-ratelimit-reset-requests"],
            )
            for answer in answers
        ]
        assert told == [
            ("3", "2", "20.000s"),
            ("3", "1", "40.000s"),
            ("3", "0", "60.000s"),
            ("3", "0", "60.000s"),
        ]
        assert (await ask(gateway, ALL)).headers["x-ratelimit-remaining-requests"] == "599"
        await anyio.sleep(19.9)
        assert (await ask(gateway)).status == 429
        await anyio.sleep(0.1)
        assert [(await ask(gateway)).status for _ in range(2)] == [200, 429]
        await anyio.sleep(3600)
        assert [(await ask(gateway)).status for _ in range(4)] == [200, 200, 200, 429]


async def test_tokens_a_minute_are_what_requests_have_cost(virtual_clock):
    gateway = gateway_for(echo(600), team=key(TOKEN, tokens_per_minute=1000))
    async with gateway.open():
        first = await ask(gateway, n=2)  # 1,200 tokens, which nobody could know before.
        assert first.status == 200
        assert first.headers["x-ratelimit-limit-tokens"] == "1000"
        late = await ask(gateway)
        assert (late.status, late.headers["retry-after"]) == (429, "12")
        assert "is limited to 1,000 tokens a minute" in late.error["message"]
        assert late.headers["x-ratelimit-remaining-tokens"] == "0"
        await anyio.sleep(12)
        # A request with max_tokens is charged that amount at once.
        assert (await ask(gateway, max_tokens=500)).headers["retry-after"] == "30"
        for wrong in ({"n": 99}, {"max_tokens": 0}, {"max_tokens": -(10**30)}):
            assert (await ask(gateway, **wrong)).status == 400  # It costs nothing.
        await anyio.sleep(30)
        assert (await ask(gateway, max_tokens=500)).status == 200
        await anyio.sleep(66)
        assert (await ask(gateway, max_tokens=10**400)).status == 200
        assert (await ask(gateway)).headers["x-ratelimit-remaining-tokens"] == "400"


async def test_a_request_without_max_tokens_is_charged_those_of_its_key(virtual_clock):
    slow = ScriptedBackend([Reply("yes", delay=9)], cycle=True)
    gateway = gateway_for(slow, team=key(TOKEN, tokens_per_minute=1000, max_tokens=400))
    async with gateway.open(), anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(ask, gateway)
        await anyio.sleep(1)
        assert (await ask(gateway)).status == 429  # Both may still take 400 tokens.
        await anyio.sleep(9)
        assert (await ask(gateway)).status == 200


# --- a budget ------------------------------------------------------------------------------------


async def test_a_budget_may_count_the_requests_of_the_caller():
    clock = [datetime(2026, 2, 28, 22, tzinfo=UTC).timestamp()]
    budget = {"caller_requests": 2, "per": "day"}
    gateway = gateway_for(
        echo(), more={"now": lambda: clock[0]}, team=key(TOKEN, budget=budget), other=key(ALL)
    )
    async with gateway.open():
        answers = [await ask(gateway, n=3) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert answers[2].error["message"] == "this key's budget is spent"
        assert answers[2].headers["retry-after"] == "7200"
        assert (await ask(gateway, ALL)).status == 200
        clock[0] += 7200
        assert [(await ask(gateway)).status for _ in range(3)] == [200, 200, 429]


@pytest.mark.allow_blocking  # The store's file is small.
@pytest.mark.parametrize("kept", ["memory", "file"])
@pytest.mark.parametrize("budget", [{"caller_requests": 2}, {"requests": 2}])
async def test_what_is_spent_outlives_a_gateway_with_its_store(kept, budget, store_in_file):
    store = MemoryStore() if kept == "memory" else store_in_file()
    more = {"store": store}
    keys = {"team": key(TOKEN, budget=budget), "gone": key(ALL)}
    gateway = gateway_for(echo(), more=more, **keys)
    async with gateway.open():
        assert [(await ask(gateway)).status for _ in range(3)] == [200, 200, 429]
    again = gateway_for(echo(), more=more, **keys)
    async with again.open():
        assert (await ask(again)).status == 429
        # After a limit is raised, earlier spending still counts.
        larger = dict.fromkeys(budget, 3)
        await again.reload(config(team=key(TOKEN, budget=larger), gone=key(ALL)))
        assert [(await ask(again)).status for _ in range(2)] == [200, 429]
        await again.reload(config(gone=key(ALL)))
        await again.reload(config(team=key(TOKEN, budget=larger)))
        assert (await ask(again)).status == 429
    if kept == "file":
        store.close()
        with contextlib.closing(sqlite3.connect(store.path)) as file:
            assert file.execute("SELECT count(*) FROM held").fetchone() == (0,)


@pytest.mark.allow_blocking  # The store's file is small.
async def test_an_hour_that_is_over_leaves_nothing_in_the_store(store_in_file):
    clock = [datetime(2026, 2, 28, 22, tzinfo=UTC).timestamp()]
    store = store_in_file()
    budget = {"caller_requests": 9, "requests": 9, "per": "hour"}
    more = {"store": store, "now": lambda: clock[0]}
    gateway = gateway_for(echo(), more=more, team=key(TOKEN, budget=budget))
    async with gateway.open():
        for _ in range(3):
            assert (await ask(gateway)).status == 200
            clock[0] += 3600
        assert store.accounts() == [
            "key team, hour to 2026-03-01T01:00Z",
            "key team, hour to 2026-03-01T01:00Z: caller_requests",
        ]
    store.close()


async def test_another_period_leaves_nothing_in_the_store_once_the_first_is_over():
    clock = [datetime(2026, 2, 28, 22, tzinfo=UTC).timestamp()]
    store = MemoryStore()
    more = {"store": store, "now": lambda: clock[0]}

    def per(period: str) -> dict[str, object]:
        return {"team": key(TOKEN, budget={"caller_requests": 1, "per": period})}

    gateway = gateway_for(echo(), more=more, **per("day"))
    async with gateway.open():
        assert [(await ask(gateway)).status for _ in range(2)] == [200, 429]
        await gateway.reload(config(**per("hour")))
        assert (await ask(gateway)).status == 200
        await gateway.reload(config(**per("day")))
        assert (await ask(gateway)).status == 429, "the day's spending was forgotten"
        await gateway.reload(config(**per("hour")))
        clock[0] += 3 * 3600
        assert (await ask(gateway)).status == 200
    assert store.accounts() == ["key team, hour to 2026-03-01T02:00Z: caller_requests"]


@pytest.mark.allow_blocking  # The store's file is small.
async def test_a_store_that_can_not_be_used_lets_nobody_spend(store_in_file, caplog):
    store = store_in_file()
    gateway = gateway_for(
        echo(), more={"store": store}, team=key(TOKEN, budget={"requests": 5}), free=key(ALL)
    )
    async with gateway.open():
        assert (await ask(gateway)).status == 200
        store.close()
        store.path.write_bytes(b"no database, this is. " * 400)
        answer = await ask(gateway)
        assert (answer.status, answer.error["code"]) == (503, "store_unavailable")
        assert (await ask(gateway, ALL)).status == 200
    assert "can't record the spending of keys: " in caplog.text


async def test_a_request_that_can_not_be_recorded_is_not_charged_to_the_rate(virtual_clock):
    class Failing(MemoryStore):
        works = True

        async def reserve(self, wanted):
            if self.works:
                return await super().reserve(wanted)
            msg = "the disk is full"
            raise StoreError(msg)

    store = Failing()
    limits = {"budget": {"caller_requests": 9}, "tokens_per_minute": 100}
    gateway = gateway_for(echo(), more={"store": store}, team=key(TOKEN, **limits))
    async with gateway.open():
        store.works = False
        assert (await ask(gateway, max_tokens=100)).status == 503
        store.works = True
        assert (await ask(gateway, max_tokens=100)).status == 200


# --- several processes ---------------------------------------------------------------------------


def slow() -> ScriptedBackend:
    return ScriptedBackend([Reply("fine", delay=0.02)], cycle=True)


@pytest.mark.allow_blocking  # The store's file is small.
async def test_gateways_that_serve_together_count_together(store_in_file):
    def make(**keys) -> Gateway:
        more = {"store": store_in_file(), "together": True}
        return gateway_for(echo(10), more=more, **keys)

    keys = {"team": key(TOKEN, budget={"requests": 4}), "quick": key(ALL, requests_per_minute=5)}
    one, two = make(**keys), make(**keys)
    async with one.open(), two.open():
        spent = [(await ask(gateway)).status for _ in range(3) for gateway in (one, two)]
        assert spent == [200] * 4 + [429] * 2
        rated = [(await ask(gateway, ALL)).status for _ in range(3) for gateway in (one, two)]
        assert rated == [200] * 5 + [429]


@pytest.mark.allow_blocking  # The store's file is small.
async def test_a_key_s_concurrency_is_that_of_all_processes_where_it_is_written(store_in_file):
    upstream = slow()

    def make() -> Gateway:
        more = {"store": store_in_file(), "together": True}
        return gateway_for(upstream, more=more, team=key(TOKEN, concurrency=3))

    one, two = make(), make()
    statuses: list[int | None] = []

    async def come(gateway: Gateway) -> None:
        statuses.append((await ask(gateway)).status)

    async with one.open(), two.open(), anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(come, one)
            group.start_soon(come, two)
    assert statuses == [200] * 20
    assert upstream.statistics().max_in_flight == 3


@pytest.mark.allow_blocking  # The store's file is small.
async def test_an_upstream_s_limits_are_those_of_all_processes(store_in_file):
    upstream = slow()

    def make() -> Gateway:
        given = config(team=key(TOKEN)).model_dump(exclude={"keys"})
        given["upstreams"]["main"] |= {"concurrency": 2, "requests_per_minute": 1200}
        store = store_in_file()
        keys = {"team": key(TOKEN).model_dump(exclude_unset=True)}
        made = GatewayConfig.model_validate({**given, "keys": keys})
        return Gateway(made, {"main": upstream, "dear": upstream}, store=store, together=True)

    one, two = make(), make()
    began = anyio.current_time()
    async with one.open(), two.open(), anyio.create_task_group() as group:
        for _ in range(15):
            group.start_soon(ask, one)
            group.start_soon(ask, two)
    statistics = upstream.statistics()
    assert (statistics.started, statistics.max_in_flight) == (30, 2)
    # 20 of them are one second's burst.
    assert anyio.current_time() - began >= 10 / 1200 * 60 * 0.98
