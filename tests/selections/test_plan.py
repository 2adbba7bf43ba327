"""How many draws the next run needs, from results and from journals."""

from __future__ import annotations

import json
import random
from itertools import count
from math import isclose, sqrt

import anyio
import anyio.to_thread
import pytest
from report_kit import item, run_of, trace_of

from mellea_like import (
    BestOf,
    Collect,
    Escalate,
    FunctionBackend,
    Instruction,
    Price,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    SamplingResult,
    Stage,
    Vote,
)
from mellea_like.batch import Journal, read_items, read_run, sample_many
from mellea_like.errors import JournalError
from mellea_like.estimate import plan
from mellea_like.estimate.planner import NO_ANSWER
from mellea_like.report import figures_of
from mellea_like.schedules import Staggered

pytestmark = pytest.mark.anyio

# --- from results -----------------------------------------------------------------------------


def asked(number, trace):
    """A trace of another item."""
    for s in trace["slices"]:
        s["action"] = {**s["action"], "text": f"Say word {number}."}
    return trace


others = count()


def different(made):
    """The results as of different items."""
    return [SamplingResult.from_dict(asked(next(others), one.to_dict())) for one in made]


def results(*calls):
    return [
        SamplingResult.from_dict(asked(number, trace_of(*call, best=best)))
        for number, (call, best) in enumerate(calls)
    ]


passed_at_once = ([("passed", 4)], 0)
passed_second = ([("failed", 4), ("passed", 4)], 1)
never = ([("failed", 4)] * 6, 0)


def test_a_plan_says_how_many_what_it_costs_and_what_is_wrong():
    made = plan(
        results(*[passed_at_once] * 60, *[passed_second] * 30, *[never] * 10),
        0.85,
        prices={"m": Price(1, 10)},
    )
    assert (made.items, made.passed, made.draws, made.left_out) == (100, 90, 60 + 60 + 60, 0)
    assert made.curve.at(made.needed).share >= 0.85
    assert made.needed_surely is None or made.needed_surely >= made.needed
    one_by_one, *_, at_once = made.splits
    assert (one_by_one.loop_budget, one_by_one.concurrency_budget) == (made.needed, 1)
    assert (at_once.loop_budget, at_once.concurrency_budget) == (1, made.needed)
    assert made.suggestion in made.splits
    # A draw is one request of 1 + 4 tokens and lasts a second; those at once all begin.
    assert at_once.draws == at_once.requests == made.needed
    assert at_once.tokens == pytest.approx(5 * made.needed)
    assert at_once.cost == pytest.approx(made.needed * 41e-6)
    assert at_once.seconds == pytest.approx(1)
    # One by one, a further draw begins if all before it failed.
    expected = 1 + sum(1 - made.curve.at(k).share for k in range(1, made.needed))
    assert one_by_one.draws == pytest.approx(expected, rel=0.01)
    assert one_by_one.seconds == pytest.approx(one_by_one.draws)
    assert (made.bottleneck.requirement, made.bottleneck.failed) == ("it says a word", 90)
    assert (made.bottleneck.judged, made.bottleneck.alone) == (180, 90)
    assert [item.id for item in made.unsolved] == list(range(90, 100))
    assert {item.draws for item in made.unsolved} == {6}
    assert made.complete


@pytest.mark.parametrize("repaired", [False, True])
def test_draws_that_differ_only_in_their_rounds_of_tools_are_no_repairs(repaired):
    trace = trace_of(("failed", 1), ("failed", 1), ("passed", 1), best=2)
    for n, s in enumerate(trace["slices"][1:]):
        called = {"id": f"call {n}", "type": "function", "function": {"name": "f", "arguments": ""}}
        rounds = [
            {"role": "assistant", "content": "", "tool_calls": [called]},
            {"role": "tool", "content": f"{n}", "tool_call_id": f"call {n}"},
        ]
        asked = [{"role": "user", "content": "Not so. Say a word."}] if repaired else []
        s["prompt"] = len(trace["prompts"])
        trace["prompts"].append({"after": 1, "then": [*asked, *rounds]})
    found = plan([SamplingResult.from_dict(trace)])
    assert found.draws == (1 if repaired else 3)
    depths = figures_of(run_of([]), [item(0, trace)]).depths
    assert {depth: at.judged for depth, at in depths.items()} == (
        {0: 1, 1: 1, 2: 1} if repaired else {0: 1}
    )


