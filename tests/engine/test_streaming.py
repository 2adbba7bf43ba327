"""A reply that is handed on while it arrives, once it is certain that it will pass."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from engine_kit import outcomes, yes
from hypothesis import given
from hypothesis import strategies as st

from mellea_like import BestOf, RejectionSamplingStrategy, Requirement
from mellea_like.backends.function import FunctionBackend
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.core.generation import Generation
from mellea_like.core.tools import Tool, ToolCall
from mellea_like.core.validation import Verdict
from mellea_like.errors import AuthenticationFailed, BackendUnavailable, ReplyBroken, SamplingFailed
from mellea_like.hooks import HookType, hook
from mellea_like.selections import Collect
from mellea_like.testing import run_virtual

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


def says(word: str, **more: Any) -> Requirement:
    """A requirement that is certain as soon as the word has come."""

    def stream(text: str, delta: str) -> Verdict:
        return Verdict.PASS if word in text else Verdict.UNKNOWN

    given = {"validator": lambda c: word in c.text, "inline": True, "stream": stream, **more}
    return Requirement(f"says {word}", **given)


PASSES = '{"passed": true, "reason": ""}'


def strategy(replies: Any, **more: Any) -> RejectionSamplingStrategy:
    backend = replies if hasattr(replies, "generate") else ScriptedBackend(replies)
    return RejectionSamplingStrategy(backend, **{"loop_budget": 3, **more})


async def heard(reply: Any) -> list[tuple[float, str]]:
    """Take a reply in; say when each piece came."""
    began = anyio.current_time()
    async with reply:
        return [(round(anyio.current_time() - began, 3), piece) async for piece in reply]


async def test_text_comes_as_soon_as_it_is_certain_and_nothing_after_it_is_drawn():
    backend = ScriptedBackend([Reply("no no", 1.0), Reply("well yes and more", 4.0), "spare"])
    reply = strategy(backend).stream("do", [says("yes")])
    assert await heard(reply) == [(3.0, "well yes "), (4.0, "and "), (5.0, "more")]
    assert reply.result.unwrap() == reply.released == "well yes and more"
    assert outcomes(reply.result) == {1: "failed", 2: "passed"}
    assert backend.statistics().started == 2


@pytest.mark.parametrize(
    "how",
    [
        {"release": "passed"},
        {"requirements": [yes]},
        {"requirements": [says("yes"), says("yes", validator=None, inline=False)]},
        {"strategy": {"selection": "ordered"}},
        {"strategy": {"selection": BestOf(lambda c: len(c.text), n=1)}},
        {"format": str},
        {"plugins": True},
    ],
    ids=["passed", "no stream check", "a judge", "ordered", "best", "format", "plugin"],
)
async def test_what_is_never_certain_comes_in_one_piece_when_it_has_passed(how):
    words = '"yes it is"' if "format" in how else "yes it is"
    more = dict(how.get("strategy", {}))
    if "plugins" in how:

        async def looks(payload):
            return None

        more["plugins"] = [hook(HookType.VALIDATION_POST_CHECK)(looks)]
    drawn = strategy(
        [Reply(words, 3.0)], judge=ScriptedBackend(lambda r: PASSES), loop_budget=1, **more
    )
    reply = drawn.stream(
        "do",
        how.get("requirements", [says("yes")]),
        release=how.get("release", "prefix"),
        format=how.get("format"),
    )
    assert await heard(reply) == [(3.0, words)]
    assert reply.result.success


def calls(text: str, arguments: str = "{}") -> Generation:
    return Generation(
        text, finish_reason="tool_calls", tool_calls=(ToolCall("1", "look", arguments),)
    )


def tool(**more: Any) -> Tool:
    return Tool("look", "Looks.", {"type": "object"}, function=lambda: "seen", **more)


async def test_a_text_comes_before_the_calls_that_follow_it_are_checked():
    reply = strategy([Reply(calls("I look."), 2.0, chunks=("I ", "look."))]).stream(
        "do", tools=[tool()]
    )
    assert await heard(reply) == [(1.0, "I "), (2.0, "look.")]
    assert [call.name for call in reply.result.tool_calls] == ["look"]
    again = strategy([calls("", "no JSON"), Reply("a b", 2.0)]).stream("do", tools=[tool()])
    assert await heard(again) == [(1.0, "a "), (2.0, "b")]
    broken = strategy([Reply(calls("I look.", "no JSON"))]).stream("do", tools=[tool()])
    with pytest.raises(ReplyBroken, match="the call of look can't be made"):
        await heard(broken)


@pytest.mark.parametrize(
    ("replies", "tools"),
    [
        ([calls("I look."), Reply("a b", 2.0)], {"tools": [tool(read_only=True)]}),
        ([Reply(calls("a b"), 2.0)], {"tools": [tool()], "tool_choice": "required"}),
        ([Reply(calls("a b"), 2.0)], {"tools": [tool()], "tool_choice": "look"}),
    ],
    ids=["run in draws", "required", "named"],
)
async def test_a_text_waits_for_calls_that_draws_run_or_have_to_make(replies, tools):
    reply = strategy(replies).stream("do", **tools)
    assert await heard(reply) == [(2.0, "a b")]


async def test_from_the_first_shown_piece_on_no_sibling_can_win():
    replies = {
        1: Reply("yes but slowly, word by word", 60.0),
        # Certain only at its end, sooner than the first, and deaf to its cancellation.
        2: Reply("a b c yes", 20.0, chunks=("a b c yes",), shielded=True),
        3: Reply("a b c d", 30.0),
    }
    backend = ScriptedBackend(lambda request: replies[request.meta.subsample + 1])
    drawn = strategy(backend, loop_budget=1, concurrency_budget=3)
    reply = drawn.stream("do", [says("yes")])
    pieces = await heard(reply)
    assert pieces[0] == (10.0, "yes ")
    assert reply.result.unwrap() == "yes but slowly, word by word"
    assert outcomes(reply.result) == {1: "passed", 2: "cancelled", 3: "cancelled"}
    ended = {slice_.iteration: round(slice_.ended_at) for slice_ in reply.result.slices}
    assert ended == {1: 60, 2: 20, 3: 10}


BROKEN = Reply(BackendUnavailable("it broke"), 4.0, chunks=("yes ", "and "))
CUT = Generation("yes and", finish_reason="length")


@pytest.mark.parametrize(
    ("first", "requirement", "shown", "why"),
    [
        (BROKEN, says("yes"), "yes and ", "BackendUnavailable: it broke"),
        (Reply(CUT, chunks=("yes ", "and")), says("yes"), "yes and", "the reply was cut off"),
        (
            Reply("yes no", 2.0),
            Requirement(
                "never no",
                lambda c: "no" not in c.text,
                inline=True,
                stream=lambda text, delta: Verdict.PASS,
            ),
            "yes no",
            "never no",
        ),
    ],
    ids=["its stream broke", "it was cut off", "the final check says otherwise"],
)
async def test_what_fails_after_it_was_shown_raises_and_nothing_is_put_in_its_place(
    first, requirement, shown, why
):
    backend = ScriptedBackend([first, "yes, another"])
    reply = strategy(backend).stream("do", [requirement])
    got = ""
    with pytest.raises(ReplyBroken, match=why) as caught:
        async with reply:
            async for piece in reply:
                got += piece
    assert got == caught.value.text == reply.released == shown
    assert backend.statistics().started == 1
    with pytest.raises(ReplyBroken):
        _ = reply.result


async def test_without_a_pass_there_is_no_text_and_a_result_that_says_so():
    reply = strategy(["no", "no", "no"]).stream("do", [says("yes")])
    assert await heard(reply) == []
    assert not reply.result.success
    with pytest.raises(SamplingFailed):
        reply.result.unwrap()
    reply = strategy([AuthenticationFailed("no key")]).stream("do", [says("yes")])
    with pytest.raises(AuthenticationFailed):
        await heard(reply)


async def test_leaving_closes_everything_and_hands_on_what_the_block_raises():
    backend = ScriptedBackend([Reply("yes it goes on and on", 60.0)], cycle=True)
    drawn = strategy(backend, concurrency_budget=3)
    with pytest.raises(ZeroDivisionError):
        async with drawn.stream("do", [says("on")]) as reply:
            async for _ in reply:
                raise ZeroDivisionError
    assert backend.statistics().cancelled == 3
    async with drawn.stream("do", [says("on")]) as reply:
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = reply.result
    with anyio.move_on_after(30.0) as scope:
        await heard(drawn.stream("do", [says("never")]))
    assert scope.cancelled_caught
    assert backend.statistics().in_flight == 0


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
async def test_an_interrupt_leaves_a_stream_as_it_is(interrupt):
    async def stop(slice_):
        await anyio.sleep(1.0)
        raise interrupt

    reply = strategy(["no", "no", "no"]).stream("do", [says("yes")], on_slice=stop)
    with pytest.raises(interrupt):
        await heard(reply)


async def test_a_backend_that_does_not_stream_gives_its_text_in_one_piece():
    async def answer(request):
        await anyio.sleep(2.0)
        return "yes it does"

    reply = strategy(FunctionBackend(answer)).stream("do", [says("yes")])
    assert await heard(reply) == [(2.0, "yes it does")]


async def test_wrong_uses_say_what_to_do():
    with pytest.raises(ValueError, match=r"Collect.*: a stream has one reply"):
        strategy([], selection=Collect(2)).stream("do")
    with pytest.raises(ValueError, match="release is one of 'prefix', 'passed'"):
        strategy([]).stream("do", release="soon")
    reply = strategy(["yes"]).stream("do")
    with pytest.raises(RuntimeError, match="not been entered"):
        await anext(reply)
    async with reply:
        pass
    with pytest.raises(RuntimeError, match="entered only once"):
        async with reply:
            pass


WORDS = st.lists(st.sampled_from(["yes ", "no ", "but ", "so "]), min_size=1, max_size=4)
LOOPS = st.sampled_from(["asyncio", "trio"])
DRAWS = st.tuples(WORDS, st.integers(0, 5), st.sampled_from(["whole", "whole", "breaks", "cut"]))


@given(
    st.lists(DRAWS, min_size=9, max_size=9),
    st.integers(1, 3),
    st.sampled_from([None, "yes"]),
    LOOPS,
)
def test_what_is_released_is_always_the_beginning_of_the_one_reply_that_wins(
    draws, width, word, loop
):
    texts = ["".join(words) for words, _, _ in draws]

    def rule(request):
        words, seconds, end = draws[request.meta.iteration - 1]
        text = "".join(words)
        content: Any = text
        if end == "breaks":
            content = AuthenticationFailed("it broke")
        elif end == "cut":
            content = Generation(text, finish_reason="length")
        return Reply(content, float(seconds), chunks=tuple(words))

    async def call() -> None:
        drawn = strategy(ScriptedBackend(rule), concurrency_budget=width)
        reply = drawn.stream("do", [] if word is None else [says(word)])
        got, broken = "", False
        try:
            async with reply:
                async for piece in reply:
                    got += piece
                    assert any(text.startswith(got) for text in texts)
        except ReplyBroken:
            broken = True
        except AuthenticationFailed:
            assert not got
            return
        assert got == reply.released
        if not broken:
            assert got == (reply.result.best.text if reply.result.success else "")

    run_virtual(call, backend=loop)
