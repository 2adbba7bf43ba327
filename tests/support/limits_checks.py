"""What must hold of every scene of calls within limits, once it is over."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

from leftovers import check_at_rest
from limits_scene import EVER, Play, Ran
from limits_storm import CAP, FAULTS, MAX_TOKENS, TRANSIENT, FatalCheck, Mad, MadError
from storm import TICK, chain_of, check_turns

from mellea_like import MultiTurnStrategy
from mellea_like.core.generation import REJECTED, Usage
from mellea_like.core.result import SamplingResult, StopReason
from mellea_like.core.slice import Outcome, Slice
from mellea_like.errors import (
    BackendError,
    LimitExceeded,
    SamplingFailed,
    SamplingTimeout,
)
from mellea_like.limits import AdaptiveLimiter, ConcurrencyLimiter, gate_of
from mellea_like.schedules.giving_up import PerRequirement


def check_play(play: Play) -> None:
    check_nothing_held(play)
    check_limiters(play)
    check_budgets(play)
    check_gate(play)
    for index, ran in enumerate(play.runs):
        try:
            check_call(play, ran, index)
        except AssertionError as exc:
            exc.add_note(f"this is about call {index}, which gave {ran.result!r} or {ran.error!r}")
            raise


def check_nothing_held(play: Play) -> None:
    """Rule 12, for what is shared: nothing is reserved, waits, or is in flight."""
    assert play.rig.in_flight == 0
    check_at_rest(*play.limiters, *play.budgets, gate_of(play.rig))


def check_limiters(play: Play) -> None:
    for limiter in play.limiters:
        stats = limiter.statistics()
        assert stats.admitted >= len(play.rig.sent)
        if limiter is play.limiters[-1]:
            assert stats.admitted == len(play.rig.sent)
        if isinstance(limiter, ConcurrencyLimiter):
            assert play.rig.max_in_flight <= limiter.concurrency
        elif isinstance(limiter, AdaptiveLimiter):
            assert play.rig.max_in_flight <= 5
        elif limiter is play.limiters[-1]:
            rate = (limiter.requests_per_minute or 0.0) / 60
            at = [sent.at for sent in play.rig.sent]
            for i in range(len(at)):
                for j in range(i + 1, min(len(at), i + 30)):
                    assert j - i + 1 <= max(1.0, rate) + rate * (at[j] - at[i]) + TICK


def check_budgets(play: Play) -> None:
    """A budget knows each request that was made through it, and not one more than it allows."""
    for budget in play.budgets:
        through = [i for i, ran in enumerate(play.runs) if budget in ran.budgets]
        sent = [s for s in play.rig.sent if s.caller in through]
        stats = budget.statistics()
        assert stats.spent.requests == len(sent)
        assert stats.spent.requests <= (budget.limits.requests or math.inf)
        assert stats.unknown == sum(not s.meter.settled for s in sent)
        bounds = [_output(s, play.scene.cancelled) for s in sent]
        assert sum(map(min, bounds)) <= stats.spent.output_tokens <= sum(map(max, bounds))
        assert stats.spent.output_tokens <= (budget.limits.output_tokens or math.inf)
        known = sum(s.meter.input_tokens for s in sent)
        assert known <= stats.spent.input_tokens <= sum(s.estimated for s in sent)
        assert stats.spent.input_tokens <= (budget.limits.input_tokens or math.inf)
        if sent and budget.limits.seconds is not None and not play.limiters:
            assert sent[-1].at <= sent[0].at + budget.limits.seconds + TICK

        records = [play.runs[i].record for i in through]
        if None not in records and budget not in play.inner:
            # Ledgers and budgets say the same. One in the backend may have assumed less.
            usage = sum((s.usage for record in records for s in record), Usage())
            assert (usage.requests, usage.input_tokens, usage.output_tokens) == stats.spent[:3]


def _output(sent: Any, cancelled: str) -> tuple[int, ...]:
    """The tokens of output that a request may be charged."""
    arrived = sent.meter.output_tokens
    if sent.meter.settled or cancelled == "received":
        return (arrived,)
    if sent.whole:  # Its caller may have been cancelled in the same moment.
        return (arrived, MAX_TOKENS)
    refused = {"permanent", "refused", "told", "told long"}
    if sent.answered and sent.kind in refused | ({"down"} if cancelled == "estimate" else set()):
        return (arrived,)
    return (MAX_TOKENS,) if cancelled == "reserved" else (arrived, MAX_TOKENS)


def check_call(play: Play, ran: Ran, index: int) -> None:
    check_leaving(ran)
    check_time(ran)
    told, call = ran.told, ran.call
    assert not isinstance(ran.error, BaseExceptionGroup | AssertionError) or ran.cancelled
    if call.told:
        assert len(told.ends) == told.begun <= 1
        assert told.begun == 1 or ran.cancelled
    record = ran.record
    sent = [s for s in play.rig.sent if s.caller == index]
    if record is not None:
        check_record(ran, record)
        check_chains(ran, record)
        check_costs(record, sent, play.scene.cancelled if ran.budgets else "received")
        check_tries(ran, record, sent)
        check_early(ran, record)
        check_denial(ran, record)
        check_prompt(ran, record)
        check_ending(ran, record)
    assert play.rig.max_drawing.get(index, 0) <= widest(ran)
    assert len({s.iteration for s in sent}) <= call.loop_budget * call.concurrency


def widest(ran: Ran) -> int:
    return ran.call.concurrency + getattr(ran.schedule, "extra", 0)


def check_leaving(ran: Ran) -> None:
    """Rule 11: who leaves is told so, and nobody else."""
    leaving = ran.call.leaving
    if ran.cancelled:
        assert ran.hit or ran.seconds >= leaving.seconds - TICK, "cancelled, and no one asked"
        return
    # As in the storm against the rules: anyio loses a native one that meets a scope of its own.
    if leaving.mode == "scope":
        assert not ran.hit or ran.steps_after <= 2, "it went on as if not cancelled"
    assert ran.seconds <= leaving.seconds + TICK


def check_time(ran: Ran) -> None:
    """When the time is up, the call ends."""
    assert ran.seconds <= due(ran) + TICK


def due(ran: Ran) -> float:
    """The latest that a call may end."""
    limits = [ran.call.timeout, getattr(ran.schedule, "seconds", None), ran.budgeted]
    return min((limit for limit in limits if limit is not None), default=EVER)


def check_gate(play: Play) -> None:
    """Where the server has asked to be left alone, nobody who retries sends anything."""
    if play.limiters or play.budgets:
        return  # What waits in a line has passed the gate already.
    retrying = [s for s in play.rig.sent if play.runs[s.caller].call.retry is not None]
    for refusal in retrying:
        asked = {"told": 2.0, "told long": CAP}.get(refusal.kind, 0.0)
        seconds = asked if refusal.answered else 0.0
        for other in retrying:
            late = other.at - (refusal.ended or 0.0)
            assert not TICK < late < seconds - TICK, "a request went through a closed gate"


def check_denial(ran: Ran, record: tuple[Slice, ...]) -> None:
    """After a denial no turn starts, and what is paid for goes on."""
    notes = [
        s
        for s in record
        if any("not retried: budget" in note for note in getattr(s.error, "__notes__", ()))
    ]
    for denied in notes:
        assert all(s.started_at <= denied.ended_at + TICK for s in record)
        later = record[record.index(denied) + 1 :]
        assert all(s.chain != denied.chain for s in later), "a denied chain went on"
    spent = ran.result is not None and ran.result.stop_reason == StopReason.BUDGET
    if (spent or isinstance(ran.error, LimitExceeded)) and ran.seconds < due(ran) - TICK:
        left = ran.call.leaving.seconds
        paid = [s for s in record if s.outcome is Outcome.CANCELLED and s.usage.requests]
        gave_up = any(said_anew(ran))  # It cancels draws after a denial, too.
        over = ran.hit or gave_up or ran.seconds >= left - TICK
        assert not paid or over, "what was paid for was cancelled"


def check_record(ran: Ran, record: tuple[Slice, ...]) -> None:
    """Rules 1, 2, 5 and 6."""
    call, pooled = ran.call, getattr(ran.schedule, "pooled", False)
    check_turns(record, call.loop_budget, call.concurrency, pooled=pooled, several=False)
    for s in record:
        assert s.ended_at <= ran.seconds + TICK
        assert (s.error is not None) or s.outcome is not Outcome.ERRORED
        if s.outcome in {Outcome.PASSED, Outcome.FAILED}:
            assert s.error is None
            assert s.generation is not None
        if s.passed:
            assert s.text.startswith("good")
            assert all(verdict.passed for verdict in s.verdicts)
            assert s.requirements == tuple(ran.requirements)
    broken = [s for s in record if s.outcome is Outcome.ERRORED and not s.may_continue]
    assert len(broken) <= widest(ran) or isinstance(ran.schedule, Mad), "one key, many refusals"
    for s in record:
        at_once = [t for t in record if t.started_at <= s.started_at < t.ended_at]
        assert len(at_once) <= widest(ran)


def check_chains(ran: Ran, record: tuple[Slice, ...]) -> None:
    """A chain goes on from what it failed with itself."""
    _, strategy = ran.strategy
    for chain in {s.chain for s in record}:
        links = chain_of(record, chain)
        assert all(earlier.may_continue for earlier in links[:-1])
        failed: list[Slice] = []
        first = links[0]
        assert len(first.context) == 0
        for s in links:
            action, context = strategy.repair(failed) if failed else (first.action, first.context)
            assert s.context.messages == context.messages
            assert s.action.render(s.context) == action.render(context)
            if s.outcome is Outcome.FAILED:
                failed.append(s)
            if ran.call.strategy is MultiTurnStrategy:
                assert len(s.context) == 2 * sum(f is not s for f in failed)


def check_costs(record: tuple[Slice, ...], sent: list[Any], cancelled: str) -> None:
    """Rule 5: usage is what the backend counted, retries and judges included."""
    assert {s.iteration for s in sent} <= {s.iteration for s in record}
    for s in record:
        own = [one for one in sent if one.iteration == s.iteration]
        usage = s.usage
        assert usage.requests == len(own)
        assert usage.unknown == sum(not one.meter.settled for one in own)
        # What a budget has assumed is in it, too.
        most = [max(one.meter.input_tokens, one.estimated) for one in own]
        assert sum(one.meter.input_tokens for one in own) <= usage.input_tokens <= sum(most)
        bounds = [(one.meter.output_tokens, *_output(one, cancelled)) for one in own]
        assert sum(map(min, bounds)) <= usage.output_tokens <= sum(map(max, bounds))


def check_tries(ran: Ran, record: tuple[Slice, ...], sent: list[Any]) -> None:
    """Rule 6: what may succeed later is tried again inside the iteration, and nothing else is."""
    retry = ran.call.retry
    for s in record:
        tries = [t for t in sent if t.iteration == s.iteration and t.purpose == "generate"]
        assert [t.retry for t in tries] == list(range(len(tries)))
        for t in tries[:-1]:
            assert retry is not None
            assert t.kind in TRANSIENT
            assert t.ended is not None
        kinds = Counter("refusal" if t.kind in {"refused", "told"} else "fault" for t in tries[:-1])
        if retry is not None:
            assert kinds["refusal"] < retry.rate_limit_attempts
            assert kinds["fault"] < retry.attempts
        for before, after in pairwise(tries):
            told = 2.0 if before.kind == "told" else 0.0
            assert after.at >= before.ended + told - TICK
        if s.outcome in {Outcome.PASSED, Outcome.FAILED}:
            assert tries
            assert tries[-1].kind not in FAULTS
        elif tries and tries[-1].kind in FAULTS and s.outcome is Outcome.ERRORED:
            assert s.error is not None
        if s.outcome is Outcome.ERRORED and not tries:
            assert isinstance(s.error, BackendError)


def check_prompt(ran: Ran, record: tuple[Slice, ...]) -> None:
    """A call that is decided ends with the last iteration that is under way."""
    result, (_, strategy) = ran.result, ran.strategy
    reason = None if result is None else result.stop_reason
    decided = reason in {StopReason.BUDGET, StopReason.HOPELESS} or (
        reason == StopReason.PASSED and strategy.settings.selection == "first"
    )
    if (decided or isinstance(ran.error, LimitExceeded)) and ran.seconds < due(ran) - TICK:
        assert ran.seconds <= max(s.ended_at for s in record) + TICK, "it went on after its end"


def check_early(ran: Ran, record: tuple[Slice, ...]) -> None:
    """A reply that can't pass is closed where that shows, by the first check that says so."""
    watching = [what for what in ran.call.checks if what in {"polite", "fatal"}]
    for s in record:
        if s.generation is None or s.generation.finish_reason != REJECTED:
            assert not watching or "rant" not in s.text
            continue
        assert s.text == "rant "
        assert s.usage.unknown >= 1
        if watching[0] == "polite":
            assert s.outcome is Outcome.FAILED
            assert s.problems == ("polite: it rants",)
        else:
            assert s.outcome is Outcome.ERRORED
            assert ran.cancelled or isinstance(ran.error, FatalCheck | MadError) or won(record)


