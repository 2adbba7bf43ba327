"""Read several journals as one run. An item that was sampled again still counts as one item."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Any

from mellea_like.batch.journal.database import journal_errors, opened
from mellea_like.batch.journal.reader import read_block, read_items, read_run
from mellea_like.core.prompts import rewritten
from mellea_like.core.serialization import usage_to_dict
from mellea_like.report.views import ItemView, RunView, TraceView

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

AGAIN = "again"
"""The key in a run's identity that marks a run of ``mellea-like batch --again``."""

_Place = tuple[int, int]  # The index of a journal and the id of an item in it.

_STATUSES = (
    "SELECT items.id, items.digest, coalesce(results.status, 'unfinished')"
    " FROM items LEFT JOIN results ON results.item = items.id ORDER BY items.id"
)


class JournalsTogether:
    """Reads several journals as one run.

    A row that ``mellea-like batch --again`` sampled again is one item. Once the later run has
    finished it, it has that run's result and, if the prompts are equal, the draws of both runs.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        # Reading all items checks the files.
        self.runs = [RunView(read_run(path, check=False)) for path in paths]
        self._next: dict[_Place, _Place] = {}
        status: dict[_Place, str] = {}
        order = sorted(range(len(paths)), key=lambda place: str(self.runs[place].started))
        for position, place in enumerate(order):
            if self.runs[place].identity.get(AGAIN):
                self._follow(order[:position], place, status)
        self._followers = frozenset(self._next.values())
        self.counted_twice: Counter[str] = Counter()
        """By status, the number of items that the journals count twice, to subtract from sums."""
        for before, after in self._next.items():
            if status[after] == "unfinished":
                status[after] = status[before]
                self.counted_twice["unfinished"] += 1
            else:
                self.counted_twice[status[before]] += 1

    def _follow(self, earlier: Sequence[int], place: int, status: dict[_Place, str]) -> None:
        """Match a run's items to the earlier runs' items that they repeat; prompts may differ."""
        waiting: defaultdict[str, deque[int]] = defaultdict(deque)
        for number, digest, ended in self._read(place):
            waiting[digest.partition("-")[0]].append(number)
            status[place, number] = ended
        for before in earlier:
            for number, digest, ended in self._read(before):
                found = waiting.get(digest.partition("-")[0])
                if found and ended != "passed" and (before, number) not in self._next:
                    self._next[before, number] = place, found.popleft()
                    status.setdefault((before, number), ended)

    def _read(self, place: int) -> Iterator[tuple[int, str, str]]:
        path = self._paths[place]
        with opened(path, whole=False) as connection, journal_errors(path):
            yield from connection.execute(_STATUSES)

    def items(self, *, parts: bool = True) -> Iterator[tuple[Path, ItemView]]:
        """Yield each item with its first journal."""
        for place, path in enumerate(self._paths):
            for record in read_items(path, parts=parts):
                item = ItemView(record)
                if (place, item.id) in self._followers:
                    continue
                at = self._next.get((place, item.id))
                while at is not None:
                    item = ItemView(_followed(item, self._one(at, parts=parts)))
                    at = self._next.get(at)
                yield path, item

    def _one(self, at: _Place, *, parts: bool) -> ItemView:
        path, number = self._paths[at[0]], at[1]
        with opened(path, whole=False) as connection:
            [stored] = read_block(connection, path, (number, number + 1, 1), parts=parts)
        return stored


def _followed(earlier: ItemView, later: ItemView) -> dict[str, Any]:
    usage = usage_to_dict(earlier.usage + later.usage)
    both = {**earlier.plain, "usage": usage, "attempts": earlier.attempts + later.attempts}
    if not later.finished:
        return both
    both |= {name: later.plain[name] for name in ("status", "error", "started")}
    both["elapsed"] = earlier.elapsed + later.elapsed
    both["trace"] = _joined(earlier.trace, later.trace)
    return both


def _joined(earlier: TraceView | None, later: TraceView | None) -> Mapping[str, Any] | None:
    """Merge the traces of two calls; if their prompts differ, return the later trace."""
    if earlier is None or later is None:
        only = later or earlier
        return None if only is None else only.plain
    if _asked(earlier) != _asked(later):
        return later.plain
    last = max((s.iteration for s in later.slices), default=0)
    chains = max((s.chain for s in later.slices), default=0) + 1
    prompts = len(earlier.prompts)
    # The later call's iterations keep their numbers, because its decision refers to them.
    before: list[dict[str, Any]] = [
        {**s.plain, "iteration": s.iteration + last, "chain": s.chain + chains}
        for s in earlier.slices
    ]
    after = [
        {
            **s.plain,
            "prompt": s.prompt + prompts,
            "context": s.context + prompts,
            "started_at": s.started_at + earlier.elapsed,
            "ended_at": s.ended_at + earlier.elapsed,
        }
        for s in later.slices
    ]
    best = earlier.best_index if later.best_index is None else later.best_index + len(before)
    return {
        **later.plain,
        "prompts": [*earlier.prompts, *rewritten(later.prompts, further=prompts)],
        "slices": [*before, *after],
        "best_index": best,
        "undelivered": earlier.plain["undelivered"] + later.plain["undelivered"],
        "elapsed": earlier.elapsed + later.elapsed,
        "usage": usage_to_dict(earlier.usage + later.usage),
    }


def _asked(trace: TraceView) -> object:
    return next((trace.sent(s.prompt) for s in trace.slices if not s.depth), None)
