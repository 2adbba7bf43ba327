"""`breadth_first=True`: every item gets a draw before any gets its next, also in resumed runs."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from batch_kit import ids, into, results_of
from hypothesis import given
from hypothesis import strategies as st
from journal_kit import items_of, run_of

from mellea_like import (
    BestOf,
    Budget,
    Collect,
    Escalate,
    FunctionBackend,
    Generation,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Request,
    Requirement,
    Stage,
    Vote,
)
from mellea_like.batch import Journal, read_items, read_run, sample_many, waiting
from mellea_like.core import Usage
from mellea_like.errors import (
    AuthenticationFailed,
    BackendUnavailable,
    JournalError,
    LimitExceeded,
    MalformedResponse,
    MelleaError,
)
from mellea_like.estimate import plan
from mellea_like.export import export
from mellea_like.report import run_text
from mellea_like.schedules import Staggered
from mellea_like.testing import run_virtual

pytestmark = pytest.mark.anyio

good = Requirement("be good", lambda c: (c.text == "good", "it is bad"), inline=True)
LOOP = 4


class Fates:
    """A backend that answers item n with "good" in draw ``fates[n]``; never if that is 0."""

    provider = model = "fates"

    def __init__(self, fates: Any, errors: dict[tuple[int, int], Exception] | None = None) -> None:
        self.fates = fates
        self.errors = errors or {}
        self.draws: list[tuple[int, int]] = []
        self.prompts: dict[tuple[int, int], tuple[str, ...]] = {}

    async def generate(self, request: Request) -> Generation:
        number = int(request.messages[0].content.split()[1])
        draw = number, request.meta.iteration or 0
        self.draws.append(draw)
        self.prompts[draw] = tuple(m.content for m in request.messages)
        await checkpoint()
        if draw in self.errors:
            raise self.errors[draw]
        return Generation(self.text(*draw), usage=Usage(1, 2, 3))

    def text(self, number: int, draw: int) -> str:
        return "good" if draw == self.fates[number] else f"bad {draw}"


def strategy(backend: Any, kind: Any = RejectionSamplingStrategy, **arguments: Any) -> Any:
    return kind(backend, **{"loop_budget": LOOP, "requirements": [good], "retry": None} | arguments)


def prompts(count: int) -> list[str]:
    return [f"item {n}" for n in range(count)]


def breadth(backend: Any, count: int, **arguments: Any) -> Any:
    settings = {"concurrency": 3, "breadth_first": True} | arguments
    return sample_many(strategy(backend), prompts(count), **settings)


@pytest.fixture(params=[0, 1, 4096], ids=["calls made again", "one call kept", "calls kept"])
def calls(request, monkeypatch) -> int:
    """The number of waiting items whose calls are kept in memory."""
    monkeypatch.setattr(waiting, "KEPT", request.param)
    return request.param


@pytest.fixture(params=[True, False], ids=["journal", "memory"])
def journal(request, path):
    """The path of the run's journal; None for a run that is kept in memory only."""
    return path if request.param else None


class Looking(Fates):
    """A backend that looks at the progress of the batch when it is asked."""

    batch: Any

    async def generate(self, request: Request) -> Generation:
        self.seen = self.batch.progress
        return await super().generate(request)


FATES = [1, 3, 0, 2, 1, 4, 0, 2, 3, 1]
TURNS = [fate or LOOP for fate in FATES]


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "as they come"])
@pytest.mark.usefixtures("calls")
async def test_every_item_gets_a_draw_before_any_gets_another(journal, ordered):
    backend = Fates(FATES)
    batch = breadth(backend, 10, journal=journal, in_order=ordered)
    seen: list[Any] = []
    await into(seen, batch)
    rounds = [draw for _, draw in backend.draws]
    assert rounds == sorted(rounds)
    assert Counter(item for item, _ in backend.draws) == dict(enumerate(TURNS))
    assert ids(seen) == list(range(10)) if ordered else sorted(ids(seen)) == list(range(10))
    for item in seen:
        assert item.status == ("passed" if FATES[item.id] else "failed")
        assert [s.iteration for s in item.result.slices] == list(range(1, TURNS[item.id] + 1))
        assert item.usage.requests == TURNS[item.id]
        assert not item.replayed
    assert batch.progress.usage.requests == sum(TURNS)
    assert (batch.progress.done, batch.progress.waiting) == (10, 0)
    if journal:
        one_more = Looking([*FATES, 1])
        one_more.batch = breadth(one_more, 11, journal=journal, in_order=ordered)
        await into(again := [], one_more.batch)
        assert [item.id for item in again if not item.replayed] == [10]
        assert one_more.draws == [(10, 1)]
        assert one_more.seen.replayed == one_more.seen.done == 10
        assert one_more.seen.replayed_usage.requests == sum(TURNS)


