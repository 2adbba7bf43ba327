"""The guard without a server: on both event loops, in virtual time."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from guard_kit import TOKEN, key

from mellea_like.backends import FunctionBackend
from mellea_like.core.backend import Request
from mellea_like.core.conversation import Message
from mellea_like.gateway.config.gateway_config import ANONYMOUS, KeyConfig, ServerConfig
from mellea_like.gateway.http.guard import Guard
from mellea_like.gateway.http.keys import admitted
from mellea_like.gateway.http.metrics import Metrics
from mellea_like.gateway.refusal import Refusal
from mellea_like.limits import LimitedBackend

pytestmark = pytest.mark.anyio


@dataclass
class Exchange:
    """One request to an app, and what came back."""

    sent: list[dict[str, Any]] = field(default_factory=list)
    leave: anyio.Event = field(default_factory=anyio.Event)
    reads: int = 0

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def headers(self) -> dict[str, str]:
        return {k.decode(): v.decode() for k, v in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(m.get("body", b"") for m in self.sent[1:])

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]

    async def run(
        self,
        app: Any,
        body: Any = None,
        *,
        path: str = "/v1/x",
        method: str = "POST",
        parts: tuple[bytes, ...] | None = None,
        pause: float = 0.0,
        kind: str = "http",
        **headers: str,
    ) -> Exchange:
        content = parts if parts is not None else (json.dumps(body or {}).encode(),)
        fields = {"host": "localhost", "authorization": f"Bearer {TOKEN}"}
        if method == "POST":
            length = str(sum(map(len, content)))
            fields |= {"content-type": "application/json", "content-length": length}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        left = list(content)

        async def receive() -> dict[str, Any]:
            if left and method == "POST":
                await anyio.sleep(pause)
                self.reads += 1
                part = left.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(left)}
            await self.leave.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            self.sent.append(message)

        scope = {
            "type": kind,
            "http_version": "1.1",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(k.encode(), v.encode()) for k, v in fields.items()],
        }
        await app(scope, receive, send)
        return self


async def fine(scope: Any, receive: Any, send: Any) -> None:
    known = admitted(scope)
    answer = json.dumps([known.key, dict(known.body)]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": answer})


def guarded(app: Any = fine, keys: dict[str, KeyConfig] | None = None, **server: Any) -> Guard:
    metrics = Metrics(["m"], keys or [ANONYMOUS])
    return Guard(app, ServerConfig(**server), keys or {}, metrics=metrics)


def counted(guard: Guard) -> str:
    return guard.metrics.render()[0].decode()


async def test_the_app_learns_who_asks_and_for_what():
    guard = guarded(keys={"team": key(max_tokens=77)})
    exchange = await Exchange().run(guard, {"model": "m", "n": 2})
    assert json.loads(exchange.body) == ["team", {"model": "m", "n": 2}]
    assert 'requests_total{key="team",model="m",status="200"} 1.0' in counted(guard)
    exchange = await Exchange().run(guard, method="GET")
    assert json.loads(exchange.body) == ["team", {}]


async def test_websockets_are_closed():
    exchange = await Exchange().run(guarded(), kind="websocket")
    assert exchange.sent == [{"type": "websocket.close", "code": 1008}]


async def test_lifespan_goes_to_the_app():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    await guarded(app)({"type": "lifespan"}, None, None)
    assert seen == ["lifespan"]


# --- waiting -------------------------------------------------------------------------------------


async def slow(scope: Any, receive: Any, send: Any) -> None:
    await anyio.sleep(10)
    await fine(scope, receive, send)


async def test_a_caller_that_leaves_while_it_waits_gives_its_place_up(virtual_clock):
    guard = guarded(slow, keys={"team": key(concurrency=1, queue=1)})
    first, second, third = Exchange(), Exchange(), Exchange()
    async with anyio.create_task_group() as group:
        group.start_soon(first.run, guard)
        await anyio.sleep(1)
        group.start_soon(second.run, guard)
        await anyio.sleep(1)
        # Before its body is read: that it is no JSON is not known.
        assert (await Exchange().run(guard, parts=(b"no JSON",))).status == 429
        second.leave.set()
        await anyio.sleep(1)
        assert second.sent == []
        group.start_soon(third.run, guard)
        await anyio.sleep(1)
        assert 'waiting{key="team"} 1.0' in counted(guard)
    assert (first.status, third.status) == (200, 200)
    assert 'requests_total{key="team",model="other",status="499"} 1.0' in counted(guard)
    assert 'in_flight{key="team"} 0.0' in counted(guard)


async def test_one_key_s_line_is_not_another_s(virtual_clock):
    other = "other-token-0123456789"
    keys = {"team": key(concurrency=1, queue=0), "other": key(other, concurrency=1, queue=0)}
    guard = guarded(slow, keys=keys)
    async with anyio.create_task_group() as group:
        group.start_soon(Exchange().run, guard)
        await anyio.sleep(1)
        assert (await Exchange().run(guard)).status == 429
        exchange = await Exchange().run(guard, authorization=f"Bearer {other}")
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
    exchange = await Exchange().run(guard)
    assert exchange.status == status
    assert f'status="{status}"' in counted(guard)
    assert "canary" not in caplog.text + exchange.body.decode()


async def test_an_answer_that_has_begun_is_broken_off():
    exchange = await Exchange().run(guarded(failing(KeyError("canary"), begun=True)))
    assert [message["type"] for message in exchange.sent] == ["http.response.start"]


async def test_the_answer_to_head_has_no_body():
    exchange = await Exchange().run(guarded(failing(Refusal(404, "no"))), method="HEAD")
    assert (exchange.status, exchange.body) == (404, b"")
    assert int(exchange.headers["content-length"]) > 0


async def test_the_rest_of_a_refused_body_is_read_but_not_for_ever(virtual_clock):
    parts = (b"x",) * 40
    exchange = Exchange()
    await exchange.run(guarded(), parts=parts, content_encoding="gzip")
    assert (exchange.status, exchange.reads) == (415, 40)
    # The server closes the connection when the answer ends: not before the rest is read.
    assert [message.get("more_body") for message in exchange.sent[1:]] == [True, False]
    assert exchange.headers["connection"] == "close"
    begun = anyio.current_time()
    dripping = await Exchange().run(guarded(), parts=parts, pause=0.3, content_encoding="gzip")
    assert anyio.current_time() - begun == pytest.approx(2)
    assert dripping.reads == 6


async def test_a_key_whose_budget_is_spent_is_refused_before_its_body_is_read():
    guard = guarded(keys={"team": key(budget={"requests": 1})})
    assert (await Exchange().run(guard)).status == 200
    budget = guard.keys["team"].budget
    assert budget is not None
    assert budget.name == "key team"

    backend = LimitedBackend(FunctionBackend(lambda _: "x"), budget)
    await backend.generate(Request((Message("user", "x"),)))
    exchange = await Exchange().run(guard, parts=(b"no JSON",))
    assert (exchange.status, exchange.error["code"]) == (429, "insufficient_quota")
