"""Budgets: reservations, charges, denials, and the order of waiting requests."""

from __future__ import annotations

import gc
import math
import pickle
from contextlib import aclosing

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from limiter_kit import ask

from mellea_like import Budget, Generation, Message, Price, Request
from mellea_like.backends import Reply, ScriptedBackend
from mellea_like.core import Options, Usage
from mellea_like.errors import BackendUnavailable, LimitExceeded
from mellea_like.limits import LimitedBackend, RequestEnd
from mellea_like.limits.budget_accounts import Amounts, Claim
from mellea_like.testing import run_virtual

pytestmark = pytest.mark.anyio

PRICES = {"scripted": Price(1_000_000, 2_000_000), "m": Price(10, 10)}  # 1 and 2 a token
ZERO = Amounts()


def words(count: int, **fields) -> Reply:
    return Reply(" ".join(["word"] * count), **fields)


def backend(*replies, delay=1.0) -> ScriptedBackend:
    return ScriptedBackend(replies or ["word"], delay=delay, cycle=True)


def idle(budget: Budget) -> bool:
    """Whether nothing is under way and nobody waits, in the whole chain."""
    looks = [b.statistics() for b in budget.chain]
    return all(look.reserved == ZERO and look.waiting == 0 for look in looks)


# --- arguments --------------------------------------------------------------------------------


def test_limits_are_for_good_and_a_copy_has_them_too():
    budget = Budget(requests=5, prices=PRICES, name="mine")
    with pytest.raises(AttributeError):
        budget.requests = 6
    again = pickle.loads(pickle.dumps(Budget(money=2, within=budget)))
    assert (again.limits.money, [b.name for b in again.chain]) == (2, ["budget", "mine"])
    assert again.chain[1].limits == budget.limits


def test_a_child_has_its_parents_prices_and_assumption():
    outer = Budget(requests=9, prices=PRICES, assume_output_tokens=7)
    inner = Budget(
        requests=1,
        input_tokens=2,
        output_tokens=3,
        money=4.5,
        seconds=6,
        name="inner",
        within=outer,
    )
    assert inner.limits == (1, 2, 3, 4.5, 6)
    assert (inner.chain, inner.name) == ((inner, outer), "inner")
    assert (inner.prices, inner.assume_output_tokens) == (PRICES, 7)
    own = Budget(requests=1, within=outer, prices={"m": Price(1, 1)}, assume_output_tokens=8)
    assert (list(own.prices or ()), own.assume_output_tokens) == (["m"], 8)
    assert "no limits" in repr(Budget(within=outer))


# --- check ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "options", "model", "problem"),
    [
        ({"requests": 1}, {}, None, None),
        ({"input_tokens": 1}, {}, None, None),
        ({"seconds": 1}, {}, None, None),
        ({"output_tokens": 9}, {}, "m", "limits output_tokens.*max_tokens.*assume_output_tokens"),
        ({"output_tokens": 9}, {"max_tokens": 5}, None, None),
        ({"output_tokens": 9, "assume_output_tokens": 5}, {}, None, None),
        ({"money": 9}, {}, "m", "limits money.*max_tokens.*assume_output_tokens"),
        ({"money": 9}, {"max_tokens": 5}, "m", None),
        ({"money": 9}, {"max_tokens": 5}, "m-2026-01-31", None),
        ({"money": 9}, {"max_tokens": 5}, "n", "no price for the model 'n'.*scripted, m"),
        ({"money": 9}, {"max_tokens": 5}, None, "a model whose name is unknown"),
        ({"money": 9}, {"max_tokens": 5, "model": "m"}, None, None),
        ({"money": 9}, {"max_tokens": 5, "model": "n"}, "m", "'n'"),
    ],
)
def test_what_can_not_be_reckoned_beforehand_is_refused(fields, options, model, problem):
    budget = Budget(**fields, prices=PRICES, name="b")
    for asking in (budget, Budget(requests=1, within=budget)):
        if problem is None:
            asking.check(Options(**options), model)
        else:
            with pytest.raises(ValueError, match=f"budget 'b' .*{problem}"):
                asking.check(Options(**options), model)


async def test_a_request_that_can_not_be_reckoned_is_not_sent():
    inner = backend(delay=0)
    with pytest.raises(ValueError, match="max_tokens"):
        await LimitedBackend(inner, Budget(output_tokens=9)).generate(ask())
    assert inner.requests == []