@pytest.mark.usefixtures("calls")
async def test_stages_go_on_where_they_were_in_each_round(path):
    small = Fates([1, 0, 0, 0], errors={(3, 1): AuthenticationFailed("no such key")})
    big = Fates([1, 3, 4, 3])
    stages = [Stage(small, turns=2), Stage(big, turns=2)]
    for requests in (5, 9, 30):
        run = sample_many(
            Escalate(stages, requirements=[good], retry=None),
            prompts(4),
            concurrency=1,
            breadth_first=True,
            journal=path,
            budget=Budget(requests=requests),
        )
        seen: list[Any] = []
        with suppress(LimitExceeded):
            await into(seen, run)
    drawn = {item.id: [s.iteration for s in item.result.slices] for item in seen}
    assert drawn == {0: [1], 1: [1, 2, 3], 2: [1, 2, 3, 4], 3: [1, 3]}
    assert all(item.success for item in seen)
    assert Counter(small.draws + big.draws) == {
        (item, iteration): 1 for item, of_item in drawn.items() for iteration in of_item
    }


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "as they come"])
async def test_a_budget_reaches_as_many_items_as_it_can_and_a_larger_one_goes_on(path, ordered):
    backend = Fates(FATES)
    for requests, passed in ((4, [0]), (9, [0, 3, 4, 9]), (30, [0, 1, 3, 4, 5, 7, 8, 9])):
        seen: list[Any] = []
        budget = Budget(requests=requests)
        arguments = {"journal": path, "budget": budget, "in_order": ordered, "concurrency": 1}
        batch = breadth(backend, 10, **arguments)
        with pytest.raises(LimitExceeded, match="budget"):
            await into(seen, batch)
            raise LimitExceeded("the budget was enough")
        assert [item.id for item in sorted(seen, key=lambda i: i.id) if item.success] == passed
        assert batch.progress.done + batch.progress.waiting == (4 if requests == 4 else 10)
        if ordered:
            assert ids(seen) == sorted(ids(seen))
    assert len(backend.draws) == len(set(backend.draws)) == sum(TURNS), "none is drawn again"
    times = [time for sitting in (await run_of(path))["sittings"] for time in sitting]
    assert len(times) == 6
    assert times == sorted(times), "each was closed before the next one was opened"
    stored = await items_of(path)
    assert [record["usage"]["requests"] for record in stored] == TURNS
    assert [len(record["trace"]["slices"]) for record in stored] == TURNS


@pytest.mark.parametrize("breadth_first", [False, True], ids=["depth", "breadth"])
async def test_a_draw_whose_judge_a_budget_refused_costs_no_attempt(path, breadth_first):
    backend = Fates([1, 1, 1])
    judge = FunctionBackend(lambda request: '{"passed": true, "reason": ""}', can_judge=True)
    judged = strategy(backend, requirements=["it is kind"], judge=judge, loop_budget=2)
    for requests in (1, 1, 1, 3, 3):
        budget = Budget(requests=requests)
        given = {"concurrency": 1, "journal": path, "breadth_first": breadth_first}
        with pytest.raises(LimitExceeded):
            await results_of(judged, prompts(3), budget=budget, **given)
    found = await results_of(judged, prompts(3), **given)
    assert [[s.iteration for s in item.result.slices] for item in found] == [[1]] * 3
    assert all(item.success for item in found)


