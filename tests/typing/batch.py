"""The types that batches promise; mypy and pyright check this file, nothing runs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_type

from pydantic import BaseModel

from mellea_like import (
    BaseSamplingStrategy,
    Context,
    Instruction,
    Message,
    RejectionSamplingStrategy,
    SamplingResult,
    requirement,
)
from mellea_like.batch import BatchRun, ItemResult, Journal, Progress, check_many, sample_many
from mellea_like.core import Action, Usage
from mellea_like.core.conversation import Conversation, Role
from mellea_like.limits import Budget

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence


class Invoice(BaseModel):
    number: str
    total: float


@dataclass(frozen=True)
class Dice:
    """An action of one's own: its reply is read as an int."""

    sides: int

    def render(self, context: Context) -> Sequence[Message]:
        return (*context.messages, Message("user", f"Throw a die with {self.sides} sides."))

    def parse(self, text: str) -> int:
        return int(text)


@dataclass(frozen=True)
class Person:
    name: str


def greet(person: Person) -> str:
    return f"Greet {person.name}."


def prompts() -> Iterator[str]:
    yield "x"


async def arriving() -> AsyncIterator[Instruction]:
    yield Instruction("x")


def ask(row: dict[str, str]) -> str:
    return row["question"]


def throw(sides: int) -> Dice:
    return Dice(sides)


# --- the results are generic in the parsed value ------------------------------------------------


def texts_give_text(strategy: RejectionSamplingStrategy) -> None:
    assert_type(sample_many(strategy, ["x", "y"], concurrency=2), BatchRun[str, str])
    assert_type(sample_many(strategy, prompts(), concurrency=2), BatchRun[str, str])
    assert_type(sample_many(strategy, arriving(), concurrency=2), BatchRun[str, Instruction])
    assert_type(
        sample_many(strategy, [Message("user", "x")], concurrency=2), BatchRun[str, Message]
    )
    mixed: list[str | Message] = ["x", Message("user", "x")]
    assert_type(sample_many(strategy, mixed, concurrency=2), BatchRun[str, str | Message])
    sample_many(strategy, ["x", Message("user", "x")], concurrency=2)
    sample_many(strategy, [6], concurrency=2)  # type: ignore[arg-type, list-item]  # pyright: ignore[reportCallIssue, reportArgumentType]


def format_gives_its_type(strategy: BaseSamplingStrategy) -> None:
    assert_type(sample_many(strategy, ["x"], concurrency=2, format=Invoice), BatchRun[Invoice, str])
    assert_type(
        sample_many(strategy, [Dice(6)], concurrency=2, format=Invoice), BatchRun[Invoice, Dice]
    )
    assert_type(
        sample_many(strategy, arriving(), concurrency=2, format=Invoice),
        BatchRun[Invoice, Instruction],
    )
    assert_type(
        sample_many(strategy, [{"question": "x"}], concurrency=2, action=ask, format=list[int]),
        BatchRun[list[int], dict[str, str]],
    )
    sample_many(strategy, ["x", Dice(6)], concurrency=2, format=Invoice)


def format_is_any_type_that_is_read_at_run_time(strategy: BaseSamplingStrategy) -> None:
    either = sample_many(strategy, ["x"], concurrency=2, format=Invoice | list[int])
    assert_type(either, BatchRun[Invoice | list[int], str])
    maybe = sample_many(strategy, [6, 20], concurrency=2, action=throw, format=int | None)
    assert_type(maybe, BatchRun[int | None, int])