def test_a_single_draw_and_a_single_request_are_singular():
    said = str(plan(results(*[passed_at_once] * 20), 0.8))
    assert "; 1 reaches " in said
    assert " 1 x 1  1 request, 5 tokens, " in said
    said = str(plan(results(*[passed_at_once] * 20, ([("failed", 4), ("cancelled", 1)], None))))
    assert "\n1 draw was cancelled or had not ended (" in said


@pytest.mark.parametrize(
    ("calls", "seconds"),
    [
        # Two of five that were under way ended after 1 s; of the others, one of 9 s is known.
        pytest.param([(1, 1), (1, 1), (9, 0)], 0.4 * 1 + 0.6 * 9, id="shorter"),
        pytest.param([(1, 5), (3, 5)], 2, id="of those that took longest, no end is known"),
    ],
)
def test_what_was_cancelled_would_have_taken_longer(calls, seconds):
    def call(passed, cancelled):
        trace = trace_of(("passed", 4), *[("cancelled", 1)] * (cancelled > 0), best=0)
        for s, ended in zip(trace["slices"], (passed, cancelled), strict=False):
            s |= {"started_at": 0.0, "ended_at": float(ended)}
        return different([SamplingResult.from_dict(trace)])[0]

    made = plan([call(*ends) for ends in calls], 0.5)
    assert made.needed == 1
    assert made.splits[0].seconds == pytest.approx(seconds)
    assert made.curve.cut == 2
    assert (
        "2 draws were cancelled or had not ended (a race, a time limit or an interruption): each"
        " may have passed or failed, so the intervals are wide. A run with one lane tells more.\n"
        in str(made)
    )


def test_items_whose_draws_were_all_cut_off_may_pass_or_not():
    made = plan(results(*[passed_at_once] * 20, *[([("cancelled", 4)], None)] * 20), 0.9)
    assert made.items == 40
    assert not made.complete  # The tokens of cancelled draws aren't known.
    assert made.curve.at(1).low < 0.5
    assert made.needed is None
    assert (
        "20 draws were cancelled or had not ended (a race, a time limit or an interruption): each"
        " may have passed or failed, so the intervals are wide.\n" in str(made)
    )


async def test_draws_that_ran_into_a_time_limit_count_as_failed(tmp_path, virtual_clock):
    """A draw passes with a chance of 0.3. Passes take 1 s, and failures, which hang, the limit."""

    async def reply(request):
        draw = random.Random(f"{request.messages[0].content} {request.meta.iteration}")
        if draw.random() > 0.3:
            await anyio.sleep_forever()
        await anyio.sleep(1)
        return "yes"

    strategy = RejectionSamplingStrategy(
        FunctionBackend(reply), loop_budget=2, iteration_timeout=5.0, retry=None
    )
    path = tmp_path / "run.db"
    async with sample_many(strategy, map(str, range(60)), concurrency=9, journal=path) as run:
        passed = sum([item.success async for item in run])
    made = await anyio.to_thread.run_sync(plan, path)
    # Those that failed twice raised, so the journal has no record of their draws.
    assert (made.items, made.passed) == (60, passed)
    one, two = made.curve.at(1), made.curve.at(2)
    assert one.low < 0.3 < one.high < 0.5
    assert two.low < 0.51 < two.high < 0.7
    figures = await anyio.to_thread.run_sync(lambda: figures_of(read_run(path), read_items(path)))
    assert figures.coverage.at(1) == one


def test_of_one_draw_of_each_item_it_says_what_cannot_be_known():
    once = [([("passed", 4)], 0)] * 35 + [([("failed", 4)], 0)] * 65
    made = plan(results(*once), 0.8)
    assert made.needed is None
    said = str(made)
    assert "This run can't tell how many draws 80 % takes: 4 would reach " in said
    assert "No item had more than 1 draw: draw the unsolved ones 4 times." in said
    said = str(plan(results(*[passed_second] * 3), 0.95))
    assert (
        "more draws can't be forecast.\nAll items passed: a run of more items tells more." in said
    )