@pytest.mark.parametrize("breadth_first", [False, True], ids=["depth", "breadth"])
async def test_a_run_that_was_broken_off_repeats_only_the_draws_in_flight(path, breadth_first):
    done = anyio.Event()
    backend = Fates(FATES)

    class Stuck(Fates):
        async def generate(self, request: Request) -> Generation:
            if request.meta.iteration == 2:
                done.set()
                await anyio.sleep_forever()
            return await super().generate(request)

    first = Stuck(FATES)
    async with breadth(first, 10, journal=path, breadth_first=breadth_first):
        await done.wait()
        await anyio.sleep(0.2)  # What is drawn is written down.
        [(_, closed)] = (await run_of(path))["sittings"]
        assert closed is None, "it is still open, and so it stays after a kill"
    assert len(first.draws) < sum(TURNS)
    await into(seen := [], breadth(backend, 10, journal=path, breadth_first=breadth_first))
    assert not set(first.draws) & set(backend.draws)
    assert sorted(first.draws + backend.draws) == [
        (item, draw) for item, turns in enumerate(TURNS) for draw in range(1, turns + 1)
    ]
    assert {item.id: len(item.result.slices) for item in seen} == dict(enumerate(TURNS))
    assert (await run_of(path))["counts"] == {
        "passed": 8,
        "failed": 2,
        "errored": 0,
        "unfinished": 0,
    }


@pytest.mark.parametrize("breadth_first", [False, True], ids=["depth", "breadth"])
async def test_with_more_turns_what_failed_goes_on_and_the_rest_comes_again(path, breadth_first):
    fates = [1, 6, 0, 2, 5]
    backend = Fates(fates)

    async def run(loop_budget: int) -> list[Any]:
        turns = strategy(backend, loop_budget=loop_budget)
        arguments = {
            "concurrency": 2,
            "journal": path,
            "in_order": True,
            "breadth_first": breadth_first,
        }
        return await results_of(turns, prompts(5), **arguments)

    for loop_budget, passed in ((2, [0, 3]), (5, [0, 3, 4]), (7, [0, 1, 3, 4])):
        items = await run(loop_budget)
        assert [item.id for item in items if item.success] == passed
        drawn = [min(fate or 7, loop_budget) for fate in fates]
        assert sorted(backend.draws) == [
            (item, draw) for item, turns in enumerate(drawn) for draw in range(1, turns + 1)
        ]
        assert [len(item.result.slices) for item in items] == drawn
        assert [item.usage.requests for item in items] == drawn
    stored = await items_of(path)
    assert [record["usage"]["requests"] for record in stored] == [1, 6, 7, 2, 5]
    with pytest.raises(JournalError, match="loop_budget was 7 and is now 6"):
        await run(6)


@pytest.mark.parametrize(
    ("text", "settings"),
    [("best", {}), ("all", {"concurrency_budget": 2}), ("all", {"selection": Collect(1)})],
    ids=["words are missing", "two at a time", "a selection"],
)
async def test_more_turns_are_refused_where_earlier_draws_can_t_be_gone_on_with(
    path, text, settings
):
    journal = Journal(path, text=text)
    arguments = {"concurrency": 1, "journal": journal}
    await results_of(strategy(Fates([0]), **settings), prompts(1), **arguments)
    more = strategy(Fates([0]), loop_budget=LOOP + 1, **settings)
    with pytest.raises(JournalError, match="loop_budget was 4 and is now 5"):
        await results_of(more, prompts(1), **arguments)


async def test_requirements_of_one_name_are_told_apart_where_an_item_goes_on(path):
    def has(word: str, *, wanted: bool) -> Requirement:
        return Requirement(f"has {word}", lambda c: wanted, name="has", inline=True)

    backend = Fates([0])
    checks = [has("no end", wanted=False), has("a start", wanted=True)]
    both = strategy(backend, MultiTurnStrategy, requirements=checks)
    arguments = {"concurrency": 1, "breadth_first": True, "journal": path}
    (item,) = await results_of(both, prompts(1), **arguments)
    told = backend.prompts[0, LOOP][2::2]
    assert len(told) == LOOP - 1
    assert all("has no end" in what and "a start" not in what for what in told)
    assert all(s.requirements == tuple(checks[: len(s.requirements)]) for s in item.result.slices)


@pytest.mark.usefixtures("calls")
async def test_an_error_costs_a_turn_and_a_permanent_one_ends_its_item(journal):
    errors: dict[tuple[int, int], Exception] = {
        (0, 1): BackendUnavailable("away"),
        (1, 2): AuthenticationFailed("no key"),
        (2, 1): AuthenticationFailed("no key"),
    }
    backend = Fates([2, 3, 1], errors)
    arguments = {"journal": journal, "keep_errors": False, "in_order": True}
    await into(seen := [], breadth(backend, 3, **arguments))
    assert [item.status for item in seen] == ["passed", "failed", "errored"]
    assert [0 if item.result is None else len(item.result.slices) for item in seen] == [2, 2, 0]
    if journal:
        backend.errors.clear()
        await into(again := [], breadth(backend, 3, **arguments))
        assert [(item.status, item.replayed) for item in again] == [
            ("passed", True),
            ("passed", False),
            ("passed", False),
        ]


