"""`CachedBackend`: repeated requests are answered from a file."""

from __future__ import annotations

import math
import os
import pickle
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from dataclasses import replace

import anyio
import pytest
from anyio import from_thread, to_thread
from engine_kit import yes
from limiter_kit import Slow, ask

from mellea_like import (
    BestOf,
    Budget,
    Generation,
    Image,
    Message,
    RejectionSamplingStrategy,
    Request,
    Requirement,
    Tool,
    judge_score,
)
from mellea_like.backends import CachedBackend, FunctionBackend, ScriptedBackend, SimulatedBackend
from mellea_like.backends.openai import OpenAIBackend
from mellea_like.core import ToolCall, Usage, Verdict
from mellea_like.core.backend import Options, RequestMeta
from mellea_like.core.generation import Meter, TokenLogprob, cost_of
from mellea_like.errors import BackendUnavailable, CacheError
from mellea_like.limits import ConcurrencyLimiter, FallbackBackend, LimitedBackend, RetryBackend
from mellea_like.testing import check_backend

pytestmark = pytest.mark.anyio

ASKED = Request((Message("user", "Say something."),), meta=RequestMeta(iteration=1))
CALL = ToolCall("1", "look", '{"at": 3}')
LOGPROBS = (TokenLogprob("7", -0.1, (("7", -0.1), ("8", -2.3))), TokenLogprob("!", -math.inf))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache.db"


def counting():
    """A backend with a different reply to each request."""
    numbers = iter(range(1000))
    return FunctionBackend(lambda request: f"reply {next(numbers)}", inline=True)


async def asked(backend, request=ASKED, **changes):
    return (await backend.generate(replace(request, **changes))).text


async def test_a_second_run_asks_for_nothing_and_gets_the_same(path):
    async def run():
        inner = SimulatedBackend(seed=os.urandom(8).hex(), median=0, pass_rate=0.3)
        backend = CachedBackend(inner, path)
        budget = Budget(requests=100)
        strategy = RejectionSamplingStrategy(backend, loop_budget=50, concurrency_budget=1)
        result = await strategy.sample("do", [inner.requirement, "is kind"], budget=budget)
        await backend.aclose()
        return result, inner.statistics().started, budget.spent.requests, backend.statistics()

    first, started, spent, _ = await run()
    assert started == spent == first.usage.requests > 1
    assert len({s.text for s in first.slices}) == len(first.slices)
    again, started, spent, statistics = await run()
    assert [s.text for s in again.slices] == [s.text for s in first.slices]
    assert started == spent == 0
    assert (
        again.usage == Usage(cache_hits=statistics.hits) == Usage(cache_hits=first.usage.requests)
    )
    assert again.best.generation.usage == Usage(cache_hits=1)
    assert (statistics.misses, statistics.kept) == (0, 0)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": (Message("user", "Say something else."),)},
        {"messages": (Message("user", "Say something.", name="Ann"),)},
        {"messages": (Message("system", "Be kind."), *ASKED.messages)},
        *({"options": o} for o in (
            {"model": "x"}, {"temperature": 0.0}, {"top_p": 0.5}, {"max_tokens": 9},
            {"stop": ("x",)}, {"seed": 2}, {"extra": {"top_k": 3}},
        )),
        {"messages": (Message("user", ["Say something."]),)},
        {"messages": (Message("user", ["Say something.", Image("https://a/b.png")]),)},
        {"messages": (*ASKED.messages, Message("assistant", "", tool_calls=(CALL,)))},
        {"tools": (Tool("look"),)},
        {"tools": (Tool("look"),), "tool_choice": "required"},
        {"format": list[int]},
        {"meta": RequestMeta(iteration=2)},
        {"meta": RequestMeta(iteration=None)},
        {"meta": RequestMeta(iteration=1, purpose="judge")},
    ],
    ids=lambda changes: str(next(iter(changes.values())))[:30],
)  # fmt: skip
async def test_what_shapes_a_reply_is_part_of_its_key(path, changes):
    backend = CachedBackend(counting(), path)
    assert await asked(backend) == "reply 0"
    assert await asked(backend, **changes) == "reply 1"
    assert await asked(backend, **changes) == "reply 1"
    # Which call it is of, and which try of it, is not.
    other = RequestMeta("another call", 1, 5, 2.0, 3.0, retry=7)
    assert await asked(backend, meta=other) == "reply 0"
    await backend.aclose()