def test_it_can_be_printed_and_written_down():
    made = plan(results(*[passed_at_once] * 12, *[passed_second] * 6, never), 0.8)
    said = str(made)
    assert said.startswith("19 items, 30 draws: 18 passed (94.7 %)\nNever pass: ")
    assert f"For 80 % it takes {made.needed} draws of each item" in said
    assert "measured" in said
    assert "extrapolated" in said
    assert said.count("<- suggested") == 1
    assert "Fails most often: it says a word (12 of 30, 12 failed only this)" in said
    assert "#18 Say word 18.: 6 draws" in said
    again = json.loads(json.dumps(made.to_dict()))
    assert again["needed"] == made.needed
    assert again["measured"] == 6
    assert again["hopeless_at_most"] == made.curve.hopeless
    assert again["splits"][0]["concurrency_budget"] == 1
    kinds = {point["draws"]: point["extrapolated"] for point in again["coverage"]}
    assert kinds == {1: False, 2: False, 4: False, 6: False, 8: True}


def test_a_reply_that_is_no_answer_can_be_the_bottleneck():
    trace = trace_of(("failed", 4), ("failed", 4), ("passed", 4), best=2)
    for s in trace["slices"][:2]:
        s |= {"reason": "it was cut off", "validations": []}
    made = plan([SamplingResult.from_dict(trace)])
    assert (made.bottleneck.requirement, made.bottleneck.failed) == (NO_ANSWER, 2)
    assert made.bottleneck.alone == 2


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (([],), ValueError, "no draw was judged"),
        (([], 1.0), ValueError, "between 0 and 1, not 1.0"),
        (([], 95), ValueError, "between 0 and 1, not 95"),
        (([], "95"), TypeError, "plan: target"),
        (([3],), TypeError, "a journal or results, not int"),
    ],
)
def test_what_cannot_be_planned_from_is_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        plan(*arguments)


# --- from real calls --------------------------------------------------------------------------


def says_yes_to_half():
    chance = random.Random(11)

    def reply(request):
        hopeless = request.messages[0].content.startswith("hopeless")
        return "yes" if not hopeless and chance.random() < 0.5 else "no"

    return FunctionBackend(reply)


yes = Requirement("says yes", lambda c: c.text == "yes", inline=True)


class Useless(RepairTemplateStrategy):
    """Asks for the same again, in other words."""

    def repair(self, history):
        first = history[0]
        return Instruction(first.action.description + "!" * len(history)), first.context


async def repaired(rates, times, better=0.0, **arguments):
    chance = random.Random(1)

    def reply(request):
        words = request.messages[0].content.partition("\n")[0]
        rate = rates[words.rstrip("!")]
        return "yes" if chance.random() < rate + better * words.endswith("!") else "no"

    arguments = {"concurrency_budget": 1, **arguments}
    strategy = Useless(FunctionBackend(reply, inline=True), loop_budget=4, **arguments)
    return plan([await strategy.sample(item, [yes]) for item in rates for _ in range(times)])


def mended(number, *outcomes):
    """The result of a call of one lane, which repairs each failure, and then passes or ends."""
    trace = trace_of(*[(outcome, 1) for outcome in outcomes], best=len(outcomes) - 1)
    trace["prompts"].append({"after": 1, "then": [{"role": "user", "content": "Not so."}]})
    for depth, s in enumerate(trace["slices"]):
        s |= {"subsample": 0, "chain": 0, "depth": depth}
        if depth and outcomes[depth - 1] == "failed":
            s["prompt"] = len(trace["prompts"]) - 1
    return SamplingResult.from_dict(asked(number, trace))


