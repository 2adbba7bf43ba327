"""ScriptedBackend: what it says, when, and what it counts."""

from __future__ import annotations

import math

import anyio
import pytest
from anyio.lowlevel import checkpoint

from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.core.backend import Request
from mellea_like.core.conversation import Message
from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import RateLimited

pytestmark = pytest.mark.anyio


def ask(text: str = "two words") -> Request:
    return Request((Message("user", text),))


async def read(backend: ScriptedBackend, request: Request) -> list[str | Generation]:
    async with backend.stream(request) as pieces:
        return [piece async for piece in pieces]


async def test_replies_come_in_order():
    backend = ScriptedBackend(["one", Generation("two"), Reply("three")])
    asked = [ask(), ask("first"), ask()]
    assert [(await backend.generate(each)).text for each in asked] == ["one", "two", "three"]
    assert backend.requests == asked


async def test_a_script_that_is_used_up_says_so():
    backend = ScriptedBackend(["only"])
    await backend.generate(ask())
    with pytest.raises(IndexError, match=r"the script has 1 replies, and this is request 2.*cycle"):
        await backend.generate(ask())


@pytest.mark.parametrize("error", [RateLimited("slow down", status=429), ValueError])
async def test_an_exception_in_the_script_is_raised(error):
    backend = ScriptedBackend([error, "then"])
    with pytest.raises(RateLimited if isinstance(error, RateLimited) else ValueError):
        await backend.generate(ask())
    assert (await backend.generate(ask())).text == "then"
    assert backend.statistics().failed == 1


async def test_a_rule_sees_the_request():
    backend = ScriptedBackend(lambda request: request.messages[-1].content.upper())
    assert (await backend.generate(ask("hello"))).text == "HELLO"


async def test_a_rule_may_be_async():
    async def rule(request):
        await checkpoint()
        return Reply("later", delay=0)

    assert (await ScriptedBackend(rule).generate(ask())).text == "later"


async def test_delays_pass_in_virtual_time(virtual_clock):
    backend = ScriptedBackend(["default", Reply("own", delay=3), Reply("none", delay=0)], delay=7)
    times = []
    for _ in range(3):
        await backend.generate(ask())
        times.append(virtual_clock.now)
    assert times == [7, 10, 10]


class CountSteps:
    """Awaits a coroutine and counts how often it gives way to the event loop."""

    def __init__(self, coroutine) -> None:
        self.coroutine = coroutine
        self.steps = 0

    def __await__(self):
        answer = None
        while True:
            try:
                wish = self.coroutine.send(answer)
            except StopIteration as end:
                return end.value
            self.steps += 1
            answer = yield wish


async def test_no_delay_is_exactly_one_checkpoint():
    counted = CountSteps(ScriptedBackend(["now"]).generate(ask()))
    assert (await counted).text == "now"
    assert counted.steps == 1


async def test_a_reply_that_never_comes_can_be_cancelled(virtual_clock):
    backend = ScriptedBackend([Reply("never", delay=math.inf)])
    request = ask()
    with anyio.move_on_after(5) as scope:
        await backend.generate(request)
    assert scope.cancelled_caught
    assert backend.statistics()[:6] == (1, 0, 0, 1, 0, 1)
    assert request.meter.usage == Usage(1, 2, 0, unknown=1)


async def test_a_shielded_reply_ignores_cancellation(virtual_clock):
    backend = ScriptedBackend([Reply("late", delay=9, shielded=True)])
    with anyio.move_on_after(1):
        await backend.generate(ask())
    assert virtual_clock.now == 9


async def test_statistics_count_requests_in_flight(virtual_clock):
    backend = ScriptedBackend([Reply("a", delay=1), Reply("b", delay=2), Reply("c", delay=9)])
    with anyio.move_on_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(backend.generate, ask())
            await anyio.sleep(1.5)
            seen = backend.statistics()
    assert (seen.started, seen.finished, seen.in_flight, seen.max_in_flight) == (3, 1, 2, 3)
    end = backend.statistics()
    assert (end.finished, end.cancelled, end.in_flight, end.max_in_flight) == (2, 1, 0, 3)


@pytest.mark.parametrize("usage", [Usage(1, 10, 20), Usage(1, 10, 20, 1), None])
async def test_tokens_are_words_unless_the_script_says_otherwise(usage):
    request = ask("two words")
    item = "three words here" if usage is None else Generation("x", usage=usage)
    reply = await ScriptedBackend([item]).generate(request)
    assert reply.usage == request.meter.usage == (usage or Usage(1, 2, 3))


async def test_a_stream_goes_word_by_word_and_ends_with_the_whole():
    pieces = await read(ScriptedBackend(["to be  or\nnot"]), ask())
    assert pieces[:-1] == ["to ", "be  ", "or\n", "not"]
    assert isinstance(pieces[-1], Generation)
    assert pieces[-1].text == "to be  or\nnot"
    assert pieces[-1].usage == Usage(1, 2, 4)


async def test_a_streams_delay_is_spread_over_its_pieces(virtual_clock):
    times = []
    async with ScriptedBackend([Reply("a b c d", delay=8)]).stream(ask()) as pieces:
        times.extend([virtual_clock.now async for _ in pieces])
    assert times == [2, 4, 6, 8, 8]


async def test_a_stream_can_break_after_its_first_pieces():
    request = ask()
    backend = ScriptedBackend([Reply(RateLimited("broke"), chunks=["half ", "way "])])
    seen = []
    with pytest.raises(RateLimited):
        async with backend.stream(request) as pieces:
            async for piece in pieces:
                seen.append(piece)  # noqa: PERF401 (the pieces before the error count)
    assert seen == ["half ", "way "]
    assert request.meter.usage == Usage(1, 2, 2, unknown=1)
    assert backend.statistics().failed == 1


async def test_leaving_a_stream_early_counts_as_cancelled():
    backend = ScriptedBackend(["a b c"])
    request = ask()
    async with backend.stream(request) as pieces:
        async for _ in pieces:
            break
    assert backend.statistics()[:6] == (1, 0, 0, 1, 0, 1)
    assert request.meter.usage == Usage(1, 2, 1, unknown=1)


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ("text", TypeError, "put the text into a list"),
        (3, TypeError, "a sequence of replies or a rule"),
        (ValueError, TypeError, "a sequence of replies or a rule"),
        ([3], TypeError, "a str, a Generation or an exception"),
        ([int], TypeError, "a str, a Generation or an exception"),
    ],
)
def test_a_wrong_script_is_refused(script, error, message):
    with pytest.raises(error, match=message):
        ScriptedBackend(script)


def test_wrong_numbers_are_refused():
    with pytest.raises(ValueError, match="delay is at least 0"):
        ScriptedBackend([], delay=-1)
    with pytest.raises(ValueError, match="delay is at least 0"):
        Reply("x", delay=-1)
    with pytest.raises(ValueError, match="can't be cycled"):
        ScriptedBackend([], cycle=True)
    with pytest.raises(ValueError, match="do not make up its text"):
        Reply("abc", chunks=["a", "b"])
