"""A budget's sums and its line, without any waiting."""

from __future__ import annotations

import time
from math import inf

import pytest

from mellea_like.limits.ledger import Account, Amounts, Claim, Standing

QUEUED, GRANTED, DENIED, ENDED = Standing
FREE = (inf, inf, inf, inf)


def tokens(limit: float) -> Account:
    return Account((inf, inf, limit, inf))


def ask(wanted: int, *accounts: Account, woken: list | None = None) -> Claim:
    claim = Claim([(account, Amounts(1, 0, wanted)) for account in accounts])
    if woken is not None:
        claim.wake = lambda: woken.append(claim)
    claim.submit()
    return claim


def end(claim: Claim, spent: int) -> None:
    claim.settle([Amounts(1, 0, spent)] * len(claim.wants))


def sums(account: Account) -> tuple[int, int, int]:
    return account.spent.output_tokens, account.reserved.output_tokens, account.waiting


# --- what fits --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "spent", "reserved", "wanted", "lacking", "room"),
    [
        (FREE, Amounts(9, 9, 9, 9), Amounts(9, 9, 9, 9), Amounts(9, 9, 9, 9), None, True),
        ((3, inf, inf, inf), Amounts(1), Amounts(1), Amounts(1), None, True),
        ((3, inf, inf, inf), Amounts(2), Amounts(1), Amounts(1), None, False),
        ((3, inf, inf, inf), Amounts(0), Amounts(3), Amounts(1), None, False),
        ((3, inf, inf, inf), Amounts(3), Amounts(0), Amounts(1), "requests", False),
        ((inf, 10, inf, inf), Amounts(0, 4), Amounts(0, 3), Amounts(0, 3), None, True),
        ((inf, 10, inf, inf), Amounts(0, 4), Amounts(0, 3), Amounts(0, 4), None, False),
        ((inf, 10, inf, inf), Amounts(0, 4), Amounts(0, 0), Amounts(0, 7), "input_tokens", False),
        ((inf, inf, 10, inf), Amounts(0, 0, 4), Amounts(0, 0, 3), Amounts(0, 0, 3), None, True),
        ((inf, inf, 10, inf), Amounts(0, 0, 4), Amounts(0, 0, 3), Amounts(0, 0, 6), None, False),
        (
            (inf, inf, 10, inf),
            Amounts(0, 0, 4),
            Amounts(),
            Amounts(0, 0, 7),
            "output_tokens",
            False,
        ),
        ((inf, inf, inf, 10), Amounts(money=4), Amounts(money=3), Amounts(money=3), None, True),
        ((inf, inf, inf, 10), Amounts(money=4), Amounts(money=3), Amounts(money=6), None, False),
        ((inf, inf, inf, 10), Amounts(money=4), Amounts(), Amounts(money=7), "money", False),
        ((1, 1, 1, 1), Amounts(1, 1, 1, 1), Amounts(), Amounts(1, 1, 1, 1), "requests", False),
    ],
)
def test_what_fits_and_what_never_will(limits, spent, reserved, wanted, lacking, room):
    account = Account(limits)
    account.spent, account.reserved = spent, reserved
    assert account.lacking(wanted) == lacking
    assert account.has_room(wanted) is room


# --- reserving and settling -------------------------------------------------------------------


def test_what_is_wanted_is_reserved_and_then_what_was_spent_is_charged():
    account = tokens(100)
    claim = ask(60, account)
    assert (claim.standing, sums(account)) == (GRANTED, (0, 60, 0))
    end(claim, 20)
    assert (claim.standing, sums(account)) == (ENDED, (20, 0, 0))


def test_a_claim_is_settled_once():
    account = tokens(100)
    claim = ask(60, account)
    end(claim, 20)
    end(claim, 20)
    claim.leave()
    assert sums(account) == (20, 0, 0)


def test_requests_of_unknown_cost_are_counted():
    outer, inner = tokens(100), tokens(100)
    ask(60, inner, outer).settle([Amounts(2, 0, 20)] * 2, unknown=2)
    assert (inner.unknown, outer.unknown) == (2, 2)


def test_more_than_was_reserved_may_be_charged():
    account = tokens(100)
    end(ask(60, account), 150)
    assert sums(account) == (150, 0, 0)
    assert ask(1, account).standing is DENIED