@pytest.mark.parametrize(
    ("then", "after"),
    [
        (["passed"], [1]),
        (["failed", "passed"], [1, 2]),
        (["passed", "failed", "passed"], [1, 1]),
    ],
    ids=["once", "twice", "again after a pass"],
)
def test_repairs_are_compared_with_fresh_draws_after_as_many_failures(then, after):
    # Of ten items, half of the draws pass; of ten others, none. So a draw passes in one of six
    # cases after one failure, and in one of ten after two.
    calls = [mended(n, "passed") for n in range(10) for _ in range(3)]
    calls += [mended(n, "failed", *then) for n in range(10) for _ in range(3)]
    calls += [mended(n, "failed", *then) for n in range(10, 20) for _ in range(6)]
    made = plan(calls)
    assert (made.items, made.draws) == (20, 120)
    found, judged = made.repairs, 90 * len(after)
    assert (found.judged, found.passed) == (judged, 90 * then.count("passed"))
    expected = sum(90 / {1: 6, 2: 10}[failures] for failures in after)
    assert found.expected == pytest.approx(expected, rel=0.03)
    # The variance of the number of passes, and of a rate that is known from 120 draws.
    rate = expected / judged
    half = 1.96 * sqrt(rate * (1 - rate) * (judged + judged**2 / 120))
    assert found.high - found.expected == pytest.approx(half, rel=0.03)
    assert found.low == pytest.approx(max(0, found.expected - half), abs=0.03 * half)


def test_a_cancelled_repair_tells_nothing_of_fresh_draws():
    made = plan([mended(n, "failed", "cancelled") for n in range(9)])
    assert (made.draws, made.curve.cut) == (9, 0)


def test_draws_that_another_model_answered_are_left_out():
    plain = [one.to_dict() for one in results(*[passed_second] * 9)]
    for trace in plain:
        trace["slices"][1]["model"] = "its fallback"
    made = plan([SamplingResult.from_dict(trace) for trace in plain])
    assert (made.draws, made.others, made.passed_by_others) == (9, 9, 9)
    assert made.curve.at(1).share == pytest.approx(0, abs=1e-4)


def test_after_a_race_nothing_is_forecast_beyond_the_measured_draws():
    raced = [([("passed", 4), ("cancelled", 1)], 0)] * 10
    calls = results(*raced, *[([("failed", 4), ("failed", 4)], None)] * 10)
    plain = [one.to_dict() for one in calls]
    for trace in plain:
        for lane, s in enumerate(trace["slices"]):
            s |= {"subsample": lane, "chain": lane, "depth": 0, "started_at": 0.0}
    calls = [SamplingResult.from_dict(trace) for trace in plain]
    made = plan(calls, 0.9)
    assert (made.curve.raced, made.needed) == (True, None)
    assert [at.draws for at in made.coverage] == [1, 2]
    assert "draw the unsolved ones more often, in one lane." in str(made)
    assert "no number up to 2 is surely enough" in str(plan(calls, 0.4))


async def test_first_draws_made_only_because_repairs_failed_do_not_count():
    # The second lane starts when all draws of the first one have failed, so its items are hard.
    rates = {f"item {n}": 0.5 * (n % 2) for n in range(300)}
    lanes = {"concurrency_budget": 2, "schedule": Staggered(60.0)}
    made = await repaired(rates, times=1, **lanes)
    assert (made.items, made.draws, made.curve.reach) == (300, 300, 1)
    assert made.curve.at(1).low <= 0.25 <= made.curve.at(1).high
    assert made.repairs is None


async def test_repairs_after_failures_in_all_lanes_are_not_compared_with_items_of_one_failure():
    calls = []
    for outcomes in [("passed", "failed")] * 10 + [("failed", "failed", "failed")] * 10:
        trace = trace_of(*[(outcome, 1) for outcome in outcomes], best=outcomes[0] != "passed")
        for s, (lane, depth) in zip(trace["slices"], [(0, 0), (1, 0), (0, 1)], strict=False):
            s |= {"subsample": lane, "chain": lane, "depth": depth, "prompt": int(not depth)}
            s |= {"started_at": float(depth), "ended_at": depth + 1.0}
        calls.append(SamplingResult.from_dict(asked(len(calls), trace)))
    made = plan(calls)
    assert (made.draws, made.left_out, made.curve.reach) == (40, 10, 2)
    # Two first draws can't tell how often a draw passes after two failures.
    assert made.repairs is None


