"""Stores of budgets and rates: the behaviour of both the one in memory and the one in a file."""

from __future__ import annotations

import time
from math import inf

import anyio
import pytest
from limiter_kit import Slow, ask

from mellea_like import Budget, Price
from mellea_like.backends import ScriptedBackend
from mellea_like.core import Usage
from mellea_like.errors import LimitExceeded
from mellea_like.limits import MemoryStore, RateLimiter, RequestEnd, SQLiteStore
from mellea_like.limits.budget_accounts import Amounts, Denied

pytestmark = pytest.mark.anyio

BACKEND = ScriptedBackend(["word"], cycle=True)
ZERO = Amounts()
ANSWERED = RequestEnd(Usage(1, 5, 10), None, None)


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    if request.param == "memory":
        yield MemoryStore()
        return
    made = SQLiteStore(tmp_path / "store.db")
    made._now = anyio.current_time
    yield made
    made.close()


def tokens(store, name, limit):
    return store.account(name, (inf, inf, limit, inf))


async def standing(store, *wants):
    """Return the outcome of a reservation, immediately or after waiting for a second."""
    try:
        with anyio.move_on_after(1):
            return await store.reserve([(account, Amounts(1, 0, n)) for account, n in wants])
    except Denied as exc:
        return exc.lacking, exc.spent.output_tokens
    return "waits"


# --- accounts -------------------------------------------------------------------------------------


async def test_what_fits_is_reserved_what_never_will_is_denied_and_what_may_waits(
    store, virtual_clock
):
    account = tokens(store, "a", 100)
    first = await standing(store, (account, 60))
    assert account.look()[:2] == (ZERO, Amounts(1, 0, 60))
    assert account.in_use
    assert await standing(store, (account, 41)) == "waits"
    assert await standing(store, (account, 101)) == ("output_tokens", 0)
    first.settle([Amounts(1, 5, 50)], 1)
    first.settle([Amounts(1, 5, 50)], 1)  # Nothing happens a second time.
    assert await standing(store, (account, 51)) == ("output_tokens", 50)
    sums = account.look()
    assert (sums.spent, sums.reserved, sums.unknown, sums.denied) == (Amounts(1, 5, 50), ZERO, 1, 2)
    assert not account.in_use


async def test_all_or_nothing_is_reserved(store, virtual_clock):
    small, large = tokens(store, "small", 10), tokens(store, "large", 100)
    held = await standing(store, (large, 95))
    assert await standing(store, (small, 10), (large, 10)) == "waits"
    assert await standing(store, (large, 5), (small, 11)) == ("output_tokens", 0)
    assert small.look().reserved == ZERO
    held.settle([ZERO])
    await standing(store, (small, 10), (large, 10))
    assert (small.look().reserved, large.look().reserved) == (Amounts(1, 0, 10),) * 2


async def test_those_who_wait_go_in_the_order_of_arrival_and_small_ones_do_not_overtake(
    store, virtual_clock
):
    account, ends = tokens(store, "a", 100), []

    async def take(name, n):
        held = await standing_for_ever(store, account, n)
        ends.append(name)
        await anyio.sleep(1)
        held.settle([Amounts(1, 0, 0)])

    async with anyio.create_task_group() as tasks:
        for name, n in (("60", 60), ("100", 100), ("39", 39), ("62", 62)):
            tasks.start_soon(take, name, n)
            await anyio.sleep(0.2)
    assert ends == ["60", "100", "39", "62"]
    assert account.look()[:2] == (Amounts(4), ZERO)


async def standing_for_ever(store, account, n):
    return await store.reserve([(account, Amounts(1, 0, n))])


async def test_who_leaves_while_waiting_holds_up_nobody(store, virtual_clock):
    account = tokens(store, "a", 100)
    held = await standing(store, (account, 60))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(standing_for_ever, store, account, 100)
        await anyio.sleep(1)
        assert account.look().waiting == 1
        tasks.cancel_scope.cancel()
    assert account.look().waiting == 0
    await standing(store, (account, 40))
    held.settle([ZERO])
    assert account.look().reserved == Amounts(1, 0, 40)


async def test_an_account_is_forgotten_unless_something_is_reserved(store):
    account = tokens(store, "a", 10)
    held = await standing(store, (account, 10))
    store.forget("a", "b")
    held.settle([Amounts(1, 0, 10)])
    assert store.accounts() == ["a"]
    store.forget("a")
    assert tokens(store, "a", 10).look().spent == ZERO


async def test_a_budget_of_a_forgotten_account_begins_again_and_shares_it(store):
    old = Budget(requests=1, store=store, name="alice")
    (await old.acquire(ask(max_tokens=10), BACKEND)).release(ANSWERED)
    store.forget("alice")
    assert old.spent == ZERO
    (await old.acquire(ask(max_tokens=10), BACKEND)).release(ANSWERED)
    assert store.accounts() == ["alice"]
    assert Budget(requests=1, store=store, name="alice").spent.requests == 1


