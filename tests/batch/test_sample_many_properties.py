"""Random batches: latencies, failures, slow consumers, early ends, cancellations, full disks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import pytest
from anyio.lowlevel import checkpoint
from batch_kit import Counted, MemoryJournal, Plan, Slow, results_of, strategy
from hypothesis import given
from hypothesis import strategies as st
from leftovers import running

from examples import examples
from mellea_like import Generation, Request
from mellea_like.batch import ItemResult, sample_many
from mellea_like.core import Usage
from mellea_like.errors import InvalidRequest, JournalError, SamplingFailed
from mellea_like.testing import run_virtual

Kind = Literal["passed", "failed", "errored"]


class SourceError(Exception):
    """The error of a source."""


@dataclass(frozen=True)
class Case:
    """A random batch, with the delays and outcomes of its items."""

    items: list[tuple[float, Kind]]
    concurrency: int
    ordered: bool
    fail_fast: bool
    gap: float | None
    source_breaks: bool
    consumer: float
    leaves_after: int | None
    cancelled_at: float | None
    commit: float | None
    full_after: int | None

    @property
    def prompts(self) -> list[str]:
        return [f"{n}" for n in range(len(self.items))]

    @property
    def backend(self) -> Plan:
        return Scripted(self.items)

    def source(self) -> Counted:
        breaks = self.source_breaks

        def given_items() -> Any:
            yield from self.prompts
            if breaks:
                raise SourceError

        if self.gap is None:
            return Counted(given_items())
        return Slow(given_items(), self.gap)


class Scripted(Plan):
    """A backend that waits for an item's delay, and then gives its reply or error."""

    def __init__(self, items: list[tuple[float, Kind]]) -> None:
        super().__init__()
        self.items = items

    async def generate(self, request: Request) -> Generation:
        seconds, kind = self.items[int(request.messages[-1].content)]
        self.asked.append(request.messages[-1].content)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await anyio.sleep(seconds)
        finally:
            self.in_flight -= 1
        if kind == "errored":
            raise InvalidRequest("no")
        return Generation("no" if kind == "failed" else "yes", usage=Usage(1, 1, 1))


seconds = st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.5, 7.0])
maybe = lambda strategy_: st.none() | strategy_
cases = st.builds(
    Case,
    items=st.lists(
        st.tuples(seconds, st.sampled_from(["passed", "passed", "failed", "errored"])), max_size=14
    ),
    concurrency=st.integers(1, 5),
    ordered=st.booleans(),
    fail_fast=st.sampled_from([False, False, False, True]),
    gap=maybe(st.sampled_from([0.0, 1.0])),
    source_breaks=st.sampled_from([False, False, False, True]),
    consumer=st.sampled_from([0.0, 0.0, 1.5]),
    leaves_after=maybe(st.integers(0, 10)),
    cancelled_at=maybe(st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.25])),
    commit=maybe(st.sampled_from([0.0, 0.5, 3.0])),
    full_after=maybe(st.integers(0, 8)),
)


@dataclass
class Seen:
    """The results and the error that a consumer of a batch sees."""

    items: list[ItemResult[Any]] = field(default_factory=list)
    end: str = "cancelled"
    widest: int = 0


async def consume(case: Case, backend: Plan, journal: MemoryJournal | None) -> Seen:
    seen = Seen()
    source = case.source()
    scope = anyio.CancelScope(
        deadline=float("inf")
        if case.cancelled_at is None
        else anyio.current_time() + case.cancelled_at
    )
    with scope:
        try:
            async with sample_many(
                strategy(backend),
                source,
                concurrency=case.concurrency,
                in_order=case.ordered,
                fail_fast=case.fail_fast,
                journal=journal,
            ) as results:
                seen.end = "left"
                while len(seen.items) != case.leaves_after:
                    seen.end = "cancelled"
                    try:
                        item = await anext(results)
                    except StopAsyncIteration:
                        seen.end = "finished"
                        break
                    seen.items.append(item)
                    seen.end = "left"
                    seen.widest = max(seen.widest, source.taken - len(seen.items))
                    await anyio.sleep(case.consumer)
        except (SourceError, JournalError, SamplingFailed, InvalidRequest) as exc:
            seen.end = type(exc).__name__
    if scope.cancelled_caught:
        seen.end = "cancelled"
    return seen


def check(case: Case, backend: Plan, seen: Seen) -> None:
    ids = [item.id for item in seen.items]
    assert len(ids) == len(set(ids)), "an item came twice"
    assert backend.in_flight == 0, "something runs on"
    assert backend.most <= case.concurrency
    assert seen.widest <= 2 * case.concurrency
    if case.ordered:
        assert ids == sorted(ids)
    if seen.end in {"finished", "SourceError"}:
        assert sorted(ids) == list(range(len(case.items)))
        assert (seen.end == "SourceError") is case.source_breaks
    for item in seen.items:
        assert item.item == str(item.id)
        assert item.status == case.items[item.id][1]
        assert item.success or not case.fail_fast
    if seen.end in {"SamplingFailed", "InvalidRequest"}:
        assert case.fail_fast


async def play(case: Case) -> None:
    tasks = running()
    backend = case.backend
    seen = await consume(case, backend, None)
    check(case, backend, seen)
    assert seen.end != "JournalError"
    await checkpoint()
    assert running() == tasks


async def play_and_resume(case: Case) -> None:
    tasks = running()
    broken = float("inf") if case.full_after is None else case.full_after
    journal = MemoryJournal(case.commit or 0, broken)
    backend = case.backend
    seen = await consume(case, backend, journal)
    check(case, backend, seen)
    assert {item.id for item in seen.items} <= set(journal.finished), "handed on, and not kept"
    assert journal.opened == journal.closed
    assert len(journal.items) - len(journal.finished) <= 2 * case.concurrency
    if seen.end == "JournalError":
        assert case.full_after is not None
    kept = set(journal.finished)

    journal.broken = float("inf")
    again = case.backend
    items = await results_of(
        strategy(again),
        case.prompts,
        concurrency=case.concurrency,
        in_order=case.ordered,
        journal=journal,
    )
    assert sorted(item.id for item in items) == list(range(len(case.items)))
    assert {item.id for item in items if item.replayed} == kept
    assert len(again.asked) == len(case.items) - len(kept), "what was kept is sampled again"
    assert [item.status for item in items] == [case.items[item.id][1] for item in items]
    assert sorted(journal.finished) == list(range(len(case.items)))
    await checkpoint()
    assert running() == tasks


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@examples(10, 250)
@given(case=cases)
def test_random_batches_lose_nothing_and_leave_nothing(loop, case):
    run_virtual(lambda: play(case), backend=loop)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@examples(10, 250)
@given(case=cases)
def test_random_batches_with_a_journal_go_on_where_they_were(loop, case):
    run_virtual(lambda: play_and_resume(case), backend=loop)
