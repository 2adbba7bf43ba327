"""Check references and conflicts between parts of a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mellea_like.sampling import why_not_together
from mellea_like.specification.upstream import OpenAIUpstream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mellea_like.gateway.config.gateway_config import GatewayConfig, KeyLimits, ModelConfig
    from mellea_like.specification.strategy import CallBudgetSpec


class Problem(NamedTuple):
    """A mistake in a configuration, and its place: a path of names and indices."""

    place: tuple[str | int, ...]
    what: str


def problems_between(config: GatewayConfig) -> list[Problem]:
    """Find references to missing parts, and settings that conflict with those of other parts."""
    found: list[Problem] = []
    for name, model in config.models.items():
        problems = [
            *_of_upstreams(model, config),
            *_of_selection(model, config),
            *_of_call_budget(model, config),
        ]
        found += (Problem(("models", name, *where), what) for where, what in problems)
    limits: dict[tuple[str, ...], KeyLimits] = {("server", "limits"): config.server.limits}
    limits |= {("keys", name): key for name, key in config.keys.items()}
    known = ", ".join(config.models)
    for place, key in limits.items():
        found += (
            Problem((*place, "models", at), f"there is no such model; the models are: {known}")
            for at, name in enumerate(key.models or ())
            if name not in config.models
        )
        charged = [model for name, model in config.models.items() if key.allows(name)]
        if key.budget is not None and key.budget.money is not None:
            found += _of_money((*place, "budget", "money"), config, *charged)
        if key.budget is not None and key.max_tokens is None:
            found += _of_length((*place, "budget"), key.budget, *charged)
    return found


def _of_upstreams(model: ModelConfig, config: GatewayConfig) -> Iterator[Problem]:
    known = ", ".join(config.upstreams)
    for where, place in model.places:
        for field, upstream in (("upstream", place.upstream), ("judge", place.judge)):
            if upstream is not None and upstream not in config.upstreams:
                yield Problem(
                    (*where, field), f"there is no such upstream; the upstreams are: {known}"
                )
        judge = model.judge_of(place)
        if (model.requirements or place.requirements) and _can_not_judge(config, judge):
            its = f"upstreams.{judge}" if where else "its upstream"
            what = f"{its} can't judge: name one that can with judge: NAME, or use checks instead"
            yield Problem((*(where if place.requirements else ()), "requirements"), what)


def _of_selection(model: ModelConfig, config: GatewayConfig) -> Iterator[Problem]:
    if model.selection.judged and _can_not_judge(config, model.judge or model.upstream):
        what = "its upstream can't judge: name one that can with judge: NAME"
        yield Problem(("select",), what)
    if why := why_not_together(model.features | {"choices": "a gateway's model"}):
        yield Problem(("select",), why)
    if model.budget is not None and model.budget.money is not None:
        yield from _of_money(("budget", "money"), config, model)
    if model.escalate_when == "cheaper":
        yield from _of_money(("escalate_when",), config, model)


def _of_call_budget(model: ModelConfig, config: GatewayConfig) -> Iterator[Problem]:
    limits: list[KeyLimits] = list(config.keys.values()) or [config.server.limits]
    if model.budget is not None and any(not key.max_tokens for key in limits):
        yield from _of_length(("budget",), model.budget, model)


def _of_length(
    where: tuple[str, ...], budget: CallBudgetSpec, *models: ModelConfig
) -> Iterator[Problem]:
    """Yield a problem if a budget limits output or cost, but nothing limits a reply's length."""
    limited = [name for name in ("output_tokens", "money") if getattr(budget, name) is not None]
    lengths = [
        place.options.max_tokens or model.options.max_tokens
        for model in models
        for _, place in model.places
    ]
    if limited and not all(lengths):
        what = (
            "it needs a limit on the length of a reply: write max_tokens: 4096 for each key"
            " (in server.limits if there are no keys), or options: {max_tokens: 4096} for each"
            " model"
        )
        yield Problem((*where, limited[0]), what)


def _can_not_judge(config: GatewayConfig, name: str) -> bool:
    upstream = config.upstreams.get(name)
    return upstream is not None and not upstream.judges


def _of_money(
    where: tuple[str, ...], config: GatewayConfig, *models: ModelConfig
) -> Iterator[Problem]:
    """Yield the reasons why costs can't be computed: no price, no model name, two currencies."""
    used = {
        (upstream, place.upstream_model if upstream == place.upstream else None): None
        for model in models
        for _, place in model.places
        for upstream in (place.upstream, model.judge_of(place))
    }
    currencies: set[str] = set()
    for one, named in used:
        upstream = config.upstreams.get(one)
        if upstream is None:
            continue
        if upstream.price is None:
            what = f"upstreams.{one} has no price: write price: [0.15, 0.60] there, the prices of a"
            yield Problem(where, f"{what} million input and output tokens")
        else:
            currencies.add(upstream.price.currency)
        if isinstance(upstream, OpenAIUpstream) and (upstream.model or named) is None:
            yield Problem(where, f"upstreams.{one} doesn't name its model: write model: NAME there")
    if len(currencies) > 1:
        what = f"its upstreams have prices in {' and '.join(sorted(currencies))}: use the same"
        yield Problem(where, f"{what} currency for all of them")