@pytest.mark.parametrize(
    "said",
    [
        Generation("", finish_reason="stop", tool_calls=(CALL,), refusal="", reasoning="Hm."),
        Generation("", tool_calls=(CALL, replace(CALL, extra={"extra_content": {"a": 1}}))),
        Generation("7!", logprobs=LOGPROBS),
        Generation("so [1]", extra={"reply": {"citations": ["https://a.example"]}}),
    ],
    ids=["a call and thoughts", "a call's extra fields", "log probabilities", "extra fields"],
)
async def test_what_a_reply_says_besides_its_text_is_kept(path, said):
    backend = CachedBackend(FunctionBackend(lambda request: said, inline=True), path)
    first, again = await backend.generate(ASKED), await backend.generate(ASKED)
    assert (first.usage, again.usage) == (Usage(requests=1), Usage(cache_hits=1))
    assert replace(again, usage=said.usage) == replace(first, usage=said.usage) == said
    assert again.extra == said.extra  # Comparisons of replies ignore it.
    await backend.aclose()


async def test_extra_fields_about_the_cost_are_not_those_of_a_hit(path):
    said = Generation("a", extra={"usage": {"cost": 0.1}})
    backend = CachedBackend(FunctionBackend(lambda request: said, inline=True), path)
    first, again = await backend.generate(ASKED), await backend.generate(ASKED)
    assert (first.extra, again.extra) == (said.extra, {})
    await backend.aclose()


def test_a_backend_is_told_from_others_by_what_it_says_of_itself(path):
    one = OpenAIBackend("m", base_url="http://127.0.0.1:1/v1")
    other = OpenAIBackend("m", base_url="http://127.0.0.1:2/v1")
    alike = [one, LimitedBackend(one, ConcurrencyLimiter(1)), RetryBackend(one)]
    request = replace(ASKED, options=Options(seed=1))

    def key(backend):
        return CachedBackend(backend, path)._key(request)

    assert len({key(backend) for backend in alike}) == 1
    assert len({key(one), key(other), key(FallbackBackend(one, other)), key(counting())}) == 4


async def test_a_hit_streams_and_is_checked_early_as_the_reply_was(path):
    inner = ScriptedBackend(["yes it is", "no it is not"])
    backend = CachedBackend(inner, path)
    first = await backend.generate(ASKED)
    async with backend.stream(ASKED) as pieces:
        found = [piece async for piece in pieces]
    assert found == ["yes ", "it ", "is", replace(first, usage=Usage(cache_hits=1))]
    # What streams is kept when it is whole, and not when it is left.
    second = replace(ASKED, meta=RequestMeta(iteration=2))
    async with backend.stream(second) as pieces:
        assert await anext(pieces) == "no "
    assert backend.statistics() == (1, 2, 1)
    early = Requirement(
        "begins with no",
        lambda c: c.text.startswith("no"),
        inline=True,
        stream=lambda text, _: Verdict.UNKNOWN if text.startswith("n") else Verdict.FAIL,
    )
    result = await RejectionSamplingStrategy(backend, concurrency_budget=1, loop_budget=1).sample(
        ASKED.messages[0], [early]
    )
    assert result.slices[0].generation.finish_reason == "rejected"
    assert result.usage == Usage(cache_hits=1)
    await backend.aclose()


async def test_errors_and_values_beyond_json_are_not_kept(path):
    replies = [Generation("x", value={1, 2}), Generation("y", value=[1])]
    backend = CachedBackend(ScriptedBackend([BackendUnavailable("down"), *replies]), path)
    assert await asked(RetryBackend(backend)) == "x"
    assert (await backend.generate(ASKED)).value == [1]
    assert (await backend.generate(ASKED)).value == [1]
    assert backend.statistics() == (1, 3, 1)
    await backend.aclose()


async def test_the_second_question_of_a_judge_score_is_not_answered_with_the_first_reply(path):
    judge = ScriptedBackend(["no score", '{"reason": "so", "score": 8}'])
    for _ in range(2):
        backend = CachedBackend(judge, path)
        strategy = RejectionSamplingStrategy(
            ScriptedBackend(["yes"]), selection=BestOf(judge_score("How nice?", judge=backend), n=1)
        )
        assert (await strategy.sample("do")).decision.scores == {1: 8.0}
        await backend.aclose()
    assert len(judge.requests) == 2


