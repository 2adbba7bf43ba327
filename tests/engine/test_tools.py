"""Tools in a call: what is a failure, what runs in a draw, and what runs for the winner."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Annotated

import anyio
import pytest
from engine_kit import by_iteration, outcomes
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel, Field

from mellea_like import (
    Candidate,
    Generation,
    Image,
    Message,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    SamplingFailed,
    SamplingResult,
    Vote,
    checks,
)
from mellea_like.backends import CachedBackend
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.core import StopReason, Usage
from mellea_like.core.tools import Tool, ToolCall
from mellea_like.errors import LimitExceeded, ToolError
from mellea_like.selections import tool_key
from mellea_like.telemetry import Telemetry

pytest.importorskip("jsonschema")  # It reads its schemas when it is imported, and blocks the loop.
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


class Town:
    """Tools that note what ran."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []
        self.cancelled = 0

    async def look_up(self, city: str) -> dict[str, int]:
        """How many rooms a city has."""
        self.ran.append(("look_up", city))
        if city == "Atlantis":
            raise ValueError("there is no such city")
        if city == "Babel":
            raise OSError("the line is dead")
        try:
            await anyio.sleep(len(city))
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        return {"rooms": len(city)}

    async def book(self, city: str, nights: Annotated[int, Field(gt=0)] = 1) -> str:
        """Book a room."""
        self.ran.append(("book", city))
        if city == "Babel":
            raise OSError("the line is dead")
        return f"booked: {city}"

    @property
    def tools(self) -> list[object]:
        return [Tool.of(self.look_up, read_only=True), self.book]


def calls(*named: tuple[str, str] | str, text: str = "", ids: bool = True) -> Generation:
    """A reply that calls tools: each a name and a city, or a name and whole arguments."""
    made = []
    for number, (name, argument) in enumerate(named):
        arguments = argument if argument[:1] in "{[" else json.dumps({"city": argument})
        made.append(ToolCall(f"{name}-{number}" if ids else "", name, arguments))
    usage = Usage(1, 10, 1)
    return Generation(text, usage=usage, finish_reason="tool_calls", tool_calls=tuple(made))


LOOK, BOOK = calls(("look_up", "Oslo")), calls(("book", "Oslo"))


def keeps_the_protocol(messages: list[Message] | tuple[Message, ...]) -> bool:
    """Whether each call is answered by a tool's message, in the place where servers want it."""
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            waiting.remove(message.tool_call_id)
        elif waiting:
            return False
        waiting += [call.id for call in message.tool_calls]
        assert all(json.loads(call.arguments) is not None for call in message.tool_calls)
    return not waiting


async def test_the_winners_calls_are_read_and_run_when_it_is_asked_for():
    town = Town()
    reply = calls(("book", '{"city": "Oslo", "nights": "2"}'), ("book", "Rome"), text="Right.")
    backend = ScriptedBackend([reply, "It is booked."])
    strategy = RejectionSamplingStrategy(backend)
    result = await strategy.sample("go", tools=town.tools, tool_choice="auto")
    asked = backend.requests[0]
    assert ([tool.name for tool in asked.tools], asked.tool_choice) == (["look_up", "book"], "auto")
    assert [call.value for call in result.tool_calls] == [
        {"city": "Oslo", "nights": 2},
        {"city": "Rome", "nights": 1},
    ]
    assert (result.value, result.best.text, town.ran) == (None, "Right.", [])
    answers = await result.run_tools()
    assert town.ran == [("book", "Oslo"), ("book", "Rome")]
    assert [(m.role, m.content, m.tool_call_id) for m in answers] == [
        ("tool", "booked: Oslo", "book-0"),
        ("tool", "booked: Rome", "book-1"),
    ]
    second = await strategy.sample(answers, context=result.context, tools=town.tools)
    assert second.unwrap() == "It is booked."
    assert keeps_the_protocol(backend.requests[1].messages)
    assert await second.run_tools() == ()


