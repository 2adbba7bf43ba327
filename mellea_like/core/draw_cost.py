"""The cost of a draw: its reply, and all other requests that were made for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mellea_like.core.generation import Usage, cost_of, stated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.generation import Generation, Meter

_NO_USAGE = Usage()


class Judged(Protocol):
    """A question to a judge, its cost, and the reply if there was one."""

    meter: Meter
    reply: Generation | None
    model: str | None


def cost_of_draw(
    meter: Meter | None, reply: Generation | None, judged: Sequence[Judged]
) -> tuple[Usage, str | None, tuple[tuple[str | None, Usage], ...]]:
    """Return a draw's total cost, the model asked last, and the costs other than the reply's.

    The model is None if it is unknown. The other costs are pairs of a model and its cost: for
    checks, for tools, and for models that were asked before the last one. ``meter`` is None if the
    draw hasn't begun.
    """
    if meter is None:
        return _NO_USAGE, None, ()
    usage, asked = (meter.usage, meter.asked) if meter.started else (stated(reply), None)
    if asked is None and not judged and meter.aside is None:
        return usage, None, ()
    usage, parts = _with_other_costs(usage, meter, reply, judged)
    return usage, asked, parts


def _with_other_costs(
    usage: Usage, meter: Meter, reply: Generation | None, judged: Sequence[Judged]
) -> tuple[Usage, tuple[tuple[str | None, Usage], ...]]:
    """Return the draw's total cost, and the cost by model of everything except the reply."""
    spent: dict[str | None, Usage] = {}
    if (asked := meter.asked) is not None:
        usage, others = _split(meter, reply, asked)
        spent.update(others)
    for question in judged:
        its, answer = question.meter, question.reply
        answered = None if answer is None else answer.model
        own, others = _split(its, answer, its.asked)
        for name, cost in ((answered or its.asked or question.model, own), *others):
            spent[name] = spent.get(name, _NO_USAGE) + cost
    for name, cost in () if meter.aside is None else meter.aside.usage_by_model:
        spent[name] = spent.get(name, _NO_USAGE) + cost
    parts = tuple((model, cost) for model, cost in spent.items() if cost != _NO_USAGE)
    return sum((cost for _, cost in parts), usage), parts


def _split(
    meter: Meter, reply: Generation | None, asked: str | None
) -> tuple[Usage, list[tuple[str | None, Usage]]]:
    """Return the cost of the model that a request asked last, and of each model asked before it."""
    others = [pair for pair in meter.usage_by_model if pair[0] not in {None, asked}]
    own = sum((cost for model, cost in meter.usage_by_model if model in {None, asked}), _NO_USAGE)
    return (own if others else cost_of(meter, reply)), others
