# ruff: noqa: T201 (a command)
"""Compares two engines by everything the public API shows of randomly generated calls.

    python tests/support/differential.py record --seeds 0-999 calls.jsonl.xz
    python tests/support/differential.py compare calls.jsonl.xz
    python tests/support/differential.py show 17 calls.jsonl.xz

``record`` runs the calls with the ``mellea_like`` that Python finds first, so ``PYTHONPATH``
selects the engine. ``compare`` runs them again and prints the differences by kind, with the seeds
to replay. If several things happen at the same instant (``ties``), it compares only how the call
ends. Texts for people are compared only with ``--wording``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import sys
import time
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from fnmatch import fnmatch
from multiprocessing import get_context
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

KINDS = [
    "ends",
    "result",
    "decision",
    "slices",
    "order",
    "requests",
    "prompts",
    "sent",
    "checks",
    "hooks",
    "delivered",
    "in_order",
    "inner_hooks",
    "acts",
    "deliveries",
    "delivery_times",
    "nested",
    "tools",
    "pieces",
    "in_flight",
    "limits",
    "spans",
    "metrics",
    "logs",
    "late",
    "wording",
]
"""The kinds of differences, the most serious first; a call is listed under the first it has."""

ROUGHLY = ["ends.error", "result.success", "result.stop_reason", "late", "ends.left", "in_order"]
"""The places that are compared if things happen at the same instant."""


class Difference(NamedTuple):
    place: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.place}: {_short(self.old)} -> {_short(self.new)}"


def differences(old: Trace, new: Trace, *, wording: bool = False) -> list[Difference]:
    """Return the differences between two traces of a call, the most serious kind first."""
    found: list[Difference] = []
    for kind in KINDS:
        if kind != "wording" or wording:
            found += _differing(kind, old.get(kind), new.get(kind))
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


def record(
    seeds: Iterable[int], loops: Iterable[Loop], path: Path, *, jobs: int = 1, wording: bool = True
) -> int:
    """Write the traces of calls; parts that are equal on both loops are written once."""
    keys = [(seed, loop) for seed in seeds for loop in loops]
    before: Trace = {}
    with _opened(path, "wt") as file:
        for (seed, loop), trace in _played(keys, jobs):
            if not wording:
                del trace["wording"]
            same = sorted(k for k in trace if loop == "trio" and before.get(k) == trace[k])
            rest = {k: v for k, v in trace.items() if k not in same}
            file.write(json.dumps([seed, loop, same, rest], separators=(",", ":")) + "\n")
            before = trace
    return len(keys)


def recorded(path: Path) -> Iterator[tuple[Key, Trace]]:
    """Read the traces of a recording."""
    before: Trace = {}
    with _opened(path, "rt") as file:
        for line in file:
            seed, loop, same, rest = json.loads(line)
            before = {**{k: before[k] for k in same}, **rest}
            yield (seed, loop), before


def _opened(path: Path, mode: str) -> Any:
    if path.suffix == ".xz":
        return lzma.open(path, mode, encoding="utf-8")
    return path.open(mode.removesuffix("t"), encoding="utf-8")


def _played(keys: list[Key], jobs: int) -> Iterator[tuple[Key, Trace]]:
    if jobs == 1:
        yield from map(_play, keys)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_play, keys, chunksize=20)


def _play(key: Key) -> tuple[Key, Trace]:
    return key, json.loads(json.dumps(oracle_trace.trace(*key)))


def compared(
    path: Path,
    *,
    seeds: Container[int] = (),
    loops: Container[Loop] = LOOPS,
    jobs: int = 1,
    wording: bool = False,
) -> Iterator[tuple[Key, list[Difference]]]:
    """Run the calls of a recording again, and yield the differences of each."""
    old = {
        (seed, loop): trace
        for (seed, loop), trace in recorded(path)
        if loop in loops and (not seeds or seed in seeds)
    }
    for key, trace in _played(list(old), jobs):
        yield key, differences(old.pop(key), trace, wording=wording)


# --- the command -----------------------------------------------------------------------------


def report(found: Iterable[tuple[Key, list[Difference]]], most: int) -> int:
    """Print the differences by kind; return how many calls differ."""
    by_kind: dict[str, list[tuple[Key, list[Difference]]]] = defaultdict(list)
    total = 0
    for key, differing in found:
        total += 1
        if differing:
            by_kind[differing[0].place.split(".")[0]].append((key, differing))
    bad = sum(map(len, by_kind.values()))
    print(f"{total - bad} of {total} calls alike")
    for kind in KINDS:
        if calls_ := by_kind.get(kind):
            print(f"\n== {kind}: {len(calls_)} calls differ first in this")
            for (seed, loop), differing in calls_[:most]:
                spec = calls.make(seed)
                print(f"  seed {seed} on {loop} ({_summary(spec)})")
                for difference in differing[:4]:
                    print(f"    {difference}")
                if len(differing) > 4:
                    print(f"    and {len(differing) - 4} more")
            seeds = " ".join(f"{seed}{loop[0]}" for (seed, loop), _ in calls_[most : most + 40])
            print(f"  more: {seeds}" if seeds else "")
    return bad


def _summary(spec: dict[str, Any]) -> str:
    usual = [None, [], {}, False, 0.0, {"kind": "first"}]
    named = ["selection", "schedule", "stream", "leave", "tools", "timeout", "iteration_timeout"]
    named += ["budget", "strategy_budget", "limits", "acts", "on_slice", "give_up", "retry"]
    kinds = [name for name in named if spec[name] not in usual]
    return (
        f"{spec['strategy']}, {spec['loop_budget']}x{spec['concurrency_budget']}, {' '.join(kinds)}"
    )


def show(seed: int, loops: Iterable[Loop], path: Path | None) -> None:
    """Print a call, its trace, and the differences from a recording."""
    print(json.dumps(calls.make(seed), indent=1))
    old = dict(recorded(path)) if path else {}
    for loop in loops:
        _, trace = _play((seed, loop))
        print(f"--- on {loop}")
        for kind in KINDS:
            if trace.get(kind):
                print(f"{kind}: {json.dumps(trace[kind], ensure_ascii=False)}")
        if (seed, loop) in old:
            print(f"--- on {loop}, recorded -> now")
            for difference in differences(old[seed, loop], trace, wording=True):
                print(f"  {difference}")


def _seeds(text: str) -> list[int]:
    """Read seeds such as ``0-99,417``."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("record", "compare", "show"):
        command = commands.add_parser(name)
        if name == "show":
            command.add_argument("seed", type=int)
            command.add_argument("recording", type=Path, nargs="?")
        else:
            command.add_argument("recording", type=Path)
            command.add_argument("--seeds", type=_seeds, default=[])
            command.add_argument("--jobs", type=int, default=1)
        command.add_argument("--loop", choices=LOOPS, help="by default, both")
        command.add_argument("--wording", action=argparse.BooleanOptionalAction, help="texts, too")
        command.add_argument("--most", type=int, default=5, help="calls to print of each kind")
    given = parser.parse_args(arguments)
    loops = [given.loop] if given.loop else LOOPS
    import mellea_like

    where = Path(mellea_like.__file__).parent
    print(f"playing {where}", file=sys.stderr)
    began = time.monotonic()
    bad = 0
    if given.command == "show":
        show(given.seed, loops, given.recording)
        return 0
    if given.command == "record":
        n = record(
            given.seeds or range(1000),
            loops,
            given.recording,
            jobs=given.jobs,
            wording=given.wording is not False,
        )
        print(f"{n} calls recorded, {given.recording.stat().st_size:,} bytes")
    else:
        wording = bool(given.wording)
        found = compared(
            given.recording, seeds=given.seeds, loops=loops, jobs=given.jobs, wording=wording
        )
        bad = report(found, given.most)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return min(bad, 1)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main(sys.argv[1:]))
