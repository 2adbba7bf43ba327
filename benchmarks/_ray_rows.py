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
from contextlib import ExitStack, redirect_stdout

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
    return repr(time.time())


def make_strategy() -> RejectionSamplingStrategy:
    return RejectionSamplingStrategy(FunctionBackend(answer), loop_budget=1)


async def one_process(rows: int, directory: str) -> list[float]:
    prompts = (f"row {number}" for number in range(rows))
    async with sample_many(
        make_strategy(), prompts, concurrency=CALLS, journal=f"{directory}/run.db"
    ) as results:
        return [float(item.unwrap()) async for item in results]


def on_ray(rows: int, directory: str) -> list[float]:
    import ray.data

    from mellea_like.batch.ray import sample_dataset

    dataset = sample_dataset(
        ray.data.range(rows),
        make_strategy,
        prompt="row {{ id }}",
        actors=ACTORS,
        calls_per_actor=CALLS // ACTORS,
        journal_dir=f"{directory}/journals",
    )
    return [float(row["output"]) for row in dataset.take_all()]


def run(kind: str, rows: int, directory: str) -> dict[str, float]:
    """Return the rows a second from the first moment on, and from the first call to the last."""
    with ExitStack() as stack:
        if kind == "Ray":
            import ray.data

            from mellea_like.batch.ray import local_cluster

            stack.enter_context(local_cluster(ACTORS + 1, temp_dir=directory))
            ray.data.DataContext.get_current().enable_progress_bars = False
        begun = time.perf_counter()
        ends = on_ray(rows, directory) if kind == "Ray" else anyio.run(one_process, rows, directory)
        took = time.perf_counter() - begun
    if len(ends) != rows:
        sys.exit(f"{kind}: {len(ends)} of {rows} rows")
    calling = max(ends) - min(ends) + SECONDS
    return {kind: rows / took, f"{kind}, while it calls": rows / calling}


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
