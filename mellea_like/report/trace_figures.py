"""What a call's trace says about its draws: who won, and what each of them cost."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mellea_like.core.display import attempt_names
from mellea_like.core.generation import Usage
from mellea_like.core.prices import Price, currency_of, price_for
from mellea_like.core.prompts import prompt_at
from mellea_like.core.serialization import decision_from_dict, usage_from_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable, Mapping, Sequence

    from mellea_like.core.decision import Decision

__all__ = [
    "ANY_MODEL",
    "FATES",
    "Money",
    "cut",
    "damage",
    "decision_of",
    "fates_in",
    "has_too_few",
    "independent_draws",
    "kind_of",
    "names_of",
    "prices_of",
    "problems_of",
    "share_met",
    "shown_by",
    "tokens_of",
    "trace_so_far",
    "usage_of",
    "winner_of",
    "winners_of",
]

FATES: dict[str, str] = {
    "won": "in the replies that won",
    "heard": "in replies that passed and had a say, and did not win",
    "late": "in replies that passed, after another had won",
    "rejected": "in replies that failed",
    "cancelled": "in draws that were cancelled",
    "errored": "in draws that ended in an error",
    "compared": "in comparisons of replies that passed",
    "other": "in requests whose draw is not recorded",
}
"""Where tokens go, each in words."""


ANY_MODEL = "any model"
"""The name of a price for models that have none by their own names."""


class Money(NamedTuple):
    """A sum of money: what is known of it, and whether that is all."""

    known: float = 0.0
    complete: bool = True

    def plus(self, other: Money) -> Money:
        """Add another sum."""
        return Money(self.known + other.known, self.complete and other.complete)


@dataclass(frozen=True, slots=True)
class Prices:
    """What models cost."""

    of: Mapping[str, Price]

    @property
    def currency(self) -> str:
        """The code of their currency."""
        return currency_of(self.of)

    def cost(self, usage: Usage, model: str | None) -> Money:
        """Return what requests cost."""
        if model is None and len(self.of) == 1:
            model = next(iter(self.of))
        price = price_for(model, self.of) or self.of.get(ANY_MODEL)
        if price is None:
            return Money(0.0, not usage.total_tokens and not usage.unknown)
        return Money(price.cost(usage), not usage.unknown)


def prices_of(run: Mapping[str, Any]) -> Prices | None:
    """Read the prices of a run."""
    written: Mapping[str, Any] | None = run.get("prices")
    if not written:
        return None
    return Prices({model: Price.from_list(price) for model, price in written.items()})


def usage_of(written: Mapping[str, int] | None) -> Usage:
    """Read a usage."""
    return Usage() if written is None else usage_from_dict(written)


def tokens_of(usage: Usage, written: Callable[[float], str]) -> tuple[str, str]:
    """Write the tokens in and out, with those that were cached or thought where there are any."""
    cached, thought = usage.cached_input_tokens, usage.reasoning_tokens
    return (
        f"{written(usage.input_tokens)} tokens in" + f" ({written(cached)} cached)" * bool(cached),
        f"{written(usage.output_tokens)} out" + f" ({written(thought)} reasoning)" * bool(thought),
    )


def names_of(trace: Mapping[str, Any]) -> dict[int, str]:
    """Name a call's draws by their ids, as in "attempt 2 of 8, lane 3"."""
    return attempt_names((s["iteration"], s["subsample"], s["depth"]) for s in trace["slices"])


