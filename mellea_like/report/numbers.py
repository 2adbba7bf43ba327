"""Format numbers and times for human readers."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mellea_like.core.prices import with_currency

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.core.generation import Usage

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_TIMES = ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "min"), (_MINUTE, "min", 1, "s"))
_SMALL, _TEN = 0.0095, 10
_UNITS = ((1e9, "bn"), (1e6, "m"), (1e4, "k"))


def count(number: float) -> str:
    """Format a whole number: ``1,234``."""
    return f"{round(number):,}"


def amount(number: float) -> str:
    """Format a number in about six characters: ``9,310``, ``41.2 k``, ``3.05 m``."""
    for unit, name in _UNITS:
        if number >= unit:
            scaled = number / (1e3 if name == "k" else unit)
            return f"{three_digits(scaled)} {name}"
    return count(number)


def three_digits(number: float) -> str:
    """Format a number of at least 0 with three digits, or more above 999: ``0.012``, ``4,321``."""
    return f"{number:.3g}" if number < 999.5 else count(number)  # noqa: PLR2004 (no exponent)


def capital(text: str) -> str:
    """Return a text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def percent(part: float, whole: float) -> str:
    """Format a share in per cent. Only a share of exactly 0 or 1 is written as 0 % or 100 %."""
    if not whole:
        return "–"
    share = 100 * part / whole
    text = f"{share:.3g}" if share < _TEN else f"{share:.1f}"
    if part < whole and float(text) >= 100:  # noqa: PLR2004 (per cent)
        text = "> 99.9"
    elif part > 0 and share < _SMALL:
        text = "< 0.01"
    return f"{text.removesuffix('.0')} %"


def bounds(low: float, high: float) -> str:
    """Format the ends of an interval in per cent. Only 0 and 1 are written as 0.0 and 100.0."""
    return f"{_end(low)} to {_end(high)}"


def _end(share: float) -> str:
    text = f"{100 * share:.1f}"
    rounded = 0 < share < 1 and text in {"0.0", "100.0"}
    return percent(share, 1).removesuffix(" %") if rounded else text


def seconds(duration: float) -> str:
    """Format a duration: ``0.8 ms``, ``230 ms``, ``4.21 s``, ``3 min 12 s``, ``2 h 5 min``."""
    if duration <= 0:
        return "0 s"
    if duration < 0.9995:  # noqa: PLR2004 (what rounds to 1 s)
        return f"{duration * 1000:.3g} ms"
    if duration < _MINUTE - 0.05:
        return f"{duration:.3g} s"
    whole = round(duration)
    unit, name, part, smaller = next(units for units in _TIMES if whole >= units[0])
    rest = whole % unit // part
    return f"{whole // unit:,} {name}" + (f" {rest} {smaller}" if rest else "")


def money(cost: float, currency: str = "USD", *, at_least: bool = False) -> str:
    """Format an amount of money: ``$12.50``, ``≥ 0.000123 EUR``."""
    bound = "≥ " if at_least else ""
    if cost >= 0.9995:  # noqa: PLR2004 (what three digits round to 1)
        written = f"{cost:,.2f}"
    else:  # Three significant digits and no exponent.
        written = f"{cost:.{2 - math.floor(math.log10(cost))}f}".rstrip("0") if cost else "0"
    return bound + with_currency(written, currency)


def moment(stamp: str | None) -> str:
    """Format a time: ``2026-01-31 12:00:00 UTC``."""
    if stamp is None:
        return "–"
    time = datetime.fromisoformat(stamp)
    utc = time if time.tzinfo is None else time.astimezone(UTC)
    return f"{utc:%Y-%m-%d %H:%M:%S} UTC"


def tokens_of(usage: Usage, written: Callable[[float], str]) -> tuple[str, str]:
    """Describe the input tokens (and how many were cached) and the output tokens, as two texts."""
    cached, thought = usage.cached_input_tokens, usage.reasoning_tokens
    return (
        f"{written(usage.input_tokens)} tokens in" + f" ({written(cached)} cached)" * bool(cached),
        f"{written(usage.output_tokens)} out" + f" ({written(thought)} reasoning)" * bool(thought),
    )
