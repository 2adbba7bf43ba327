"""Check references and conflicts between parts of a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mellea_like.sampling import why_not_together
from mellea_like.specification.upstream import OpenAIUpstream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mellea_like.gateway.config.gateway_config import (
        KeyConfig,
        KeyLimits,
        ModelConfig,
        ServerConfig,
    )
    from mellea_like.specification.strategy import CallBudgetSpec
    from mellea_like.specification.upstream import UpstreamSpec


class Problem(NamedTuple):
    """A mistake in a configuration, and its place: a path of names and indices."""

    place: tuple[str | int, ...]
    what: str


class Parts(NamedTuple):
    """The parts of a configuration, for checks between them. An invalid part is None."""

    upstreams: Mapping[str, UpstreamSpec | None]
    models: Mapping[str, ModelConfig | None]
    keys: Mapping[str, KeyConfig | None]
    server: ServerConfig | None


def problems_between(parts: Parts) -> list[Problem]:
    """Find references to missing parts, and settings that conflict with settings of other parts."""
    found: list[Problem] = []
    for name, model in parts.models.items():
        if model is not None:
            problems = [
                *_of_upstreams(model, parts),
                *_of_selection(model, parts),
                *_of_call_budget(model, parts),
            ]
            found += (Problem(("models", name, *where), what) for where, what in problems)
    limits: dict[tuple[str, ...], KeyLimits | None] = {
        ("server", "limits"): None if parts.server is None else parts.server.limits
    }
    limits |= {("keys", name): key for name, key in parts.keys.items()}
    for place, key in limits.items():
        if key is None:
            continue
        known = ", ".join(parts.models)
        found += (
            Problem((*place, "models", at), f"there is no such model; the models are: {known}")
            for at, name in enumerate(key.models or ())
            if name not in parts.models
        )
        charged = [model for name, model in parts.models.items() if key.allows(name)]
        if key.budget is not None and key.budget.money is not None:
            found += _of_money((*place, "budget", "money"), parts, *charged)
        if key.budget is not None and key.max_tokens is None:
            found += _of_length((*place, "budget"), key.budget, *charged)
    return found


def _of_upstreams(model: ModelConfig, parts: Parts) -> Iterator[Problem]:
    known = ", ".join(parts.upstreams)
    for where, place in model.places:
        for field, upstream in (("upstream", place.upstream), ("judge", place.judge)):
            if upstream is not None and upstream not in parts.upstreams:
                yield Problem(
                    (*where, field), f"there is no such upstream; the upstreams are: {known}"
                )
        judge = model.judge_of(place)
        if (model.requirements or place.requirements) and _can_not_judge(parts, judge):
            its = f"upstreams.{judge}" if where else "its upstream"
            what = f"{its} can't judge: name one that can with judge: NAME, or use checks instead"
            yield Problem((*(where if place.requirements else ()), "requirements"), what)


def _of_selection(model: ModelConfig, parts: Parts) -> Iterator[Problem]:
    if model.selection.judged and _can_not_judge(parts, model.judge or model.upstream):
        what = "its upstream can't judge: name one that can with judge: NAME"
        yield Problem(("select",), what)
    if why := why_not_together(model.features | {"choices": "a gateway's model"}):
        yield Problem(("select",), why)
    if model.budget is not None and model.budget.money is not None:
        yield from _of_money(("budget", "money"), parts, model)
    if model.escalate_when == "cheaper":
        yield from _of_money(("escalate_when",), parts, model)


def _of_call_budget(model: ModelConfig, parts: Parts) -> Iterator[Problem]:
    limits: list[KeyLimits | None] = list(parts.keys.values())
    if not limits and parts.server is not None:
        limits = [parts.server.limits]
    if model.budget is not None and any(key is not None and not key.max_tokens for key in limits):
        yield from _of_length(("budget",), model.budget, model)


def _of_length(
    where: tuple[str, ...], budget: CallBudgetSpec, *models: ModelConfig | None
) -> Iterator[Problem]:
    """Yield a problem if a budget limits output or cost, but nothing limits a reply's length."""
    limited = [name for name in ("output_tokens", "money") if getattr(budget, name) is not None]
    lengths = [
        place.options.max_tokens or model.options.max_tokens
        for model in models
        if model is not None
        for _, place in model.places
    ]
    if limited and not all(lengths):
        what = (
            "it needs a limit on the length of a reply: write max_tokens: 4096 for each key"
            " (in server.limits if there are no keys), or options: {max_tokens: 4096} for each"
            " model"
        )
        yield Problem((*where, limited[0]), what)


def _can_not_judge(parts: Parts, name: str) -> bool:
    upstream = parts.upstreams.get(name)
    return upstream is not None and not upstream.judges


def _of_money(
    where: tuple[str, ...], parts: Parts, *models: ModelConfig | None
) -> Iterator[Problem]:
    """Yield the reasons why costs can't be computed: no price, no model name, two currencies."""
    used = {
        (upstream, place.upstream_model if upstream == place.upstream else None): None
        for model in models
        if model is not None
        for _, place in model.places
        for upstream in (place.upstream, model.judge_of(place))
    }
    currencies: set[str] = set()
    for one, named in used:
        upstream = parts.upstreams.get(one)
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