@pytest.mark.parametrize(
    ("reply", "choice", "why"),
    [
        (calls(("pay", "{}")), None, "there is no tool pay: the tools are look_up, book"),
        (calls(("book", "{}")), None, "the call of book can't be made: city is missing"),
        (
            calls(("look_up", "Oslo"), ("book", '{"city": "Oslo", "nights": 0}')),
            None,
            "the call of book can't be made: nights is 0: Input should be greater than 0",
        ),
        (calls(("book", '{"city": ')), None, "can't be made: the arguments aren't a JSON object"),
        ("No.", "required", "the reply calls no tool: call one of look_up, book"),
        (calls(("look_up", "Oslo")), "book", "the reply does not call book: call it"),
        (
            calls(("book", '{"city": "Oslo"}'), ("look_up", "Oslo")),
            "book",
            "the reply calls look_up: call book and no other tool",
        ),
        (BOOK, "none", "the reply calls book, and no tool may be called: answer with text"),
        (calls(), None, "the reply ended to call a tool, and calls none"),
    ],
)
@pytest.mark.parametrize("strategy", [RepairTemplateStrategy, MultiTurnStrategy])
async def test_a_call_that_does_not_fit_has_failed_and_is_repaired(strategy, reply, choice, why):
    town = Town()
    good = "Yes." if choice == "none" else BOOK
    backend = ScriptedBackend([reply, good])
    result = await strategy(backend).sample("go", tools=town.tools, tool_choice=choice)
    assert outcomes(result) == {1: "failed", 2: "passed"}
    assert why in result.slices[0].reason
    assert not town.ran
    again = backend.requests[1].messages
    assert why in again[-1].content
    assert keeps_the_protocol(again)


# --- rounds


async def test_read_only_tools_run_in_draws_and_the_record_shows_all_rounds():
    town = Town()
    rounds = [calls(("look_up", "Oslo"), ("look_up", "Atlantis"), text="Hm.", ids=False), LOOK, "6"]
    backend = ScriptedBackend(rounds)
    seen: list[Candidate] = []
    result = await RejectionSamplingStrategy(backend).sample(
        "go",
        [checks.calls_tool("look_up", city="Oslo"), checks.no_tool_calls(), noting(seen)],
        tools=town.tools,
        tool_choice="required",
        format=int,
    )
    assert result.unwrap() == 6
    assert [city for _, city in sorted(town.ran)] == ["Atlantis", "Oslo", "Oslo"]
    told = [(m.role, m.text) for m in result.best.messages[1:]]
    assert told == [
        (
            "assistant",
            'Hm.\n[calls look_up({"city": "Oslo"})]\n[calls look_up({"city": "Atlantis"})]',
        ),
        ("tool", '{"rooms": 4}'),
        ("tool", "error: there is no such city"),
        ("assistant", '[calls look_up({"city": "Oslo"})]'),
        ("tool", '{"rooms": 4}'),
    ]
    assert keeps_the_protocol(result.best.messages)
    ids = [call.id for message in result.best.messages for call in message.tool_calls]
    assert len(set(ids)) == 3
    assert all(ids)
    assert seen[0].rounds == result.best.messages[1:]
    assert result.best.usage.requests == len(backend.requests) == 3
    assert result.usage.input_tokens > 20
    # Required once more, the model could never answer.
    assert [request.tool_choice for request in backend.requests] == ["required", "auto", "auto"]
    assert result.best.context_after.messages[-1].content == "6"
    record = SamplingResult.from_dict(json.loads(json.dumps(result.to_dict())))
    assert record.best.messages == result.best.messages


async def test_a_tool_that_is_called_alone_leaves_its_context_variables_to_the_next_call():
    known = ContextVar("known", default="")
    seen = []

    def look_up(city: str) -> str:
        seen.append(known.get())
        known.set(city)
        return city

    async def look(city: str) -> str:
        """Look a city up."""
        return look_up(city)

    rounds = [calls(("look", "Oslo")), calls(("look", "Rome")), "done"]
    tools = [Tool.of(look, read_only=True)]
    await RejectionSamplingStrategy(ScriptedBackend(rounds)).sample("go", tools=tools)
    assert seen == ["", "Oslo"]


def noting(seen):
    from mellea_like import Requirement

    return Requirement("noted", lambda candidate: seen.append(candidate) or True, inline=True)


async def test_a_draw_that_wants_more_rounds_has_failed():
    town = Town()
    backend = ScriptedBackend(lambda request: LOOK)
    result = await RejectionSamplingStrategy(backend, loop_budget=1).sample(
        "go", tools=town.tools, tool_rounds=2
    )
    assert len(backend.requests) == 3
    assert len(town.ran) == 2
    assert (
        "tools have run 2 times (tool_rounds=2), and it calls look_up again" in result.best.reason
    )
    with pytest.raises(SamplingFailed, match="answer with what they said"):
        await result.run_tools()


