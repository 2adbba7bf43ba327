"""Numbers formatted for people."""

from __future__ import annotations

import pytest

from mellea_like.report.numbers import (
    amount,
    bounds,
    moment,
    money,
    percent,
    seconds,
    three_digits,
)


@pytest.mark.parametrize(
    ("write", "number", "text"),
    [
        (amount, 0, "0"),
        (amount, 9_999, "9,999"),
        (amount, 10_000, "10 k"),
        (amount, 41_234, "41.2 k"),
        (amount, 999_499, "999 k"),
        (amount, 999_600, "1,000 k"),
        (amount, 999_999_999, "1,000 m"),
        (amount, 3_050_000, "3.05 m"),
        (amount, 7.5e9, "7.5 bn"),
        (amount, 1.2e13, "12,000 bn"),
        (seconds, 0, "0 s"),
        (seconds, -1, "0 s"),
        (seconds, 0.00081, "0.81 ms"),
        (seconds, 0.2304, "230 ms"),
        (seconds, 0.9996, "1 s"),
        (seconds, 4.2123, "4.21 s"),
        (seconds, 59.99, "1 min"),
        (seconds, 192, "3 min 12 s"),
        (seconds, 3600, "1 h"),
        (seconds, 7525, "2 h 5 min"),
        (seconds, 90_000, "1 d 1 h"),
        # Money has no exponent.
        (money, 0, "$0"),
        (money, 1234.5, "$1,234.50"),
        (money, 0.5, "$0.5"),
        (money, 0.9994, "$0.999"),
        (money, 0.9996, "$1.00"),
        (money, 0.01234, "$0.0123"),
        (money, 0.0000918, "$0.0000918"),
        (three_digits, 0, "0"),
        (three_digits, 1.7034, "1.7"),
        (three_digits, 999.6, "1,000"),
        (three_digits, 41_234.4, "41,234"),
        (moment, None, "–"),
        (moment, "2026-03-14T09:00:00+00:00", "2026-03-14 09:00:00 UTC"),
        (moment, "2026-03-14T09:00:00.5+02:00", "2026-03-14 07:00:00 UTC"),
        (moment, "2026-03-14T09:00:00", "2026-03-14 09:00:00 UTC"),
    ],
)
def test_a_number_is_written_for_people(write, number, text):
    assert write(number) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "–"),
        (0, 5, "0 %"),
        (5, 5, "100 %"),
        (1, 2, "50 %"),
        (1, 3, "33.3 %"),
        (1, 30, "3.33 %"),
        (99_999, 100_000, "> 99.9 %"),
        (1, 1_000_000, "< 0.01 %"),
        (999, 1000, "99.9 %"),
    ],
)
def test_a_share_is_never_rounded_to_all_or_nothing(part, whole, text):
    assert percent(part, whole) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0, 1, "0.0 to 100.0"),
        (0.4123, 0.5881, "41.2 to 58.8"),
        (0, 0.00038, "0.0 to 0.038"),
        (1e-9, 0.99999, "< 0.01 to > 99.9"),
    ],
)
def test_an_end_of_an_interval_is_never_rounded_to_all_or_nothing(low, high, text):
    assert bounds(low, high) == text


def test_money_has_its_currency_and_a_lower_bound_says_so():
    assert money(0.0, at_least=True) == "≥ $0"
    assert money(2.0, "EUR", at_least=True) == "≥ 2.00 EUR"
