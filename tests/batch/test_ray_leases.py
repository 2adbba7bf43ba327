"""What the office decides: shares add up to 1, leases to the budget, books to one truth."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mellea_like.batch.ray import ClusterLimit
from mellea_like.batch.ray.leases import Ask, Entry, LeaseBook, lapsed
from mellea_like.core.prices import Price
from mellea_like.limits.ledger import Amounts

NO_LIMIT = (inf, inf, inf, inf)


EMPTY = Entry()


def ask(worker, weight=1.0, share=0.0, *, entry=EMPTY, wants=0, needs=None, books=None):
    return Ask(
        worker,
        f"{worker}-1",
        weight,
        share,
        entry,
        Amounts(wants),
        None if needs is None else Amounts(needs),
        books or {},
    )


def book(total=NO_LIMIT, workers=2, *, first=True):
    return LeaseBook(total, 2.0, workers, 0.0, first=first)


@pytest.mark.parametrize(
    ("over", "share"),
    [(-1, 0.8), (-0.001, 0.8), (0, 0.4), (1.9, 0.4), (2.1, 0.2), (4.1, 0.1), (1e6, 0.1)],
)
def test_a_lapsed_lease_is_worth_half_and_half_again_down_to_an_eighth(over, share):
    assert lapsed(0.8, over, 2.0) == pytest.approx(share)


# --- shares -----------------------------------------------------------------------------------


def test_at_first_each_expected_worker_has_an_equal_share():
    office = book(workers=4)
    assert office.answer(0.0, ask("a")).share == 0.25
    assert office.answer(0.1, ask("b", weight=100)).share == 0.25


def test_later_shares_follow_the_weights():
    office = book(workers=2)
    for now in (0.0, 1.0, 2.1, 3.1, 4.1):
        a = office.answer(now, ask("a", weight=3)).share
        b = office.answer(now, ask("b", weight=1)).share
    assert (a, b) == (0.75, 0.25)


def test_what_is_leased_to_others_is_not_leased_again_before_it_lapses():
    office = book(workers=1)
    assert office.answer(0.0, ask("a")).share == 1.0
    assert office.answer(2.5, ask("a")).share == 1.0
    assert office.answer(3.0, ask("b")).share == 0.0
    assert office.answer(4.6, ask("b")).share == 0.5  # a's lease is over; it goes on with half.
    assert office.answer(6.6, ask("b")).share == 0.75
    assert office.answer(100.0, ask("b")).share == 1.0  # a is forgotten.


def test_who_has_nothing_to_do_has_no_share():
    office = book(workers=2)
    office.answer(3.0, ask("a", weight=0))
    assert office.answer(3.0, ask("b")).share == 1.0
    assert office.answer(3.1, ask("a", weight=0)).share == 0.0


def test_a_new_office_gives_no_more_than_workers_have_until_all_have_asked():
    office = book(workers=2, first=False)
    assert office.answer(0.1, ask("a", share=0.25)).share == 0.25
    assert office.answer(0.2, ask("b", share=0.0)).share == 0.0
    assert office.answer(2.1, ask("a", share=0.25)).share == 0.5
    assert office.answer(2.2, ask("b", share=0.0)).share == 0.5


# --- the budget -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wants", "needs", "granted"),
    [
        (0, None, 0),
        (10, None, 10),
        (90, None, 25),  # Half of an equal share of what is left.
        (0, 1, 1),
        (90, 40, 40),  # What is needed, at any rate.
        (90, 100, 100),
    ],
)
def test_as_much_is_leased_as_is_needed_and_ahead_of_that_a_part(wants, needs, granted):
    answer = book((100, inf, inf, inf)).answer(0.0, ask("a", wants=wants, needs=needs))
    assert answer.entry.granted.requests == granted
    assert not answer.spent_up


def test_the_budget_is_spent_up_when_nobody_has_anything_left():
    office = book((10, inf, inf, inf))
    has = office.answer(0.0, ask("a", needs=8)).entry
    assert not office.answer(0.1, ask("b", needs=3)).spent_up  # a may give some back.
    spent = has._replace(spent=Amounts(8))
    office.answer(0.2, ask("a", entry=spent))
    assert office.answer(0.3, ask("b", needs=3)).spent_up
    assert not office.answer(0.4, ask("b", needs=2)).spent_up


def test_what_a_worker_gives_back_is_leased_to_the_next():
    office = book((10, inf, inf, inf))
    has = office.answer(0.0, ask("a", needs=8)).entry
    assert office.answer(0.1, ask("b", needs=3)).entry.granted.requests == 0
    assert office.answer(0.2, ask("a", entry=has)).give_back
    office.answer(0.3, ask("a", entry=has._replace(returned=Amounts(5))))
    assert office.answer(0.4, ask("b", needs=3)).entry.granted.requests == 3


def test_who_has_waited_longest_comes_first_and_the_dead_wait_no_more():
    office = book((10, inf, inf, inf), workers=3)
    office.answer(0.0, ask("a", needs=8))
    office.answer(0.1, ask("b", needs=5))
    c = office.answer(0.2, ask("c", needs=1))
    assert c.give_back
    assert c.entry.granted.requests == 0
    assert office.answer(2.2, ask("c", needs=1)).entry.granted.requests == 1


def test_a_process_in_place_of_a_dead_one_leaves_it_nothing_that_others_wait_for():
    office = book((10, inf, inf, inf))
    office.answer(0.0, ask("a", needs=8))
    assert not office.answer(0.1, ask("b", needs=3)).spent_up
    office.answer(0.2, ask("a")._replace(holder="a-2"))
    assert office.answer(0.3, ask("b", needs=3)).spent_up


def test_what_was_spent_beyond_what_was_leased_is_charged():
    office = book((10, inf, inf, inf))
    office.answer(0.0, ask("a", entry=Entry(Amounts(9), Amounts(9))))
    assert office.answer(0.1, ask("b", needs=2)).spent_up


def test_a_new_office_learns_from_the_workers_what_the_old_one_knew():
    old = book((10, inf, inf, inf), workers=2)
    a = old.answer(0.0, ask("a", needs=4)).entry
    books = old.answer(0.1, ask("b", needs=4)).books
    new = book((10, inf, inf, inf), workers=2, first=False)
    told = new.answer(0.1, ask("a", entry=a, needs=1, books=books))
    assert (told.entry.granted.requests, told.spent_up, told.give_back) == (4, False, False)
    # b is dead: what it had is gone.
    assert new.answer(2.1, ask("a", entry=a, needs=2)).entry.granted.requests == 6
    assert new.answer(2.2, ask("a", entry=a, needs=1)).spent_up


# --- any order of events ----------------------------------------------------------------------

AMOUNT = st.integers(0, 30)
STEPS = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.sampled_from([0.0, 0.3, 1.0, 2.5, 70.0]),
        st.integers(0, 5),
        AMOUNT,
        st.none() | AMOUNT,
        AMOUNT,
        AMOUNT,
    ),
    max_size=60,
)


@given(STEPS, st.integers(0, 60))
def test_leases_never_add_up_to_more_than_there_is(steps, dies_at):
    office = book((50, inf, inf, inf), workers=3)
    now, leases, own, copies = 0.0, {}, {}, {}
    for number, (worker, pause, weight, wants, needs, spend, back) in enumerate(steps):
        now += pause
        if number == dies_at:
            # Everybody's copy is of the last moment; so nothing that was leased is forgotten.
            copies = dict.fromkeys("abcd", office.books)
            office = LeaseBook((50, inf, inf, inf), 2.0, 3, now, first=False)
            said = now
        entry = own.get(worker, Entry())
        free = entry.unspent.requests
        entry = entry._replace(spent=entry.spent.plus(Amounts(min(spend, free))))
        free -= min(spend, free)
        entry = entry._replace(returned=entry.returned.plus(Amounts(min(back, free))))
        share, until = leases.get(worker, (0.0, now))
        question = ask(
            worker,
            weight,
            lapsed(share, now - until, 2.0),
            entry=entry,
            wants=wants,
            needs=needs,
            books=copies.get(worker),
        )
        answer = office.answer(now, question)
        own[worker] = answer.entry
        leases[worker] = answer.share, now + 2.0
        valid = [share for share, until in leases.values() if now < until]
        if number < dies_at or now > said + 2.0:
            assert sum(valid) <= 1 + 1e-9
        held = sum(max(e.held.requests, e.spent.requests) for e in own.values())
        assert held <= 50


@given(
    st.lists(st.tuples(*[st.tuples(*[AMOUNT] * 4)] * 3), min_size=2, max_size=3),
)
def test_copies_of_the_books_are_merged_in_any_order(numbers):
    first, second, *rest = (Entry(*(Amounts(*n) for n in entry)) for entry in numbers)
    third = rest[0] if rest else first
    assert first.merged(second) == second.merged(first)
    assert first.merged(second).merged(third) == first.merged(second.merged(third))
    assert first.merged(first) == first


# --- the limit itself -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({}, ValueError, "ClusterLimit needs a limit"),
        ({"requests_per_minute": 0}, ValueError, "requests_per_minute"),
        ({"tokens_per_minute": "1"}, TypeError, "tokens_per_minute"),
        ({"requests": 0}, ValueError, "requests"),
        ({"money": 1.0}, ValueError, "prices"),
        ({"money": 1.0, "prices": [1]}, TypeError, "prices"),
        ({"requests": 1, "lease_seconds": 0}, ValueError, "lease_seconds"),
    ],
)
def test_a_wrong_limit_is_refused_where_it_is_written(wrong, error, says):
    with pytest.raises(error, match=says):
        ClusterLimit(**wrong)


def test_a_limit_counts_money_in_whole_parts_and_shares_its_rates():
    limit = ClusterLimit(
        requests_per_minute=60, money=2.0, prices={"m": Price(1, 1)}, assume_output_tokens=9
    )
    assert limit.total == (inf, inf, inf, 2 * 10**15)
    assert limit.rates(0.5) == (30, None)
    assert limit.rates(0.0)[0] == pytest.approx(0, abs=1e-6)
    assert limit.rate_limiter(0.25).requests_per_minute == 15
