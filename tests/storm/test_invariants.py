"""Whatever replies, faults, delays, hooks and cancellations come: the engine keeps its rules.

Hypothesis makes up calls and runs each in virtual time, on asyncio and on trio. With ``STORM=1`` in
the environment it makes up many more, and never the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import assume, example, given
from hypothesis import strategies as st
from oracle_world import Ask, Foreign, stray
from steps import Stepper, run_stepped
from storm import INLINE, STAYS, Draw, Leaving, Rig, Told, check_record, handler, is_good
from storm_run import Ran, Scene, run_scene

from examples import examples
from mellea_like import (
    BestOf,
    Collect,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    Vote,
)
from mellea_like.core.result import SamplingResult, StopReason
from mellea_like.core.slice import Outcome, Slice
from mellea_like.errors import BadVerdict, Blocked, HookError, SamplingFailed, SamplingTimeout
from mellea_like.hooks.types import HookMode, HookType
from mellea_like.limits import Retry
from mellea_like.schedules.giving_up import FEWEST, bug_of, times_seen
from mellea_like.selections import BaseSelection, Consensus, Tournament

pytestmark = pytest.mark.timeout(3600)
storm = examples(30, 400)


class FatalCheck(Exception):
    """What a validator raises that must end the call."""


class ReportFailed(Exception):
    """What a progress callback raises."""


# --- what a call is made of ---------------------------------------------------------------------

SECONDS = st.sampled_from([0.0, 0.0, 0.5, 1.0, 1.5, 2.0, 5.0])
KINDS = ["good", "bad", "bad", "bad", "garbled", "transient", "permanent", "foreign", "group"]
DRAWS = st.builds(
    Draw,
    st.sampled_from([*KINDS, "stray", "messy"]),
    SECONDS,
    st.sampled_from([0.0, 0.0, 0.0, 0.5, 3.0]),
)
SLOW = 3.0
ASKED = {HookType.GENERATION_PRE_CALL, HookType.GENERATION_POST_CALL, HookType.GENERATION_ERROR}


@dataclass(frozen=True)
class Act:
    """What one handler of a plugin does, and when."""

    hook: HookType
    mode: HookMode
    what: str
    """``look``, ``dawdle``, ``fail``, ``block``, ``stray``, ``budget`` or ``require``."""


@st.composite
def acts(draw: st.DrawFn) -> Act:
    hook = draw(st.sampled_from(HookType))
    whats = ["look", "look", "dawdle", "fail", "block", "stray"]
    if hook is HookType.SAMPLING_LOOP_START:
        whats += ["budget"] * 4
    if hook is HookType.VALIDATION_PRE_CHECK:
        whats += ["require"] * 4
    return Act(hook, draw(st.sampled_from(HookMode)), draw(st.sampled_from(whats)))


LEAVINGS = st.one_of(
    st.just(STAYS),
    st.builds(Leaving, st.just("scope"), st.integers(1, 60)),
    st.builds(Leaving, seconds=st.sampled_from([0.0, 0.5, 1.0, 1.25, 3.0])),
    st.builds(Leaving, st.just("native"), st.integers(1, 60), st.sampled_from([0, 0, 1, 2, 5])),
)


@dataclass(frozen=True)
class Call:
    """A call, made up."""

    loop_budget: int
    concurrency: int
    draws: tuple[Draw, ...]
    strategy: type = RejectionSamplingStrategy
    verdict: Draw = field(default=Draw())
    checks: tuple[str, ...] = ()
    acts: tuple[Act, ...] = ()
    told: bool = True
    report: str = ""
    selection: str = "first"
    timeout: float | None = None
    iteration_timeout: float | None = None
    validate_all: bool | None = None
    retry: Retry | None = None
    leaving: Leaving = STAYS

    @property
    def budget(self) -> int:
        """The loop budget after plugins have had their say."""
        granted = any(a.what == "budget" and a.mode is HookMode.SEQUENTIAL for a in self.acts)
        return 3 if granted else self.loop_budget

    @property
    def ordered(self) -> bool:
        return self.selection == "ordered"

    @property
    def several(self) -> bool:
        """Whether two have to pass, as far as there are so many turns."""
        return self.selection in SELECTIONS

    @property
    def turns(self) -> int:
        return self.budget * self.concurrency

    @property
    def dawdles(self) -> bool:
        return self.report == "dawdle" or any(a.what == "dawdle" for a in self.acts)

    @property
    def has_scopes(self) -> bool:
        """Whether subsamples have cancel scopes of their own inside.

        When such a scope ends cancelled, anyio 4.16 counts its cancellation of the subsample as one
        of the caller's task, and loses a native one that strikes in the same step.
        """
        messy = any(draw.kind == "messy" for draw in self.draws)
        return messy or self.iteration_timeout is not None or "hasty" in self.checks


SELECTIONS: dict[str, BaseSelection] = {
    "best": BestOf(lambda candidate: len(candidate.text), n=2, inline=True),
    "vote": Vote(n=3),
    "collect": Collect(2),
    "consensus": Consensus(n=2),
    "tournament": Tournament(n=2),
}


def calls(selections: Sequence[str], draws: Any, checks: Any) -> Any:
    """Make up calls that end as one of some selections says."""
    return st.builds(
        Call,
        strategy=st.sampled_from(
            [RejectionSamplingStrategy, RepairTemplateStrategy, MultiTurnStrategy]
        ),
        loop_budget=st.integers(1, 3),
        concurrency=st.integers(1, 4),
        draws=st.lists(draws, min_size=12, max_size=12).map(tuple),
        verdict=st.builds(
            Draw, st.sampled_from(["good", "good", "bad", "transient", "stray"]), SECONDS
        ),
        checks=st.lists(checks, max_size=3).map(tuple),
        acts=st.lists(acts(), max_size=3).map(tuple),
        told=st.booleans(),
        report=st.sampled_from(["", "", "", "look", "dawdle", "fail", "stray"]),
        selection=st.sampled_from(selections),
        timeout=st.sampled_from([None, None, None, 1.0, 2.5]),
        iteration_timeout=st.sampled_from([None, None, 0.75, 1.0, 2.0]),
        validate_all=st.sampled_from([None, None, True]),
        leaving=LEAVINGS,
    )


CHECKS = ["awaited", "awaited", "judged", "hasty", "broken", "lax", "fatal", "odd"]
CALLS = calls(["first", "ordered"], DRAWS, st.sampled_from(CHECKS))
PASSING = st.one_of(st.builds(Draw, st.just("good"), SECONDS), DRAWS)
SELECTING = calls([*SELECTIONS], PASSING, st.sampled_from([*["awaited"] * 6, *CHECKS]))


async def is_good_later(candidate: Any) -> bool:
    await anyio.sleep(0.5)
    return is_good(candidate)


async def raises(candidate: Any) -> bool:
    await checkpoint()
    raise Foreign("the validator is broken")


async def raises_at_last(candidate: Any) -> bool:
    await anyio.sleep(0.25)
    raise FatalCheck("the validator is broken for good")


async def says_maybe(candidate: Any) -> Any:
    await checkpoint()
    return "maybe"


def requirement(what: str) -> Requirement:
    if what == "judged":
        return Requirement("the judge likes it")
    if what == "hasty":
        return Requirement(what, is_good_later, timeout=0.25)
    if what in {"broken", "lax"}:
        return Requirement(what, raises, on_error="fail" if what == "lax" else "error")
    if what == "fatal":
        return Requirement(what, raises_at_last, on_error="raise")
    return Requirement(what, says_maybe if what == "odd" else is_good_later)


@dataclass
class Played:
    """A made-up call, about to be run."""

    call: Call
    scene: Scene
    failed: list[tuple[HookType, float]]
    """Where and when a sequential handler failed."""
    reported: list[float]
    """When the progress callback failed."""


def play(call: Call) -> Played:  # noqa: C901 (a table of what handlers do)
    rig = Rig({i + 1: draw for i, draw in enumerate(call.draws)}, verdict=call.verdict)
    told = Told()
    failed: list[tuple[HookType, float]] = []
    reported: list[float] = []
    start = anyio.current_time()

    def act_of(act: Act) -> Any:
        async def do(payload: Any) -> Any:
            await (anyio.sleep(SLOW) if act.what == "dawdle" else checkpoint())
            if act.what in {"fail", "block", "stray"} and act.mode is HookMode.SEQUENTIAL:
                failed.append((act.hook, anyio.current_time() - start))
            if act.what == "fail":
                raise Foreign("the plugin is broken")
            if act.what == "block":
                raise Blocked("not today")
            if act.what == "stray":
                raise stray()
            if act.what == "budget":
                return payload.model_copy(update={"loop_budget": 3})
            if act.what == "require":
                more = (*payload.requirements, requirement("awaited"))
                return payload.model_copy(update={"requirements": more})
            return None

        return handler(told, act.hook, act.mode, do)

    async def report(_: Slice) -> None:
        with told.at_work():
            await (anyio.sleep(SLOW) if call.report == "dawdle" else checkpoint())
            if call.report in {"fail", "stray"}:
                reported.append(anyio.current_time() - start)
                raise ReportFailed if call.report == "fail" else stray()

    plugins: list[Any] = [act_of(act) for act in call.acts]
    strategy = call.strategy(
        rig,
        loop_budget=call.loop_budget,
        concurrency_budget=call.concurrency,
        plugins=[told, *plugins] if call.told else plugins,
        selection=SELECTIONS.get(call.selection, call.selection),
        timeout=call.timeout,
        iteration_timeout=call.iteration_timeout,
        validate_all=call.validate_all,
        retry=call.retry,
    )
    checks = [INLINE, *map(requirement, call.checks)]

    async def sample() -> SamplingResult[str]:
        return await strategy.sample(Ask(), checks, on_slice=report if call.report else None)

    scene = Scene(rig, told, sample, call.budget, call.concurrency, "")
    return Played(call, scene, failed, reported)


# --- what must hold -----------------------------------------------------------------------------


def check(played: Played, ran: Ran) -> None:
    call, told = played.call, played.scene.told
    assert told is not None
    if call.leaving.mode == "scope" or not call.has_scopes:
        check_leaving(call.leaving, ran)
    record = None if ran.result is None else ran.result.slices
    if call.told:
        assert len(told.ends) == told.begun <= 1
        if told.ends:
            record = told.ends[0].slices
        check_told(call, told, ran, record or ())
    if record is not None:
        check_record(
            record,
            played.scene.rig,
            loop_budget=call.budget,
            concurrency=call.concurrency,
            hooked=bool(call.acts),
            pooled=call.several,
            several=call.several,
        )
        check_stop(call, record, played.scene.rig)
        check_drain(call, record, ran)
    if ran.result is not None:
        check_result(played, ran.result)
    elif not ran.cancelled:
        assert ran.error is not None
        check_error(played, ran.error, record)


def check_leaving(leaving: Leaving, ran: Ran) -> None:
    """Rule 11: who leaves is told so, and nobody else."""
    if ran.cancelled:
        assert ran.hit or ran.ended >= leaving.seconds
        return
    assert not ran.hit or ran.steps - ran.after <= 2
    assert ran.ended <= leaving.seconds


def check_told(call: Call, told: Told, ran: Ran, record: tuple[Slice, ...]) -> None:
    """Rules 5 and 10: what plugins are told is what happened."""
    assert told.begun == 1 or ran.cancelled or ran.hit
    delivered, recorded = ([s.iteration for s in slices] for slices in (told.delivered, record))
    assert delivered == recorded[: len(delivered)]
    assert delivered == recorded or call.dawdles
    if not told.ends:
        return
    end = told.ends[0]
    if ran.result is not None:
        assert end.slices == ran.result.slices
        assert end.success == ran.result.success
        assert end.stop_reason == ran.result.stop_reason
        assert end.error is None
    elif not ran.cancelled:
        assert end.error is ran.error
    judged = [s for s in record if s.outcome in {Outcome.PASSED, Outcome.FAILED}]
    assert end.iterations_used >= len(judged)


def check_stop(call: Call, record: tuple[Slice, ...], rig: Rig) -> None:
    """Rules 3 and 4: after the last pass needed nothing starts, and the rest is cancelled."""
    passed = [s for s in record if s.passed]
    needed = 2 if call.several else 1
    if call.ordered or len(passed) < needed:
        return
    decided = passed[needed - 1].ended_at
    started = rig.seen[0].at - min(s.started_at for s in record)
    for slice_ in record:
        assert slice_.started_at <= decided
    if not call.acts:
        draws = (seen for seen in rig.seen if seen.purpose != "compare")
        late = [seen.at - started - decided for seen in draws]
        assert max(late) < 1e-6, f"requests after the win, by seconds: {late}"


def check_drain(call: Call, record: tuple[Slice, ...], ran: Ran) -> None:
    """Rule 12: after the last iteration, plugins have 2 s, and the last hook its own time."""
    late = {HookType.SAMPLING_LOOP_END, HookType.SAMPLING_REPAIR}
    awaited = [a for a in call.acts if a.hook in late and a.mode is not HookMode.BACKGROUND]
    last = max((s.ended_at for s in record), default=math.inf)
    hooks = SLOW * sum(a.what == "dawdle" for a in awaited)
    if call.selection == "tournament":  # Two in both orders, each seen by hooks.
        requests = sum(a.what == "dawdle" and a.hook in ASKED for a in call.acts)
        hooks += 2 * (call.verdict.delay + SLOW * requests)
    assert ran.ended <= last + 2 + hooks


def check_result(played: Played, result: SamplingResult[Any]) -> None:
    """Rules 4, 7, 8 and 9: the right slice is the best, and a result was right at all."""
    call, slices = played.call, result.slices
    passed = [s for s in slices if s.passed]
    enough = len(passed) >= 2 if call.selection == "collect" else bool(passed)
    assert result.success == enough
    assert result.errors == tuple(s.error for s in slices if s.error is not None)
    assert result.undelivered == 0 or call.dawdles
    if call.several:
        check_decision(call, result, passed)
    if enough:
        rank = min(passed, key=lambda s: (s.depth, s.subsample))
        if not call.several:
            assert result.best is (rank if call.ordered else passed[0])
        assert result.unwrap() == "GOOD"
        assert not {"broken", "lax", "fatal", "odd", "hasty"} & set(call.checks)
        check_stop_reason(call, result)
        return
    assert result.best.outcome is (Outcome.PASSED if passed else Outcome.FAILED)
    assert result.value is None
    with pytest.raises(SamplingFailed) as caught:
        result.unwrap()
    assert caught.value.__cause__ is next(iter(result.errors), None)
    late = HookType.SAMPLING_LOOP_END
    assert all(hook is late for hook, _ in played.failed), "it failed open"
    assert not played.reported, "no report was raised"
    check_stop_reason(call, result)


def check_stop_reason(call: Call, result: SamplingResult[Any]) -> None:
    """Rule 7: it says why the call stopped, whether there is an answer or not."""
    slices, reason = result.slices, result.stop_reason
    enough = len(result.candidates) >= (min(2, call.turns) if call.several else 1)
    compares = call.selection == "tournament"
    # A vote of three has enough with two only if no further one could overtake the first.
    votes = call.selection == "vote" and len(result.candidates) < min(3, call.turns)
    if result.success and enough and not (call.ordered or compares or votes):
        assert reason == StopReason.PASSED
    elif reason == StopReason.PASSED:
        assert result.success
        assert enough or call.selection == "vote"
    elif reason == StopReason.TIMEOUT:
        assert call.timeout is not None
        assert result.elapsed >= call.timeout
    elif reason == StopReason.HOPELESS:
        assert not call.ordered
        assert same_bug(slices) >= max(call.concurrency, FEWEST)
    elif reason == StopReason.ERROR:
        compared = compares and result.decision is not None and result.decision.errors
        assert compared or not all(s.may_continue for s in slices) or same_bug(slices) >= FEWEST
    else:
        assert reason == StopReason.EXHAUSTED
        assert len(slices) == call.turns
        assert all(s.may_continue for s in slices)
        assert all(s.outcome is not Outcome.CANCELLED for s in slices)


def check_decision(call: Call, result: SamplingResult[Any], passed: Sequence[Slice]) -> None:
    """A selection has decided among what passed, and says on what."""
    decision = result.decision
    assert (decision is not None) == (call.selection in SELECTIONS)
    if decision is None:
        return
    if not passed:
        assert (decision.winners, decision.complete) == ((), False)
        return
    by_id = {s.iteration: s for s in passed}
    assert decision.reason
    assert result.best is by_id[decision.winners[0]]
    assert decision.heard <= by_id.keys()
    assert len(decision.winners) == (min(2, len(passed)) if call.selection == "collect" else 1)
    # All draws that pass are alike: of those that were heard, the one of lowest rank wins.
    heard = passed[: 2 if call.turns > 1 else 1]
    if call.selection in {"best", "vote", "consensus"}:
        assert result.best is min(heard, key=lambda s: s.rank)
    if call.selection == "collect":
        assert [by_id[winner] for winner in decision.winners] == list(heard)
    if call.selection == "tournament" and decision.comparisons:
        assert all(c.points == 0.5 for c in decision.comparisons)
    last = max((s.ended_at for s in heard), default=0.0)
    before = [s for s in result.slices if s.ended_at < last]
    no_say = {Outcome.FAILED, Outcome.ERRORED}
    assert decision.abstentions >= sum(s.outcome in no_say for s in before)


def same_bug(slices: Sequence[Slice]) -> int:
    """How many slices errored by the bug of a validator that never came to a verdict."""
    bugs = [bug for s in slices if (bug := bug_of(s)) is not None]
    return max((times_seen(bug, slices) for bug in bugs), default=0)


def check_error(played: Played, error: BaseException, record: tuple[Slice, ...] | None) -> None:
    """Rules 7, 8 and 17: what is raised is what happened, and no group is of our making."""
    call = played.call
    if isinstance(error, HookError):
        when = min((at for _, at in played.failed), default=math.inf)
        assert played.failed or call.dawdles
        assert error.result is not None
        assert record is None or error.result.slices == record
        if record and not (call.ordered or call.several):
            assert all(s.ended_at >= min(when, SLOW) for s in record if s.passed)
    elif isinstance(error, SamplingTimeout):
        assert call.timeout is not None
        assert error.result is not None
        assert all(s.outcome in {Outcome.ERRORED, Outcome.CANCELLED} for s in error.result.slices)
    elif isinstance(error, ReportFailed) or (call.report == "stray" and played.reported):
        assert played.reported
    elif isinstance(error, FatalCheck):
        assert "fatal" in call.checks
    elif isinstance(error, BadVerdict):
        assert "odd" in call.checks
    else:
        assert isinstance(error, Exception)
        assert any("sampling" in note for note in error.__notes__)
        if record is not None:
            if same_bug(record) < max(call.concurrency, FEWEST):
                assert all(s.outcome is Outcome.ERRORED for s in record)
            assert error is next(s.error for s in record if s.error is not None)


def run_call(call: Call, backend: Any) -> None:
    async def main(stepper: Stepper) -> None:
        played = play(call)
        leaving = call.leaving
        ran = await run_scene(
            played.scene, stepper, leaving.mode, leaving.step, leaving.again, leaving.seconds
        )
        check(played, ran)

    run_stepped(main, backend)


@storm
@given(CALLS)
def test_a_call_keeps_the_rules_on_asyncio(call):
    run_call(call, "asyncio")


@storm
@given(CALLS)
def test_a_call_keeps_the_rules_on_trio(call):
    assume(call.leaving.mode == "scope")
    run_call(call, "trio")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@examples(25, 400)
@given(SELECTING)
def test_a_call_that_selects_keeps_the_rules(backend, call):
    assume(backend == "asyncio" or call.leaving.mode == "scope")
    # Two that must pass are refused where one can be drawn.
    assume(call.turns > 1 or call.selection not in {"best", "collect"})
    run_call(call, backend)


# --- against a model ----------------------------------------------------------------------------

PLAIN = st.builds(
    Draw,
    st.sampled_from(["good", "bad", "bad", "garbled", "transient", "permanent"]),
    st.integers(1, 2000).map(lambda n: n / 64),
)


def expected(call: Call) -> tuple[int | None, dict[int, Outcome]]:
    """What a page of arithmetic says: the winner's id, and the outcome of every iteration."""
    ends: dict[int, tuple[float, float, str]] = {}
    for chain in range(call.concurrency):
        at = 0.0
        for depth in range(call.loop_budget):
            iteration = chain * call.loop_budget + depth + 1
            draw = call.draws[iteration - 1]
            ends[iteration] = at, at + draw.delay, draw.kind
            at += draw.delay
            if draw.kind in {"good", "permanent"}:
                break
    stops = [end for _, end, _ in ends.values()]
    assume(len(set(stops)) == len(stops))
    wins = {i: end for i, (_, end, kind) in ends.items() if kind == "good"}
    if call.ordered:
        loop = call.loop_budget
        return min(wins, key=lambda i: ((i - 1) % loop, i), default=None), {}
    winner = min(wins, key=lambda i: wins[i], default=None)
    stop = math.inf if winner is None else wins[winner]
    outcomes = {
        i: Outcome.CANCELLED if end > stop else OUTCOMES[kind]
        for i, (start, end, kind) in ends.items()
        if start < stop
    }
    return winner, outcomes


