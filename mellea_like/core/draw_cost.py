"""The cost of a draw: its reply, and all other requests that were made for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.core.generation import Usage, cost_of, stated

if TYPE_CHECKING:
    from mellea_like.core.generation import Generation, Meter

_NO_USAGE = Usage()


def cost_of_draw(
    meter: Meter | None, reply: Generation | None
) -> tuple[Usage, str | None, tuple[tuple[str | None, Usage], ...]]:
    """Return a draw's total cost, the model asked last, and the costs other than the reply's.

    The model is None if it is unknown. The other costs are pairs of a model and its cost: for
    checks, for tools, and for models that were asked before the last one. ``meter`` is None if the
    draw hasn't begun.
    """
    if meter is None:
        return _NO_USAGE, None, ()
    usage, asked = (meter.usage, meter.asked) if meter.started else (stated(reply), None)
    if asked is None and meter.aside is None:
        return usage, None, ()
    spent: dict[str | None, Usage] = {}
    if asked is not None:
        usage, others = cost_by_model(meter, reply, asked)
        spent.update(others)
    for name, cost in () if meter.aside is None else meter.aside.usage_by_model:
        spent[name] = spent.get(name, _NO_USAGE) + cost
    parts = tuple((model, cost) for model, cost in spent.items() if cost != _NO_USAGE)
    return sum((cost for _, cost in parts), usage), asked, parts


def cost_by_model(
    meter: Meter, reply: Generation | None, asked: str | None
) -> tuple[Usage, list[tuple[str | None, Usage]]]:
    """Return the cost of the model that a request asked last, and of each model asked before it."""
    others = [pair for pair in meter.usage_by_model if pair[0] not in {None, asked}]
    own = sum((cost for model, cost in meter.usage_by_model if model in {None, asked}), _NO_USAGE)
    return (own if others else cost_of(meter, reply)), others