def failed_of(record: tuple[Slice, ...]) -> list[Slice]:
    return [s for s in record if s.outcome is Outcome.FAILED]


def won(record: tuple[Slice, ...]) -> bool:
    return any(s.passed for s in record)


def check_ending(ran: Ran, record: tuple[Slice, ...]) -> None:
    """Rules 3, 4 and 7, and why a call may end early."""
    result, error = ran.result, ran.error
    passed = [s for s in record if s.passed]
    failed = failed_of(record)
    _, strategy = ran.strategy
    ordered = strategy.settings.selection == "ordered"
    if passed and not ordered:
        assert all(s.started_at <= passed[0].ended_at for s in record)
    if ran.cancelled:
        return
    if result is None:
        assert error is not None
        assert not isinstance(error, BaseExceptionGroup)
        check_error(ran, record, error)
        return
    assert result.success == bool(passed)
    if passed:
        best = min(passed, key=lambda s: (s.depth, s.subsample)) if ordered else passed[0]
        assert result.best is best
        if result.stop_reason != StopReason.PASSED:
            assert ordered
            check_stop_reason(ran, record, result)
        return
    assert failed
    assert result.best in failed
    check_stop_reason(ran, record, result)


def check_error(ran: Ran, record: tuple[Slice, ...], error: BaseException) -> None:
    failed = failed_of(record)
    if isinstance(error, MadError):
        assert isinstance(ran.schedule, Mad)
        assert ran.schedule.raised
        return
    if isinstance(error, FatalCheck):
        assert any(s.error is error for s in record)
        return
    assert not failed
    assert not won(record)
    if isinstance(error, LimitExceeded):
        assert ran.budgets
        assert was_denied(ran)
    elif isinstance(error, SamplingTimeout):
        assert ran.call.timeout is not None or getattr(ran.schedule, "seconds", None)
    elif isinstance(error, SamplingFailed):
        assert not record
        assert isinstance(ran.schedule, Mad), "nothing was started, and nobody said so"
    else:
        assert error is next(s.error for s in record if s.error is not None)
        assert all(s.outcome is Outcome.ERRORED for s in record)


