# ruff: noqa: T201 (a command)
"""Compares two engines by everything the public API shows of randomly generated calls.

    python tests/support/differential.py record 500 calls.jsonl.xz
    python tests/support/differential.py show 17 calls.jsonl.xz

``record`` runs the calls 0 to 499 with the ``mellea_like`` that Python finds first, and ``show``
replays one of them and prints what has changed. If several things happen at the same instant
(``ties``), only how the call ends is compared. Texts for people are left out.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import oracle_calls as calls
import oracle_trace
from oracle_trace import LOOPS, Loop

Trace = dict[str, Any]
Key = tuple[int, Loop]

INTENDED: list[tuple[str, str]] = []
"""Differences that are intended: a pattern of the place, such as ``slices.*.lane.2`` or
``requests.1 judge *.seed``, and the reason."""

ROUGHLY = ["ends.error", "result.success", "result.stop_reason", "late", "ends.left", "in_order"]
"""The places that are compared if things happen at the same instant."""


class Difference(NamedTuple):
    place: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.place}: {_short(self.old)} -> {_short(self.new)}"


def differences(old: Trace, new: Trace) -> list[Difference]:
    """Return the differences between two traces of a call, the most serious ones first."""
    found = [d for kind in {**new, **old} for d in _differing(kind, old.get(kind), new.get(kind))]
    if old.get("ties"):
        found = [d for d in found if any(d.place.startswith(rough) for rough in ROUGHLY)]
    return [d for d in found if not any(fnmatch(d.place, place) for place, _ in INTENDED)]


def _differing(place: str, old: Any, new: Any) -> Iterator[Difference]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*(key for key in new if key not in old), *old]:
            if key not in old or key not in new:
                yield Difference(f"{place}.{key}", old.get(key, "-"), new.get(key, "-"))
            else:
                yield from _differing(f"{place}.{key}", old[key], new[key])
    elif isinstance(old, list) and isinstance(new, list):
        for at, (one, other) in enumerate(zip(old, new, strict=False)):
            yield from _differing(f"{place}.{at}", one, other)
        if len(old) != len(new):
            rest = min(len(old), len(new))
            yield Difference(f"{place}.{rest}-", old[rest:], new[rest:])
    elif _number(old) and _number(new) and abs(old - new) < 2e-5:
        return
    else:
        yield Difference(place, old, new)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else text[:157] + "..."


# --- recordings ------------------------------------------------------------------------------


def record(seeds: Iterable[int], loops: Iterable[Loop], path: Path) -> None:
    """Write the traces of calls; parts that are equal on both loops are written once."""
    before: Trace = {}
    with lzma.open(path, "wt", encoding="utf-8") as file:
        for seed in seeds:
            for loop in loops:
                trace = played(seed, loop)
                same = sorted(k for k in trace if loop == "trio" and before.get(k) == trace[k])
                rest = {k: v for k, v in trace.items() if k not in same}
                file.write(json.dumps([seed, loop, same, rest], separators=(",", ":")) + "\n")
                before = trace


def recorded(path: Path) -> Iterator[tuple[Key, Trace]]:
    """Read the traces of a recording."""
    before: Trace = {}
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            seed, loop, same, rest = json.loads(line)
            before = {**{k: before[k] for k in same}, **rest}
            yield (seed, loop), before


def played(seed: int, loop: Loop) -> Trace:
    """Run a call; return its trace as a recording has it."""
    return json.loads(json.dumps(oracle_trace.trace(seed, loop)))


# --- the command -----------------------------------------------------------------------------


def show(seed: int, loops: Iterable[Loop], path: Path) -> None:
    """Print a call, its trace, and the differences from a recording."""
    print(json.dumps(calls.make(seed), indent=1))
    old = dict(recorded(path))
    for loop in loops:
        trace = played(seed, loop)
        print(f"--- on {loop}")
        for kind, seen in trace.items():
            if seen:
                print(f"{kind}: {json.dumps(seen, ensure_ascii=False)}")
        print(f"--- on {loop}, recorded -> now")
        for difference in differences(old.get((seed, loop), {}), trace):
            print(f"  {difference}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=["record", "show"])
    parser.add_argument("number", type=int, help="of calls to record, or the call to show")
    parser.add_argument("recording", type=Path)
    given = parser.parse_args()
    if given.command == "record":
        record(range(given.number), LOOPS, given.recording)
    else:
        show(given.number, LOOPS, given.recording)


if __name__ == "__main__":
    main()