def test_a_claim_that_can_never_be_met_is_denied_at_once_and_reserves_nothing():
    outer, inner = tokens(100), tokens(1000)
    claim = ask(101, inner, outer)
    assert (claim.standing, claim.denied_by) == (DENIED, (outer, "output_tokens"))
    assert sums(inner) == sums(outer) == (0, 0, 0)
    assert (inner.denied, outer.denied) == (0, 1)


def test_the_innermost_account_without_room_denies():
    outer, inner = tokens(10), tokens(10)
    assert ask(11, inner, outer).denied_by == (inner, "output_tokens")


# --- the line ---------------------------------------------------------------------------------


def test_what_fits_only_beside_what_is_reserved_waits_and_is_woken():
    account, woken = tokens(100), []
    first = ask(60, account)
    second = ask(60, account, woken=woken)
    assert (second.standing, sums(account), woken) == (QUEUED, (0, 60, 1), [])
    end(first, 40)
    assert (second.standing, sums(account), woken) == (GRANTED, (40, 60, 0), [second])


def test_a_claim_in_line_is_denied_when_it_can_never_be_met_any_more():
    account, woken = tokens(100), []
    first = ask(60, account)
    second = ask(60, account, woken=woken)
    end(first, 41)
    assert (second.standing, sums(account), woken) == (DENIED, (41, 0, 0), [second])
    assert account.denied == 1


def test_a_hopeless_claim_in_the_middle_of_the_line_does_not_wait_for_those_before_it():
    account, woken = tokens(100), []
    a, b = ask(50, account), ask(50, account)
    small = [ask(40, account, woken=woken) for _ in range(2)]
    large = ask(70, account, woken=woken)
    last = ask(30, account, woken=woken)
    end(a, 45)
    # 45 spent, 50 reserved: 40 may yet fit, 70 never will.
    assert (woken, large.standing) == ([large], DENIED)
    end(b, 10)
    assert woken == [large, small[0]]
    end(small[0], 0)
    assert woken == [large, *small]
    end(small[1], 40)
    assert (woken, last.standing) == ([large, *small, last], DENIED)
    assert sums(account) == (95, 0, 0)


def test_a_later_claim_does_not_overtake_though_it_would_fit():
    account, woken = tokens(100), []
    first = ask(60, account)
    large, small = ask(60, account, woken=woken), ask(10, account, woken=woken)
    assert (large.standing, small.standing) == (QUEUED, QUEUED)
    end(first, 0)
    assert woken == [large, small]


def test_one_ending_serves_all_who_fit_then():
    account, woken = tokens(100), []
    first = ask(100, account)
    others = [ask(30, account, woken=woken) for _ in range(4)]
    end(first, 0)
    assert [claim.standing for claim in others] == [GRANTED] * 3 + [QUEUED]
    assert woken == others[:3]


def test_who_leaves_makes_way_for_those_behind():
    account, woken = tokens(100), []
    ask(60, account)
    large, small = ask(60, account, woken=woken), ask(10, account, woken=woken)
    large.leave()
    assert (large.standing, small.standing) == (ENDED, GRANTED)
    assert (woken, sums(account)) == ([small], (0, 70, 0))


def test_who_leaves_after_being_granted_gives_it_back_to_the_next():
    account = tokens(100)
    first = ask(100, account)
    second, third = ask(100, account), ask(100, account)
    end(first, 0)
    second.leave()
    assert (second.standing, third.standing) == (ENDED, GRANTED)
    assert sums(account) == (0, 100, 0)


def test_who_was_denied_has_nothing_to_leave():
    account = tokens(10)
    claim = ask(11, account)
    claim.leave()
    assert (claim.standing, sums(account)) == (DENIED, (0, 0, 0))


def test_higher_limits_serve_the_line_and_lower_ones_deny_it():
    account, woken = tokens(100), []
    ask(60, account)
    second, third = ask(60, account, woken=woken), ask(90, account, woken=woken)
    account.limits = (inf, inf, 120, inf)
    account.serve()
    assert (second.standing, third.standing) == (GRANTED, QUEUED)
    account.limits = (inf, inf, 80, inf)
    account.serve()
    assert (third.standing, sums(account)) == (DENIED, (0, 120, 0))
    assert woken == [second, third]


