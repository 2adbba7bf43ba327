"""`ChoicesBackend`: siblings that start together are choices of one request."""

from __future__ import annotations

import contextlib
import json
import random
from dataclasses import replace

import anyio
import pytest
from anyio.lowlevel import checkpoint
from engine_kit import yes
from http_server import Answer, OpenAIServer

from mellea_like import (
    Budget,
    Collect,
    Generation,
    Message,
    Outcome,
    Price,
    RejectionSamplingStrategy,
    Request,
    Requirement,
)
from mellea_like.backends import FunctionBackend
from mellea_like.backends.openai import OpenAIBackend
from mellea_like.coalescing import ChoicesBackend
from mellea_like.core import Usage, Verdict
from mellea_like.core.generation import Meter
from mellea_like.errors import BackendUnavailable, InvalidRequest, ShutdownError
from mellea_like.limits.backoff_gate import gate_of
from mellea_like.testing import check_backend

pytestmark = pytest.mark.anyio

ASKED = Request((Message("user", "do"),))
PROMPT = 100


class Server:
    """A server of the test's own: each choice says its words, one a second, as told.

    Attributes:
        sent: the number of choices of each request.
        closed: requests that were left before their end.
    """

    def __init__(self, *choices, ignores=False, error=None):
        self.choices = choices
        self.ignores = ignores
        self.error = error
        self.sent = []
        self.closed = 0
        self.in_flight = 0

    async def generate(self, request):
        async with self.stream(request) as pieces:
            return [piece async for piece in pieces][-1]

    @contextlib.asynccontextmanager
    async def stream(self, request):
        async with (
            self.stream_choices(request, 1) as choices,
            contextlib.aclosing(self._alone(choices)) as pieces,
        ):
            yield pieces

    async def _alone(self, choices):
        async for _, piece in choices:
            yield piece

    @contextlib.asynccontextmanager
    async def stream_choices(self, request, n):
        self.sent.append(n)
        self.in_flight += 1
        first = sum(self.sent[:-1]) if n == 1 else 0
        meter = request.meter.start()
        meter.update(input_tokens=PROMPT)
        pieces = self._pieces(1 if self.ignores else n, first, meter, n)
        try:
            yield pieces
        finally:
            await pieces.aclose()
            self.in_flight -= 1
            self.closed += not meter.settled and self.error is None

    async def _pieces(self, n, first, meter, asked):
        await anyio.sleep(1)
        if self.error is not None and (asked > 1 or not isinstance(self.error, InvalidRequest)):
            raise self.error
        texts = [self.choices[(first + i) % len(self.choices)].split(" ") for i in range(n)]
        tokens = 0
        for at in range(max(map(len, texts))):
            for index, words in enumerate(texts):
                if at < len(words):
                    tokens += 1
                    meter.update(output_tokens=tokens)
                    yield index, words[at] + " " * (at + 1 < len(words))
                    if at + 1 == len(words) and len(texts) > 1 and tokens < sum(map(len, texts)):
                        yield index, Generation(" ".join(words), usage=meter.usage)
            await anyio.sleep(1)
        meter.settle(input_tokens=PROMPT, output_tokens=tokens)
        last = max(range(n), key=lambda i: (len(texts[i]), i))
        yield last, Generation(" ".join(texts[last]), usage=meter.usage)


def strategy(backend, width=4, **settings):
    return RejectionSamplingStrategy(
        backend, loop_budget=1, concurrency_budget=width, options={"seed": 1}, **settings
    )


async def test_siblings_go_as_one_request_and_pay_the_prompt_once(virtual_clock):
    server = Server("no a b", "no", "no c", "no d e f")
    budget = Budget(money=1, prices={"m": Price(1, 2)}, assume_output_tokens=9)
    server.model = "m"
    async with ChoicesBackend(server) as backend:
        result = await strategy(backend).sample("do", [yes], budget=budget)
        assert backend.statistics() == (4, 4, 1, 0)
    assert server.sent == [4]
    assert {s.iteration: s.text for s in result.slices} == dict(
        enumerate(["no a b", "no", "no c", "no d e f"], 1)
    )
    # The sum is what the server said; each one's part of it is an estimate.
    assert result.usage == Usage(1, PROMPT, 10, 1)
    assert budget.spent == (1, PROMPT, 10, (PROMPT + 2 * 10) / 1e6)
    assert [s.usage.input_tokens for s in result.slices] == [25] * 4
    # Each ends by itself, and what it wrote is its own.
    assert [(s.iteration, s.usage.output_tokens) for s in result.slices] == [
        (2, 1), (3, 2), (1, 3), (4, 4),
    ]  # fmt: skip