async def test_draws_of_an_escalations_further_stages_are_left_out_and_counted():
    def backend(text):
        return FunctionBackend(lambda _: text, inline=True)

    results = []
    for carry in ("nothing", "best"):
        # Both stages ask one model: it is the stage that tells them apart.
        stages = [Stage(backend("no"), turns=2), Stage(backend("yes"), carry=carry)]
        results += [await Escalate(stages).sample(f"{n}", [yes]) for n in range(5)]
    made = plan(results)
    assert (made.items, made.passed, made.draws) == (5, 5, 20)
    assert (made.others, made.left_out, made.repairs) == (10, 10, None)
    assert made.to_dict()["others"] == 10
    assert made.curve.at(1).share == pytest.approx(0, abs=1e-4)
    assert made.passed_by_others == 5
    assert "20 draws: 5 passed (100 %), 5 of them by another model or stage\n" in str(made)
    assert (made.bottleneck.judged, made.bottleneck.failed) == (20, 20), "of the first stage alone"
    assert "10 draws of other models or stages left out: everything below is for the first" in str(
        made
    )


@pytest.mark.parametrize(
    "selection", ["first", "ordered", Collect(2), Vote(n=3), BestOf(lambda c: len(c.text), n=2)]
)
async def test_where_more_than_one_has_to_pass_it_says_that_it_plans_for_one(selection):
    strategy = RejectionSamplingStrategy(
        FunctionBackend(lambda _: "yes"), loop_budget=3, concurrency_budget=1, selection=selection
    )
    made = plan([await strategy.sample("Say it.", [yes])])
    said = "The run's selection continues after the first pass: everything below is for one"
    assert made.selects == made.to_dict()["selects"] == (said in str(made))
    assert made.selects == (not isinstance(selection, str))


@pytest.mark.parametrize("text", ["all", "none"])
async def test_a_journal_and_its_results_give_the_same_plan(tmp_path, text):
    strategy = RejectionSamplingStrategy(
        says_yes_to_half(), requirements=[yes], loop_budget=6, concurrency_budget=1
    )
    journal = Journal(tmp_path / "run.db", text=text)
    items = [f"{'hopeless' if n % 5 == 0 else 'item'} {n}" for n in range(40)]
    async with sample_many(strategy, items, concurrency=1, journal=journal, in_order=True) as run:
        done = [item async for item in run]
    made = await anyio.to_thread.run_sync(plan, journal, 0.7)
    assert made == await anyio.to_thread.run_sync(plan, str(tmp_path / "run.db"), 0.7)
    assert [item.id for item in made.unsolved] == list(range(0, 40, 5))
    assert made.unsolved[0].label == "hopeless 0"
    same = plan((item.result for item in done), 0.7)
    assert (same.curve, same.needed, same.bottleneck) == (made.curve, made.needed, made.bottleneck)
    assert isclose(same.splits[0].draws, made.splits[0].draws)
    assert made.left_out == 0  # A repetition is a draw, wherever in its chain.


async def test_draws_that_have_not_ended_may_pass_or_not(tmp_path):
    """Failures take so long that the journal has only passes."""

    arrived, all_arrived = count(1), anyio.Event()

    async def reply(request):
        if next(arrived) == 40:
            all_arrived.set()
        await all_arrived.wait()
        if request.messages[0].content.startswith("slow"):
            await anyio.sleep_forever()
        return "yes"

    strategy = RejectionSamplingStrategy(FunctionBackend(reply), loop_budget=1)
    items = [f"{'quick' if n < 10 else 'slow'} {n}" for n in range(40)]
    path = tmp_path / "run.db"
    with anyio.CancelScope() as scope:
        async with sample_many(strategy, items, concurrency=40, journal=path) as run:
            for _ in range(10):
                await anext(run)
            made = await anyio.to_thread.run_sync(plan, path)
            figures = await anyio.to_thread.run_sync(
                lambda: figures_of(read_run(path), read_items(path))
            )
            scope.cancel()
    assert (made.items, made.draws, made.curve.cut, made.under_way) == (40, 10, 30, 30)
    assert made.curve.at(1).low < 0.25
    assert "\n30 items are not finished, in a run that is still running or was killed: " in str(
        made
    )
    assert (figures.begun, figures.done, figures.passed) == (40, 10, 10)
    assert figures.rate_interval[0] < 0.25
    assert figures.coverage.at(1).low < 0.25
    stopped = await anyio.to_thread.run_sync(plan, path)
    assert (stopped.curve.cut, stopped.under_way) == (30, 0)


def test_what_is_no_journal_is_refused(tmp_path):
    (tmp_path / "run.db").write_text("no")
    with pytest.raises(JournalError):
        plan(tmp_path / "run.db")