# --- accounts within accounts -----------------------------------------------------------------


def test_what_one_ends_serves_those_who_wait_in_an_account_beside_it():
    outer = tokens(100)
    a, b = tokens(inf), tokens(inf)
    first = ask(80, a, outer)
    second = ask(80, b, outer)
    assert (second.standing, sums(b)) == (QUEUED, (0, 0, 1))
    end(first, 20)
    assert second.standing is GRANTED
    assert (sums(a), sums(b), sums(outer)) == ((20, 0, 0), (0, 80, 0), (20, 80, 0))


def test_who_waits_for_an_inner_account_holds_up_nobody_else():
    outer = tokens(100)
    a, b = tokens(30), tokens(inf)
    ask(30, a, outer)
    waits = ask(30, a, outer)
    other = ask(30, b, outer)
    assert (waits.standing, other.standing) == (QUEUED, GRANTED)


def test_who_waited_for_an_inner_account_goes_before_those_who_came_later():
    outer = tokens(100)
    a, b = tokens(30), tokens(inf)
    first, other = ask(30, a, outer), ask(50, b, outer)
    waits = ask(30, a, outer)
    large = ask(70, b, outer)  # Waits for room in the outer account.
    end(first, 0)
    assert (waits.standing, large.standing) == (GRANTED, QUEUED)
    end(other, 0)
    assert (large.standing, sums(outer)) == (GRANTED, (0, 100, 0))


def test_a_claim_that_moves_to_the_front_of_another_line_is_served_first():
    outer = tokens(100)
    a, b = tokens(50), tokens(inf)
    first, other = ask(50, a, outer), ask(50, b, outer)
    early = ask(50, a, outer)  # Waits in a.
    late = ask(10, b, outer)  # Waits in the outer account.
    a.limits = FREE
    a.serve()  # The early one moves to the outer account's line, to its front.
    woken = []
    early.wake = lambda: woken.append("early")
    late.wake = lambda: woken.append("late")
    end(other, 45)
    assert woken == []
    end(first, 0)
    assert woken == ["early"]
    end(early, 45)
    assert woken == ["early", "late"]
    assert (sums(a), sums(outer)) == ((45, 0, 0), (90, 10, 0))


def test_an_older_claim_from_another_line_does_not_wait_behind_a_younger_one_without_room():
    outer = tokens(100)
    a, b = tokens(50), tokens(inf)
    ask(50, a, outer)
    other = ask(30, b, outer)
    early, late = ask(30, a, outer), ask(60, b, outer)
    a.limits = FREE
    a.serve()
    end(other, 0)
    assert (early.standing, late.standing) == (GRANTED, QUEUED)


def test_a_claim_that_comes_from_another_line_keeps_its_place_in_the_order_of_arrival():
    outer = tokens(100)
    a, b = tokens(50), tokens(inf)
    first, other = ask(50, a, outer), ask(50, b, outer)
    one = ask(20, b, outer)
    two = ask(50, a, outer)
    three = ask(20, b, outer)
    a.limits = FREE
    a.serve()
    end(other, 0)
    # The third would fit beside the first one, but came after the second.
    assert [c.standing for c in (one, two, three)] == [GRANTED, QUEUED, QUEUED]
    end(first, 0)
    assert [c.standing for c in (one, two, three)] == [GRANTED] * 3
    assert sums(outer) == (0, 90, 0)


def test_denied_for_the_outer_account_while_in_line_at_the_inner_one():
    outer, inner = Account((2, inf, inf, inf)), tokens(100)
    first = ask(100, inner, outer)
    second = ask(100, inner, outer)
    end(ask(0, outer), 0)
    end(first, 0)
    assert second.denied_by == (outer, "requests")
    assert (second.standing, inner.waiting, outer.waiting) == (DENIED, 0, 0)


@pytest.mark.alone
def test_a_long_line_costs_each_ending_little():
    account = tokens(1000)
    running = [ask(100, account) for _ in range(10)]
    waiting = [ask(100, account) for _ in range(10_000)]
    start = time.perf_counter()
    for claim in running + waiting:
        end(claim, 0)
    seconds = time.perf_counter() - start
    assert sums(account) == (0, 0, 0)
    # 10 us each on a quick machine; looking at the whole line each time would take minutes.
    assert seconds < 5
