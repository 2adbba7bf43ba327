"""The guard without a server: on both event loops, in virtual time."""

from __future__ import annotations

import json
import logging
from typing import Any

import anyio
import guard_kit
import pytest
from gateway_kit import Answered, Caller
from guard_kit import TOKEN, key

from mellea_like.backends import FunctionBackend
from mellea_like.core.backend import Request
from mellea_like.core.conversation import Message
from mellea_like.gateway.config.gateway_config import KeyConfig, ServerConfig
from mellea_like.gateway.current_request import CURRENT
from mellea_like.gateway.http.body import BodyMemory
from mellea_like.gateway.http.guard import Guard
from mellea_like.gateway.refusal import Refusal
from mellea_like.limits import LimitedBackend

pytestmark = pytest.mark.anyio


async def ask(guard: Guard, body: Any = None, *, token: str = TOKEN, **more: Any) -> Answered:
    fields = {"authorization": f"Bearer {token}", **more.pop("headers", {})}
    if more.get("method", "POST") == "POST":
        body, fields = body or {}, {"content-type": "application/json", **fields}
    return await Caller(guard).ask("/v1/x", body, headers=fields, **more)


async def fine(scope: Any, receive: Any, send: Any) -> None:
    known = CURRENT.get()
    answer = json.dumps([known.key, dict(known.body)]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": answer})


def guarded(app: Any = fine, keys: dict[str, KeyConfig] | None = None, **server: Any) -> Guard:
    return guard_kit.guarded(app, ServerConfig(**server), keys or {})


def counted(guard: Guard) -> str:
    return guard.metrics.render()[0].decode()


async def test_the_app_learns_who_asks_and_for_what():
    guard = guarded(keys={"team": key(max_tokens=77)})
    exchange = await ask(guard, {"model": "m", "n": 2})
    assert json.loads(exchange.body) == ["team", {"model": "m", "n": 2}]
    assert 'requests_total{key="team",model="m",status="200"} 1.0' in counted(guard)
    exchange = await ask(guard, method="GET")
    assert json.loads(exchange.body) == ["team", {}]


async def test_websockets_are_closed():
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await guarded()({"type": "websocket"}, anyio.sleep_forever, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


# --- waiting -------------------------------------------------------------------------------------


async def slow(scope: Any, receive: Any, send: Any) -> None:
    await anyio.sleep(10)
    await fine(scope, receive, send)


async def test_a_caller_that_leaves_while_it_waits_gives_its_place_up(virtual_clock):
    guard = guarded(slow, keys={"team": key(concurrency=1, queue=1)})
    answers: dict[int, Answered] = {}
    leave = anyio.Event()

    async def come(number: int, **more: Any) -> None:
        answers[number] = await ask(guard, **more)

    async with anyio.create_task_group() as group:
        group.start_soon(come, 1)
        await anyio.sleep(1)
        group.start_soon(lambda: come(2, leave=leave))
        await anyio.sleep(1)
        # It is refused before its body is read, so it doesn't matter that this isn't JSON.
        assert (await ask(guard, parts=(b"no JSON",))).status == 429
        leave.set()
        await anyio.sleep(1)
        group.start_soon(come, 3)
        await anyio.sleep(1)
        assert 'waiting{key="team"} 1.0' in counted(guard)
    assert [answers[number].status for number in (1, 2, 3)] == [200, None, 200]
    assert 'requests_total{key="team",model="other",status="499"} 1.0' in counted(guard)
    assert 'in_flight{key="team"} 0.0' in counted(guard)


async def test_one_key_s_line_is_not_another_s(virtual_clock):
    other = "other-token-0123456789"
    keys = {"team": key(concurrency=1, queue=0), "other": key(other, concurrency=1, queue=0)}
    guard = guarded(slow, keys=keys)
    async with anyio.create_task_group() as group:
        group.start_soon(ask, guard)
        await anyio.sleep(1)
        assert (await ask(guard)).status == 429
        exchange = await ask(guard, token=other)
        assert exchange.status == 200


# --- answering -----------------------------------------------------------------------------------


def failing(error: BaseException, *, begun: bool = False) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise error

    return app


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Refusal(418, "a teapot"), 418),
        (ExceptionGroup("one", [ExceptionGroup("two", [Refusal(418, "a teapot")])]), 418),
        (ExceptionGroup("two", [Refusal(418, "a"), KeyError("canary")]), 500),
        (KeyError("canary"), 500),
        (RecursionError("canary"), 500),
    ],
)
async def test_what_the_app_raises_is_an_answer(error, status, caplog):
    caplog.set_level(logging.DEBUG)
    guard = guarded(failing(error))
    exchange = await ask(guard)
    assert exchange.status == status
    assert f'status="{status}"' in counted(guard)
    assert "canary" not in caplog.text + exchange.body.decode()


