"""`sample_many` with tools: the journal has the calls, which run when the caller runs them."""

from __future__ import annotations

import json

import pytest
from batch_kit import results_of

from mellea_like import (
    Generation,
    Journal,
    Message,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    Tool,
    Vote,
    checks,
)
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.core import ToolCall
from mellea_like.errors import JournalError

pytestmark = pytest.mark.anyio


def call(name, **arguments):
    return Generation("", tool_calls=(ToolCall("c", name, json.dumps(arguments)),))


async def price(item: str) -> int:
    """Return the price of an item."""
    return len(item)


def model(request):
    """Call a tool without the item at first, then look up its price, then buy it."""
    item = request.messages[0].content.partition("\n")[0]
    told = [m.content for m in request.messages if m.role == "tool"]
    if not told:
        return call("buy", item="")
    if len(told) == 1:
        return call("price", item=item)
    return call("buy", item=item, at=int(told[1]))


@pytest.mark.parametrize("breadth_first", [False, True], ids=["depth", "breadth"])
async def test_calls_come_again_from_the_journal_and_are_run_by_whoever_wants_that(
    path, breadth_first
):
    bought: list[tuple[str, int]] = []

    async def buy(item: str, at: int) -> str:
        bought.append((item, at))
        return "ok"

    backend = ScriptedBackend(model)
    strategy = MultiTurnStrategy(backend, requirements=[checks.calls_tool("buy")])
    tools = [Tool.of(price, read_only=True), buy]

    async def run(offered):
        arguments = {"breadth_first": breadth_first, "unique": True, "journal": path}
        items = await results_of(
            strategy, ["bread", "salt"], concurrency=1, tools=offered, **arguments
        )
        return {item.id: item for item in items}

    first = await run(tools)
    assert len(backend.requests) == 6
    assert all(item.success and len(item.result.slices) == 2 for item in first.values())
    assert not bought
    again = await run(tools)
    assert len(backend.requests) == 6
    for item in again.values():
        assert item.replayed
        assert item.result.tool_calls[0].value == first[item.id].result.tool_calls[0].value
        await item.result.run_tools()
    assert sorted(bought) == [("bread", 5), ("salt", 4)]
    with pytest.raises(JournalError, match="tools"):
        await run([*tools[1:]])


@pytest.mark.parametrize("format", [None, dict[str, int]], ids=["text", "typed"])
async def test_a_winner_from_the_journal_that_calls_tools_has_no_value(format, path):
    async def buy(item: str) -> str:
        return "ok"

    async def run():
        backend = ScriptedBackend([call("buy", item="salt")])
        strategy = RejectionSamplingStrategy(backend)
        arguments = {"format": format, "tools": [buy], "journal": path}
        (item,) = await results_of(strategy, ["salt"], concurrency=1, **arguments)
        return item

    for replayed in (False, True):
        item = await run()
        assert item.replayed is replayed
        assert item.success
        assert item.value is None
        (answer,) = await item.result.run_tools()
        assert answer.content == "ok"


async def test_votes_for_calls_go_on_from_round_to_round(path):
    async def book(city: str, nights: int = 1) -> str:
        """Book a room."""
        return city

    replies = [{"city": "Oslo"}, {"city": "Rome"}, {"city": "Rome", "nights": 1}]
    backend = ScriptedBackend([call("book", **reply) for reply in replies])
    strategy = RejectionSamplingStrategy(backend, loop_budget=3, selection=Vote(n=3))
    arguments = {"breadth_first": True, "journal": path}
    (item,) = await results_of(strategy, ["go"], concurrency=1, tools=[book], **arguments)
    assert [a.votes for a in item.result.decision.answers] == [2, 1]
    assert item.result.tool_calls[0].value == {"city": "Rome", "nights": 1}
    assert item.value is None


@pytest.mark.parametrize("text", ["all", "best"])
@pytest.mark.parametrize("strategy", [RepairTemplateStrategy, MultiTurnStrategy])
async def test_a_conversation_goes_on_from_a_journal_without_the_words_of_repairs(
    path, strategy, text
):
    backend = ScriptedBackend(["yes", "no", "no", "yes"])
    yes = Requirement("say yes", lambda candidate: candidate.text == "yes", inline=True)

    async def run():
        journal = Journal(path, text=text)
        items = [Message("user", "a"), Message("user", "b")]
        asking = strategy(backend, requirements=[yes])
        return await results_of(asking, items, concurrency=1, journal=journal)

    await run()
    plain, repaired = await run()
    assert plain.replayed
    assert [m.text for m in plain.result.context] == ["a", "yes"]
    assert [m.text for m in repaired.result.context] == ["b", "yes"]