# --- reserving, charging, denying -------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"requests": 2}, "2 of 2 requests were made, and this would be one more"),
        ({"input_tokens": 6}, "2 of 6 input tokens spent, and this request may take 5"),
        ({"output_tokens": 9}, "6 of 9 output tokens spent, and this request may take 4"),
        ({"money": 14.5 + 12}, "14 of 26.5 money spent, and this request may take 13"),
    ],
)
async def test_what_does_not_fit_is_denied_in_words(fields, message, virtual_clock):
    outer = Budget(**fields, prices=PRICES, assume_output_tokens=4, name="tenant")
    budget = Budget(requests=100, within=outer)
    inner = backend(words(3))
    target = LimitedBackend(inner, budget)
    for _ in range(2):
        await target.generate(ask())
    request = ask()
    with pytest.raises(LimitExceeded, match=f"^budget 'tenant': {message}"):
        await target.generate(request)
    assert len(inner.requests) == 2
    assert request.meter.usage == Usage()
    assert (outer.statistics().denied, budget.statistics().denied) == (1, 0)
    assert budget.spent == outer.spent
    assert idle(budget)


async def test_money_adds_up_exactly():
    prices = {"scripted": Price(0.1, 0.2)}
    budget = Budget(money=1000 * 0.3e-6, prices=prices, assume_output_tokens=1)
    reply = Generation("x", usage=Usage(1, 1, 1))
    target = LimitedBackend(backend(reply, delay=0), budget)
    for number in range(996):
        await target.generate(ask())
        assert budget.spent.money == pytest.approx((number + 1) * 0.3e-6, abs=1e-18)
    with pytest.raises(LimitExceeded):
        for _ in range(5):
            await target.generate(ask())
    # The last to be admitted had five tokens of prompt reserved: 0.7e-6.
    assert budget.spent.requests == 998


@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_who_is_cancelled_just_as_it_is_granted_gives_it_back(cancelled_first, virtual_clock):
    budget = Budget(output_tokens=100, assume_output_tokens=100)
    first = await budget.acquire(ask(), backend())
    doomed = anyio.CancelScope()
    nothing_sent = RequestEnd(Usage(), None, None)
    done = []

    async def wait(name, scope):
        with scope:
            permit = await budget.acquire(ask(), backend())
            try:
                await anyio.sleep(1)
                done.append(name)
            finally:
                permit.release(nothing_sent)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, "doomed", doomed)
        await anyio.sleep(0.1)
        tasks.start_soon(wait, "next", anyio.CancelScope())
        await anyio.sleep(0.1)
        if cancelled_first:
            doomed.cancel()
        first.release(nothing_sent)
        doomed.cancel()
    assert done == ["next"]
    assert idle(budget)


# --- time -------------------------------------------------------------------------------------


async def test_time_counts_from_the_first_request_that_is_admitted(virtual_clock):
    budget = Budget(seconds=10, name="hour")
    target = LimitedBackend(backend(), budget)
    await anyio.sleep(100)
    assert budget.seconds_left() == 10
    await target.generate(ask())
    assert budget.seconds_left() == pytest.approx(9)
    await anyio.sleep(8.5)
    await target.generate(ask())  # Begun in time; how it ends is its sender's business.
    assert budget.seconds_left() == 0
    with pytest.raises(LimitExceeded, match="budget 'hour': its 10 seconds are up"):
        await target.generate(ask())
    assert budget.statistics().denied == 1
    assert idle(budget)


async def test_who_waits_is_denied_when_the_time_is_up(virtual_clock):
    budget = Budget(seconds=3, output_tokens=10, assume_output_tokens=10)
    target = LimitedBackend(backend(delay=100), budget)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(target.generate, ask())
        await anyio.sleep(1)
        assert await use(target, ask(), "answer") == "denied"
        assert virtual_clock.now == 3
    assert idle(budget)


# --- event loops ------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_a_budget_in_use_in_one_event_loop_refuses_another(library):
    budget = Budget(requests=5)
    permits = []

    async def take() -> None:
        permits.append(await budget.acquire(ask(), backend()))

    run_virtual(take, backend=library)
    with pytest.raises(RuntimeError, match="another event loop"):
        run_virtual(take, backend="trio")
    permits[0].release(RequestEnd(Usage(1), None, None))
    run_virtual(take, backend="trio")
    assert budget.statistics().reserved.requests == 1


