"""The cost of a draw: its reply, and all other requests that were made for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mellea_like.core.generation import Usage, cost_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mellea_like.core.generation import Generation, Meter

__all__ = ["with_other_costs"]

_NO_USAGE = Usage()


class Judged(Protocol):
    """A question to a judge, its cost, and the reply if there was one."""

    meter: Meter
    reply: Generation | None
    model: str | None


def with_other_costs(
    usage: Usage,
    meter: Meter | None,
    reply: Generation | None,
    judged: Iterable[Judged],
) -> tuple[Usage, tuple[tuple[str | None, Usage], ...]]:
    """Return the cost of a draw, and how much of it was not spent on the reply, by model.

    The latter is the cost of checks and tools, and of models that were asked before the last one.
    ``usage`` is the cost of the reply's requests, and ``judged`` has the questions to judges.
    """
    spent: dict[str | None, Usage] = {}
    if meter is not None and (asked := meter.asked) is not None:
        usage, others = _split(meter, reply, asked)
        spent.update(others)
    for question in judged:
        its, answer = question.meter, question.reply
        answered = None if answer is None else answer.model
        own, others = _split(its, answer, its.asked)
        for name, cost in ((answered or its.asked or question.model, own), *others):
            spent[name] = spent.get(name, _NO_USAGE) + cost
    aside = () if meter is None or meter.aside is None else meter.aside.parts
    for part in aside:
        # A call of a tool, validator or scorer tells its models apart; a request does not.
        by_model = getattr(part, "usage_by_model", None) or [(None, part.usage)]
        for name, cost in by_model:
            spent[name] = spent.get(name, _NO_USAGE) + cost
    parts = tuple((model, cost) for model, cost in spent.items() if cost != _NO_USAGE)
    return sum((cost for _, cost in parts), usage), parts


def _split(
    meter: Meter, reply: Generation | None, asked: str | None
) -> tuple[Usage, list[tuple[str | None, Usage]]]:
    """Return the cost of the model that was asked last, and of each one asked before it."""
    others = [pair for pair in meter.usage_by_model if pair[0] not in {None, asked}]
    own = sum((cost for model, cost in meter.usage_by_model if model in {None, asked}), _NO_USAGE)
    return (own if others else cost_of(meter, reply)), others
