"""A resumed item asks exactly what it would have asked in a run that was never left."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint
from batch_kit import results_of
from journal_kit import execute, items_of

from mellea_like import (
    Context,
    Escalate,
    Generation,
    Journal,
    Message,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Request,
    Requirement,
    SamplingResult,
    Stage,
    Tool,
)
from mellea_like.batch import waiting
from mellea_like.core import ToolCall
from mellea_like.export import export

pytestmark = pytest.mark.anyio

DRAWS = 4
good = Requirement("be good", lambda c: (c.text == "good", "it is bad"), inline=True)


async def look_up(word: str) -> str:
    """Look up a word."""
    return f"{word}: a word"


async def buy(word: str) -> str:
    """Buy a word."""
    raise AssertionError(word)


TOOLS = [Tool.of(look_up, read_only=True), buy]


def call(tool: str, word: str) -> ToolCall:
    extra = {"extra_content": {"signature": word}}
    return ToolCall(f"{tool} {word}", tool, json.dumps({"word": word}), extra=extra)


class Curious:
    """A model that looks words up in each draw; the last draw is good, the others are not.

    Draw ``stuck`` never gets an answer. ``asked`` has the other requests, in order.
    """

    provider = model = "curious"

    def __init__(self, stuck: int = 0) -> None:
        self.stuck = stuck
        self.reached = anyio.Event()
        self.asked: list[tuple[int, list[dict[str, Any]]]] = []

    async def generate(self, request: Request) -> Generation:
        draw = request.meta.iteration or 0
        if draw == self.stuck:
            self.reached.set()
            await anyio.sleep_forever()
        self.asked.append((draw, [message.as_dict() for message in request.messages]))
        await checkpoint()
        rounds = 0
        while request.messages[-1 - 2 * rounds].role == "tool":
            rounds += 1
        if rounds < 2:
            word = f"word {draw} {rounds}"
            return Generation("", tool_calls=(call("look_up", word),), reasoning=f"What is {word}?")
        if draw == DRAWS:
            return Generation("good")
        calls = (call("buy", f"word {draw}"),) if draw == 2 else ()
        return Generation("" if draw == 3 else f"bad {draw}", tool_calls=calls, reasoning="Hm.")


STRATEGIES = {
    "repeats": RejectionSamplingStrategy,
    "repairs": RepairTemplateStrategy,
    "chat": MultiTurnStrategy,
    "stages": lambda backend, **given: Escalate(
        [Stage(backend), Stage(backend, turns=2, carry="chat"), Stage(backend, carry="best")],
        **{name: value for name, value in given.items() if name != "loop_budget"},
    ),
}


async def run(name: str, backend: Curious, journal: Path | Journal, **arguments: Any) -> Any:
    """Run a batch of one item, and return the item's result."""
    drawing = STRATEGIES[name](backend, loop_budget=DRAWS, requirements=[good], retry=None)
    given = {"concurrency": 1, "journal": journal, "tools": TOOLS} | arguments
    (item,) = await results_of(drawing, ["a word?"], **given)
    return item.result


async def leave(name: str, draw: int, journal: Path | Journal, **arguments: Any) -> Curious:
    """Leave a batch while the answer to a draw is awaited."""
    backend = Curious(stuck=draw)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(run, name, backend, journal, **arguments))
        await backend.reached.wait()
        tasks.cancel_scope.cancel()
    return backend


def sent(result: SamplingResult[Any]) -> Any:
    """Return the conversations of a trace, and those of each draw."""
    trace = result.to_dict()
    return trace["prompts"], [(s["context"], s["prompt"]) for s in trace["slices"]]


async def kept(path: Path, format: str = "sft") -> Any:
    """Return the conversations in a journal's only trace, and the rows that are exported of it."""
    rows = path.with_suffix(".jsonl")
    arguments = {"format": format, "keep_repairs": True, "card": False}
    await to_thread.run_sync(partial(export, path, rows, **arguments))
    (record,) = await items_of(path)
    made = await to_thread.run_sync(partial(rows.read_text, encoding="utf-8"))
    assert not any("rounds" in s for s in record["trace"]["slices"])
    return sent(SamplingResult.from_dict(record["trace"])), made