def was_denied(ran: Ran) -> bool:
    """Tell whether a budget said no, or its seconds are over; at the latest, with the call's."""
    for budget in ran.budgets:
        left = math.inf
        if budget.limits.seconds is not None:
            left = min(budget.limits.seconds - ran.seconds, budget.seconds_left() or 0.0)
        if budget.statistics().denied or left <= TICK:
            return True
    return False


def check_stop_reason(ran: Ran, record: tuple[Slice, ...], result: SamplingResult[Any]) -> None:
    reason, call = result.stop_reason, ran.call
    if reason == StopReason.BUDGET:
        assert was_denied(ran)
        assert result.stop_detail
    elif reason == StopReason.HOPELESS:
        assert call.give_up
        said = said_anew(ran)
        assert result.stop_detail in said
        decisive = ran.give_up.added[said.index(result.stop_detail)]
        assert max(s.ended_at for s in record) <= decisive.ended_at + TICK, "it went on"
        denied = [s.ended_at for s in record if s.outcome is Outcome.CANCELLED]
        assert min(denied, default=EVER) >= decisive.ended_at - TICK, "it had been stopped before"
    elif reason == StopReason.TIMEOUT:
        due = [t for t in (call.timeout, getattr(ran.schedule, "seconds", None)) if t is not None]
        assert ran.seconds >= min(due) - TICK
    elif reason == StopReason.ERROR:
        assert not all(s.may_continue for s in record)
    else:
        assert reason == StopReason.EXHAUSTED
        check_exhausted(ran, record)


def said_anew(ran: Ran) -> list[str | None]:
    """Count a call's draws anew, in the order in which it counted them, and return what each says.

    Of draws with the same times, the record doesn't tell whether one began before another ended.
    """
    if ran.give_up is None:
        return []
    tally, said = PerRequirement(ran.give_up.threshold, ran.give_up.confidence).begin(), []
    begun: set[int] = set()
    for event in ran.give_up.events:
        if isinstance(event, int):
            tally.start(event)
            begun.add(event)
        else:
            assert event.iteration in begun, "it ended before it began"
            said.append(tally.add(event))
    return said


def check_exhausted(ran: Ran, record: tuple[Slice, ...]) -> None:
    """Every turn was spent, but those that the schedule let lie, and no error ended a lane."""
    call, schedule = ran.call, ran.schedule
    assert all(s.outcome in {Outcome.FAILED, Outcome.ERRORED} for s in record)
    assert all(s.may_continue for s in record)
    if not isinstance(schedule, Mad):
        assert len(record) == call.loop_budget * call.concurrency
