"""Rows a second on Ray beside one process, for the same rows and as many calls at a time.

Each row is a call of a quarter of a second, with a journal; and on Ray, with journals and without,
also one of a twentieth. Ray's actors run on a local cluster, which listens on 127.0.0.1 only. Each
kind is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, redirect_stdout
from functools import partial
from typing import NamedTuple

import anyio

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import FunctionBackend
from mellea_like.batch import sample_many

ROWS = 2000
SECONDS = 0.25
SHORT = 0.05
CALLS = 32
ACTORS = 2


async def answer(seconds: float, request: object) -> str:
    await anyio.sleep(seconds)
    return repr(time.time())


def make_strategy(seconds: float) -> RejectionSamplingStrategy:
    return RejectionSamplingStrategy(FunctionBackend(partial(answer, seconds)), loop_budget=1)


async def one_process(rows: int, directory: str) -> list[float]:
    prompts = (f"row {number}" for number in range(rows))
    async with sample_many(
        make_strategy(SECONDS), prompts, concurrency=CALLS, journal=f"{directory}/run.db"
    ) as results:
        return [float(item.unwrap()) async for item in results]


def on_ray(rows: int, directory: str, seconds: float, *, journals: bool) -> list[float]:
    import ray.data

    from mellea_like.batch.ray import sample_dataset

    dataset = sample_dataset(
        ray.data.range(rows),
        partial(make_strategy, seconds),
        prompt="row {{ id }}",
        actors=ACTORS,
        calls_per_actor=CALLS // ACTORS,
        journal_dir=f"{directory}/journals" if journals else None,
    )
    return [float(row["output"]) for row in dataset.take_all()]


class Kind(NamedTuple):
    """How rows are sampled.

    Attributes:
        ray: whether on Ray, and not in one process.
        seconds: how long a call takes.
        journals: whether they are kept.
    """

    ray: bool
    seconds: float = SECONDS
    journals: bool = True


KINDS = {
    "one process": Kind(ray=False),
    "Ray": Kind(ray=True),
    "Ray, no journal": Kind(ray=True, journals=False),
    "Ray, short calls": Kind(ray=True, seconds=SHORT),
    "Ray, short calls, no journal": Kind(ray=True, seconds=SHORT, journals=False),
}


def run(name: str, rows: int, directory: str) -> dict[str, float]:
    """Return the rows a second from the first moment on, and from the first call to the last."""
    kind = KINDS[name]
    with ExitStack() as stack:
        if kind.ray:
            import ray.data

            from mellea_like.batch.ray import local_cluster

            stack.enter_context(local_cluster(ACTORS + 1, temp_dir=directory))
            ray.data.DataContext.get_current().enable_progress_bars = False
        begun = time.perf_counter()
        if kind.ray:
            ends = on_ray(rows, directory, kind.seconds, journals=kind.journals)
        else:
            ends = anyio.run(one_process, rows, directory)
        took = time.perf_counter() - begun
    if len(ends) != rows:
        sys.exit(f"{name}: {len(ends)} of {rows} rows")
    calling = max(ends) - min(ends) + kind.seconds
    return {name: rows / took, f"{name}, while it calls": rows / calling}


def measure(rows: int = ROWS) -> dict[str, float]:
    """Run each kind once.

    Returns:
        The rows a second of each kind, and how many there could be.
    """
    found: dict[str, float] = {"ideal": CALLS / SECONDS}
    for kind in KINDS:
        command = [sys.executable, __file__, kind, str(rows)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        found |= json.loads(done.stdout)
    return found


def main(kind: str, rows: int) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # The path of a socket has at most 107 bytes, and Ray adds 70 to this one.
    with tempfile.TemporaryDirectory(prefix="ml", ignore_cleanup_errors=True) as directory:
        with redirect_stdout(sys.stderr):
            found = run(kind, rows, directory)
        print(json.dumps(found))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1], int(sys.argv[2]))
    else:
        print(measure())
