"""What there is to say about a call as a whole."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from mellea_like.core.slice import Outcome
from mellea_like.report.attempts import FATES, fate_of, problems_of, usage_of, winner_of
from mellea_like.report.format import amount, count, percent, plural, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = ["call_text", "fates_of", "headline", "outcomes_of", "stopped"]

_STOPPED = {
    "passed": "Passed",
    "exhausted": "Nothing passed: all turns are spent",
    "timeout": "Nothing passed: the time was up",
    "budget": "Nothing passed: a budget is spent",
    "hopeless": "Nothing passed: more turns would not help",
    "error": "Ended by an error",
    "hook": "Stopped by a plugin",
    "cancelled": "Cancelled",
}


def stopped(trace: Mapping[str, Any]) -> str:
    """Say how a call ended."""
    winner = winner_of(trace)
    if winner is not None:
        return f"Passed: iteration {winner['iteration']} won"
    words = _STOPPED.get(trace["stop_reason"], f"Stopped: {trace['stop_reason']}")
    return f"{words} ({trace['stop_detail']})" if trace["stop_detail"] else words


def headline(trace: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Choose the figures that come first."""
    usage = usage_of(trace["usage"])
    chains = len({s["chain"] for s in trace["slices"]})
    iterations = len(trace["slices"])
    return [
        ("iteration" if iterations == 1 else "iterations", count(iterations)),
        ("subsample" if chains == 1 else "subsamples", count(chains)),
        ("request" if usage.requests == 1 else "requests", count(usage.requests)),
        ("tokens", ("≥ " if usage.unknown else "") + amount(usage.total_tokens)),
        ("elapsed", seconds(trace["elapsed"])),
    ]


def outcomes_of(trace: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Count a call's iterations by their outcome."""
    counts = Counter(str(s["outcome"]) for s in trace["slices"])
    return [(str(outcome), counts[outcome]) for outcome in Outcome if counts[outcome]]


def fates_of(trace: Mapping[str, Any]) -> dict[str, int]:
    """Say where the tokens of a call went."""
    winner = winner_of(trace)
    went: dict[str, int] = dict.fromkeys(FATES, 0)
    for s in trace["slices"]:
        went[fate_of(s, winner)] += usage_of(s["usage"]).total_tokens
    return went


def call_text(trace: Mapping[str, Any]) -> str:
    """Sum up a call in a few lines of plain text.

    Args:
        trace: the call's record.

    Returns:
        The lines. Whoever prints them makes them fit for a terminal.
    """
    lines = [f"{stopped(trace)}."]
    lines.append(", ".join(f"{value} {name}" for name, value in headline(trace)))
    lines.append(", ".join(f"{number} {outcome}" for outcome, number in outcomes_of(trace)))
    went = fates_of(trace)
    total = sum(went.values())
    lines += [
        f"  {percent(number, total):>8}  of the tokens {FATES[fate]}"
        for fate, number in went.items()
        if number
    ]
    best = trace["best_index"]
    if not trace["success"] and best is not None:
        slice_ = trace["slices"][best]
        lines.append(f"The best failure, iteration {slice_['iteration']}, lacks:")
        lines += [f"  - {' '.join(problem.split())}" for problem in problems_of(slice_)]
    errors = Counter(s["error"]["type"] for s in trace["slices"] if s["error"] is not None)
    lines += [f"{plural(number, 'iteration')} with {kind}" for kind, number in errors.items()]
    return "\n".join(line for line in lines if line)