def look(n: int) -> int:
    """Look."""
    return n


async def test_requests_with_tools_go_by_themselves(virtual_clock):
    server = Server("no", "no")
    async with ChoicesBackend(server) as backend:
        await strategy(backend, 2).sample("do", [yes], tools=[look])
        assert backend.statistics() == (2, 0, 0, 2)


async def test_the_winner_closes_the_request_and_what_had_arrived_is_paid_for(virtual_clock):
    server = Server("no a b c d", "yes it is", "no a b c d", "no a b c d")
    async with ChoicesBackend(server) as backend:
        result = await strategy(backend).sample("do", [yes])
        assert server.in_flight == 0
    assert (result.best.iteration, result.elapsed) == (2, pytest.approx(3, abs=0.1))
    assert server.closed == 1
    outcomes = [s.outcome for s in result.slices]
    assert outcomes == [Outcome.PASSED, *[Outcome.CANCELLED] * 3]
    assert result.usage.requests == result.usage.unknown == 1
    assert result.usage.input_tokens == PROMPT
    assert 10 <= result.usage.output_tokens <= 12


async def test_a_choice_that_is_rejected_early_leaves_the_others_alone(virtual_clock):
    early = Requirement(
        "does not begin with no",
        lambda c: not c.text.startswith("no"),
        inline=True,
        stream=lambda text, _: Verdict.FAIL if text.startswith("no ") else Verdict.UNKNOWN,
    )
    server = Server("no a b c d", "no a b c", "yes a b c d")
    async with ChoicesBackend(server) as backend:
        result = await strategy(backend, 3).sample("do", [early])
    assert server.sent == [3]
    assert server.closed == 0
    ended = {s.iteration: (s.outcome, round(s.ended_at)) for s in result.slices}
    assert ended == {1: (Outcome.FAILED, 1), 2: (Outcome.FAILED, 1), 3: (Outcome.PASSED, 6)}
    assert result.usage == Usage(1, PROMPT, 14, 1)


@pytest.mark.parametrize("second", ["yes b", "maybe b"])
async def test_a_request_is_closed_when_no_choice_is_wanted_any_more(second, virtual_clock):
    early = Requirement(
        "begins with yes",
        lambda c: c.text.startswith("yes"),
        inline=True,
        stream=lambda text, _: Verdict.FAIL if text == "no " else Verdict.UNKNOWN,
    )
    # One choice is left at its first word, and then the other one's reply is whole.
    server = Server("no a b c d e f", second)
    async with ChoicesBackend(server, 2) as backend:
        for asked in ([2], [2, 2]):  # Nor is this taken for a server that ignores n.
            result = await strategy(backend, 2).sample("do", [early])
            assert (server.sent, server.in_flight, server.closed) == (asked, 0, len(asked))
            assert result.success == (second == "yes b")
            assert result.usage == Usage(1, PROMPT, 4, 1)


async def test_who_comes_while_the_last_one_leaves_is_answered(virtual_clock):
    server = Server("a", "b")
    leaving = anyio.CancelScope()

    async def leave(backend):
        with leaving:
            await backend.generate(ASKED)

    async with ChoicesBackend(server, 9, window=1.0) as backend, anyio.create_task_group() as tasks:
        tasks.start_soon(leave, backend)
        await anyio.sleep(0.5)
        leaving.cancel()
        with anyio.fail_after(60):
            async with anyio.create_task_group() as others:
                for _ in range(5):
                    others.start_soon(backend.generate, ASKED)
                    await checkpoint()
    assert sum(server.sent) == 5


@pytest.mark.parametrize("how", ["ignores", "refuses"])
async def test_a_server_without_choices_is_noticed_and_asked_one_by_one(how, caplog, virtual_clock):
    error = InvalidRequest("n has to be 1") if how == "refuses" else None
    server = Server("no 1", "no 2", "no 3", ignores=how == "ignores", error=error)
    async with ChoicesBackend(server, 3) as backend:
        result = await strategy(backend, 3).sample("do", [yes])
        assert f"{how} n=: choices are requested one by one" in caplog.text
        alone = 2 if how == "ignores" else 3
        assert server.sent == [3, *[1] * alone]
        assert len(result.slices) == 3
        assert not result.errors
        assert result.usage.output_tokens == 6
        assert result.usage.input_tokens == (3 if how == "ignores" else 4) * PROMPT
        if how == "ignores":  # Who got the one choice paid for it, and the others for their own.
            assert [s.usage for s in result.slices] == [Usage(1, PROMPT, 2)] * 3
        await strategy(backend, 3).sample("do", [yes])
        assert server.sent == [3, *[1] * (alone + 3)]


