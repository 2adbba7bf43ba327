"""The cost of each draw of a call, and how much of it was wasted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from mellea_like.core.display import attempt_names
from mellea_like.core.generation import REJECTED, USAGE_DETAILS, Usage
from mellea_like.core.prices import checked_prices, cost, currency_of, price_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mellea_like.core.decision import Decision
    from mellea_like.core.generation import Generation
    from mellea_like.core.prices import Price
    from mellea_like.core.slice import Outcome, Slice

K = TypeVar("K")

__all__ = ["Ledger", "LedgerRow", "LedgerTotal"]


class LedgerRow(NamedTuple):
    """The cost of one draw, including its judges and retries.

    Attributes:
        iteration: the draw's id.
        subsample: its lane, 0-based.
        depth: its place in that lane, 0-based.
        outcome: how it ended.
        requests: the number of requests sent.
        input_tokens: tokens of prompts, as far as they are known.
        output_tokens: tokens of replies, as far as they are known.
        wasted_tokens: 0 if the draw won or helped to decide who won; otherwise, all its tokens. If
            a selection gave a draw a score or a vote, or compared it, the draw helped to decide. A
            draw that failed, came too late or was cancelled did not help. With ``Collect``, only
            the draws that it keeps are not wasted; with ``"first"`` and ``"ordered"``, only the
            winner.
        unknown: requests whose cost the server did not report.
        saved_tokens: for a reply that was rejected while it was still arriving, an estimate of the
            tokens that were saved: the mean length of the call's complete replies, less the tokens
            that had arrived, and at least 0. None if no reply is complete, and 0 if nothing was
            rejected early. If draws raced, complete replies are mostly short, so it is too low.
        cost: the cost of the tokens in the currency of the prices; None if it is unknown. With
            ``unpriced`` or ``unknown`` requests, it is a lower bound, printed with a ``≥``; within
            a `Budget`, it includes the amount that the budget charged for unknown ones.
        model: the model that its reply names. Without a reply, it is the model that all replies of
            the same stage name for which the same model was asked, or else the model that was
            asked. None if it is unknown.
        cached_input_tokens: the input tokens that came from the server's prompt cache.
        reasoning_tokens: the output tokens that the model spent on reasoning.
        cache_hits: replies that came from a `CachedBackend`'s file.
        stage: the stage of an escalation, 0-based; None with other strategies.
        unpriced: the number of judges' requests whose price is unknown. If the judge's model has no
            price, ``cost`` lacks these requests. If a record does not name the judge's model,
            ``cost`` includes them at the price of the model that drew.
    """

    iteration: int
    subsample: int
    depth: int
    outcome: Outcome
    requests: int
    input_tokens: int
    output_tokens: int
    wasted_tokens: int
    unknown: int
    saved_tokens: int | None
    cost: float | None
    model: str | None = None
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    cache_hits: int = 0
    stage: int | None = None
    unpriced: int = 0


class LedgerTotal(NamedTuple):
    """A sum of costs: of a whole ledger, of a part such as one model, or of the comparisons.

    Attributes:
        requests: the number of requests sent.
        input_tokens: tokens of prompts.
        output_tokens: tokens of replies.
        wasted_tokens: tokens of draws that neither won nor helped to decide; see `LedgerRow`.
        unknown: requests whose cost the server did not report.
        saved_tokens: the estimated savings of early rejection; None if a row's savings are unknown.
        cost: the cost of the tokens; None if a row's cost is unknown.
        cached_input_tokens: the input tokens that came from the server's prompt cache.
        reasoning_tokens: the output tokens that the model spent on reasoning.
        cache_hits: replies that came from a `CachedBackend`'s file.
        unpriced: requests of judges whose price is unknown; see `LedgerRow`.
    """

    requests: int
    input_tokens: int
    output_tokens: int
    wasted_tokens: int
    unknown: int
    saved_tokens: int | None
    cost: float | None
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    cache_hits: int = 0
    unpriced: int = 0


@dataclass(frozen=True, slots=True)
class Ledger:
    """The cost of a call, row by row; ``print`` shows it as a table.

    Args:
        rows: one row for each draw, in the order in which they ended.
        winners: the indices of the winners in ``rows``, best first. With ``Collect(k)``, there are
            up to k.
        currency: the code of the currency of the costs.
        comparisons: the cost of a `Tournament`'s comparisons, which isn't part of any row and is
            not wasted. None if nothing was compared.
        shares: the cost of all rows as triples of a stage, a model and its cost, because the judge
            may be a different model from the one that drew. If it is empty, each row's cost
            counts for the row's own stage and model.
        compared_by: the model that made the comparisons; None if it is unknown.
    """

    rows: tuple[LedgerRow, ...]
    winners: tuple[int, ...] = ()
    currency: str = "USD"
    comparisons: LedgerTotal | None = None
    shares: tuple[tuple[int | None, str | None, LedgerTotal], ...] = ()
    compared_by: str | None = None

    @property
    def winner(self) -> int | None:
        """The index of the best winner in ``rows``; None if no draw won."""
        return self.winners[0] if self.winners else None

    @property
    def _parts(self) -> list[LedgerTotal]:
        rows = [_alone(row) for row in self.rows]
        return rows if self.comparisons is None else [*rows, self.comparisons]

    @property
    def total(self) -> LedgerTotal:
        """The sum of all rows and comparisons, which is the call's usage."""
        return _total(self._parts)

    @property
    def by_model(self) -> dict[str | None, LedgerTotal]:
        """The cost of each model's draws, verdicts and comparisons, in order of appearance.

        The costs add up to ``total``.
        """
        parts = [(model, part) for _, model, part in self._shares]
        if self.comparisons is not None:
            parts.append((self.compared_by, self.comparisons))
        return _totals(parts)

    @property
    def _shares(self) -> Sequence[tuple[int | None, str | None, LedgerTotal]]:
        return self.shares or [(row.stage, row.model, _alone(row)) for row in self.rows]

    @property
    def by_stage(self) -> dict[tuple[int | None, str | None], LedgerTotal]:
        """The cost of each model in each stage, by (stage, model).

        Stages of an escalation are 0-based; with other strategies, the stage is None.
        """
        shares = sorted(self._shares, key=lambda share: -1 if share[0] is None else share[0])
        return _totals([((stage, model), part) for stage, model, part in shares])

    def __str__(self) -> str:
        total = self.total
        # Empty columns are left out, such as prices, or details that few servers report.
        shown = [
            *LedgerTotal._fields[:6],
            *(name for name in USAGE_DETAILS if getattr(total, name)),
        ]
        if any(part.cost is not None for part in self._parts):
            shown.append("cost")
        heads = [n.removesuffix("_tokens").replace("_", " ") for n in shown]
        heads = [f"cost {self.currency}" if name == "cost" else name for name in heads]
        names = attempt_names((row.iteration, row.subsample, row.depth) for row in self.rows)
        several = len({row.model for row in self.rows}) > 1
        lines = [["draw", "outcome", *heads]]
        for index, row in enumerate(self.rows):
            mark = "*" if index in self.winners else ""
            drawn = names[row.iteration] + (f", {row.model or '?'}" if several else "")
            lines.append([drawn + mark, row.outcome, *_cells(row, shown)])
        by_stage = self.by_stage
        if len(by_stage) > 1:
            # A model that occurs in only one stage identifies it.
            times = Counter(model for _, model in by_stage)
            lines += [
                [
                    (model or "?") + (f", stage {stage}" if times[model] > 1 else ""),
                    "",
                    *_cells(cost, shown),
                ]
                for (stage, model), cost in by_stage.items()
            ]
        if self.comparisons is not None:
            lines.append(["comparisons", "", *_cells(self.comparisons, shown)])
        lines.append(["total", "", *_cells(total, shown)])
        columns = list(zip(*lines, strict=True))
        return "\n".join(map("  ".join, zip(*map(_aligned, columns), strict=True)))


