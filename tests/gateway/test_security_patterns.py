"""Costly patterns and schemas in requests don't make the gateway busy."""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack, contextmanager

import anyio
import pytest
from gateway_kit import config_for, running, user
from guard_kit import Caller, key, request
from http_server import Answer, OpenAIServer
from leftovers import children

from mellea_like.gateway.chat import caller_checks
from mellea_like.gateway.chat.caller_checks import Workers

HUGE = "(((a{1000}){1000}){1000})"
"""A pattern that takes more memory to compile than there is."""

COSTLY = "(a|a)+[b-y]"
"""A pattern that takes more time to match with the reply than there is."""

SLOW = "(?:a|aa){15}[b-y]"
"""A pattern that takes some hundredths of a second."""

LITTLE = {"check_seconds": 0.2}

REPLY = json.dumps("a" * 40 + "!")


def wish(**given):
    return {"mellea_like": given}


def schema(of):
    described = {"name": "x", "schema": of}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


@pytest.fixture(scope="module")
def gateway():
    with (
        OpenAIServer(Answer(REPLY)) as upstream,
        running(config_for(upstream.url, attempts=1, overrides=LITTLE)) as running_,
    ):
        yield running_


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (wish(checks=[f"regex:{HUGE}"]), 400, None),
        (wish(checks=["words<=99", f" ReGex :{COSTLY}"]), 422, "checks_too_costly"),
        (wish(checks=["regex:(?e)(?:a{50}){e<=9}b"] * 3), 422, "nothing_passed"),
        (wish(checks=["choice:" + "|".join(map(str, range(2000)))]), 400, None),
        (wish(checks=["contains:" + "y" * 3_000_000]), 400, None),
        (wish(requirements=["y" * 3_000_000]), 400, None),
        (schema({"type": "string", "pattern": HUGE}), 400, None),
        (schema({"$ref": "#"}), 400, None),
        (schema({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}), 400, None),
        (schema({"enum": ["x" * 9000] * 100}), 400, None),
    ],
)
def test_what_costs_too_much_is_the_caller_s_fault(gateway, body, status, code):
    with Caller(gateway.port) as caller:
        caller.send(request(body={"model": "mine", "messages": user(), **body}))
        answer = caller.answer()
    assert (answer.status, answer.error["code"]) == (status, code)


@contextmanager
def watched(port: int):
    """Ask for /healthz all the time, and yield the durations of the answers."""
    took: list[float] = []
    done = threading.Event()

    def watch() -> None:
        with Caller(port) as caller:
            while not done.wait(0.01):
                began = time.perf_counter()
                caller.send(request("/healthz"))
                assert caller.answer().status == 200
                took.append(time.perf_counter() - began)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield took
    finally:
        done.set()
        thread.join()


@pytest.mark.alone
def test_16_hostile_patterns_of_four_callers_hold_up_nobody_else():
    tokens = [f"token-of-caller-{number}" for number in range(4)]
    patterns = [f"regex:{SLOW}|{number}" for number in range(16)]
    body = {"model": "mine", "messages": user(), **wish(checks=patterns)}
    keys = {token: key(token) for token in tokens}
    with (
        OpenAIServer(Answer(REPLY)) as upstream,
        running(config_for(upstream.url, keys=keys, overrides=LITTLE)) as gateway,
        ExitStack() as stack,
    ):
        callers = [stack.enter_context(Caller(gateway.port)) for _ in tokens]
        with watched(gateway.port) as took:
            for caller, token in zip(callers, tokens, strict=True):
                caller.send(request(body=body, token=token))
            answers = [caller.answer(30) for caller in callers]
    assert {answer.error["code"] for answer in answers} == {"checks_too_costly"}
    assert len(took) > 20
    assert sorted(took)[-len(took) // 50] < 0.1, f"{max(took):.3f} s"


@pytest.mark.anyio
async def test_who_leaves_ends_what_runs_for_it():
    before, began = children(), time.monotonic()
    async with Workers() as workers:
        with anyio.move_on_after(0.2) as scope:
            await workers.ask({"check": f"regex:{HUGE}", "text": "", "seconds": 60})
        assert scope.cancelled_caught
        assert time.monotonic() - began < 30  # Of 60.
    assert children() <= before


@pytest.mark.anyio
async def test_a_key_has_one_turn_at_a_time(monkeypatch):
    monkeypatch.setattr(caller_checks, "PROCESSES", 2)
    async with Workers() as workers, workers.turn("a"):
        with anyio.move_on_after(0.01) as scope:
            async with workers.turn("a"):
                pass
        assert scope.cancelled_caught
        async with workers.turn("b"):
            pass
