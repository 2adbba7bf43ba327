"""Comparisons by a judge: what goes wrong in them costs what it must, and never the call."""

from __future__ import annotations

import re

import anyio
import pytest
from engine_kit import after, by_iteration
from selection_kit import comparing, yes

from mellea_like import Budget, RejectionSamplingStrategy, judge_score
from mellea_like.backends.function import FunctionBackend
from mellea_like.core import StopReason
from mellea_like.core.validation import Candidate
from mellea_like.errors import (
    AuthenticationFailed,
    BackendUnavailable,
    Blocked,
    CircuitOpen,
    HookError,
    InvalidRequest,
)
from mellea_like.hooks import Plugin, hook
from mellea_like.hooks.types import HookType
from mellea_like.limits import Retry
from mellea_like.selections import BaseSelection, Decision, SelectionState, Tournament

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]

ONCE = Retry(attempts=1, trip_after=None)
"""So that each comparison asks, whatever came of those before."""


def strategy(backend, judge, width=4, loops=1, n=4, **more):
    chosen = Tournament(judge, n=n, rounds=more.pop("rounds", "knockout"))
    return RejectionSamplingStrategy(
        backend, loop_budget=loops, concurrency_budget=width, selection=chosen, **more
    )


def four():
    return by_iteration({i: after(1, "yes" + "!" * i) for i in range(1, 5)})


def raising(error):
    return raising_at(1, error)


def raising_at(first, error):
    async def act(request, asked):
        if asked >= first:
            raise error

    return act


