"""Rows a second on Ray beside one process, for the same rows and as many calls at a time.

Each row is a call of a quarter of a second, with a journal. Ray's actors run on a local cluster,
which listens on 127.0.0.1 only. Each kind is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from typing import Any, cast

import anyio

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import FunctionBackend
from mellea_like.batch import sample_many

ROWS = 2000
SECONDS = 0.25
CALLS = 32
ACTORS = 2


async def answer(request: object) -> str:
    await anyio.sleep(SECONDS)
    return "Hello there."


def make_strategy() -> RejectionSamplingStrategy:
    return RejectionSamplingStrategy(FunctionBackend(answer), loop_budget=1)


async def one_process(rows: int, directory: str) -> float:
    prompts = (f"row {number}" for number in range(rows))
    begun, passed = time.perf_counter(), 0
    async with sample_many(
        make_strategy(), prompts, concurrency=CALLS, journal=f"{directory}/run.db"
    ) as results:
        async for item in results:
            passed += item.success
    return check(passed, rows, begun)


def on_ray(rows: int, directory: str) -> tuple[float, float]:
    """Return the rows a second from the first moment, and from the first call on."""
    import ray.data

    from mellea_like.batch.ray import local_cluster, sample_dataset

    with local_cluster(ACTORS + 1, temp_dir=directory):
        ray.data.DataContext.get_current().enable_progress_bars = False
        begun = time.perf_counter()
        dataset = sample_dataset(
            ray.data.range(rows),
            make_strategy,
            prompt="row {id}",
            actors=ACTORS,
            calls_per_actor=CALLS // ACTORS,
            journal_dir=f"{directory}/journals",
        )
        passed, first = 0, begun
        for batch in dataset.iter_batches(batch_format="pyarrow"):
            table = cast("Any", batch)
            if not passed:  # The first shards took as long as two of its calls.
                first = time.perf_counter() - 2 * SECONDS
            passed += sum(table.column("success").to_pylist())
        return check(passed, rows, begun), check(passed, rows, first)


def check(passed: int, rows: int, begun: float) -> float:
    if passed != rows:
        sys.exit(f"{passed} of {rows} passed")
    return rows / (time.perf_counter() - begun)


def measure(rows: int = ROWS) -> dict[str, float]:
    """Run each kind once.

    Returns:
        The rows a second of each kind, and how many there could be.
    """
    found: dict[str, float] = {"ideal": CALLS / SECONDS}
    for kind in ("one process", "Ray"):
        command = [sys.executable, __file__, kind, str(rows)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        found |= json.loads(done.stdout)
    return found


def main(kind: str, rows: int) -> None:
    # The path of a socket has at most 107 bytes, and Ray adds 70 to this one.
    with tempfile.TemporaryDirectory(prefix="ml", ignore_cleanup_errors=True) as directory:
        with redirect_stdout(sys.stderr):
            if kind == "one process":
                found = {kind: anyio.run(one_process, rows, directory)}
            else:
                os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
                found = dict(
                    zip(("Ray", "Ray, started before"), on_ray(rows, directory), strict=True)
                )
        print(json.dumps(found))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1], int(sys.argv[2]))
    else:
        print(measure())
