"""Faults and limits together, and callers who leave meanwhile.

Cancellation at every single step is in ``tests/storm/test_cancel_at_every_step.py`` and
``test_cancel_with_limits.py``; here some moments go through real HTTP.
"""

from __future__ import annotations

import threading

import anyio
import pytest
from aftermath import SAYS_WON, Billing, aftermath
from engine_kit import after as later
from engine_kit import by_iteration, yes
from http_server import Answer

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.backends.openai import OpenAIBackend
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.core.result import StopReason
from mellea_like.core.slice import Outcome
from mellea_like.core.validation import Verdict
from mellea_like.errors import BackendTimeout, BackendUnavailable, RateLimited, SamplingTimeout
from mellea_like.limits import AdaptiveLimiter, ConcurrencyLimiter, LimitedBackend, RateLimiter
from mellea_like.limits.backoff_gate import gate_of
from mellea_like.limits.budget import Budget
from mellea_like.limits.retry import Retry
from mellea_like.schedules import Eager, Hedged

virtual = pytest.mark.usefixtures("virtual_clock")
QUICK = Retry(initial=0.02, maximum=0.05)
SLOW = Answer(" ".join(["slow"] * 40), seconds=4.0)


def no_rants(text: str, delta: str) -> Verdict:
    return Verdict.FAIL if "rant" in text else Verdict.UNKNOWN


CALM = Requirement("no rants", lambda c: "rant" not in c.text, inline=True, stream=no_rants)

# --- a caller who leaves -------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize(
    "answers",
    [
        [SLOW],
        [Answer.error(503)],
        [Answer.error(429, "slow down", retry_after="30")],
        [Answer("rant " * 3, seconds=0.05)],
        [Answer("lost")],
    ],
    ids=["streaming", "retrying", "at the gate", "rejecting", "repairing"],
)
async def test_a_caller_may_leave_whatever_the_server_does(answers):
    limiter, budget = ConcurrencyLimiter(2), Budget(requests=10_000)
    with Billing(*answers) as server:
        inner = OpenAIBackend("m", base_url=server.url, keep_alive=True)
        backend = LimitedBackend(inner, limiter)
        async with aftermath(inner, backend, server, limiter, budget) as after:
            call = RejectionSamplingStrategy(
                backend,
                loop_budget=300,
                concurrency_budget=3,
                retry=Retry(1000, initial=0.02, maximum=0.05, trip_after=None),
            )
            with anyio.move_on_after(0.2) as scope:
                await after.sample(call, "Say won.", [CALM, SAYS_WON], budget=budget)
            assert scope.cancelled_caught
        [end] = after.ends.values()
    assert end.stop_reason is StopReason.CANCELLED


@virtual
@pytest.mark.anyio
@pytest.mark.parametrize("leaves", ["its scope", "the call's time", "the iteration's time"])
@pytest.mark.parametrize("late", [0, 1e-9, 0.5])
async def test_a_win_that_was_recorded_is_in_the_record_of_who_leaves_just_after_it(leaves, late):
    backend = by_iteration({1: later(1, "yes")}, default=later(9, "no"))
    async with aftermath(backend) as after:
        call = RejectionSamplingStrategy(
            backend,
            concurrency_budget=2,
            timeout=1 + late if leaves == "the call's time" else None,
            iteration_timeout=1 + late if leaves == "the iteration's time" else None,
        )
        scope = anyio.CancelScope()
        if leaves == "its scope":
            scope.deadline = anyio.current_time() + 1 + late
        with scope:
            try:
                await after.sample(call, "do", [yes])
            except (SamplingTimeout, BackendTimeout):
                assert late == 0  # At the very same instant, either may come first.
    [end] = after.ends.values()
    won = [s for s in end.slices if s.outcome is Outcome.PASSED]
    assert end.success == bool(won)
    if late:
        assert [s.iteration for s in won] == [1]


# --- budgets -------------------------------------------------------------------------------------