@pytest.mark.parametrize(
    "error",
    [
        KeyError("better"),
        ZeroDivisionError("the judge's own bug"),
        InvalidRequest("too long", status=400),
        BackendUnavailable("overloaded"),
        ExceptionGroup("the judge's own group", [OSError("one"), OSError("two")]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_judge_raises_is_noted_and_leaves_the_two_even(error, caplog):
    backend, asked = comparing(raising(error))
    result = await strategy(four(), backend, retry=ONCE).sample("do", [yes])
    assert result.stop_reason is StopReason.PASSED
    assert result.decision.winners == (1,)  # All even: the lowest rank.
    assert len(result.decision.errors) == len(asked) == 6
    assert {c.points for c in result.decision.comparisons} == {0.5}
    assert result.usage.requests == 4 + 6
    assert "6 comparisons failed; the first" in caplog.text


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize(
    "error",
    [
        AuthenticationFailed("wrong key", status=401),
        InvalidRequest("unknown model", status=404),
        CircuitOpen("too many have failed"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_of_the_judge_that_lasts_ends_comparisons(error, width):
    async def act(request, asked):
        if "yes!!!" in request.messages[-1].content:
            await anyio.sleep(1)
            raise error

    backend, asked = comparing(act)
    lasting = strategy(four(), backend, width=width, loops=4 // width, rounds="pivots")
    result = await lasting.sample("do", [yes])
    assert (result.success, result.stop_reason) == (True, StopReason.ERROR)
    # One pair was compared in both orders before; the others in flight are not asked again.
    assert [(c.first, c.second) for c in result.decision.comparisons] == [(1, 2)]
    assert result.decision.winners == (2,)
    assert len(asked) == (3 if width == 1 else 6)
    assert result.decision.errors[0] == str(error)
    assert len(result.decision.errors) == 1


async def test_a_pair_that_was_compared_in_one_order_alone_does_not_count():
    backend, asked = comparing(raising_at(4, AuthenticationFailed("wrong key", status=401)))
    lasting = strategy(four(), backend, width=1, loops=4, rounds="pivots")
    result = await lasting.sample("do", [yes])
    assert len(asked) == 4
    assert [(c.first, c.second) for c in result.decision.comparisons] == [(1, 2)]
    assert result.decision.winners == (2,)


@pytest.mark.parametrize("own", [True, False], ids=["the call's time", "the caller's"])
async def test_a_judge_that_wraps_its_cancellation_leaves_no_group(own):
    async def act(request, asked):
        try:
            await anyio.sleep(60)
        except anyio.get_cancelled_exc_class() as exc:
            raise BaseExceptionGroup("the judge's", [exc, OSError("cleanup")]) from None

    backend, _ = comparing(act)
    left = None
    with anyio.move_on_after(100 if own else 3) as scope:
        try:
            result = await strategy(four(), backend, timeout=5).sample("do", [yes])
            assert result.success
        except BaseException as exc:
            left = exc
            raise
    assert scope.cancelled_caught is not own
    assert (left is None) is own
    assert not isinstance(left, BaseExceptionGroup)


async def test_an_interrupt_in_a_judge_leaves_as_it_is():
    class Interrupt(BaseException):
        pass

    backend, _ = comparing(raising(Interrupt()))
    with pytest.raises(Interrupt):
        await strategy(four(), backend).sample("do", [yes])


@pytest.mark.parametrize("rounds", ["knockout", "pivots"])
async def test_the_time_ends_comparisons_and_what_was_compared_counts(rounds):
    async def act(request, asked):
        if asked > 4:
            await anyio.sleep(60)

    backend, _ = comparing(act)
    timed = strategy(four(), backend, timeout=5, rounds=rounds)
    result = await timed.sample("do", [yes])
    assert result.elapsed == pytest.approx(5)
    assert (result.success, result.stop_reason) == (True, StopReason.TIMEOUT)
    assert result.decision.reason == "4 passed"
    assert len(result.decision.comparisons) == 2
    assert result.value == "yes!!" if rounds == "knockout" else "yes!!!"
    assert "time ran out before all comparisons were made" in result.decision.errors[0]


async def test_a_comparison_takes_no_longer_than_an_iteration_may():
    async def act(request, asked):
        if asked == 1:
            await anyio.sleep_forever()

    backend, _ = comparing(act)
    result = await strategy(four(), backend, iteration_timeout=3).sample("do", [yes])
    assert result.value == "yes!!!!"
    (error,) = result.decision.errors
    assert re.fullmatch(r"comparing two draws took longer than 3 s", error)


@pytest.mark.parametrize("requests", [4, 6, 8])
async def test_a_budget_ends_comparisons_and_says_so_once(requests):
    backend, asked = comparing()
    spending = Budget(requests=requests)
    result = await strategy(four(), backend).sample("do", [yes], budget=spending)
    assert (result.success, result.stop_reason) == (True, StopReason.BUDGET)
    assert result.stop_detail == result.decision.errors[0]
    assert result.usage.requests == requests == 4 + len(asked)
    assert len(result.decision.comparisons) == (requests - 4) // 2
    assert len(result.decision.errors) == 1
    assert "budget" in result.decision.errors[0]


class League(BaseSelection):
    """Somebody's own: everybody meets everybody, after a pause."""

    def __init__(self, pause):
        self.pause = pause

    def begin(self, facts):
        return LeagueState(self.pause, facts)


class LeagueState(SelectionState):
    def __init__(self, pause, facts):
        super().__init__("league", facts, n=3)
        self.judge = facts.judge
        self.pause, self.points = pause, [0.0] * 3

    async def settle(self, comparisons):
        await anyio.sleep(self.pause)
        for (a, b), points in (await comparisons.compare([(0, 1), (0, 2), (1, 2)], "x")).items():
            self.points[a] += points
            self.points[b] += 1 - points

    def decide(self):
        best = max(range(3), key=self.points.__getitem__)
        return Decision(self.kind, (self.passed[best].iteration,), self.reason)


async def test_a_selection_of_ones_own_may_wait_and_compare():
    judge, asked = comparing(model="stern")
    three = by_iteration({i: after(1, "yes" + "!" * i) for i in range(1, 4)})
    own = RejectionSamplingStrategy(
        three, judge=judge, loop_budget=1, concurrency_budget=3, selection=League(10)
    )
    result = await own.sample("do", [yes])
    assert result.value == "yes!!!"
    assert (result.elapsed, len(asked)) == (1 + 10 + 2, 6)
    assert (result.decision.usage.requests, result.decision.model) == (6, "stern")
    assert result.usage.requests == 3 + 6


class Scored(BaseSelection):
    """Somebody's own: the first draw wins, and is scored when all have ended."""

    def __init__(self, score):
        self.score = score

    def begin(self, facts):
        return ScoredState(self.score, facts)


class ScoredState(SelectionState):
    def __init__(self, score, facts):
        super().__init__("scored", facts, n=2)
        self.score = score

    async def settle(self, comparisons):
        first = self.passed[0]
        reply = first.generation
        asked = Candidate(reply.text, first.value, reply, first.context, first.action)
        self.scored = await self.score(asked)

    def decide(self):
        score, why = self.scored
        first = self.passed[0].iteration
        return Decision(self.kind, (first,), why, scores={first: score})


async def test_a_judge_asked_while_a_selection_settles_is_retried_and_paid_by_the_call():
    requests = []

    async def judge(request):
        requests.append(request)
        if len(requests) == 1:
            raise BackendUnavailable("overloaded")
        return '{"reason": "it is warm", "score": 7}'

    score = judge_score("How warm?", judge=FunctionBackend(judge, can_judge=True))
    two = by_iteration({i: after(i, "yes") for i in (1, 2)})
    own = RejectionSamplingStrategy(
        two, loop_budget=1, concurrency_budget=2, selection=Scored(score), options={"seed": 1}
    )
    budget = Budget(requests=10)
    result = await own.sample("do", [yes], budget=budget)
    assert (result.stop_detail, result.decision.scores) == ("", {1: 7.0})
    assert result.decision.usage.requests == len(requests) == 2
    assert result.usage.requests == budget.spent.requests == 2 + 2
    assert {request.meta.sampling_id for request in requests} == {result.sampling_id}
    assert requests[0].options.seed is not None  # As of the call's other judges.


async def test_a_selection_that_is_cancelled_has_no_winner():
    ended = []

    @hook(HookType.SAMPLING_LOOP_END)
    async def note(payload):
        ended.append((payload.success, payload.decision, len(payload.slices)))

    three = by_iteration({i: after(1, "yes") for i in range(1, 4)})
    judge, asked = comparing()
    own = RejectionSamplingStrategy(
        three,
        judge=judge,
        loop_budget=1,
        concurrency_budget=3,
        selection=League(10),
        plugins=[note],
    )
    with anyio.move_on_after(5) as scope:
        await own.sample("do", [yes])
    assert scope.cancelled_caught
    assert ended == [(False, None, 3)]
    assert not asked


class Stern(Plugin):
    """Refuses to have anything compared."""

    @hook(HookType.GENERATION_PRE_CALL)
    async def before(self, payload):
        if payload.purpose == "judge":
            raise Blocked("no judges today")


async def test_a_plugin_that_blocks_comparisons_ends_them():
    backend, asked = comparing()
    result = await strategy(four(), backend, plugins=[Stern()]).sample("do", [yes])
    assert result.success
    assert asked == []
    assert "no judges today" in result.decision.errors[0]
    assert not isinstance(result.decision.errors[0], HookError)


async def test_who_cannot_judge_is_refused_before_the_first_draw():
    async def generate(request):
        raise AssertionError("it is asked")

    backend = FunctionBackend(generate)
    with pytest.raises(ValueError, match="FunctionBackend can't judge: pass a backend"):
        await strategy(backend, None).sample("do", [yes])


@pytest.mark.parametrize("at", [4.9, 5, 5.5])
async def test_a_native_cancellation_leaves_as_one_even_if_the_time_is_up_as_well(at):
    asyncio = pytest.importorskip("asyncio")
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        pytest.skip("only asyncio cancels natively")

    async def act(request, asked):
        try:
            await anyio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)

    backend, _ = comparing(act)
    call = strategy(four(), backend, timeout=5).sample("do", [yes])
    task = asyncio.ensure_future(call)
    asyncio.get_running_loop().call_later(at, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