class Unrepairable(RepairTemplateStrategy):
    """A strategy whose `repair` raises for item 0 after some failures."""

    failures = 1

    def repair(self, history: Any) -> Any:
        if len(history) == self.failures and history[0].action.description == "item 0":
            raise ValueError("can't be repaired")
        return super().repair(history)


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "as they come"])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
async def test_an_item_whose_error_is_not_kept_gets_no_further_turn(path, ordered, kept):
    backend = Fates([0, 3, 0])
    unrepairable = strategy(backend, Unrepairable)
    arguments = {"journal": path, "keep_errors": kept, "in_order": ordered, "breadth_first": True}
    batch = sample_many(unrepairable, prompts(3), concurrency=2, **arguments)
    await into(seen := [], batch)
    assert [(i.id, i.status) for i in sorted(seen, key=lambda i: i.id)] == [
        (0, "errored"),
        (1, "passed"),
        (2, "failed"),
    ]
    assert (batch.progress.done, batch.progress.waiting) == (3, 0)


@pytest.mark.usefixtures("calls")
async def test_an_item_that_raises_in_a_later_round_costs_what_it_drew_before(journal):
    unrepairable = strategy(Fates([0]), Unrepairable)
    unrepairable.failures = 3
    batch = sample_many(
        unrepairable, prompts(1), concurrency=1, breadth_first=True, journal=journal
    )
    await into(seen := [], batch)
    (item,) = seen
    # Without a journal, the cost of the last round is unknown.
    assert (item.status, item.usage.requests) == ("errored", 3 if journal else 2)
    assert batch.progress.usage == item.usage


class Shelf(Fates):
    """A backend with a list of replies for each item, one for each draw; "bad" fails."""

    def __init__(self, *shelves: str) -> None:
        super().__init__([shelf.split() for shelf in shelves])

    def text(self, number: int, draw: int) -> str:
        return self.fates[number][draw - 1]


SHELVES = "a b c", "a bad a a b", "bad bad c bad bad", "d d e", "x y x x x"
not_bad = Requirement("not bad", lambda c: c.text != "bad", inline=True)


@pytest.mark.parametrize("kept", ["killed", "journal", "memory"])
@pytest.mark.parametrize(
    ("selection", "found"),
    [
        (
            Collect(2, distinct=lambda c: c.text),
            [("a b", 2), ("a b", 5), ("", 5), ("d e", 3), ("x y", 2)],
        ),
        (Vote(n=3, confidence=None), [("a", 3), ("a", 3), ("c", 5), ("d", 2), ("x", 3)]),
    ],
    ids=["collect", "vote"],
)
@pytest.mark.usefixtures("calls")
async def test_several_that_pass_are_drawn_round_by_round(path, selection, found, kept):
    backend = Shelf(*SHELVES)
    settings = {"selection": selection, "loop_budget": 5, "requirements": [not_bad]}
    path = None if kept == "memory" else path

    def run(**more: Any) -> Any:
        arguments = {"concurrency": 2, "breadth_first": True, "journal": path} | more
        return sample_many(strategy(backend, **settings), prompts(5), **arguments)

    if kept == "killed":  # Nearly: by its budget, so often that no round is whole.
        for _ in range(4):
            with pytest.raises(LimitExceeded):
                await into([], run(budget=Budget(requests=3)))
    await into(seen := [], run())
    seen.sort(key=lambda item: item.id)
    values = [" ".join(item.values) if item.success else "" for item in seen]
    assert list(zip(values, [len(i.result.slices) for i in seen], strict=True)) == found
    assert all(item.result.decision.kind in ("collect", "vote") for item in seen if item.success)
    rounds = [draw for _, draw in backend.draws]
    assert rounds == sorted(rounds)
    assert len(rounds) == sum(draws for _, draws in found), "no draw is made twice"
    # They are the same as in depth.
    await into(deep := [], run(breadth_first=False, journal=None, in_order=True))
    assert [item.values for item in deep] == [item.values for item in seen]