async def test_it_is_cleared_closed_and_used_again_and_pickles(path):
    backend = CachedBackend(SimulatedBackend(median=0), path)
    first = await asked(backend)
    again = pickle.loads(pickle.dumps(backend))
    assert await asked(again) == first
    assert again.statistics().hits == 1
    assert (await backend.clear(), await again.clear()) == (1, 0)
    for one in (backend, again):
        await one.aclose()
        await asked(one)
        await one.aclose()
    assert backend.statistics().kept == 2


async def test_what_is_asked_twice_at_a_time_is_asked_once(path):
    called, go_on = [], anyio.Event()

    async def answer(request):
        called.append(request.meta.iteration)
        await go_on.wait()
        if len(called) == 3:
            raise BackendUnavailable("overloaded")
        return f"reply {len(called)}"

    backend = CachedBackend(FunctionBackend(answer), path)
    replies = []

    async def ask(iteration):
        with suppress(BackendUnavailable):
            request = replace(ASKED, meta=RequestMeta(iteration=iteration), meter=Meter())
            replies.append((iteration, await backend.generate(request)))

    async def ask_and_wait(*iterations):
        async with anyio.create_task_group() as tasks:
            for iteration in iterations:
                tasks.start_soon(ask, iteration)
            await anyio.wait_all_tasks_blocked()
            go_on.set()

    await ask_and_wait(1, 1, 1, 2)
    assert sorted(called) == [1, 2]
    assert len({reply.text for iteration, reply in replies if iteration == 1}) == 1
    assert sorted(reply.usage.requests for _, reply in replies) == [0, 0, 1, 1]
    assert backend.statistics() == (2, 2, 2)
    replies.clear()
    await ask_and_wait(3, 3)  # Of which the first fails.
    assert called[2:] == [3, 3]
    assert [reply.text for _, reply in replies] == ["reply 4"]
    await backend.aclose()


async def test_if_the_first_of_equal_requests_fails_the_others_are_sent_together(path):
    asked_for, all_of_them = [], anyio.Event()

    async def answer(request):
        asked_for.append(request)
        if len(asked_for) == 5:
            all_of_them.set()
        if len(asked_for) > 1:
            await all_of_them.wait()
        raise BackendUnavailable("overloaded")

    async def ask():
        with pytest.raises(BackendUnavailable):
            await backend.generate(replace(ASKED, meter=Meter()))

    backend = CachedBackend(FunctionBackend(answer), path)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(ask)
    await backend.aclose()


async def test_one_that_is_cancelled_lets_the_next_ask(path):
    asked_for = []

    async def answer(request):
        asked_for.append(request)
        if len(asked_for) == 1:
            await anyio.sleep_forever()
        return "a reply"

    backend = CachedBackend(FunctionBackend(answer), path)
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as inner:
                inner.start_soon(asked, backend)
                while not asked_for:
                    await anyio.lowlevel.checkpoint()
                tasks.start_soon(asked, backend)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
    assert len(asked_for) == 2
    assert backend.statistics().kept == 1
    await backend.aclose()


async def test_the_newest_replies_are_left(path):
    backend = CachedBackend(counting(), path)
    for iteration in range(5):
        await asked(backend, meta=RequestMeta(iteration=iteration))
    assert await backend.prune(2) == 3
    assert await backend.prune(2) == 0
    assert await asked(backend, meta=RequestMeta(iteration=3)) == "reply 3"
    assert await asked(backend, meta=RequestMeta(iteration=0)) == "reply 5"
    with pytest.raises(ValueError, match="keep"):
        await backend.prune(-1)
    await backend.aclose()


OTHER = """
import anyio, sys
from mellea_like.backends import CachedBackend, FunctionBackend
from mellea_like import Message, Request
from mellea_like.core.backend import RequestMeta

async def main():
    inner = FunctionBackend(lambda request: sys.argv[2], inline=True)
    backend = CachedBackend(inner, sys.argv[1], name="f")
    for number in range(1, 60):
        asked = Request((Message("user", "x"),), meta=RequestMeta(iteration=number))
        await backend.generate(asked)
    print(backend.statistics().kept)
    await backend.aclose()

anyio.run(main)
"""


