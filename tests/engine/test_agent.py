"""Rounds of tools until there is an answer, and what a reply that calls tools promises."""

from __future__ import annotations

import json
import pickle

import anyio
import pytest
from engine_kit import outcomes, says
from pydantic import BaseModel

from mellea_like import (
    Budget,
    Collect,
    FunctionBackend,
    Generation,
    Instruction,
    LimitExceeded,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    SamplingFailed,
    SamplingResult,
    Tool,
    checks,
)
from mellea_like.agent import run_agent, run_agent_sync
from mellea_like.backends import ScriptedBackend
from mellea_like.core import ToolCall, Usage
from mellea_like.errors import AuthenticationFailed, ToolError, UnansweredToolCalls

pytest.importorskip("jsonschema")  # It reads its schemas when it is imported, and blocks the loop.
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


class Hotel:
    """Tools that note what ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.cancelled = False

    async def book(self, city: str) -> str:
        """Book a room."""
        self.ran.append(f"book {city}")
        if city == "Babel":
            raise OSError("the line is dead")
        try:
            await anyio.sleep(len(city))
        except anyio.get_cancelled_exc_class():
            self.cancelled = True
            raise
        return f"booked: {city}"

    async def rooms(self, city: str) -> int:
        """How many rooms are free."""
        self.ran.append(f"rooms {city}")
        return len(city)

    @property
    def tools(self) -> list[object]:
        return [Tool.of(self.rooms, read_only=True), self.book]


class Invoice(BaseModel):
    total: int


def calls(tool: str, city: str, text: str = "") -> Generation:
    call = ToolCall(f"{tool}-{city}", tool, json.dumps({"city": city}))
    return Generation(text, usage=Usage(1, 10, 1), tool_calls=(call,))


BOOK = calls("book", "Oslo")


# --- a reply that calls tools is no answer


@pytest.mark.parametrize("format", [Invoice, None, Invoice | None])
async def test_unwrap_of_a_reply_that_calls_tools_raises_and_says_what_to_do(format):
    backend = ScriptedBackend([calls("book", "Oslo", text='{"total": 3}')])
    strategy = RejectionSamplingStrategy(backend)
    result = await strategy.sample("go", tools=Hotel().tools, format=format)
    assert (result.success, result.value, result.text) == (True, None, '{"total": 3}')
    for copy in (
        result,
        pickle.loads(pickle.dumps(result)),
        SamplingResult.from_dict(result.to_dict()),
    ):
        with pytest.raises(UnansweredToolCalls, match=r"calls book.*run_tools\(\).*read_only=True"):
            copy.unwrap()
    with pytest.raises(SamplingFailed) as raised:
        result.unwrap()
    assert raised.value.result is result
    assert len(await result.run_tools()) == 1


# --- run_agent


async def test_the_winners_calls_run_until_there_is_an_answer():
    hotel = Hotel()
    replies = [calls("rooms", "Oslo"), BOOK, calls("book", "Rome"), calls("rooms", "x"), "Done."]
    backend = ScriptedBackend(replies)
    run = await run_agent(RejectionSamplingStrategy(backend), "go", tools=hotel.tools)
    assert run
    assert (run.unwrap(), run.value, run.success) == ("Done.", "Done.", True)
    assert hotel.ran == ["rooms Oslo", "book Oslo", "book Rome", "rooms x"]
    assert [len(result.slices) for result in run.results] == [1, 1, 1]
    assert run.final is run.results[-1]
    assert run.usage == sum((result.usage for result in run.results), Usage())
    assert run.usage.requests == len(backend.requests) == 5
    said = [(m.role, m.text) for m in run.context]
    assert said == [
        ("user", "go"),
        ("assistant", '[calls rooms({"city": "Oslo"})]'),
        ("tool", "4"),
        ("assistant", '[calls book({"city": "Oslo"})]'),
        ("tool", "booked: Oslo"),
        ("assistant", '[calls book({"city": "Rome"})]'),
        ("tool", "booked: Rome"),
        ("assistant", '[calls rooms({"city": "x"})]'),
        ("tool", "1"),
        ("assistant", "Done."),
    ]
    assert backend.requests[-1].messages == run.context.messages[:-1]
    assert pickle.loads(pickle.dumps(run)).unwrap() == "Done."
    assert run.final.to_dict()["slices"][0]["action"]["text"] == "booked: Rome"


async def test_only_the_winners_calls_run():
    hotel = Hotel()

    def reply(request):
        if request.messages[-1].role == "tool":
            return "Done."
        return calls("book", "Rome" if request.meta.iteration == 1 else "Oslo")

    strategy = RejectionSamplingStrategy(FunctionBackend(reply, inline=True), concurrency_budget=3)
    in_oslo = checks.no_tool_calls() | checks.calls_tool("book", city="Oslo")
    run = await run_agent(strategy, "go", [in_oslo], tools=hotel.tools)
    assert run.unwrap() == "Done."
    assert hotel.ran == ["book Oslo"]


def is_large(candidate):
    return candidate.value.total > 9, "the total is too small"


@pytest.mark.parametrize(
    "strategy", [RejectionSamplingStrategy, RepairTemplateStrategy, MultiTurnStrategy]
)
async def test_each_round_has_the_requirements_the_format_and_the_options(strategy):
    backend = ScriptedBackend([BOOK, "no idea", '{"total": 1}', '{"total": 300}'])
    brief = Requirement("is brief", lambda candidate: len(candidate.text) < 90, inline=True)
    large = checks.unless_it_calls(Requirement("is large", is_large, inline=True))
    run = await run_agent(
        strategy(backend, loop_budget=4),
        Instruction("go", system="Be brief.", requirements=(brief,)),
        [large],
        tools=Hotel().tools,
        format=Invoice,
        options={"temperature": 0.5},
    )
    assert run.unwrap() == Invoice(total=300)
    assert [outcomes(result) for result in run.results] == [
        {1: "passed"},
        {1: "failed", 2: "failed", 3: "passed"},
    ]
    assert run.final.best.requirements == (brief, large)
    assert {request.format for request in backend.requests} == {Invoice}
    assert {request.options.temperature for request in backend.requests} == {0.5}
    assert [m.role for m in run.context] == ["system", "user", "assistant", "tool", "assistant"]


async def test_when_the_rounds_are_spent_the_error_has_all_of_them():
    hotel = Hotel()
    backend = ScriptedBackend(lambda request: BOOK)
    with pytest.raises(
        UnansweredToolCalls, match=r"calls book again after 2 rounds.*max_rounds=2"
    ) as raised:
        await run_agent(RejectionSamplingStrategy(backend), "go", tools=hotel.tools, max_rounds=2)
    assert hotel.ran == ["book Oslo"] * 2
    run = raised.value.agent
    assert len(run.results) == run.usage.requests == len(backend.requests) == 3
    assert raised.value.result is run.final
    assert (run.success, run.value) == (False, None)
    with pytest.raises(UnansweredToolCalls):
        run.unwrap()


async def test_requirements_from_an_iterator_hold_in_each_round():
    backend = ScriptedBackend([BOOK, "no", "yes"])
    given = iter([checks.unless_it_calls(says("yes"))])
    run = await run_agent(RejectionSamplingStrategy(backend), "go", given, tools=Hotel().tools)
    assert run.unwrap() == "yes"
    with pytest.raises(TypeError, match="requirements must be a list, not a single str"):
        await run_agent(RejectionSamplingStrategy(backend), "go", "is short")


async def test_a_round_in_which_nothing_passes_is_the_last_one():
    hotel = Hotel()
    backend = ScriptedBackend([BOOK, "no", "no"])
    run = await run_agent(
        RejectionSamplingStrategy(backend, loop_budget=2),
        "go",
        [checks.unless_it_calls(says("yes"))],
        tools=hotel.tools,
    )
    assert (bool(run), run.value, len(run.results)) == (False, None, 2)
    for read in (run.unwrap, lambda: run.context):
        with pytest.raises(SamplingFailed, match="none of 2 draws passed"):
            read()


async def test_what_tools_raise_is_told_and_logged_or_raised(caplog):
    backend = ScriptedBackend([calls("book", "Babel"), "No line.", calls("book", "Babel")])
    strategy = RejectionSamplingStrategy(backend)
    assert (await run_agent(strategy, "go", tools=Hotel().tools)).unwrap() == "No line."
    assert backend.requests[1].messages[-1].content == "error: the line is dead"
    assert "the tool book raised OSError" in caplog.text
    with pytest.raises(ToolError) as raised:
        await run_agent(strategy, "go", tools=Hotel().tools, on_error="raise")
    assert [m.content for m in raised.value.answers] == ["error: the line is dead"]


async def test_an_error_after_tools_ran_names_what_ran():
    backend = ScriptedBackend([BOOK, AuthenticationFailed("no key")])
    with pytest.raises(AuthenticationFailed) as raised:
        await run_agent(RejectionSamplingStrategy(backend), "go", tools=Hotel().tools)
    assert 'book({"city": "Oslo"})' in "".join(raised.value.__notes__)
    with pytest.raises(AuthenticationFailed) as raised:
        await run_agent(
            RejectionSamplingStrategy(ScriptedBackend([AuthenticationFailed("no key")])), "go"
        )
    assert "book" not in "".join(raised.value.__notes__)


async def test_a_budget_is_for_all_rounds_together():
    hotel = Hotel()
    backend = ScriptedBackend(lambda request: BOOK)
    with pytest.raises(LimitExceeded):
        await run_agent(
            RejectionSamplingStrategy(backend), "go", tools=hotel.tools, budget=Budget(requests=2)
        )
    assert (len(backend.requests), len(hotel.ran)) == (2, 2)


async def test_the_usage_has_what_tools_ask_themselves():
    asked = RejectionSamplingStrategy(ScriptedBackend([Generation("yes", usage=Usage(1, 7, 7))]))

    async def ask() -> str:
        """Ask another model."""
        return (await asked.sample("sure?")).unwrap()

    call = Generation("", usage=Usage(1, 5, 5), tool_calls=(ToolCall("c", "ask", "{}"),))
    backend = ScriptedBackend([call, Generation("Done.", usage=Usage(1, 5, 5))])
    run = await run_agent(RejectionSamplingStrategy(backend), "go", tools=[ask])
    assert (run.tools_usage, run.usage) == (Usage(1, 7, 7), Usage(3, 17, 17))

    outer_call = Generation("", usage=Usage(1, 1, 1), tool_calls=(ToolCall("c", "agent", "{}"),))
    asked = RejectionSamplingStrategy(ScriptedBackend([Generation("yes", usage=Usage(1, 7, 7))]))
    backend = ScriptedBackend([call, Generation("Done.", usage=Usage(1, 5, 5))])

    async def agent() -> str:
        """Run another agent."""
        return (await run_agent(RejectionSamplingStrategy(backend), "go", tools=[ask])).unwrap()

    outer = RejectionSamplingStrategy(
        ScriptedBackend([outer_call, Generation("So.", usage=Usage(1, 1, 1))])
    )
    result = await outer.sample("go", tools=[Tool.of(agent, read_only=True)])
    assert result.usage == Usage(5, 19, 19)


async def test_after_tools_have_run_none_is_required_again():
    backend = ScriptedBackend([BOOK, "Done."])
    strategy = RejectionSamplingStrategy(backend)
    run = await run_agent(strategy, "go", tools=Hotel().tools, tool_choice="book")
    assert run.unwrap() == "Done."
    assert [request.tool_choice for request in backend.requests] == ["book", "auto"]


async def test_a_cancelled_agent_starts_nothing_more():
    hotel = Hotel()
    reply = Generation(
        "", tool_calls=tuple(ToolCall(c, "book", f'{{"city": "{c}"}}') for c in ("Oslo", "Rome"))
    )
    backend = ScriptedBackend([reply, "never"])
    with anyio.move_on_after(1) as scope:
        await run_agent(RejectionSamplingStrategy(backend), "go", tools=hotel.tools)
    assert scope.cancelled_caught
    assert (hotel.ran, hotel.cancelled, len(backend.requests)) == (["book Oslo"], True, 1)


@pytest.mark.parametrize(
    ("arguments", "error", "why"),
    [
        ({"tools": [{"name": "roll"}]}, ValueError, "can't run the tool roll, which has no func"),
        ({"tools": Hotel().book}, TypeError, "tools must be a list"),
        ({"max_rounds": 0}, ValueError, "max_rounds must be at least 1"),
        ({"max_rounds": "8"}, TypeError, "max_rounds must be an integer"),
        ({"on_error": "ignore"}, ValueError, "on_error is 'tell' or 'raise'"),
        ({"strategy": ScriptedBackend(["x"])}, TypeError, "run_agent needs a strategy"),
        (
            {"strategy": RejectionSamplingStrategy(ScriptedBackend(["x"]), selection=Collect(2))},
            ValueError,
            "an agent continues from one reply",
        ),
    ],
)
async def test_mistakes_are_found_before_the_first_request(arguments, error, why):
    backend = ScriptedBackend([BOOK])
    arguments = {"strategy": RejectionSamplingStrategy(backend), "tools": Hotel().tools} | arguments
    with pytest.raises(error, match=why):
        await run_agent(arguments.pop("strategy"), "go", **arguments)
    assert backend.requests == []


# --- requirements of answers


def fails_on_calls(candidate):
    assert not candidate.tool_calls
    return len(candidate.text.split()) > 1, "it has one word"


@pytest.mark.parametrize(
    "inner",
    [
        Requirement("has two words", fails_on_calls, inline=True, weight=2.0),
        Requirement("has two words", fails_on_calls),
        Requirement("has two words", fails_on_calls, inline=True) & says("one"),
        ~~Requirement("has two words", fails_on_calls, inline=True, check_only=True),
        checks.word_count(at_least=2),
        checks.unless_it_calls(checks.word_count(at_least=2)),
    ],
    ids=["inline", "thread", "and", "not", "ready", "twice"],
)
async def test_a_requirement_of_answers_is_not_checked_on_calls(inner):
    requirement = checks.unless_it_calls(inner)
    backend = ScriptedBackend([BOOK, "one", "one two"])
    strategy = RepairTemplateStrategy(backend)
    assert (await strategy.sample("go", [requirement], tools=[Hotel().book])).tool_calls
    result = await strategy.sample("go", [requirement], tools=[Hotel().book])
    assert result.value == "one two"
    (problem,) = result.slices[0].problems
    assert problem.startswith(inner.description)
    assert "calls a tool" not in backend.requests[1].messages[-1].content
    same = ("description", "name", "weight", "check_only", "judged", "streams")
    assert [getattr(requirement, n) for n in same] == [getattr(inner, n) for n in same]


def test_an_agent_runs_in_a_script():
    async def book(city: str) -> str:
        """Book."""
        return city

    backend = ScriptedBackend([BOOK, '{"total": 3}'])
    run = run_agent_sync(RejectionSamplingStrategy(backend), "go", tools=[book], format=Invoice)
    assert run.unwrap() == Invoice(total=3)
