"""A reply that is no whole answer has failed, and its reason says why and what to do."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, model_validator

from mellea_like import (
    Generation,
    Message,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    checks,
)
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.core import Usage
from mellea_like.core.tools import Tool, ToolCall

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]

CUT = Generation("one two", usage=Usage(1, 3, 256), finish_reason="length")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (CUT, "the reply was cut off after 256 tokens: raise max_tokens"),
        (Generation("", finish_reason="content_filter"), "the server's content filter"),
        (Generation("I can't.", finish_reason="refusal"), "the model refused (I can't.)"),
        (Generation("", finish_reason="tool_calls"), "calls a tool, and no tools were asked for"),
        ("", "the reply is empty: answer with text"),
        (Generation(" \n\t", finish_reason="stop"), "the reply is empty: answer with text"),
        (Generation("", reasoning="Hm."), "the reply is empty after the model's reasoning: answer"),
    ],
)
@pytest.mark.parametrize("strategy", [RepairTemplateStrategy, MultiTurnStrategy])
async def test_what_is_no_answer_fails_and_its_reason_reaches_the_repair(strategy, reply, reason):
    backend = ScriptedBackend([reply, "whole"])
    result = await strategy(backend).sample("do")
    assert result.value == "whole"
    [failed, _] = result.slices
    assert failed.outcome == "failed"
    assert reason in failed.reason
    assert failed.problems == (failed.reason,)
    assert failed.reason in backend.requests[1].messages[-1].content


@pytest.mark.parametrize("reply", [CUT, Generation(" ")], ids=["cut", "empty"])
async def test_accept_incomplete_takes_it_for_an_answer(reply):
    strategy = RejectionSamplingStrategy(ScriptedBackend([reply]), accept_incomplete=True)
    assert (await strategy.sample("do")).unwrap() == reply.text


@pytest.mark.parametrize(
    "check",
    [checks.word_count(at_most=20), checks.excludes("x"), checks.casing("lower")],
    ids=lambda check: check.name,
)
async def test_an_empty_reply_meets_no_requirement_that_nothing_is_wrong_with(check):
    strategy = RejectionSamplingStrategy(ScriptedBackend([" ", "whole"]))
    assert (await strategy.sample("do", [check])).unwrap() == "whole"


class Nothing(BaseModel):
    pass


@pytest.mark.parametrize(
    ("reply", "format_"),
    [
        (Generation("", value=[]), None),
        (Generation("", value=None, parsed=True), None),
        (Generation("", value=Nothing()), Nothing),
        ('""', str),
    ],
)
async def test_a_value_without_a_text_is_an_answer(reply, format_):
    strategy = RejectionSamplingStrategy(ScriptedBackend([reply]), loop_budget=1)
    assert (await strategy.sample("do", format=format_)).success


async def test_a_repair_in_the_conversation_leaves_an_empty_message_out():
    backend = ScriptedBackend([" ", "no", "whole"])
    check = Requirement("c", lambda c: c.text == "whole", inline=True)
    result = await MultiTurnStrategy(backend).sample("do", [check])
    assert result.success
    _, second, third = (request.messages for request in backend.requests)
    [asked] = second
    assert asked.role == "user"
    assert "\n\nAn earlier attempt was rejected. Put this right:\n- the reply is" in asked.text
    assert [message.role for message in third] == ["user", "assistant", "user"]


async def test_a_tool_call_without_a_text_is_an_answer_and_nothing_after_it_is_none():
    call = Generation("", tool_calls=(ToolCall("1", "look", "{}"),), finish_reason="tool_calls")
    look = Tool.of(lambda: "here", name="look", description="Looks.", read_only=True)
    backend = ScriptedBackend([call, " ", call, "whole"])
    result = await RejectionSamplingStrategy(backend).sample("do", tools=[look])
    assert result.unwrap() == "whole"
    assert result.slices[0].reason == "the reply is empty: answer with text, or call a tool"


async def test_a_call_of_a_tool_of_the_extra_options_is_an_answer_and_is_not_parsed():
    call = Generation("", tool_calls=(ToolCall("1", "look", "{}"),), finish_reason="tool_calls")
    offered = {"tools": [{"type": "function", "function": {"name": "look"}}]}
    strategy = RejectionSamplingStrategy(ScriptedBackend([call]), options={"extra": offered})
    result = await strategy.sample("do", format=int)
    assert (result.success, result.value, result.tool_calls) == (True, None, call.tool_calls)


@pytest.mark.parametrize("release", ["prefix", "passed"])
async def test_a_stream_shows_nothing_of_an_empty_reply(release):
    backend = ScriptedBackend(
        [Reply(" \n", chunks=[" ", "\n"]), Reply("  whole", chunks=["  ", "who", "le"])]
    )
    stream = RejectionSamplingStrategy(backend).stream("do", release=release)
    async with stream as reply:
        assert "".join([piece async for piece in reply]) == "  whole"
    assert reply.result.success


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (Generation('{"passed": true, "reason": "ok"}', finish_reason="length"), "was cut off"),
        (" ", "is empty"),
    ],
    ids=["cut", "empty"],
)
async def test_a_judges_reply_that_is_no_answer_is_no_verdict(verdict, why):
    strategy = RejectionSamplingStrategy(
        ScriptedBackend(["x"]), loop_budget=1, judge=ScriptedBackend([verdict])
    )
    with pytest.raises(Exception, match=f"the judge gave no verdict: the reply {why}"):
        await strategy.sample("do", ["it is good"])


# --- the reason is true -------------------------------------------------------------------------


class Trip(BaseModel):
    start: int
    end: int

    @model_validator(mode="after")
    def ordered(self):
        if self.end < self.start:
            raise ValueError("end lies before start")
        return self


class OwnParser:
    def render(self, context):
        return (*context.messages, Message("user", "do"))

    def parse(self, text):
        return Trip.model_validate_json(text)


@pytest.mark.parametrize("own", [False, True], ids=["format", "action"])
async def test_a_rule_across_fields_is_named_and_nothing_is_said_not_to_parse(own):
    replies = ["no JSON", '{"start": "x", "end": 1}', '{"start": 2, "end": 1}']
    strategy = RejectionSamplingStrategy(ScriptedBackend(replies))
    if own:
        result = await strategy.sample(OwnParser())
    else:
        result = await strategy.sample("do", format=Trip)
    text, field, rule = (s.reason for s in result.slices)
    assert text.startswith("the reply does not parse: there is no JSON in it")
    assert field.startswith("the reply isn't a valid Trip: start: Input should be a valid integer")
    assert rule == "the reply isn't a valid Trip: end lies before start"


async def test_of_many_reasons_the_first_few_reach_the_prompt():
    backend = ScriptedBackend([f"[{'1.5,' * 5000}0]", "[]"])
    await RepairTemplateStrategy(backend).sample("do", format=list[int])
    prompt = backend.requests[1].messages[-1].content
    assert len(prompt) < 4000
    assert "… and 4,980 more" in prompt