async def test_nothing_is_kept_of_requests_that_have_ended(virtual_clock):
    class Marked(Message):
        pass

    def is_ours(thing: object) -> bool:
        # Other tests, too, make claims, and one of theirs may be alive still.
        if type(thing) is Claim:
            return any(account is budget._account for account, _ in thing.wants)
        return type(thing) is Marked

    def kept() -> int:
        gc.collect()
        return sum(map(is_ours, gc.get_objects()))

    budget = Budget(output_tokens=10, assume_output_tokens=8)
    target = LimitedBackend(backend(), Budget(within=budget))
    async with anyio.create_task_group() as tasks:
        for _ in range(4):  # All but the first wait; the last is denied.
            request = Request((Marked("user", "x"),))
            tasks.start_soon(use, target, request, "answer")
            del request
    target.inner.requests.clear()
    assert budget.statistics().denied == 1
    assert kept() == 0


# --- whatever happens -------------------------------------------------------------------------

LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "requests": st.integers(1, 12),
        "input_tokens": st.integers(1, 60),
        "output_tokens": st.integers(1, 60),
        "money": st.integers(1, 150),
    },
)
REQUESTS = st.lists(
    st.fixed_dictionaries(
        {
            "child": st.integers(0, 2),
            "max_tokens": st.integers(1, 30),
            "share": st.floats(0, 1),
            "start": st.integers(0, 3),
            "delay": st.integers(0, 3),
            "how": st.sampled_from(["answer", "answer", "error", "hang", "stream", "early"]),
            "patience": st.integers(1, 30),
        }
    ),
    min_size=1,
    max_size=16,
)


def within_limits(*budgets: Budget) -> bool:
    return all(
        limit is None or taken + reserved <= limit
        for limits, look in [(budget.limits, budget.statistics()) for budget in budgets]
        for limit, taken, reserved in zip(limits[:4], look.spent, look.reserved, strict=True)
    )


async def use(target: LimitedBackend, request: Request, how: str) -> str:
    try:
        if how not in {"stream", "early"}:
            await target.generate(request)
            return "answered"
        async with target.stream(request) as pieces, aclosing(pieces):
            async for _ in pieces:
                if how == "early":
                    break
    except LimitExceeded:
        return "denied"
    except BackendUnavailable:
        return "broken"
    return "answered"


@given(outer=LIMITS, inner=st.lists(LIMITS, min_size=3, max_size=3), requests=REQUESTS)
@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_no_limit_is_ever_overshot_nothing_leaks_and_all_who_wait_hear(
    library, outer, inner, requests
):
    tenant = Budget(**outer, seconds=1000, prices=PRICES)
    calls = [Budget(**limits, within=tenant) for limits in inner]
    calls[2] = Budget(**inner[2], within=calls[1])
    sent: list[int] = []
    ended = []

    def answer(request: Request) -> Reply:
        number = int(request.messages[0].content)
        sent.append(number)
        case = requests[number]
        if case["how"] == "error":
            return Reply(BackendUnavailable("down"), case["delay"])
        delay = math.inf if case["how"] == "hang" else case["delay"]
        return words(int(case["share"] * case["max_tokens"]), delay=delay)

    source = ScriptedBackend(answer)

    async def one(number: int, case) -> None:
        target = LimitedBackend(source, calls[case["child"]])
        request = ask(text=str(number), max_tokens=case["max_tokens"])
        await anyio.sleep(case["start"])
        end = "cancelled"
        with anyio.move_on_after(case["patience"]):
            end = await use(target, request, case["how"])
        ended.append(end)
        assert within_limits(tenant, *calls)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for number, case in enumerate(requests):
                tasks.start_soon(one, number, case)

    run_virtual(main, backend=library)
    assert len(ended) == len(requests)
    assert within_limits(tenant, *calls)
    assert idle(calls[0])
    assert idle(calls[2])
    assert tenant.spent.requests == len(sent)
    assert tenant.spent.requests == calls[0].spent.requests + calls[1].spent.requests
    # One that is denied at the very moment in which its patience ends need not hear of it.
    denied = sum(b.statistics().denied for b in (tenant, *calls))
    assert ended.count("denied") <= denied <= ended.count("denied") + ended.count("cancelled")