@pytest.mark.parametrize(
    ("reply", "rounds"), [(LOOK, 0), (calls(("look_up", "Oslo"), ("book", "Oslo")), 8)]
)
async def test_none_of_a_draws_calls_run_where_one_of_them_may_not(reply, rounds):
    town = Town()
    backend = ScriptedBackend([reply])
    result = await RejectionSamplingStrategy(backend).sample(
        "go", tools=town.tools, tool_rounds=rounds
    )
    assert (len(backend.requests), town.ran) == (1, [])
    assert len(await result.run_tools()) == len(town.ran) == len(reply.tool_calls)


async def test_a_tool_that_breaks_costs_its_draw_and_is_no_secret():
    town = Town()
    backend = by_iteration({1: calls(("look_up", "Babel")), 2: "done"})
    result = await RejectionSamplingStrategy(backend).sample("go", tools=town.tools)
    assert outcomes(result) == {1: "errored", 2: "passed"}
    (error,) = result.errors
    assert isinstance(error, ToolError)
    assert (error.tool, str(error)) == (
        "look_up",
        "the tool look_up raised OSError: the line is dead",
    )
    assert isinstance(error.__cause__, OSError)
    backend = by_iteration({}, default=calls(("look_up", "Oslo"), ("look_up", "Babel")))
    with pytest.raises(ToolError):
        await RejectionSamplingStrategy(backend).sample("go", tools=town.tools)
    assert town.cancelled == 3  # The other one of each draw.


async def test_a_tool_may_spend_the_calls_budget_itself():
    async def ask_another() -> str:
        """Ask."""
        raise LimitExceeded("the budget is spent")

    tool = Tool.of(ask_another, read_only=True)
    backend = by_iteration({1: Generation("", tool_calls=(ToolCall("c", "ask_another", ""),))})
    with pytest.raises(LimitExceeded) as raised:
        await RejectionSamplingStrategy(backend).sample("go", tools=[tool])
    assert raised.value.result.stop_reason is StopReason.BUDGET
    assert outcomes(raised.value.result) == {1: "cancelled"}


async def test_calls_whose_id_a_server_repeats_are_told_apart():
    town = Town()
    twice = Generation(
        "",
        tool_calls=tuple(ToolCall("c", "look_up", f'{{"city": "{c}"}}') for c in ("Oslo", "Rome")),
    )
    backend = ScriptedBackend([twice, "done"])
    result = await RejectionSamplingStrategy(backend).sample("go", tools=town.tools)
    _, asked, *told = result.best.messages
    ids = [call.id for call in asked.tool_calls]
    assert len(set(ids)) == 2
    assert ids == [message.tool_call_id for message in told]


async def test_runs_of_tools_are_spans_without_content():
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    town = Town()
    backend = ScriptedBackend([calls(("look_up", "Atlantis")), BOOK])
    strategy = RejectionSamplingStrategy(backend, telemetry=Telemetry(tracer_provider=tracers))
    result = await strategy.sample("go", tools=town.tools)
    await result.run_tools()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    inside, later = spans["execute_tool look_up"], spans["execute_tool book"]
    assert inside.parent.span_id == spans["iteration 1"].context.span_id
    assert dict(later.attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "book",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "book-0",
    }
    assert inside.attributes["error.type"] == "ValueError"
    assert "Atlantis" not in str([dict(span.attributes) for span in spans.values()])


# --- with other parts


async def test_votes_are_for_names_and_arguments():
    town = Town()
    replies = {
        1: calls(("book", '{"city": "Rome"}')),
        2: calls(("book", '{"nights": 1, "city": "Oslo"}')),
        3: calls(("book", '{"city": "Oslo"}')),
        4: "I can't.",
    }
    for vote in (Vote(key=tool_key, n=4), Vote(n=4)):
        strategy = RejectionSamplingStrategy(
            by_iteration(replies), loop_budget=1, concurrency_budget=4, selection=vote
        )
        result = await strategy.sample("go", tools=town.tools)
        assert result.tool_calls[0].value["city"] == "Oslo"
        assert [a.votes for a in result.decision.answers] == [2, 1, 1]
    assert not town.ran


# --- what is refused


def plain(city: str) -> str:
    """Look."""
    return city