def winner_of(trace: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Find the slice that won."""
    best = trace["best_index"]
    return trace["slices"][best] if trace["success"] and best is not None else None


def independent_draws(trace: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Choose the slices that are draws of one kind: judged, and asked as a chain's first ones were.

    A repair isn't one, as it is sent something else, and the reply of another model isn't.
    """
    slices: list[Mapping[str, Any]] = trace["slices"]
    firsts = [s for s in slices if s["depth"] == 0]
    prompts = {s["prompt"] for s in firsts}
    models = {s["model"] for s in firsts} - {None}
    stages = {s.get("stage") for s in firsts}
    return [
        s
        for s in slices
        if s["outcome"] in {"passed", "failed"}
        and s["prompt"] in prompts
        and (not models or s["model"] in models)
        and s.get("stage") in stages
    ]


def trace_so_far(
    item: Mapping[str, Any], run: Mapping[str, Any] | None = None
) -> Mapping[str, Any] | None:
    """Return an item's trace, or of one that isn't finished, one of the draws that it has had.

    A journal has what these were sent only with the result. So they count as asked alike where they
    have the same action; without its words, only those of the strategy that repeats it.
    """
    trace: Mapping[str, Any] | None = item["trace"]
    slices: Sequence[Mapping[str, Any]] = item.get("drawn", ())
    if not slices:
        return trace
    identity: Mapping[str, Any] = (run or {}).get("identity", {})
    strategy: Any = identity.get("strategy")
    kind: Any = strategy.get("class") if hasattr(strategy, "get") else strategy
    repeats = str(kind).endswith(".RejectionSamplingStrategy")
    firsts = [s["action"] for s in slices if s["depth"] == 0]

    def sent(s: Mapping[str, Any]) -> int:
        alike = repeats or not s["depth"] or (s["action"]["text"] and s["action"] in firsts)
        return 0 if alike else 1

    return {
        "slices": [{**s, "prompt": sent(s), "context": 0} for s in slices],
        "prompts": [[], []],
        "success": False,
        "best_index": None,
        "decision": None,
    }


def decision_of(trace: Mapping[str, Any]) -> Decision | None:
    """Read what a selection decided, if there was one."""
    return decision_from_dict(trace.get("decision"))


def winners_of(trace: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Find the slices that won, the best first: several where several were wanted."""
    if (decision := trace.get("decision")) is None or not trace["success"]:
        return [] if (winner := winner_of(trace)) is None else [winner]
    found = {s["iteration"]: s for s in trace["slices"]}
    return [found[iteration] for iteration in decision["winners"] if iteration in found]


def shown_by(trace: Mapping[str, Any]) -> tuple[int, int, int]:
    """Count an item's draws, those of them that passed, and those that were cancelled before."""
    draws = independent_draws(trace)
    asked = {s["prompt"] for s in trace["slices"] if s["depth"] == 0}
    stages = {s.get("stage") for s in trace["slices"] if s["depth"] == 0}
    cut = sum(
        s["outcome"] == "cancelled" and s["prompt"] in asked and s.get("stage") in stages
        for s in trace["slices"]
    )
    return len(draws), sum(s["outcome"] == "passed" for s in draws), cut


def kind_of(trace: Mapping[str, Any], item: Mapping[str, Any] | None = None) -> Hashable:
    """Return what equal items have in common: their data and prompt, or what was asked of them."""
    if item is not None and item.get("digest"):
        return str(item["digest"])
    for s in trace["slices"]:
        wanted = tuple(v["description"] for v in s["validations"])
        return s["action"]["text"], repr(prompt_at(trace["prompts"], s["prompt"])), wanted
    return None


def has_too_few(trace: Mapping[str, Any] | None) -> bool:
    """Tell whether something passed in a call, and its selection has no winner, or too few."""
    if trace is None or trace["success"] or trace.get("decision") is None:
        return False
    return any(s["outcome"] == "passed" for s in trace["slices"])


def cut(trace: Mapping[str, Any], most: int) -> tuple[Mapping[str, Any], int]:
    """Leave out what there is no room for."""
    slices: list[Mapping[str, Any]] = trace["slices"]
    if len(slices) <= most:
        return trace, 0
    kept, best = slices[:most], trace["best_index"]
    if best is not None and best >= most:
        kept[-1], best = slices[best], most - 1
    return {**trace, "slices": kept, "best_index": best}, len(slices) - most


def fates_in(trace: Mapping[str, Any]) -> list[tuple[str, Usage]]:
    """Say where the tokens of each draw went, and those of comparisons."""
    decision, won = decision_of(trace), (s["iteration"] for s in winners_of(trace))
    heard = () if decision is None else decision.heard
    fates = {"passed": "late", "failed": "rejected", "errored": "errored"}
    special = dict.fromkeys(heard, "heard") | dict.fromkeys(won, "won")
    found = [
        (special.get(s["iteration"]) or fates.get(s["outcome"], "cancelled"), usage_of(s["usage"]))
        for s in trace["slices"]
    ]
    return found if decision is None else [*found, ("compared", decision.usage)]


def problems_of(slice_: Mapping[str, Any]) -> list[str]:
    """Say what was wrong with a draw."""
    lines: list[str] = []
    error = slice_["error"]
    if error is not None:
        lines.append(f"{error['type']}: {error['message']}")
    if slice_["reason"]:
        lines.append(slice_["reason"])
    lines += [
        f"{v['description']}: {v['reason']}" if v["reason"] else v["description"]
        for v in slice_["validations"]
        if v["status"] == "failed"
    ]
    return lines


def share_met(s: Mapping[str, Any]) -> float:
    """Say which share of the requirements a reply met, by weight: from 0 to 1, which is a pass."""
    if s["outcome"] == "passed":
        return 1.0
    total = sum(v["weight"] for v in s["validations"])
    met = sum(v["weight"] for v in s["validations"] if v["status"] == "passed")
    return 0.0 if s["reason"] or not total else met / total


@contextmanager
def damage(thing: str) -> Generator[None]:
    """Turn what goes wrong with data of another shape into one kind of error."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as exc:
        what = f"it lacks {exc}" if isinstance(exc, KeyError) else str(exc)
        msg = f"this {thing} is damaged: {what}"
        raise ValueError(msg) from exc
