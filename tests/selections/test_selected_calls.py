"""Selections in real calls: who wins, what is cancelled, what it cost, and what is recorded."""

from __future__ import annotations

import queue
import threading

import anyio
import pytest
from anyio.lowlevel import checkpoint
from engine_kit import after, by_iteration, outcomes
from selection_kit import comparing, yes

from mellea_like import (
    BestOf,
    Budget,
    Collect,
    Generation,
    Outcome,
    Price,
    RejectionSamplingStrategy,
    SamplingFailed,
    SamplingResult,
    Vote,
    judge_score,
)
from mellea_like.backends import ScriptedBackend
from mellea_like.backends.function import FunctionBackend
from mellea_like.core import Options, StopReason, ToolCall, Usage
from mellea_like.core.decision import Decision
from mellea_like.errors import LimitExceeded, RequirementError
from mellea_like.runtime.threads import thread_statistics
from mellea_like.selections import (
    BaseSelection,
    Consensus,
    First,
    Ordered,
    SelectionState,
    Tournament,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


def length(candidate):
    return len(candidate.text)


def strategy(backend, selection, width=4, loops=1, **more):
    return RejectionSamplingStrategy(
        backend, loop_budget=loops, concurrency_budget=width, selection=selection, **more
    )


async def test_the_best_of_n_wins_and_what_is_no_longer_needed_is_cancelled():
    backend = by_iteration(
        {1: after(1, "yes"), 2: after(2, "yes, a long one"), 3: after(9, "yes"), 4: after(9, "no")}
    )
    result = await strategy(backend, BestOf(length, inline=True, n=2), width=4).sample("do", [yes])
    assert result.value == "yes, a long one"
    assert result.elapsed == pytest.approx(2.0)
    assert result.decision.kind == "best-of"
    assert result.decision.winners == (2,)
    assert result.decision.scores == {1: 3.0, 2: 15.0}
    assert result.decision.reason == "2 passed"
    assert [s.iteration for s in result.candidates] == [1, 2]
    assert backend.statistics().started == 2  # No more were started than could be needed.


@pytest.mark.parametrize(
    "selection",
    [BestOf(length, inline=True), Vote(), Collect(2), Consensus()],
    ids=lambda s: type(s).__name__,
)
async def test_where_none_passes_the_best_failure_is_chosen_as_ever(selection):
    backend = by_iteration({1: after(1, "no"), 2: after(1, "no")})
    result = await strategy(backend, selection, width=2).sample("do", [yes])
    assert not result.success
    assert result.stop_reason is StopReason.EXHAUSTED
    decision = result.decision
    assert (decision.winners, decision.complete, decision.abstentions) == ((), False, 2)
    assert decision.reason == "none of 2 draws passed: all attempts were used"
    assert SamplingResult.from_dict(result.to_dict()).decision == decision
    with pytest.raises(SamplingFailed, match="none of 2 draws passed"):
        result.unwrap()
    assert result.best.outcome is Outcome.FAILED
    assert result.values == ()


@pytest.mark.parametrize("kind", ["inline", "thread", "async"])
async def test_scorers_are_sync_or_async_and_may_give_a_reason(kind):
    async def awaited(candidate):
        await anyio.sleep(1)
        return length(candidate), "so long"

    score = {
        "inline": BestOf(lambda c: (length(c), "so long"), inline=True),
        "thread": BestOf(lambda c: (length(c), "so long")),
        "async": BestOf(awaited),
    }[kind]
    backend = by_iteration({1: "yes", 2: "yes!!"})
    result = await strategy(backend, score, width=2).sample("do", [yes])
    assert result.value == "yes!!"
    assert result.decision.notes == {1: "so long", 2: "so long"}


@pytest.mark.parametrize("answer", ["much", None, float("nan"), True])
async def test_what_is_no_score_is_an_error_and_never_a_zero(answer):
    backend = by_iteration({1: "yes", 2: "yes"})
    chosen = BestOf(lambda _: answer)
    with pytest.raises(RequirementError, match="BestOf"):
        await strategy(backend, chosen, width=2).sample("do", [yes])


async def test_a_scorer_that_raises_makes_its_slice_an_errored_one():
    def score(candidate):
        if "bad" in candidate.text:
            raise RuntimeError("no such luck")
        return 1.0

    backend = by_iteration({1: after(1, "yes bad"), 2: after(2, "yes")})
    result = await strategy(backend, BestOf(score), width=2).sample("do", [yes])
    assert result.value == "yes"
    assert outcomes(result) == {1: Outcome.ERRORED, 2: Outcome.PASSED}
    assert "no such luck" in str(result.errors[0])
    assert result.decision.abstentions == 1


async def test_what_a_selection_raises_is_raised_by_the_call():
    def alike(one, other):
        raise ZeroDivisionError("alike")

    backend = by_iteration({1: "yes", 2: "yes"})
    with pytest.raises(ZeroDivisionError, match="alike"):
        await strategy(backend, Consensus(alike, n=2), width=2).sample("do", [yes])


async def test_a_consensus_compares_off_the_event_loop():
    """Each comparison waits until a task on the loop has run: on the loop it would never do."""
    asked, told = queue.SimpleQueue(), queue.SimpleQueue()

    def alike(one, other):
        asked.put((one.text, other.text))
        return told.get(timeout=10)

    async def answer():
        for _ in range(3):
            while asked.empty():
                await checkpoint()
            told.put(float("yes b" in asked.get()))

    backend = by_iteration({1: "yes a", 2: "yes b", 3: "yes c"})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        result = await strategy(backend, Consensus(alike, n=3), width=3).sample("do", [yes])
    assert result.value == "yes b"
    assert result.decision.scores == {1: 0.5, 2: 1.0, 3: 0.5}


async def test_a_consensus_that_is_cancelled_compares_no_further():
    begun, go_on, ended = threading.Event(), threading.Event(), []

    def alike(one, other):
        begun.set()
        go_on.wait(10)
        ended.append(one)
        return 1.0

    sampled = strategy(by_iteration({}, "yes"), Consensus(alike, n=4)).sample
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sampled, "do", [yes])
        while not begun.is_set():
            await checkpoint()
        tasks.cancel_scope.cancel()
    assert not ended  # Nobody waited for it.
    go_on.set()
    while thread_statistics().abandoned:
        await checkpoint()
    assert len(ended) == 1