def ledger(
    slices: Sequence[Slice],
    winner: int | None,
    prices: Mapping[str, Price] | None = None,
    decision: Decision | None = None,
) -> Ledger:
    """Return the costs of the draws of a call."""
    prices = checked_prices(prices)
    replies = [s.generation for s in slices if s.generation is not None]
    models = models_of_draws(
        [(s, () if s.generation is None else (s.generation.model,)) for s in slices]
    )
    usual = _usual_length(replies)
    winners: tuple[int, ...] = () if winner is None else (winner,)
    used, compared = set(winners), None
    if decision is not None:
        place_of = {s.iteration: place for place, s in enumerate(slices)}
        winners = tuple(place_of[won] for won in decision.winners)
        used = {place_of[heard] for heard in decision.heard if heard in place_of}
        if decision.comparisons or decision.usage != Usage():
            compared = _share(decision.usage, decision.model, prices)._replace(wasted_tokens=0)
    rows: list[LedgerRow] = []
    shares: list[tuple[int | None, str | None, LedgerTotal]] = []
    for place, slice_ in enumerate(slices):
        model = models[place]
        parts = _parts_of(slice_, model, usual, prices)
        if place in used:
            parts = [(name, part._replace(wasted_tokens=0)) for name, part in parts]
        shares += [(slice_.stage, name, part) for name, part in parts]
        row = LedgerRow(
            slice_.iteration,
            slice_.subsample,
            slice_.depth,
            slice_.outcome,
            model=model,
            stage=slice_.stage,
            **_total([part for _, part in parts])._asdict(),
        )
        rows.append(row)
    by = None if decision is None else decision.model
    return Ledger(tuple(rows), winners, currency_of(prices), compared, tuple(shares), by)


