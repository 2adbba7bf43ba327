"""The data card of an export: a Markdown file about the origin of its rows."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mellea_like.core.display import plural
from mellea_like.report.markup import clip, visible
from mellea_like.report.numbers import count, moment, percent
from mellea_like.report.run_figures import RunFigures
from mellea_like.report.run_summary import headline, identity_of
from mellea_like.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mellea_like.export.api import Exported
    from mellea_like.export.journaled_run import Run
    from mellea_like.report.views import ItemView

JOURNALS, MODELS, REQUIREMENTS = 20, 20, 100
"""The most journals, models and requirements to name."""

_CELL = 300
_MARKUP = str.maketrans({c: f"\\{c}" for c in "\\`*_|<>[]#"})


class Card:
    """Collects the figures of a data card from a run's items, one at a time."""

    def __init__(self, run: Run, settings: Mapping[str, Any]) -> None:
        self._run = run
        self._settings = settings
        self._figures = RunFigures(run.facts)
        self._models: Counter[str] = Counter()
        self._used = 0

    def add(self, item: ItemView, rows: Sequence[object]) -> None:
        """Count an item and the rows that were made from it."""
        self._figures.count(item)
        self._used += bool(rows)
        trace = item.so_far()
        for s in () if trace is None else trace.slices:
            if s.model is not None and (s.model in self._models or len(self._models) < MODELS):
                self._models[s.model] += 1

    def written(self, name: str, digest: str, exported: Exported) -> str:
        """Return the text of the card, for a file with this name and SHA-256 digest."""
        figures, facts, journals = self._figures, self._figures.facts, self._run.journals
        outcomes = figures.outcomes
        drawn = plural(outcomes.total(), "draw")
        if outcomes:
            drawn += ": " + ", ".join(f"{count(n)} {what}" for what, n in outcomes.most_common())
        if any(passed and cut for _, passed, cut in figures.shown.values()):
            drawn += (
                ". Draws that are cancelled when another one passes are mostly slow ones, so these"
                " replies may be shorter than the model's replies are on average"
            )
        named = ", ".join(path.name for path in journals[:JOURNALS])
        named += f" and {len(journals) - JOURNALS} more" if len(journals) > JOURNALS else ""
        made = {
            "Made": moment(datetime.now(UTC).isoformat()),
            "By": f"mellea_like {__version__}, Python {sys.version.split()[0]}",
            "Rows": f"{count(exported.rows)}, from {plural(self._used, 'item')}",
            "SHA-256": digest,
            **{n: str(v) for n, v in self._settings.items() if v is not None and v is not False},
        }
        resumed = len(facts.sittings) - len(journals)
        sampled = {
            "From": named,
            "Started": moment(facts.started),
            "Ended": moment(facts.ended) if facts.ended else "not finished",
            **({"Resumed": plural(resumed, "time")} if resumed > 0 else {}),
            "By": ", ".join(f"{n} {v}" for n, v in facts.versions.items()) or "not recorded",
            "Models": ", ".join(f"{m} ({plural(n, 'draw')})" for m, n in self._models.most_common())
            or "their names are not recorded",
            **dict(identity_of(figures)),
        }
        left_out = [f"- {count(n)} {what}" for what, n in exported.left_out.items()]
        judged = figures.by_requirement
        return "\n".join(
            [
                f"# Data card of {_text(name)}",
                "",
                *_table(("this file", ""), made.items()),
                "",
                "## What was drawn",
                "",
                *_table(("", "", ""), headline(figures, advise=False)),
                "",
                f"{drawn}.",
                "",
                "## What was left out",
                "",
                *([*left_out, "", "No rows were made from these items."] if left_out else ["-"]),
                "",
                "## Why draws were rejected",
                "",
                *_table(
                    ("requirement", "judged", "failed", "share"),
                    (
                        (
                            what,
                            count(t.judged),
                            count(n := t.counts["failed"]),
                            percent(n, t.judged),
                        )
                        for what, t in judged[:REQUIREMENTS]
                    ),
                ),
                "",
                "## How it was sampled",
                "",
                *_table(("run", ""), sampled.items()),
                "",
            ]
        )


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [names, ["---"] * len(names), *([_text(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _text(text: str) -> str:
    """Return a text on one line with its markup escaped, shortened to fit a table's cell."""
    line = "<br>".join(visible(part).translate(_MARKUP) for part in clip(text, _CELL).splitlines())
    return line.replace("\t", " ")
