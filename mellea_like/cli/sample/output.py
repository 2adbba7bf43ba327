"""The result of ``mellea-like sample``: as text, as JSON, in sentences, and as a table."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from mellea_like.cli.errors import in_options, problems_of, rejected_early
from mellea_like.cli.sample.progress import NARROW, STYLES
from mellea_like.cli.standard_streams import write_output
from mellea_like.core.display import one_line, plural, printable
from mellea_like.core.serialization import to_dict
from mellea_like.report.numbers import money, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from mellea_like.core.decision import Decision
    from mellea_like.core.ledger import Ledger
    from mellea_like.core.result import SamplingResult
    from mellea_like.core.slice import Slice

MOST_KEYS = 5
"""The maximum number of answers to list after a vote."""


def write_text(text: str) -> None:
    """Write a reply and a newline to standard output; on a terminal, escape control characters."""
    if sys.stdout.isatty():
        text = printable(text)
    write_output(text if text.endswith("\n") else f"{text}\n")


def as_record(result: SamplingResult[Any], ledger: Ledger, **about: str) -> dict[str, Any]:
    """Return a result as plain data: the call's trace, ``about``, the outcome and the costs."""
    return {
        **to_dict(result),
        **about,
        "stop_detail": in_options(result.stop_detail),
        "text": None if result.best_index is None else result.best.text,
        "value": result.value,
        "values": list(result.values),
        "ledger": {
            "rows": [row._asdict() for row in ledger.rows],
            "stages": [
                {"stage": stage, "model": model, **total._asdict()}
                for (stage, model), total in ledger.by_stage.items()
            ],
            "comparisons": ledger.comparisons and ledger.comparisons._asdict(),
            "total": ledger.total._asdict(),
            "currency": ledger.currency,
        },
    }


def models_in(result: SamplingResult[Any]) -> list[str | None]:
    """Return the models that drew, judged and compared; a model may occur more than once."""
    compared = None if result.decision is None else result.decision.model
    return [*(model for s in result.slices for model, _ in s.usage_by_model), compared]


def summary(result: SamplingResult[Any], ledger: Ledger, name: Callable[[Slice], str]) -> list[str]:
    """Sum up a call that passed in one line; if a selection decided, add a line on it."""
    best = result.best
    model = f" ({one_line(best.model)})" if best.stage is not None and best.model else ""
    lines = [f"Passed: {name(best)}{model}; {_cost(result, ledger)}."]
    if result.decision is not None:
        lines.append(_decided(result.decision, [name(winner) for winner in result.winners]))
    return lines


def _decided(decision: Decision, names: list[str]) -> str:
    """Describe in one line which reply was chosen, and how."""
    won = decision.winners[0] if decision.winners else None
    line = f"Decided by {decision.kind}: {'; '.join(names) or 'no winner'}"
    if won is not None and won in decision.scores:
        line += f", score {decision.scores[won]:.6g}, best of {len(decision.scores)}"
        line += f" ({one_line(decision.notes[won], 200)})" if won in decision.notes else ""
    if decision.answers:
        votes = [f"{one_line(a.label, 40)}: {a.votes:g}" for a in decision.answers]
        if len(votes) > MOST_KEYS:
            votes[MOST_KEYS:] = ["..."]
        line += f", votes {', '.join(votes)}"
    if decision.tied:
        line += f", {len(decision.tied)} tied for first place"
    if decision.comparisons:
        line += f", {plural(len(decision.comparisons), 'comparison')}"
    if decision.abstentions:
        line += f", {plural(decision.abstentions, 'abstention')}"
    if decision.errors:
        line += f", {plural(len(decision.errors), 'error')}: {one_line(decision.errors[0], 200)}"
    return f"{line}; {one_line(decision.reason)}."


def why(result: SamplingResult[Any], ledger: Ledger, name: Callable[[Slice], str]) -> list[str]:
    """Return lines that explain why no reply passed, or too few replies did."""
    reason = {
        "timeout": "time ran out",
        "exhausted": "all attempts were used",
        "error": "an error ended one of the lanes",
    }.get(result.stop_reason, f"stopped: {result.stop_reason}")
    if result.stop_detail:
        reason = one_line(in_options(result.stop_detail))
    if result.decision is not None and result.candidates:
        names = [name(winner) for winner in result.winners]
        few = f"Only {len(names)} passed" if names else "No answer won"
        return [f"{few}: {reason}; {_cost(result, ledger)}.", _decided(result.decision, names)]
    lines = [f"Nothing passed: {reason}; {_cost(result, ledger)}."]
    if result.best_index is None:
        return [*lines, "No reply was judged, so there is none to show."]
    best = result.best
    part = " (rejected early)" if rejected_early(best) else ""
    lines.append(f"The best failure, {name(best)}{part}, did not meet:")
    lines.extend(f"  - {one_line(problem)}" for problem in problems_of(best))
    errors = list(result.errors)
    if errors:
        some = plural(len(errors), "draw")
        lines.append(f"{some} ended in an error, the first with: {one_line(str(errors[0]))}")
    return lines


def _cost(result: SamplingResult[Any], ledger: Ledger) -> str:
    total = ledger.total.cost
    bound = bool(ledger.total.unknown or ledger.total.unpriced)
    cost = "" if total is None else f", cost {money(total, ledger.currency, at_least=bound)}"
    return f"{plural(len(result.slices), 'draw')}, {result.usage}{cost}, {seconds(result.elapsed)}"


def slices_table(slices: tuple[Slice, ...], console: Console) -> Table:
    """Return a table of a call's draws."""
    table = Table(title="Draws, in the order they ended", title_justify="left", box=SIMPLE_HEAD)
    columns = ["lane", "attempt", "model", "outcome", "seconds", "tokens"]
    shown = ["lane", "attempt", "outcome"] if console.width < NARROW else list(columns)
    if not any(s.subsample for s in slices):
        shown.remove("lane")
    if "model" in shown and len({s.model for s in slices}) == 1:
        shown.remove("model")
    for name in shown:
        table.add_column(name, justify="left" if name == "outcome" else "right", no_wrap=True)
    table.add_column("text, and what failed", overflow="fold", ratio=1)
    for s in slices:
        about = Text(one_line(s.text, 300))
        if rejected_early(s):
            about.append(" … (rejected early)", style="dim")
        for problem in problems_of(s):
            about.append(("\n" if about else "") + one_line(f"- {problem}", 300), style="yellow")
        outcome = Text(s.outcome.value, style=STYLES[s.outcome.value])
        tokens = f"{s.usage.input_tokens} + {s.usage.output_tokens}" + "?" * bool(s.usage.unknown)
        cells: tuple[str | Text, ...] = (
            *(str(s.lane), str(s.attempt), one_line(s.model or "?", 30)),
            *(outcome, f"{s.duration:.2f}", tokens),
        )
        row = dict(zip(columns, cells, strict=True))
        table.add_row(*(row[name] for name in shown), about)
    return table