def _parts_of(
    slice_: Slice, model: str | None, usual: float | None, prices: Mapping[str, Price] | None
) -> list[tuple[str | None, LedgerTotal]]:
    """Return the cost of a draw's reply, and of its judges and tools, each with its model."""
    (_, own), *checks = slice_.usage_by_model
    drawn = _share(own, model, prices)._replace(saved_tokens=_saved(slice_, usual))
    if drawn.cost is None:  # The price may be that of an alias, such as a deployment's name.
        drawn = drawn._replace(cost=_cost(own, slice_.asked, prices))
    reply = slice_.generation
    if slice_.check_usage is None and reply is not None and prices is not None:
        # The judge may be another model, with another price.
        drawn = drawn._replace(unpriced=max(0, slice_.usage.requests - reply.usage.requests))
    parts = [(model, drawn)]
    for judge, spent in checks:
        part = _share(spent, judge, prices)
        if part.cost is None and prices is not None:
            part = part._replace(cost=0.0, unpriced=spent.requests)
        parts.append((judge, part))
    return parts


def _share(usage: Usage, model: str | None, prices: Mapping[str, Price] | None) -> LedgerTotal:
    """Return the cost of one model's part of a draw, with all tokens counted as wasted."""
    return LedgerTotal(
        usage.requests,
        usage.input_tokens,
        usage.output_tokens,
        usage.total_tokens,
        usage.unknown,
        0,
        _cost(usage, model, prices),
        *(getattr(usage, name) for name in USAGE_DETAILS),
    )


class Asking(Protocol):
    """The parts of a draw's record that tell which model it asked."""

    @property
    def stage(self) -> int | None: ...

    @property
    def asked(self) -> str | None: ...

    @property
    def check_usage(self) -> Sequence[tuple[str | None, Usage]] | None: ...


def models_of_draws(
    draws: Sequence[tuple[Asking, tuple[str | None, ...]]],
) -> list[str | None]:
    """Return the model of each draw, given its record and the model that its reply names, if any.

    Without a reply, it is the only model named in replies of the same stage for which the same
    model was asked, or else the model that was asked; None if it is unknown.
    """
    named: dict[tuple[int | None, str | None], set[str | None]] = {}
    for draw, replied in draws:
        # In older records, ``asked`` is a fallback's first model even if another one has replied.
        fell_back = draw.asked is not None and draw.asked in dict(draw.check_usage or ())
        if replied and not fell_back:
            named.setdefault((draw.stage, draw.asked), set()).update(replied)
    only = {asked: next(iter(models)) for asked, models in named.items() if len(models) == 1}
    return [
        next(iter(replied), None) or only.get((draw.stage, draw.asked)) or draw.asked
        for draw, replied in draws
    ]


def _total(rows: Sequence[LedgerRow | LedgerTotal]) -> LedgerTotal:
    def column(name: str) -> Any:
        values = [getattr(row, name) for row in rows]
        return None if None in values else sum(values, 0.0 if name == "cost" else 0)

    return LedgerTotal(*map(column, LedgerTotal._fields))


def _totals(parts: Iterable[tuple[K, LedgerTotal]]) -> dict[K, LedgerTotal]:
    """Return the total of each key's parts."""
    found: dict[K, list[LedgerTotal]] = {}
    for key, part in parts:
        found.setdefault(key, []).append(part)
    return {key: _total(its) for key, its in found.items()}


def _alone(row: LedgerRow) -> LedgerTotal:
    return LedgerTotal(*(getattr(row, name) for name in LedgerTotal._fields))


def _usual_length(replies: Iterable[Generation]) -> float | None:
    """Return the mean number of tokens in complete replies; None if there are none."""
    tokens = [
        reply.usage.output_tokens
        for reply in replies
        if reply.finish_reason != REJECTED
        # A reply without tokens may be empty, or the server may not have counted them.
        and (reply.usage.output_tokens or reply.usage.requests > reply.usage.unknown)
    ]
    return sum(tokens) / len(tokens) if tokens else None


def _saved(slice_: Slice, usual: float | None) -> int | None:
    if slice_.generation is None or slice_.generation.finish_reason != REJECTED:
        return 0
    return None if usual is None else max(0, round(usual) - slice_.usage.output_tokens)


def _cost(usage: Usage, model: str | None, prices: Mapping[str, Price] | None) -> float | None:
    if prices is None:
        return None
    if not usage.total_tokens and not usage.unknown:
        return 0.0
    return None if price_for(model, prices) is None else cost(usage, model, prices)


def _cells(part: LedgerRow | LedgerTotal, shown: Sequence[str]) -> list[str]:
    values: list[float | None] = [getattr(part, name) for name in shown]
    cells = ["?" if v is None else str(v) if isinstance(v, int) else f"{v:.6f}" for v in values]
    if (part.unknown or part.unpriced) and part.cost is not None:
        cells[-1] = f"≥{cells[-1]}"
    return cells


def _aligned(column: Sequence[str]) -> list[str]:
    """Align the cells of a column: words to the left, numbers to the right."""
    width = max(map(len, column))
    words = column[0] == "outcome"
    return [cell.ljust(width) if words else cell.rjust(width) for cell in column]
