"""A budget's sums and its queue, without any waiting."""

from __future__ import annotations

import asyncio
import time
from math import inf

import pytest

from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import (
    BackendTimeout,
    BackendUnavailable,
    MalformedResponse,
    RateLimited,
)
from mellea_like.limits.base import RequestEnd
from mellea_like.limits.budget_accounts import Account, Amounts, Claim, charged_tokens


def tokens(limit: float) -> Account:
    return Account((inf, inf, limit, inf))


def ask(wanted: int, *accounts: Account, woken: list | None = None) -> Claim:
    claim = Claim([(account, Amounts(1, 0, wanted)) for account in accounts])
    if woken is not None:
        claim.wake = lambda: woken.append(claim)
    claim.decide()
    return claim


def standing(claim: Claim) -> str:
    if claim.denied_by is not None:
        return "denied"
    if claim.queued_at is not None:
        return "queued"
    return "granted" if claim.granted else "ended"


def end(claim: Claim, spent: int) -> None:
    claim.settle([Amounts(1, 0, spent)] * len(claim.wants))


def sums(account: Account) -> tuple[int, int, int]:
    kept = account.sums
    return kept.spent.output_tokens, kept.reserved.output_tokens, len(kept.queue)


# --- what fits --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spent", "reserved", "wanted", "lacks", "room"),
    [
        (4, 3, 3, False, True),
        (4, 3, 6, False, False),
        (0, 10, 1, False, False),
        (4, 0, 7, True, False),
        (10, 0, 1, True, False),
        (0, 0, 10, False, True),
    ],
)
@pytest.mark.parametrize("name", Amounts._fields)
def test_what_fits_and_what_never_will(name, spent, reserved, wanted, lacks, room):
    account = Account(tuple(10 if field == name else inf for field in Amounts._fields))
    account.sums.spent, account.sums.reserved = Amounts(9, 9, 9, 9), Amounts(9, 9, 9, 9)
    account.sums.spent = account.sums.spent._replace(**{name: spent})
    account.sums.reserved = account.sums.reserved._replace(**{name: reserved})
    asked = Amounts(9, 9, 9, 9)._replace(**{name: wanted})
    assert account.lacking(asked) == (name if lacks else None)
    assert account.has_room(asked) is room


def test_of_several_that_are_lacking_the_first_is_named():
    account = Account((1, 1, 1, 1))
    account.sums.spent = Amounts(1, 1, 1, 1)
    assert account.lacking(Amounts(1, 1, 1, 1)) == "requests"


def test_a_claim_queued_is_denied_when_it_can_never_be_met_any_more():
    account, woken = tokens(100), []
    first = ask(60, account)
    second = ask(60, account, woken=woken)
    end(first, 41)
    assert (standing(second), sums(account), woken) == ("denied", (41, 0, 0), [second])
    assert account.sums.denied == 1


# --- accounts within accounts -----------------------------------------------------------------


def test_who_waited_for_an_inner_account_goes_before_those_who_came_later():
    outer = tokens(100)
    a, b = tokens(30), tokens(inf)
    first, other = ask(30, a, outer), ask(50, b, outer)
    waits = ask(30, a, outer)
    large = ask(70, b, outer)  # Waits for room in the outer account.
    end(first, 0)
    assert (standing(waits), standing(large)) == ("granted", "queued")
    end(other, 0)
    assert (standing(large), sums(outer)) == ("granted", (0, 100, 0))


def test_a_claim_that_comes_from_another_queue_keeps_its_place_in_the_order_of_arrival():
    outer = tokens(100)
    a, b = tokens(50), tokens(inf)
    first, other = ask(50, a, outer), ask(40, b, outer)
    early = ask(50, a, outer)  # Waits in a.
    one, late = ask(20, b, outer), ask(50, b, outer)  # Wait in the outer account.
    end(first, 0)  # The early one moves to the outer account's queue, to its front.
    assert [standing(c) for c in (one, early, late)] == ["granted", "queued", "queued"]
    end(one, 0)
    assert [standing(c) for c in (early, late)] == ["granted", "queued"]
    end(other, 0)
    assert (standing(late), sums(outer)) == ("granted", (0, 100, 0))


def test_denied_for_the_outer_account_while_queued_at_the_inner_one():
    outer, inner = Account((2, inf, inf, inf)), tokens(100)
    first = ask(100, inner, outer)
    second = ask(100, inner, outer)
    end(ask(0, outer), 0)
    end(first, 0)
    assert second.denied_by == (outer, "requests")
    assert (standing(second), sums(inner), sums(outer)) == ("denied", (0, 0, 0), (0, 0, 0))


def test_a_long_queue_costs_each_ending_little():
    account = tokens(1000)
    running = [ask(100, account) for _ in range(10)]
    waiting = [ask(100, account) for _ in range(10_000)]
    start = time.perf_counter()
    for claim in running + waiting:
        end(claim, 0)
    seconds = time.perf_counter() - start
    assert sums(account) == (0, 0, 0)
    # 10 us each on a quick machine; looking at the whole queue each time would take minutes.
    assert seconds < 5


# --- what a request is charged when it has ended --------------------------------------------------

ESTIMATED = 7
REPLY = Generation("fünf Wörter sind es")  # 21 bytes
LOST = Usage(1, 0, 0, 1)


@pytest.mark.parametrize(
    ("usage", "reply", "error", "charged"),
    [
        pytest.param(Usage(), None, None, (0, 0), id="nothing was sent"),
        pytest.param(Usage(), None, asyncio.CancelledError(), (0, 0), id="cancelled before it was"),
        pytest.param(Usage(1, 3, 4), REPLY, None, (3, 4), id="known"),
        pytest.param(Usage(0, 3, 4), REPLY, None, (3, 4), id="a part of a request of several"),
        pytest.param(Usage(1, 0, 0), REPLY, None, (0, 0), id="known to be nothing"),
        pytest.param(Usage(2, 6, 8), None, BackendTimeout(), (6, 8), id="an error, and known"),
        pytest.param(LOST, REPLY, None, (7, 6), id="a reply that nobody counted"),
        pytest.param(Usage(1, 3, 4, 1), REPLY, None, (3, 4), id="a reply of which parts are known"),
        pytest.param(LOST, None, asyncio.CancelledError(), (7, 0), id="cancelled"),
        pytest.param(LOST, None, None, (7, 0), id="left early"),
        pytest.param(Usage(1, 0, 4, 1), None, None, (7, 4), id="left early, some arrived"),
        pytest.param(Usage(1, 3, 4, 1), None, None, (3, 4), id="left early, the prompt is known"),
        pytest.param(LOST, None, BackendTimeout(), (7, 0), id="timed out"),
        pytest.param(LOST, None, MalformedResponse(), (7, 0), id="unreadable"),
        pytest.param(LOST, None, ValueError(), (7, 0), id="a bug after it was sent"),
        pytest.param(LOST, None, BackendUnavailable(status=503), (0, 0), id="refused: 503"),
        pytest.param(LOST, None, RateLimited(status=429), (0, 0), id="refused: 429"),
        pytest.param(
            Usage(1, 0, 4, 1), None, BackendUnavailable(), (7, 4), id="broke off in the middle"
        ),
    ],
)
def test_what_is_charged(usage, reply, error, charged):
    assert charged_tokens(RequestEnd(usage, reply, error), ESTIMATED) == charged
