"""Runs to export: journals of real runs, and runs made of records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from batch_kit import results_of
from report_kit import decision, item, run_of, trace_of

from mellea_like.batch import Journal
from mellea_like.export import Run
from mellea_like.sampling.base import BaseSamplingStrategy


def sampled(
    path: Path, strategy: BaseSamplingStrategy, items: Iterable[str], text: Any = "all"
) -> Path:
    """Sample items for real into a journal; gives its path."""
    journal = Journal(path, text=text)
    anyio.run(partial(results_of, strategy, list(items), concurrency=1, journal=journal))
    return path


class RunOf(Run):
    """A run of records that are in no journal."""

    def __init__(
        self,
        records: list[dict[str, Any]] | Callable[[], Iterable[dict[str, Any]]],
        count: int = 0,
        **facts: Any,
    ) -> None:
        self._records = records
        listed = records if isinstance(records, list) else []
        self._about = {**run_of(listed), **facts}
        self._about["counts"].setdefault("passed", count)

    journals = (Path("made.db"),)

    @property
    def facts(self) -> dict[str, Any]:
        return self._about

    @property
    def text(self) -> str:
        return "all"

    def items(self) -> Iterator[dict[str, Any]]:
        for record in self._records() if callable(self._records) else self._records:
            yield {"journal": "made.db", **record}


def item_of(*draws: Mapping[str, Any], position: int = 0, **decided: Any) -> dict[str, Any]:
    """An item with draws: each has a ``text``, and whether it ``passed`` or what share it ``met``.

    The first that passed has won, unless something else is ``decided``.
    """
    outcomes = ["passed" if d.get("passed", "met" not in d) else "failed" for d in draws]
    best = outcomes.index("passed") if "passed" in outcomes else None
    trace = trace_of(*((outcome, 5) for outcome in outcomes), best=best)
    for s, d in zip(trace["slices"], draws, strict=True):
        met = d.get("met", 1.0)
        verdict = s["validations"][0]
        s |= {"text": d["text"], "depth": 0}
        s["validations"] = [
            {**verdict, "description": "good", "status": "passed", "weight": met + 1e-9},
            {**verdict, "description": "better", "weight": 1 - met + 1e-9},
        ]
        own = ("depth", "prompt", "finish_reason", "reasoning")
        s |= {name: d[name] for name in own if name in d}
    if decided:
        trace["decision"] = decision(*decided.pop("won"), **decided)
    return item(position, trace)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