async def test_what_was_collected_before_a_run_was_broken_off_counts_in_depth_too(path):
    backend = Shelf("bad a bad b c", "x y z")
    drawing = strategy(backend, selection=Collect(2), loop_budget=5, requirements=[not_bad])
    arguments = {"concurrency": 1, "journal": path}
    with pytest.raises(LimitExceeded):
        await into([], sample_many(drawing, prompts(2), budget=Budget(requests=3), **arguments))
    found = await results_of(drawing, prompts(2), **arguments, in_order=True)
    assert [item.values for item in found] == [("a", "b"), ("x", "y")]
    assert backend.draws == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2)]


@pytest.mark.parametrize(
    ("selection", "shelves", "found"),
    [
        (Collect(2), ("a b c", "x a y", "bad a x z w"), [["a", "b"], ["x", "y"], ["z", "w"]]),
        # A reply that lost a vote is free for other items.
        (Vote(n=3, confidence=None), ("a b b", "bad bad bad a bad"), [["b"], ["a"]]),
    ],
    ids=["collect", "vote"],
)
async def test_what_passed_in_an_earlier_round_is_the_items_own(journal, selection, shelves, found):
    backend = Shelf(*shelves)
    drawing = strategy(backend, selection=selection, loop_budget=5, requirements=[not_bad])
    arguments = {"breadth_first": True, "journal": journal, "unique": True}
    batch = sample_many(drawing, prompts(len(shelves)), concurrency=1, **arguments)
    await into(seen := [], batch)
    assert [list(item.values) for item in sorted(seen, key=lambda item: item.id)] == found


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"strategy": {"concurrency_budget": 2}}, "concurrency_budget=2: a round makes one draw"),
        ({"strategy": {"selection": BestOf(len)}}, "BestOf.*: scores of earlier rounds"),
        ({"strategy": {"selection": Vote(weight=len)}}, "Vote.*: scores of earlier rounds"),
        ({"strategy": {"schedule": Staggered(1)}}, "Staggered.*: rounds decide when draws start"),
        ({"stages": 2}, "a stage's budget: the spending of a stage isn't kept"),
        ({"journal": "best"}, "text='best'.: items continue from the texts"),
        ({"items": iter("ab")}, "can be iterated over only once: pass a list"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_what_can_t_be_drawn_in_rounds_is_refused_with_the_reason(path, changed, why):
    journal = Journal(path, text="best") if "journal" in changed else None
    drawing = strategy(Fates([1]), **changed.get("strategy", {}))
    if "stages" in changed:
        drawing = Escalate([Stage(Fates([1]), turns=2, budget=Budget(requests=9))])
    with pytest.raises((TypeError, ValueError), match=why):
        sample_many(
            drawing,
            changed.get("items", ["a"]),
            concurrency=1,
            breadth_first=True,
            journal=journal,
        )


async def test_a_pause_takes_no_time_of_a_call_and_its_errors_are_logged_once(
    virtual_clock, calls, caplog
):
    class Slow(Fates):
        async def generate(self, request: Request) -> Generation:
            await anyio.sleep(1)
            return await super().generate(request)

    backend = Slow([0] * 4, {(n, 1): MalformedResponse("odd") for n in range(4)})
    hasty = strategy(backend, timeout=2.5)
    items = await results_of(hasty, prompts(4), concurrency=1, breadth_first=True, in_order=True)
    for item in items:
        found = [(str(s.outcome), s.started_at, s.ended_at) for s in item.result.slices]
        assert found == [("errored", 0, 1), ("failed", 1, 2), ("cancelled", 2, 2.5)]
        assert item.result.elapsed == 2.5
    assert len([r for r in caplog.records if "odd" in r.getMessage()]) == 4


class Changing:
    """A source that gives different items in each iteration."""

    def __init__(self, *passes: list[Any]) -> None:
        self.passes = iter(passes)

    def __iter__(self) -> Any:
        for item in next(self.passes):
            if isinstance(item, Exception):
                raise item
            yield item


async def test_a_source_that_changes_is_refused_and_one_that_breaks_is_gone_through_so_far(
    journal,
):
    backend = Fates([2, 2, 2])
    arguments = {"concurrency": 2, "breadth_first": True}
    with pytest.raises(MelleaError, match="gave 3 items in the first round, but only 1"):
        await results_of(strategy(backend), Changing(prompts(3), prompts(1)), **arguments)
    with pytest.raises(
        MelleaError, match="the item at position 1 has changed since the first round"
    ):
        await into(
            seen := [],
            sample_many(
                strategy(backend),
                Changing(prompts(3), ["item 0", "item 2", "item 1"]),
                journal=journal,
                **arguments,
            ),
        )
    assert ids(seen) == [0], "what was under way before the change is not lost"
    broken = [*prompts(2), LookupError("the disk is gone")]
    with pytest.raises(LookupError, match="the disk is gone"):
        await into(
            seen := [], sample_many(strategy(backend), Changing(broken, broken), **arguments)
        )
    assert sorted(ids(seen)) == [0, 1]
    assert all(seen)


async def test_results_of_items_that_a_source_no_longer_gives_are_not_lost_silently(path):
    shrinking = Changing(prompts(3), prompts(1))
    arguments = {"concurrency": 2, "breadth_first": True, "in_order": True, "journal": path}
    seen: list[Any] = []
    with pytest.raises(MelleaError, match="gave 3 items in the first round, but only 1"):
        await into(seen, sample_many(strategy(Fates([1, 1, 1])), shrinking, **arguments))
    assert ids(seen) == [0]


@given(
    fates=st.lists(st.integers(0, LOOP), min_size=1, max_size=8),
    requests=st.integers(1, 40),
    concurrency=st.integers(1, 3),
)
def test_a_budget_buys_the_draws_that_a_loop_by_hand_would_make(fates, requests, concurrency):
    waiting, wanted = list(enumerate(fates)), []
    for draw in range(1, LOOP + 1):
        wanted += [(item, draw) for item, _ in waiting]
        waiting = [(item, fate) for item, fate in waiting if fate != draw]
    backend = Fates(fates)

    async def run() -> list[Any]:
        seen: list[Any] = []
        budget = Budget(requests=requests)
        batch = breadth(backend, len(fates), concurrency=concurrency, budget=budget)
        try:
            await into(seen, batch)
        except LimitExceeded:
            assert len(wanted) > requests
        return seen

    seen = run_virtual(run)
    made = wanted[:requests]
    if concurrency > 1:  # Which items of the last round are reached, then depends on timing.
        assert [draw for _, draw in backend.draws] == [draw for _, draw in made]
        assert set(made) ^ set(backend.draws) <= {pair for pair in wanted if pair[1] == made[-1][1]}
        made = backend.draws
    assert sorted(backend.draws) == sorted(made)
    passed = {item for item, draw in made if fates[item] == draw}
    assert {item.id for item in seen if item.success} == passed


@pytest.mark.parametrize("kind", [RejectionSamplingStrategy, MultiTurnStrategy])
async def test_draws_of_items_that_are_not_finished_are_in_plans_reports_and_exports(
    tmp_path, kind
):
    path, fates = tmp_path / "run.db", [1, 0] * 5
    turns = kind(Fates(fates), requirements=[good], loop_budget=LOOP, concurrency_budget=1)
    arguments = {"journal": path, "breadth_first": True, "budget": Budget(requests=20)}
    with pytest.raises(LimitExceeded, match="budget"):
        await results_of(turns, prompts(10), concurrency=1, **arguments)
    anew = kind is RejectionSamplingStrategy

    def look() -> None:
        made: Any = plan(path, 0.4)
        assert (made.items, made.passed, round(made.curve.at(1).share, 3)) == (10, 5, 0.5)
        assert (made.draws, len(made.unsolved)) == (20 if anew else 10, 5)
        assert made.repairs is None
        assert (made.bottleneck.judged, made.bottleneck.failed) == (20, 15)
        said = run_text(read_run(path), read_items(path))
        assert "100 %   of those finished; 50 % of the 10 that were begun\n" in said
        assert "20   2 per item\n" in said
        assert "25 % of 20: be good" in said
        assert "whose iteration is not recorded" not in said
        made = export(path, tmp_path / "draws.jsonl", format="jsonl")
        assert (made.rows, made.items) == (21, 10), "one was refused by the budget"
        card = (tmp_path / "draws.jsonl.card.md").read_text()
        [line] = [line for line in card.splitlines() if line.startswith("21 draws: ")]
        assert line == "21 draws: 15 failed, 5 passed, 1 cancelled."

    await anyio.to_thread.run_sync(look)