OUTCOMES = {
    "good": Outcome.PASSED,
    "bad": Outcome.FAILED,
    "garbled": Outcome.FAILED,
    "transient": Outcome.ERRORED,
    "permanent": Outcome.ERRORED,
}


SIX_FAILURES = tuple(Draw("good" if n == 8 else "transient", 1 + n / 64) for n in range(16))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@storm
@example(3, 3, SIX_FAILURES, False, False)
@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.lists(PLAIN, min_size=16, max_size=16).map(tuple),
    st.booleans(),
    st.booleans(),
)
def test_the_winner_and_every_outcome_are_what_arithmetic_says(
    backend, loop, concurrency, draws, ordered, told
):
    selection = "ordered" if ordered else "first"
    # After some failures in a row, a circuit breaker would refuse the next requests.
    once = Retry(attempts=1, trip_after=None)
    call = Call(loop, concurrency, draws, told=told, selection=selection, retry=once)
    winner, outcomes = expected(call)

    async def main(stepper: Stepper) -> None:
        played = play(call)
        ran = await run_scene(played.scene, stepper, "scope", -1)
        check(played, ran)
        if ran.result is None:
            assert set(outcomes.values()) <= {Outcome.ERRORED}
            return
        assert (ran.result.best.iteration if ran.result.success else None) == winner
        if not ordered:
            assert {s.iteration: s.outcome for s in ran.result.slices} == outcomes
            order = [s.ended_at for s in ran.result.slices]
            assert order == sorted(order)
            if winner is not None:
                assert ran.ended == ran.result.best.ended_at

    run_stepped(main, backend)