@pytest.mark.parametrize("breadth_first", [False, True])
@pytest.mark.parametrize("name", STRATEGIES)
async def test_it_is_asked_the_same_and_recorded_the_same(tmp_path, name, breadth_first):
    whole, model = tmp_path / "whole.db", Curious()
    expected = await run(name, model, whole)
    assert [len(s.rounds) for s in expected.slices] == [4] * DRAWS
    for draw in range(2, DRAWS + 1):
        left, rest = tmp_path / f"left {draw}.db", Curious()
        first = await leave(name, draw, left, breadth_first=breadth_first)
        result = await run(name, rest, left, breadth_first=breadth_first)
        assert first.asked + rest.asked == model.asked
        assert [s.messages for s in result.slices] == [s.messages for s in expected.slices]
        assert sent(result) == sent(expected)
        assert await kept(left) == await kept(whole)


@pytest.mark.parametrize("name", STRATEGIES)
async def test_a_call_that_is_made_again_from_the_journal_in_each_round_asks_the_same(
    tmp_path, name, monkeypatch
):
    monkeypatch.setattr(waiting, "KEPT", 0)
    deep, broad = Curious(), Curious()
    expected = await run(name, deep, tmp_path / "deep.db")
    assert sent(await run(name, broad, tmp_path / "broad.db", breadth_first=True)) == sent(expected)
    assert broad.asked == deep.asked


async def test_an_unfinished_item_has_the_rounds_of_its_draws(path):
    await leave("chat", 3, path)
    (record,) = await items_of(path)
    asked, told, again, _ = record["drawn"][0]["rounds"]
    assert (asked["role"], asked["reasoning_content"]) == ("assistant", "What is word 1 0?")
    assert told == {
        "role": "tool",
        "content": "word 1 0: a word",
        "tool_call_id": "look_up word 1 0",
    }
    assert again["tool_calls"][0]["function"]["name"] == "look_up"


@pytest.mark.parametrize("text", ["best", "none"])
async def test_a_journal_without_all_texts_has_no_rounds_and_its_item_starts_again(path, text):
    journal = Journal(path, text=text)
    await leave("chat", 3, journal)
    (record,) = await items_of(path)
    assert "a word" not in json.dumps(record["drawn"])
    again = Curious()
    result = await run("chat", again, journal)
    assert [draw for draw, _ in again.asked] == sorted([1, 2, 3, 4] * 3)
    assert [len(s.rounds) for s in result.slices] == [4] * DRAWS


async def test_a_draw_of_a_version_that_kept_no_rounds_is_continued_without_them(path):
    await leave("chat", 2, path)
    execute(path, "UPDATE slices SET body = json_remove(body, '$.rounds')")
    again = Curious()
    result = await run("chat", again, path)
    assert result.slices[0].rounds == ()
    assert [m["role"] for m in again.asked[0][1]] == ["user", "assistant", "user"]


@dataclass(frozen=True)
class Continued:
    """An action whose own messages end with the answer of a tool."""

    text: str

    def render(self, context: Context) -> tuple[Message, ...]:
        """Return the conversation, with a call that was made and answered before."""
        made = call("look_up", self.text)
        answered = Message("tool", "yes", tool_call_id=made.id)
        asked = Message("user", self.text)
        return (*context.messages, asked, Message("assistant", "", tool_calls=[made]), answered)

    def parse(self, text: str) -> str:
        """Return the reply."""
        return text


async def test_calls_in_the_actions_own_messages_are_no_rounds_of_a_draw(tmp_path):
    model, rest = Curious(), Curious()
    await run("chat", model, tmp_path / "whole.db", action=Continued)
    first = await leave("chat", 3, tmp_path / "left.db", action=Continued)
    await run("chat", rest, tmp_path / "left.db", action=Continued)
    assert first.asked + rest.asked == model.asked