async def test_an_answer_that_has_begun_is_broken_off():
    exchange = await ask(guarded(failing(KeyError("canary"), begun=True)))
    assert (exchange.status, exchange.parts, exchange.ended) == (200, [], False)


async def test_the_answer_to_head_has_no_body():
    exchange = await ask(guarded(failing(Refusal(404, "no"))), method="HEAD")
    assert (exchange.status, exchange.body) == (404, b"")
    assert int(exchange.headers["content-length"]) > 0


async def test_the_rest_of_a_refused_body_is_read_but_not_for_ever(virtual_clock):
    parts = (b"x",) * 40
    exchange = await ask(guarded(), parts=parts, headers={"content-encoding": "gzip"})
    assert (exchange.status, exchange.reads) == (415, 40)
    # The server closes the connection at the end of the answer, after the rest has been read.
    assert (len(exchange.parts), exchange.ended) == (2, True)
    assert exchange.headers["connection"] == "close"
    begun = anyio.current_time()
    dripping = await ask(guarded(), parts=parts, pause=0.3, headers={"content-encoding": "gzip"})
    assert anyio.current_time() - begun == pytest.approx(2)
    assert dripping.reads == 6


async def test_a_key_whose_budget_is_spent_is_refused_before_its_body_is_read():
    guard = guarded(keys={"team": key(budget={"requests": 1})})
    assert (await ask(guard)).status == 200
    budget = guard.keys["team"].budget
    assert budget is not None
    assert budget.name == "key team"

    backend = LimitedBackend(FunctionBackend(lambda _: "x"), budget)
    await backend.generate(Request((Message("user", "x"),)))
    exchange = await ask(guard, parts=(b"no JSON",))
    assert (exchange.status, exchange.error["code"]) == (429, "insufficient_quota")


# --- the memory of all bodies --------------------------------------------------------------------


async def test_bodies_under_way_share_one_bound_and_one_too_many_is_told_to_come_back():
    entered, leave = anyio.Event(), anyio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        entered.set()
        await leave.wait()
        await fine(scope, receive, send)

    guard = guarded(slow, max_body=1000, max_bodies=1500)
    long = {"text": "x" * 900}
    answers: list[Answered] = []

    async def first() -> None:
        answers.append(await ask(guard, long))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first)
            await entered.wait()
            assert guard.bodies.used > 900
            with anyio.move_on_after(5):
                answers.append(await ask(guard, long))
            leave.set()
    refused, taken = answers
    assert (refused.status, refused.error["code"]) == (503, "server_busy")
    assert refused.headers["retry-after"] == "1"
    assert taken.status == 200
    # Requests that have ended take no memory.
    assert guard.bodies.used == 0


async def test_a_body_of_unknown_length_is_counted_while_it_arrives():
    memory = BodyMemory(1000)
    with pytest.raises(Refusal) as caught, memory.share() as take:
        for _ in range(3):
            take(400)
    assert (caught.value.status, memory.used) == (503, 0)


def test_one_body_fits_into_the_memory_of_all():
    with pytest.raises(ValueError, match="max_bodies is smaller than max_body"):
        ServerConfig(max_body=10, max_bodies=9)