@pytest.mark.parametrize("how", ["ignores", "refuses"])
async def test_what_is_asked_one_by_one_is_admitted_by_budgets_again(how, virtual_clock):
    error = InvalidRequest("n has to be 1") if how == "refuses" else None
    server = Server("no 1", "no 2", "no 3", ignores=how == "ignores", error=error)
    budget = Budget(requests=2)
    async with ChoicesBackend(server, 2) as backend:
        result = await strategy(backend, 2).sample("do", [yes], budget=budget)
    # One request asked for both, and one more is there for what it did not bring.
    assert server.sent == [2, 1]
    assert budget.spent.requests == result.usage.requests == 2


async def test_a_budget_pays_no_reply_for_what_the_server_refused(virtual_clock):
    server = Server("no 1", "no 2", "no 3", error=InvalidRequest("n has to be 1", status=400))
    budget = Budget(output_tokens=1000)
    async with ChoicesBackend(server, 3) as backend:
        result = await strategy(backend, 3).sample(
            "do", [yes], options={"max_tokens": 50}, budget=budget
        )
    assert server.sent == [3, 1, 1, 1]
    assert budget.spent.output_tokens == result.usage.output_tokens == 6  # Two for each reply.


async def test_a_draw_that_a_budget_does_not_send_again_is_no_permanent_error(virtual_clock):
    server = Server("no 1", "no 2", "no 3", error=InvalidRequest("n has to be 1", status=400))
    async with ChoicesBackend(server, 3) as backend:
        result = await strategy(backend, 3, retry=None).sample(
            "do", [yes], budget=Budget(requests=2)
        )
    assert [error.retryable for error in result.errors] == [True, True]


async def test_an_error_is_everyone_s_each_with_its_own(virtual_clock):
    server = Server("yes", error=BackendUnavailable("overloaded"))
    async with ChoicesBackend(server, 2) as backend:
        with pytest.raises(BackendUnavailable, match="overloaded") as caught:
            await strategy(backend, 2, retry=None).sample("do", [yes])
    assert "2 draws errored" in str(caught.value.__notes__)
    assert server.sent == [2]
    assert gate_of(server).statistics().failures == 1


async def test_leaving_the_block_closes_what_runs(virtual_clock):
    server = Server("a b c d e f g h")
    caught = []

    async def ask(backend):
        try:
            await backend.generate(ASKED)
        except ShutdownError as exc:
            caught.append(exc)

    async with ChoicesBackend(server, 2) as backend, anyio.create_task_group() as tasks:
        tasks.start_soon(ask, backend)
        tasks.start_soon(ask, backend)
        await anyio.sleep(3)
        await backend.abort()
        assert server.in_flight == 0
    assert len(caught) == 2
    with pytest.raises(ShutdownError, match="is not open: use `async with`"):
        await backend.generate(ASKED)


def test_a_backend_of_one_choice_is_refused():
    with pytest.raises(TypeError, match="takes a backend with stream_choices, such as OpenAI"):
        ChoicesBackend(FunctionBackend(lambda request: "x"))


@pytest.mark.usefixtures("virtual_clock")
@pytest.mark.parametrize("seed", range(5, 10))
async def test_whoever_leaves_when_all_are_settled_and_pay_what_was_sent(seed, monkeypatch):
    chance = random.Random(seed)
    kind = chance.choice(["takes n", "takes n", "takes n", "ignores n", "refuses n", "fails"])
    errors = {"refuses n": InvalidRequest("n"), "fails": BackendUnavailable("down")}
    texts = ["a " * chance.randrange(6) + "z" for _ in range(5)]
    server = Server(*texts, ignores=kind == "ignores n", error=errors.get(kind))
    sent, asked = [], []

    async def ask(backend, delay, patience, pieces):
        await anyio.sleep(delay)
        asked.append(replace(ASKED, meter=Meter()))
        with anyio.move_on_after(patience), contextlib.suppress(BackendUnavailable):
            async with backend.stream(asked[-1]) as arriving:
                async for piece in arriving:
                    pieces -= 1
                    if not pieces or isinstance(piece, Generation):
                        break

    start = Meter.start
    monkeypatch.setattr(Meter, "start", lambda meter: sent.append(start(meter)) or sent[-1])
    window = chance.choice([0.0, 0.01, 1.0])
    async with ChoicesBackend(server, chance.randint(2, 5), window=window) as backend:
        with anyio.fail_after(300):
            async with anyio.create_task_group() as tasks:
                for _ in range(chance.randint(1, 9)):
                    delay, pieces = chance.choice([0, 0, 0, 0.5, 1.5]), chance.randint(1, 9)
                    patience = chance.choice([0.5, 1, 1.5, 3.5, 100, 100])
                    tasks.start_soon(ask, backend, delay, patience, pieces)
        assert server.in_flight == 0
    mine = sum((request.meter.usage for request in asked), Usage())
    servers = sum((request.usage for request in sent), Usage())
    assert servers.unknown <= mine.unknown <= mine.requests
    assert replace(mine, unknown=0) == replace(servers, unknown=0)