def actions_give_what_they_parse(
    strategy: BaseSamplingStrategy, actions: Sequence[Action[int]]
) -> None:
    assert_type(sample_many(strategy, [Dice(6), Dice(20)], concurrency=2), BatchRun[int, Dice])
    assert_type(sample_many(strategy, map(Dice, [6, 20]), concurrency=2), BatchRun[int, Dice])
    assert_type(sample_many(strategy, actions, concurrency=2), BatchRun[int, Action[int]])
    some: list[str | Action[Any]] = ["x", Dice(6)]
    assert_type(sample_many(strategy, some, concurrency=2), BatchRun[Any, str | Action[Any]])
    assert_type(sample_many(strategy, [6, 20], concurrency=2, action=throw), BatchRun[int, int])
    assert_type(
        sample_many(strategy, [{"question": "x"}], concurrency=2, action=ask),
        BatchRun[str, dict[str, str]],
    )


async def an_item_keeps_its_type(strategy: BaseSamplingStrategy, people: list[Person]) -> None:
    async with sample_many(strategy, people, concurrency=2, action=greet) as results:
        async for item in results:
            assert_type(item, ItemResult[str, Person])
            assert_type(item.item.name, str)
            _ = item.item.nmae  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
    async with sample_many(strategy, ["x"], concurrency=2) as texts:
        async for text in texts:
            assert_type(text.item, str)
    async with sample_many(strategy, arriving(), concurrency=2) as instructions:
        async for instruction in instructions:
            assert_type(instruction.item.description, str)
            _ = instruction.item.descripton  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
    async with sample_many(strategy, [Message("user", "x")], concurrency=2) as messages:
        async for message in messages:
            assert_type(message.item.role, Role)
            _ = message.item.rloe  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
    async with sample_many(strategy, [Conversation(())], concurrency=2) as conversations:
        async for conversation in conversations:
            assert_type(conversation.item.messages, tuple[Message, ...])
            _ = conversation.item.mesages  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
    async with sample_many(strategy, [Dice(6)], concurrency=2) as throws:
        async for die in throws:
            assert_type(die.value, int | None)
            assert_type(die.item.sides, int)
            _ = die.item.side  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]


async def a_checked_item_keeps_its_type(people: list[Person]) -> None:
    async with check_many(people, concurrency=2, reply=greet) as results:
        async for item in results:
            assert_type(item.item, Person)
            _ = item.item.nmae  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
    run = check_many(people, lambda person: [person.name], concurrency=2, reply=lambda p: p.name)
    assert_type(run, BatchRun[Any, Person])
    assert_type(check_many(arriving(), ["short"], concurrency=2), BatchRun[Any, Instruction])
    check_many(people, concurrency=2, reply=lambda p: p.nmae)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownLambdaType, reportUnknownMemberType]


async def results_of_an_item(strategy: BaseSamplingStrategy) -> None:
    async with sample_many(strategy, ["x"], concurrency=2, format=Invoice) as results:
        assert_type(results, BatchRun[Invoice, str])
        assert_type(results.progress, Progress)
        async for item in results:
            assert_type(item, ItemResult[Invoice, str])
            assert_type(item.id, int)
            assert_type(item.value, Invoice | None)
            assert_type(item.unwrap(), Invoice)
            assert_type(item.result, SamplingResult[Invoice] | None)
            assert_type(item.error, Exception | None)
            assert_type(item.usage, Usage)
            assert_type(item.success, bool)
            if item.status == "passed":
                pass
    total: float | None = results.progress.seconds_left
    assert total is None or results.progress.total


async def what_a_batch_takes(strategy: BaseSamplingStrategy) -> None:
    def told(progress: Progress) -> None:
        assert_type(progress.done, int)

    def told_too(progress: Progress) -> Any:
        return progress.rate

    sample_many(
        strategy,
        ["x"],
        concurrency=64,
        requirements=[requirement("short"), "polite"],
        options={"temperature": 0.5},
        budget=Budget(requests=100),
        in_order=True,
        fail_fast=True,
        journal=Journal("run.db", text="best"),
        keep_errors=False,
        on_progress=told,
        settings={"input": "sha256:..."},
    )
    sample_many(strategy, ["x"], concurrency=1, journal="run.db", on_progress=told_too)
    sample_many(strategy, ["x"], concurrency=1, journal=Path("run.db"), on_progress=print)