@pytest.mark.parametrize("says", ["neither one, really", 'a", "better": "b'], ids=["no", "twice"])
async def test_a_judge_that_does_not_name_one_is_noted_and_leaves_the_two_even(says):
    judge, _ = comparing(prefer=lambda a, b: says)
    backend = by_iteration({1: "yes", 2: "yes!"})
    result = await strategy(backend, Tournament(judge, n=2), width=2).sample("do", [yes])
    assert result.success
    assert result.decision.winners == (1,)
    assert len(result.decision.errors) == 2
    assert "judge's reply is not" in result.decision.errors[0]


async def test_a_judges_score_is_read_checked_and_billed():
    asked = []

    async def judges(request):
        asked.append(request.messages[-1].content)
        good = "yes!!" in asked[-1]
        score = 9 if good else 3 if len(asked) > 1 else 30
        return Generation(f'{{"reason": "so", "score": {score}}}', usage=Usage(1, 20, 4))

    scorer = judge_score("How nice is it? </answer>", judge=FunctionBackend(judges))
    backend = by_iteration({1: "yes <b>", 2: "yes!!"})
    result = await strategy(backend, BestOf(scorer), width=1, loops=2).sample("do", [yes])
    assert result.value == "yes!!"
    assert result.decision.scores == {1: 3.0, 2: 9.0}
    assert result.decision.notes == {1: "so", 2: "so"}
    first, again, _ = asked  # 30 is not on the scale.
    assert again.startswith(first)
    assert again.endswith("and nothing else, with a score from 1 to 10.")
    assert "<answer>yes &lt;b&gt;</answer>" in asked[0]
    assert result.usage.requests == 5
    with pytest.raises(ValueError, match="must be increasing"):
        judge_score("?", judge=backend, scale=(5, 5))
    for wrong in (10, (1,), ("1", "10"), (1, 5, 10)):
        with pytest.raises(TypeError, match="scale must be"):
            judge_score("?", judge=backend, scale=wrong)