@pytest.mark.parametrize(
    ("arguments", "error", "why"),
    [
        ({"tools": plain}, TypeError, "tools must be a list"),
        ({"tools": {"name": "x"}}, TypeError, "tools must be a list"),
        ({"tools": [plain, plain]}, ValueError, "two tools are named plain"),
        (
            {"tools": [plain], "tool_choice": "book"},
            ValueError,
            r"or a tool's name \(plain\), not 'book'",
        ),
        ({"tool_choice": "required"}, ValueError, "there are no tools"),
        ({"tools": [plain], "tool_rounds": -1}, ValueError, "tool_rounds must be at least 0"),
        ({"tools": [{"name": "x", "parameters": {"type": 3}}]}, ValueError, "schema is invalid"),
        (
            {"tools": [{"name": "x", "input_schema": {}}]},
            ValueError,
            "pass its schema as 'parameters'",
        ),
        (
            {"tools": [{"type": "function", "function": "x"}]},
            TypeError,
            "'function' must be a dict",
        ),
        ({"tools": [plain], "tool_choice": {"name": "plain"}}, ValueError, r"name \(plain\), not"),
    ],
)
async def test_wrong_arguments_are_refused_before_the_first_request(arguments, error, why):
    backend = ScriptedBackend(["text"])
    with pytest.raises(error, match=why):
        await RejectionSamplingStrategy(backend).sample("go", **arguments)
    assert not backend.requests


# --- run_tools


async def test_an_error_is_told_or_raised_and_what_was_done_is_not_lost(caplog):
    town = Town()
    reply = calls(("book", "Oslo"), ("book", "Babel"), ("book", "Rome"))
    result = await RejectionSamplingStrategy(ScriptedBackend([reply])).sample(
        "go", tools=town.tools
    )
    answers = await result.run_tools()
    assert [m.content for m in answers] == [
        "booked: Oslo",
        "error: the line is dead",
        "booked: Rome",
    ]
    assert "the tool book raised OSError" in caplog.text
    with pytest.raises(ToolError) as raised:
        await result.run_tools(on_error="raise")
    assert [m.content for m in raised.value.answers] == [m.content for m in answers[:2]]
    with pytest.raises(ValueError, match="on_error is"):
        await result.run_tools(on_error="ignore")


class Trip(BaseModel):
    cities: list[str]


@pytest.mark.parametrize("read_only", [False, True])
async def test_each_run_of_a_tool_has_its_own_copy_of_the_arguments(read_only):
    seen: list[str] = []

    def travel(trip: Trip, notes: dict[str, list[str]], order: Iterable[int]) -> str:
        """Travel."""
        seen.append(f"{trip.cities} {notes} {list(order)}")
        trip.cities.append("Rome")
        notes["a"].append("y")
        notes["more"] = ["x"]
        return "done"

    arguments = '{"trip": {"cities": ["Oslo"]}, "notes": {"a": []}, "order": [2, 1]}'
    backend = ScriptedBackend([calls(("travel", arguments)), "Done."])
    result = await RejectionSamplingStrategy(backend).sample(
        "go", tools=[Tool.of(travel, read_only=read_only)]
    )
    for _ in range(2):
        await result.run_tools()
    assert seen == ["['Oslo'] {'a': []} [2, 1]"] * (1 if read_only else 2)
    for call in result.tool_calls:
        assert call.value["trip"] == Trip(cities=["Oslo"])
        assert call.value["notes"] == {"a": []}


async def photo(city: str) -> object:
    """Take a photo; what it returns is no text."""
    return Image(data=b"\x89PNG\r\n\x1a\n\xff") if city == "Oslo" else {"view": b"\xff"}


@pytest.mark.parametrize("city", ["Oslo", "Rome"])
async def test_what_no_model_can_read_is_an_error_of_its_tool(city):
    reply = calls(("look_up", "Rome"), ("photo", city))
    tools = [Tool.of(tool, read_only=True) for tool in (Town().look_up, photo)]
    with pytest.raises(ToolError, match="the tool photo raised TypeError: it returned an object"):
        await RejectionSamplingStrategy(ScriptedBackend([reply])).sample("go", tools=tools)
    result = await RejectionSamplingStrategy(ScriptedBackend([reply])).sample(
        "go", tools=[Town().look_up, photo]
    )
    first, second = await result.run_tools()
    assert not first.content.startswith("error")
    assert second.content.startswith("error: it returned an object of type")
    assert "return a text, or what JSON can hold" in second.content