# --- budgets --------------------------------------------------------------------------------------


async def test_a_budget_goes_on_where_one_of_its_name_was(store):
    prices = {"scripted": Price(1, 2)}
    first = Budget(money=1, prices=prices, store=store, name="november")
    (await first.acquire(ask(max_tokens=10), BACKEND)).release(ANSWERED)
    again = Budget(money=1, prices=prices, store=store, name="november")
    assert again.spent == first.spent == Amounts(1, 5, 10, pytest.approx(25e-6))
    spent = Budget(money=26e-6, prices=prices, store=store, name="november")
    with pytest.raises(LimitExceeded, match=r"'november': 2.5e-05 of 2.6e-05 money spent"):
        await spent.acquire(ask(max_tokens=10), BACKEND)
    assert spent.statistics().denied == again.statistics().denied == 1


async def test_sums_that_are_larger_than_64_bits_are_exact(store):
    budget = Budget(money=1e9, prices={"scripted": Price(1e6, 0)}, store=store, name="a")
    cost = Usage(1, 123_456_789, 1)
    for _ in range(3):
        (await budget.acquire(ask(max_tokens=10), BACKEND)).release(RequestEnd(cost, None, None))
    assert budget.spent == Amounts(3, 3 * 123_456_789, 3, 3 * 123_456_789.0)


async def test_a_part_of_a_budget_in_a_store_may_be_in_memory(store):
    outer = Budget(requests=2, store=store, name="a")
    for inner in (Budget(within=outer), Budget(requests=1, within=outer)):
        (await inner.acquire(ask(max_tokens=10), BACKEND)).release(ANSWERED)
        assert inner.spent.requests == 1
    with pytest.raises(LimitExceeded, match="'a': 2 of 2"):
        await Budget(within=outer).acquire(ask(max_tokens=10), BACKEND)


async def test_seconds_count_from_the_first_request_of_any_budget_of_the_name(store, monkeypatch):
    first = Budget(seconds=100, store=store, name="a")
    (await first.acquire(ask(max_tokens=10), BACKEND)).release(ANSWERED)
    later = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: later)
    assert 39 < (Budget(seconds=100, store=store, name="a").seconds_left() or 0) <= 40


# --- rates ----------------------------------------------------------------------------------------


async def sent(limiter, times, count=1, **fields):
    for _ in range(count):
        permit = await limiter.acquire(ask(**fields), Slow())
        times.append(round(anyio.current_time(), 3))
        permit.release(ANSWERED)


async def test_limiters_of_one_name_share_a_rate_which_is_full_at_first(store, virtual_clock):
    began, times = anyio.current_time(), []
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            limiter = RateLimiter(requests_per_minute=120, store=store, name="r")
            for _ in range(4):
                tasks.start_soon(sent, limiter, times)
    assert [at - began for at in times] == pytest.approx([0, 0, 0.5, 1, 1.5, 2, 2.5, 3], abs=0.01)
    await anyio.sleep(100)
    began, times = anyio.current_time(), []
    await sent(RateLimiter(requests_per_minute=120, store=store, name="r"), times, 4)
    assert [at - began for at in times] == pytest.approx([0, 0, 0.5, 1], abs=0.01)


async def test_a_large_request_is_not_overtaken_for_ever_by_small_ones_of_another(
    store, virtual_clock
):
    small, large = (
        RateLimiter(tokens_per_minute=600, burst_seconds=10, store=store, name="r")
        for _ in range(2)
    )
    began, times = anyio.current_time(), []
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(sent, small, [], 20)
        await anyio.sleep(5)
        await sent(large, times, max_tokens=95)
        tasks.cancel_scope.cancel()
    assert times[0] - began < 40


async def test_what_was_taken_after_a_turn_is_not_put_back_with_it(store, virtual_clock):
    bucket = store.bucket("b", 60, 10)
    first = await store.take([(bucket, 10)])
    second = await store.take([(bucket, 4)])
    assert (first.seconds, second.seconds) == (0, pytest.approx(4))
    first.give_back()
    first.give_back()
    assert first.left == [0]
    third = await store.take([(bucket, 1)])
    assert third.seconds == 0  # Of 10 put back 4 are the second's: 2 are left, and 1 is taken.
    second.give_back()
    assert (await store.take([(bucket, 5)])).seconds == pytest.approx(1)


async def test_what_requests_cost_is_corrected_in_the_shared_bucket(store, virtual_clock):
    one, two = (
        RateLimiter(tokens_per_minute=60, burst_seconds=60, store=store, name="r") for _ in range(2)
    )
    began, times = anyio.current_time(), []
    permit = await one.acquire(ask(max_tokens=55), Slow())  # 5 and 55: all there is.
    permit.release(RequestEnd(Usage(1, 5, 15), None, None))
    await sent(two, times, max_tokens=35)
    assert [at - began for at in times] == pytest.approx([0], abs=0.01)
