"""Who is worked on now, who waits, who is sent away."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mellea_like.gateway.config.server import KeyLimits
from mellea_like.gateway.http.admission import Door, Line, Seat, budget_spent, check_amounts
from mellea_like.gateway.http.refusal import Refusal

pytestmark = pytest.mark.anyio


def seats(line: Line, count: int, now: float = 0.0) -> list[Seat]:
    made = [Seat() for _ in range(count)]
    for seat in made:
        line.enter(seat, now)
    return made


# --- the line, which knows no clock --------------------------------------------------------------


def test_as_many_as_may_are_let_in_and_as_many_as_may_wait():
    line = Line(2, 3)
    states = [seat.state for seat in seats(line, 6)]
    assert states == ["inside"] * 2 + ["waiting"] * 3 + ["new"]
    assert (line.inside, line.waiting, line.full) == (2, 3, True)


def test_first_come_first_served():
    line = Line(1, 5)
    first, second, third = seats(line, 3)
    assert line.leave(first, 1) == [second]
    assert line.leave(second, 2) == [third]
    assert line.leave(third, 3) == []


def test_who_leaves_while_waiting_frees_the_place():
    line = Line(1, 2)
    first, second, third = seats(line, 3)
    assert line.leave(second, 1) == []
    assert not line.full
    assert line.enter(last := Seat(), 1)
    assert line.leave(first, 2) == [third]
    assert line.leave(third, 2) == [last]


def test_without_a_queue_who_is_not_let_in_is_sent_away():
    line = Line(1, 0)
    first, second = seats(line, 2)
    assert (first.state, second.state) == ("inside", "new")
    line.leave(first, 1)
    assert not line.full


def test_leaving_twice_or_without_having_come_changes_nothing():
    line = Line(1, 1)
    first, second = seats(line, 2)
    line.leave(Seat(), 0)
    line.leave(first, 0)
    assert line.leave(first, 0) == []
    assert (line.inside, line.waiting, second.inside) == (1, 0, True)


@pytest.mark.parametrize(
    ("took", "waiting", "expected"),
    [
        ([], 0, 1.0),
        ([0.01], 0, 1.0),
        ([8.0], 0, 4.0),
        ([8.0], 3, 16.0),
        ([8.0, 18.0], 0, 5.0),
        ([500.0], 3, 60.0),
        ([-5.0], 0, 1.0),
    ],
)
def test_retry_after_is_about_when_there_will_be_room(took, waiting, expected):
    line = Line(2, 10)
    for seconds in took:
        seat = Seat()
        line.enter(seat, 100)
        line.leave(seat, 100 + seconds)
    seats(line, 2 + waiting)
    assert line.retry_after() == pytest.approx(expected)


@given(st.integers(1, 4), st.integers(0, 4), st.lists(st.integers(0, 9), max_size=60))
def test_the_line_keeps_its_bounds_and_its_order_whatever_happens(concurrency, queue, steps):
    line = Line(concurrency, queue)
    inside: list[Seat] = []
    waiting: list[Seat] = []
    for now, step in enumerate(steps):
        present = inside + waiting
        if step < 5:
            seat = Seat()
            had_room = len(inside) < concurrency or len(waiting) < queue
            assert line.enter(seat, now) == had_room
            if had_room:
                (inside if len(inside) < concurrency else waiting).append(seat)
        elif present:
            seat = present[step % len(present)]
            (inside if seat in inside else waiting).remove(seat)
            called = line.leave(seat, now)
            expected = waiting[: max(0, concurrency - len(inside))]
            assert called == expected
            inside += expected
            del waiting[: len(expected)]
        assert (line.inside, line.waiting) == (len(inside), len(waiting))
        assert [s.state for s in inside + waiting] == ["inside"] * len(inside) + ["waiting"] * len(
            waiting
        )
        assert not (waiting and len(inside) < concurrency)


# --- the door, which waits -----------------------------------------------------------------------


async def test_requests_of_a_key_go_one_after_the_other(virtual_clock):
    door = Door("team", KeyLimits(concurrency=1, queue=9))
    order: list[int] = []

    async def request(number: int) -> None:
        seat = door.join()
        try:
            assert await door.turn(seat)
            order.append(number)
            await anyio.sleep(1)
        finally:
            door.leave(seat)

    begun = anyio.current_time()
    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(request, number)
            await anyio.lowlevel.checkpoint()
    assert order == [0, 1, 2, 3]
    assert anyio.current_time() - begun == pytest.approx(4)
    assert (door.line.inside, door.line.waiting) == (0, 0)


async def test_one_too_many_is_429_with_retry_after_at_once(virtual_clock):
    door = Door("team", KeyLimits(concurrency=1, queue=1))
    first, second = door.join(), door.join()
    for refuse in (lambda: door.reading().__enter__(), door.join):
        with pytest.raises(Refusal, match="has 1 request under way and 1 waiting") as caught:
            refuse()
        assert caught.value.status == 429
        assert caught.value.headers["retry-after"] == "1"
        assert caught.value.kind == "rate_limit_error"
    door.leave(second)
    with door.reading():
        door.leave(first)


async def test_as_many_bodies_are_read_at_a_time_as_requests_may_be_there():
    door = Door("team", KeyLimits(concurrency=1, queue=1))
    with door.reading():
        with door.reading(), pytest.raises(Refusal) as caught, door.reading():
            raise AssertionError
        assert caught.value.status == 429
        with pytest.raises(ZeroDivisionError), door.reading():
            raise ZeroDivisionError
        with door.reading():
            pass


async def test_a_wait_that_takes_too_long_ends(virtual_clock):
    door = Door("team", KeyLimits(concurrency=1, queue=1, queue_seconds=5))
    first, second = door.join(), door.join()
    begun = anyio.current_time()
    assert not await door.turn(second)
    assert anyio.current_time() - begun == pytest.approx(5)
    assert door.too_late().status == 429
    door.leave(second)
    door.leave(first)


async def test_a_turn_that_comes_as_the_wait_is_given_up_is_handed_on(virtual_clock):
    door = Door("team", KeyLimits(concurrency=1, queue=2))
    first, second, third = door.join(), door.join(), door.join()
    with anyio.CancelScope() as scope:
        door.leave(first)  # It is the second's turn now,
        scope.cancel()  # and the second is gone before it knows.
        await door.turn(second)
    door.leave(second)
    assert await door.turn(third)
    door.leave(third)


# --- amounts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "max_tokens"), [(None, None), (1, 1), (4, 4096), (None, 7)])
def test_amounts_within_the_limits_pass(n, max_tokens):
    check_amounts(n, max_tokens, KeyLimits())


@pytest.mark.parametrize(
    ("n", "max_tokens", "param"),
    [(5, None, "n"), (10**19, None, "n"), (None, 4097, "max_tokens"), (9, 9999, "n")],
)
def test_amounts_beyond_the_limits_are_400(n, max_tokens, param):
    with pytest.raises(Refusal) as caught:
        check_amounts(n, max_tokens, KeyLimits())
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("value", [0, -1, True, False, 1.0, 1.5, "1", [1], {}])
@pytest.mark.parametrize("param", ["n", "max_tokens"])
def test_amounts_that_are_none_are_400(value, param):
    given = {"n": None, "max_tokens": None, param: value}
    with pytest.raises(Refusal) as caught:
        check_amounts(**given, limits=KeyLimits())
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("budget", [{}, {"requests": 0}, {"requests": True}, {"money": 1}])
def test_a_budget_limits_something(budget):
    with pytest.raises(ValueError):
        KeyLimits(budget=budget)


def test_a_spent_budget_is_no_rate_limit():
    refusal = budget_spent()
    assert (refusal.status, refusal.code) == (429, "insufficient_quota")
    assert refusal.headers["x-should-retry"] == "false"
    assert "retry-after" in refusal.headers