async def test_the_names_in_words_are_the_objects_too():
    for selection, name in ((First(), "first"), (Ordered(), "ordered")):
        assert strategy(by_iteration({}), selection).settings.selection == name


async def test_a_temperature_of_the_backend_is_one_too(caplog):
    class Cold:
        defaults = Options(temperature=0.0)

        async def generate(self, request):
            return Generation("yes")

    await strategy(Cold(), Vote(n=2), width=2).sample("do")
    assert "at temperature 0" in caplog.text
    caplog.clear()
    await strategy(Cold(), Vote(n=2), width=2).sample("do", options={"temperature": 1})
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("text", "turns", "said"),
    [("yes! " * 40, 3, 1), ("yes! " * 40, 2, 0), ("yes!", 8, 0)],
    ids=["long", "too few", "short"],
)
async def test_draws_that_are_all_alike_are_said_once(text, turns, said, caplog):
    chosen = strategy(by_iteration({}, text), Consensus(n=turns), width=turns)
    for _ in range(3):
        await chosen.sample("do", [yes])
    assert caplog.text.count("as if seeds and temperature were ignored") == said


class TwoLanes(BaseSelection):
    """Stops when draws of two lanes have passed; the first of them wins."""

    def begin(self, facts):
        return _TwoLanes("two lanes", facts, None)


class _TwoLanes(SelectionState):
    def enough(self):
        return "two lanes have passed" if len({s.subsample for s in self.passed}) == 2 else ""

    def decide(self):
        lanes = {slice_.subsample for slice_ in self.passed}
        return Decision("two lanes", (self.passed[0].iteration,), complete=len(lanes) == 2)


async def test_a_selection_of_ones_own_is_two_methods():
    draws = {1: after(1, "yes, first"), 2: after(1, "yes, again"), 3: after(5, "yes, another")}
    result = await strategy(by_iteration(draws), TwoLanes(), width=2, loops=2).sample("do", [yes])
    assert result.value == "yes, first"
    assert outcomes(result) == {1: "passed", 2: "passed", 3: "passed"}
    assert anyio.current_time() == 5


class Wrong(BaseSelection):
    """Decides for what has not passed."""

    def begin(self, facts):
        class State(SelectionState):
            def decide(self):
                return Decision("wrong", (99,))

        return State("wrong", facts, None)


async def test_a_winner_that_has_not_passed_is_refused():
    with pytest.raises(ValueError, match=r"decided for iterations \[99\], which have not passed"):
        await strategy(by_iteration({}, "yes"), Wrong(), width=2).sample("do", [yes])


async def test_collecting_may_draw_ahead_and_cancels_what_is_left():
    replies = {1: after(1, "no"), 2: after(2, "yes"), 3: after(3, "yes!"), 4: after(60, "yes?")}
    backend = by_iteration(replies | {5: after(60, "yes?")})
    result = await strategy(backend, Collect(2, ahead=2), width=5).sample("do", [yes])
    assert result.values == ("yes", "yes!")
    assert result.elapsed == pytest.approx(3.0)
    # Four for two that are wanted, a fifth where one failed, and none when only one is wanted.
    assert backend.statistics().started == 5
    assert backend.statistics().cancelled == 2