async def test_processes_share_a_file(path):
    def run():
        started = [
            subprocess.Popen(
                [sys.executable, "-c", OTHER, str(path), name], stdout=subprocess.PIPE, text=True
            )
            for name in "ab"
        ]
        return [int(process.communicate(timeout=60)[0]) for process in started]

    assert sum(await to_thread.run_sync(run)) >= 59
    backend = CachedBackend(counting(), path, name="f")
    texts = {
        await asked(backend, Request((Message("user", "x"),), meta=RequestMeta(iteration=n)))
        for n in range(1, 60)
    }
    assert texts <= {"a", "b"}
    assert backend.statistics() == (59, 0, 0)
    await backend.aclose()


def change(path, *sql):
    """Change or create a database without the backend."""
    with closing(sqlite3.connect(path)) as db:
        for statement in sql:
            db.execute(statement)
        db.commit()


NEWER = (
    "CREATE TABLE replies (key, reply, when_)",
    "PRAGMA application_id = 0x4D4C6361",
    "PRAGMA user_version = 2",
)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            lambda path: path.write_bytes(b"no database " * 100),
            "it is neither a cache nor any other SQLite",
        ),
        (
            lambda path: change(path, "CREATE TABLE mine (x)"),
            "the existing database isn't a cache: use another path",
        ),
        (
            lambda path: change(path, *NEWER),
            "the existing database has version 2: use another path",
        ),
        (lambda path: path.mkdir(), "it can't be opened|unable to open"),
        (lambda path: None, r"it can't be opened \(No such file or directory\)"),
    ],
)
async def test_a_file_that_can_t_be_used_is_an_error_that_says_why(path, spoil, says, tmp_path):
    await to_thread.run_sync(spoil, path)
    if not path.exists():
        path = tmp_path / "missing" / "cache.db"
    backend = CachedBackend(counting(), path)
    with pytest.raises(CacheError, match=rf"cache .*cache.db: ({says})") as caught:
        await asked(backend)
    assert not caught.value.retryable
    with pytest.raises(CacheError):
        await RejectionSamplingStrategy(backend).sample("do", [yes])


async def test_a_damaged_reply_is_an_error_and_one_that_can_t_be_written_is_returned(path, caplog):
    backend = CachedBackend(counting(), path)
    await asked(backend)
    await to_thread.run_sync(change, path, "UPDATE replies SET reply = '{}'")
    with pytest.raises(CacheError, match="it is damaged"):
        await asked(backend)
    full = "CREATE TRIGGER full_ BEFORE INSERT ON replies BEGIN SELECT RAISE(ABORT, 'full'); END"
    await to_thread.run_sync(change, path, full)
    assert await asked(backend, meta=RequestMeta(iteration=9)) == "reply 1"
    assert "a reply could not be cached" in caplog.text
    await backend.aclose()


async def test_it_keeps_every_promise_of_a_backend(path):
    inner = SimulatedBackend(median=0.01)
    backend = CachedBackend(inner, path)
    sent = lambda: inner.statistics().started
    assert "stream" in await check_backend(lambda: backend, sent=sent)
    await backend.aclose()


async def test_a_look_up_that_was_cancelled_costs_nothing(path):
    """Eight calls with four lanes send equal requests twice; the budget allows those sent."""
    inner = ScriptedBackend(lambda request: "fine", delay=0.01)
    backend = CachedBackend(inner, path)
    budget = Budget(requests=1000)
    fine = Requirement("fine", lambda candidate: True, inline=True)
    strategy = RejectionSamplingStrategy(backend, concurrency_budget=4, budget=budget)
    results = [await strategy.sample("x", [fine]) for _ in range(8)]
    await backend.aclose()
    assert budget.spent.requests == len(inner.requests) <= 32
    assert sum(result.usage.requests for result in results) == len(inner.requests)


@pytest.mark.parametrize("send", ["generate", "stream"])
async def test_a_request_that_is_cancelled_while_its_reply_is_written_costs_what_the_reply_states(
    path, send, monkeypatch
):
    backend = CachedBackend(Slow(0), path)
    token, release = anyio.lowlevel.current_token(), threading.Event()
    request = ask()
    with anyio.CancelScope() as scope:

        def keep(key, reply):
            from_thread.run_sync(scope.cancel, token=token)
            release.wait(10)

        monkeypatch.setattr(backend._file, "keep", keep)
        if send == "generate":
            await backend.generate(request)
        else:
            async with backend.stream(request) as pieces:
                _ = [piece async for piece in pieces]
    release.set()
    assert scope.cancelled_caught
    assert cost_of(request.meter, None) == Usage(1, 10, 10)
    await backend.aclose()