# --- on the wire ------------------------------------------------------------------------------


def chunk(index, text=None, ended=None, **further):
    delta = {**({} if text is None else {"content": text}), **further}
    choices = [{"index": index, "delta": delta, "finish_reason": ended}]
    return json.dumps({"model": "m", "choices": choices})


async def test_interleaved_choices_of_a_real_server():
    usage = {"prompt_tokens": 40, "completion_tokens": 7}
    events = (
        *(chunk(0, "no"), chunk(2, "yes "), chunk(1, "n"), chunk(0, None, "stop")),
        *(chunk(1, "o"), chunk(1, None, "length"), chunk(2, "it is"), chunk(2, None, "stop")),
        *(json.dumps({"choices": [], "usage": usage}), "[DONE]"),
    )
    with OpenAIServer(Answer(events=events)) as server:
        inner = OpenAIBackend("m", base_url=server.url)
        async with inner.stream_choices(ASKED, 3) as choices:
            found = [item async for item in choices]
        assert [item for item in found if isinstance(item[1], str)] == [
            (0, "no"), (2, "yes "), (1, "n"), (1, "o"), (2, "it is"),
        ]  # fmt: skip
        whole = {index: item for index, item in found if isinstance(item, Generation)}
        assert {i: (g.text, g.finish_reason) for i, g in whole.items()} == {
            0: ("no", "stop"), 1: ("no", "length"), 2: ("yes it is", "stop"),
        }  # fmt: skip
        assert whole[2].usage == Usage(1, 40, 7)
        async with ChoicesBackend(inner, 3) as backend:
            result = await strategy(backend, 3).sample("do", [yes])
        assert result.success
        assert result.usage == Usage(1, 40, 7, 1)
        assert [body["n"] for body in server.requests] == [3, 3]
        await inner.aclose()


async def test_choices_that_are_still_being_thought_about_bear_their_part_of_the_cost():
    hm = {"reasoning_content": "hm"}
    events = (
        *(chunk(0, **hm), chunk(1, **hm), chunk(0, "yes"), chunk(0, None, "stop")),
        *(chunk(1, **hm), chunk(1, "yes"), chunk(1, None, "stop")),
        *(json.dumps({"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 50}}),),
        "[DONE]",
    )
    budget = Budget(output_tokens=100, assume_output_tokens=50)
    with OpenAIServer(Answer(events=events)) as server:
        inner = OpenAIBackend("m", base_url=server.url)
        async with ChoicesBackend(inner, 2) as backend:
            result = await strategy(backend, 2, selection=Collect(2)).sample("do", budget=budget)
        await inner.aclose()
    first, second = sorted(result.slices, key=lambda slice_: slice_.lane)
    assert (first.usage, second.usage) == (Usage(0, 3, 2), Usage(1, 37, 48, 1))
    assert budget.statistics().spent.output_tokens == result.usage.output_tokens == 50


async def test_a_win_closes_the_connection_of_all_choices():
    async def write(send):
        send.head(200, "text/event-stream", {})
        for event in (chunk(0, "no"), chunk(1, "yes"), chunk(1, None, "stop")):
            send.event(event)
        await anyio.sleep(30)

    with OpenAIServer(Answer(write=write)) as server:
        inner = OpenAIBackend("m", base_url=server.url)
        async with ChoicesBackend(inner, 2) as backend:
            result = await strategy(backend, 2).sample("do", [yes])
            assert result.best.iteration == 2
            await server.wait_until(lambda: server.disconnected == 1)
        await inner.aclose()


async def test_it_keeps_every_promise_of_a_backend():
    def several(number, body):
        events = [chunk(i, f"reply {number}") for i in range(body.get("n", 1))]
        ends = [chunk(i, None, "stop") for i in range(body.get("n", 1))]
        usage = {"prompt_tokens": 7, "completion_tokens": 2}
        usage_chunk = json.dumps({"choices": [], "usage": usage})
        return Answer(events=(*events, *ends, usage_chunk, "[DONE]"), wait=0.02)

    with OpenAIServer(choose=several) as server:
        inner = OpenAIBackend("m", base_url=server.url)
        async with ChoicesBackend(inner, 2) as backend:
            assert "stream" in await check_backend(lambda: backend)
            assert backend.statistics().joint > 0
        await inner.aclose()