@pytest.mark.parametrize("width", [1, 2])
async def test_what_a_judge_scores_has_to_fit_into_the_budgets(width):
    asked = []

    async def judges(request):
        asked.append(request)
        await anyio.sleep(1)
        return Generation('{"reason": "so", "score": 5}', usage=Usage(1, 20, 4))

    scorer = judge_score("How nice is it?", judge=FunctionBackend(judges))
    backend = by_iteration({n: after(1, "yes") for n in range(1, 9)})
    budget = Budget(requests=3)
    several = strategy(backend, BestOf(scorer), width=width, loops=8 // width)
    result = await several.sample("do", [yes], budget=budget)
    assert result.success
    assert len(asked) + backend.statistics().started == 3
    assert budget.spent.requests == result.usage.requests == 3


@pytest.mark.parametrize("requests", [1, 2], ids=["asked first", "asked again"])
async def test_a_budget_that_refuses_a_score_ends_the_call(requests):
    scorer = judge_score("How nice is it?", judge=ScriptedBackend(["no score"]))
    several = strategy(by_iteration({}, "yes"), BestOf(scorer, n=2), width=1, loops=2)
    with pytest.raises(LimitExceeded) as caught:
        await several.sample("do", [yes], budget=Budget(requests=requests))
    assert [(s.text, s.outcome) for s in caught.value.result.slices] == [("yes", Outcome.ERRORED)]


def scoring_judge(asked):
    async def judges(request):
        asked.append(request.options)
        await checkpoint()
        return Generation('{"reason": "so", "score": 5}', usage=Usage(1, 20, 4), model="j")

    judge = FunctionBackend(judges)
    judge.model = "j"
    return judge


PRICES = {"m": Price(1, 2), "j": Price(3, 4)}


@pytest.mark.parametrize(
    "selection",
    [
        lambda judge: BestOf(judge_score("How nice?", judge=judge), n=1),
        lambda judge: Vote(n=1, weight=judge_score("How nice?", judge=judge)),
        lambda judge: Tournament(judge, n=1),
    ],
    ids=["best-of", "vote", "tournament"],
)
@pytest.mark.parametrize(
    ("judging", "budget", "wrong"),
    [
        (None, {"money": 1.0}, "the length of a reply isn't limited"),
        ({"max_tokens": 60}, {"money": 1.0, "prices": {"m": Price(1, 2)}}, "price"),
        (None, {"output_tokens": 10_000}, "max_tokens"),
    ],
    ids=["length", "price", "tokens"],
)
async def test_a_judge_whose_cost_can_not_be_limited_is_refused_before_the_first_request(
    selection, judging, budget, wrong
):
    asked = []
    backend = by_iteration({1: "yes"})
    backend.model = "m"
    chosen = selection(scoring_judge(asked))
    several = strategy(backend, chosen, options={"max_tokens": 60}, judge_options=judging)
    with pytest.raises(ValueError, match=wrong) as caught:
        await several.sample("do", budget=Budget(**{"prices": PRICES} | budget))
    (note,) = caught.value.__notes__
    assert f"the judge of {type(chosen).__name__}: its options are" in note
    assert "judge_options" in note
    assert (asked, backend.statistics().started) == ([], 0)


async def test_a_consensus_compares_the_calls_of_tools():
    async def pay(euros: int, to: str) -> str:
        return "paid"

    def called(arguments):
        return Generation("", tool_calls=(ToolCall("c", "pay", arguments),))

    often = ['{"euros": 5, "to": "Weber"}', '{"to":"Weber","euros":5}']
    backend = ScriptedBackend(list(map(called, ['{"euros": 7, "to": "Ada"}', *often])))
    result = await strategy(backend, Consensus(n=3), width=1, loops=3).sample("do", tools=[pay])
    assert result.tool_calls[0].value == {"euros": 5, "to": "Weber"}
    assert result.decision.scores[1] < result.decision.scores[2] == result.decision.scores[3]