@virtual
@pytest.mark.anyio
@pytest.mark.parametrize("leaves", [True, False])
async def test_nested_budgets_and_retries_are_settled_whoever_leaves(leaves):
    tenant = Budget(requests=100, name="tenant")
    own = Budget(requests=4, name="own")
    backend = ScriptedBackend(
        lambda request: BackendUnavailable("again") if request.meta.retry < 1 else later(1, "no")
    )
    async with aftermath(backend, tenant, own) as after:
        call = RejectionSamplingStrategy(backend, concurrency_budget=2, budget=tenant)
        with anyio.move_on_after(0.9 if leaves else 60) as scope:
            result = await after.sample(call, "do", [yes], budget=own, options={"seed": 1})
            assert result.stop_reason is StopReason.BUDGET
        assert scope.cancelled_caught == leaves
    sent = backend.statistics().started
    assert tenant.statistics().spent.requests == own.statistics().spent.requests == sent == 4


# --- the same objects, again and elsewhere -------------------------------------------------------


@pytest.mark.parametrize("first", ["asyncio", "trio"])
def test_one_set_of_limits_serves_one_event_loop_after_another(first):
    limits = [
        Budget(requests=1000, seconds=60),
        RateLimiter(requests_per_minute=60_000),
        AdaptiveLimiter(4),
        ConcurrencyLimiter(2),
    ]
    refused = RateLimited("slow down", status=429, retry_after=0.05)
    inner = ScriptedBackend(
        lambda request: (
            refused
            if request.meta.retry == 0 and request.meta.iteration == 1
            else later(0.01, "yes" if request.meta.iteration == 1 else "no")
        )
    )
    backend, hedged = LimitedBackend(inner, *limits), Hedged()

    async def main() -> None:
        async with aftermath(inner, backend, *limits) as after:
            for schedule in (None, Eager(pool=True), hedged):
                call = RejectionSamplingStrategy(
                    backend, concurrency_budget=3, loop_budget=5, retry=QUICK, schedule=schedule
                )
                assert (await after.sample(call, "do", [yes])).success

    for library in (first, "trio", "asyncio"):
        anyio.run(main, backend=library)
    assert gate_of(inner).statistics().waiting == 0


def test_two_event_loops_in_two_threads_share_a_backend_and_its_gate():
    refused = RateLimited("slow down", status=429, retry_after=0.1)
    lock, sent = threading.Lock(), [0]

    def rule(request):
        with lock:
            sent[0] += 1
            return refused if sent[0] % 7 == 3 else "yes" if sent[0] % 3 == 0 else "no"

    backend = ScriptedBackend(rule, delay=0.005)
    call = RejectionSamplingStrategy(backend, loop_budget=20, concurrency_budget=2, retry=QUICK)
    results, errors = [], []

    def run(library: str) -> None:
        async def main() -> None:
            for _ in range(5):
                with anyio.fail_after(20):
                    results.append(await call.sample("do", [yes]))

        try:
            anyio.run(main, backend=library)
        except BaseException as exc:  # noqa: BLE001 (looked at below)
            errors.append(exc)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("asyncio", "trio")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert [result.success for result in results] == [True] * 10
    assert backend.statistics().in_flight == 0
    assert gate_of(backend).statistics().waiting == 0
    assert sum(result.usage.requests for result in results) == sent[0]


# --- a backend that ignores cancellation ----------------------------------------------------------


@virtual
@pytest.mark.anyio
async def test_a_backend_that_ignores_cancellation_holds_its_permit_until_it_ends():
    limiter = ConcurrencyLimiter(2)
    inner = by_iteration({1: later(1, "yes")}, default=Reply("yes", delay=5, shielded=True))
    backend = LimitedBackend(inner, limiter)
    # Without a hook, between the reply and the verdict there is no time to send another request.
    async with aftermath(inner, backend, limiter, hooked=False) as after:
        call = RejectionSamplingStrategy(backend, loop_budget=1, concurrency_budget=4)
        result = await after.sample(call, "do", [yes])
    assert inner.statistics().started == 2
    assert limiter.statistics().admitted == 2
    assert result.count(Outcome.CANCELLED) == 2
    assert result.usage.requests == 2