async def test_a_spent_budget_inside_a_tool_takes_nothing_from_what_was_done_before():
    async def spend() -> str:
        """Ask another model."""
        raise LimitExceeded("the budget is spent")

    reply = calls(("book", "Oslo"), ("spend", "{}"))
    result = await RejectionSamplingStrategy(ScriptedBackend([reply])).sample(
        "go", tools=[Town().book, spend]
    )
    answers = [message.content for message in await result.run_tools()]
    assert answers == ["booked: Oslo", "error: the budget is spent"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("[" * 5000, "a JSON object of its schema"),
        ('{"city": "Oslo", "city": "Rome"}', 'it says "city" twice in one object'),
    ],
)
@pytest.mark.parametrize("strategy", [MultiTurnStrategy, RepairTemplateStrategy])
async def test_arguments_that_no_one_should_read_are_a_failure_and_are_repaired(
    strategy, arguments, why
):
    backend = ScriptedBackend([calls(("book", arguments)), "sorry"])
    result = await strategy(backend).sample("go", tools=Town().tools)
    assert outcomes(result) == {1: "failed", 2: "passed"}
    assert why in result.slices[0].reason
    assert keeps_the_protocol(backend.requests[1].messages)


class Stay(BaseModel):
    city: str


def stay_in(stay: Stay) -> Stay:
    """Stay."""
    assert threading.current_thread() is not threading.main_thread()
    return stay


async def test_a_copy_runs_tools_that_it_is_given():
    reply = calls(("stay_in", '{"stay": {"city": "Oslo"}}'))
    backend = ScriptedBackend([reply])
    result = await RejectionSamplingStrategy(backend).sample("go", tools=[stay_in])
    for copy in (pickle.loads(pickle.dumps(result)), SamplingResult.from_dict(result.to_dict())):
        with pytest.raises(ValueError, match="does not know its tools"):
            await copy.run_tools()
        with pytest.raises(ValueError, match="there is no tool stay_in"):
            await copy.run_tools([plain])
        (answer,) = await copy.run_tools([stay_in])
        assert json.loads(answer.content) == {"city": "Oslo"}


async def test_schemas_are_checked_by_and_run_by_their_owner():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = {"type": "function", "function": {"name": "roll", "parameters": schema}}
    backend = ScriptedBackend([calls(("roll", '{"n": "six"}')), calls(("roll", '{"n": 6}'))])
    result = await RejectionSamplingStrategy(backend).sample("go", tools=[tool])
    assert "at $.n: 'six' is not of type 'integer'" in result.slices[0].reason
    assert result.tool_calls[0].value == {"n": 6}
    with pytest.raises(ValueError, match="has no function: run it yourself"):
        await result.run_tools()


async def test_a_schema_refuses_arguments_that_it_does_not_know_and_the_repair_names_the_nearest():
    dice = {"type": "object", "properties": {"sides": {"type": "integer"}, "times": {}}}
    tool = {"type": "function", "function": {"name": "roll", "parameters": dice}}
    replies = [calls(("roll", '{"side": 6}')), calls(("roll", '{"sides": 6}'))]
    backend = ScriptedBackend(replies)
    result = await RepairTemplateStrategy(backend).sample("go", tools=[tool])
    assert outcomes(result) == {1: "failed", 2: "passed"}
    why = "the call of roll can't be made: there is no argument side (did you mean sides?)"
    assert why in backend.requests[1].messages[-1].content
    tool["function"]["parameters"] = {**dice, "additionalProperties": True}
    result = await RepairTemplateStrategy(ScriptedBackend(replies)).sample("go", tools=[tool])
    assert outcomes(result) == {1: "passed"}


async def test_a_cancelled_run_begins_no_further_tool():
    town = Town()
    reply = calls(("look_up", "x" * 9), ("book", "Oslo"))
    result = await RejectionSamplingStrategy(ScriptedBackend([reply])).sample(
        "go", tools=town.tools
    )
    with anyio.move_on_after(1) as scope:
        await result.run_tools()
    assert scope.cancelled_caught
    assert (town.cancelled, [name for name, _ in town.ran]) == (1, ["look_up"])


async def test_a_cache_keeps_calls_and_tells_tools_apart(tmp_path):
    backend = CachedBackend(ScriptedBackend([BOOK, "text"]), tmp_path / "cache.db")
    strategy = RejectionSamplingStrategy(backend)
    for _ in range(2):
        result = await strategy.sample("go", tools=Town().tools)
        assert result.tool_calls == BOOK.tool_calls
    assert outcomes(await strategy.sample("go")) == {1: "passed"}
    await backend.aclose()
