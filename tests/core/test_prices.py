"""The price of tokens."""

from __future__ import annotations

import math

import pytest

from mellea_like.core.generation import Usage
from mellea_like.core.prices import Price, checked_prices, cost, currency_of, price_for

CHEAP, DEAR = Price(0.5, 1), Price(3, 15)
PRICES = {"m": CHEAP, "m-2026-02-01": DEAR}


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("m", CHEAP),
        ("m-2026-02-01", DEAR),
        ("m-2026-01-31", CHEAP),
        ("m-20260131", CHEAP),
        ("m@20260131", CHEAP),
        ("m-mini", None),
        ("m-mini-2026-01-31", None),
        ("m-2026", None),
        ("m-2026-01-31-preview", None),
        ("vendor/m-20260131", None),
        ("M", None),
        ("", None),
        (None, None),
    ],
)
def test_a_model_has_its_own_price_or_as_a_dated_version_that_of_the_name_before(model, price):
    assert price_for(model, PRICES) is price


def test_cached_input_has_a_price_of_its_own_where_it_is_given():
    usage = Usage(1, 1_000_000, 0, cached_input_tokens=600_000)
    assert Price(2, 8, cached_input=0.5).cost(usage) == pytest.approx(0.4 * 2 + 0.6 * 0.5)
    assert Price(2, 8).cost(usage) == 2.0
    for price in (Price(2, 8), Price(2, 8, "EUR", cached_input=0)):
        assert Price.from_list(price.as_list()) == price
    with pytest.raises(ValueError, match="cached_input"):
        Price(2, 8, cached_input=-1)


def test_an_unknown_price_is_an_error_that_names_the_model_and_the_table():
    with pytest.raises(ValueError, match=r"the model 'x'.*m, m-2026-02-01"):
        cost(Usage(), "x", PRICES)
    with pytest.raises(ValueError, match="a model whose name is unknown: the prices are for none"):
        cost(Usage(), None, {})


@pytest.mark.parametrize(
    ("bad", "error"),
    [("1", TypeError), (None, TypeError), (-0.1, ValueError), (math.inf, ValueError)],
)
def test_a_price_is_a_finite_number_from_0_up(bad, error):
    with pytest.raises(error, match="input"):
        Price(bad, 1)
    with pytest.raises(error, match="output"):
        Price(1, bad)


@pytest.mark.parametrize("bad", ["m", [("m", CHEAP)], {"m": (1, 2)}, {1: CHEAP}, {"m": None}])
def test_what_is_no_price_table_is_refused(bad):
    with pytest.raises(TypeError, match="Price"):
        checked_prices(bad)


def test_a_table_has_one_currency():
    with pytest.raises(ValueError, match="must be in the same currency, not EUR, USD"):
        checked_prices({"here": Price(1, 2), "there": Price(1, 2, "EUR")})
    with pytest.raises(ValueError, match="a price's currency must be a code such as 'USD'"):
        Price(1, 2, "$")
    assert currency_of({"there": Price(1, 2, "EUR")}) == "EUR"
