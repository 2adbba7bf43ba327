"""A batch run is killed in the middle, goes on, and nothing that it had is lost or paid for twice.

The program starts itself as a run of 200 items with a journal, kills that run once it has 60
results (SIGKILL: no goodbye, no clean-up), and resumes it. What was finished comes again from the
journal, marked ``replayed``; what was under way at the kill is sampled anew.

Run it: ``python examples/killed_and_resumed.py``
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import anyio

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import SimulatedBackend
from mellea_like.backends.simulated import passes
from mellea_like.batch import read_items, read_run, sample_many

PROMPTS = [f"Describe product {n}." for n in range(200)]
CONCURRENCY = 8
RESULTS_BEFORE_THE_KILL = 60


async def run(journal: Path, *, tell: bool = False) -> tuple[int, int]:
    """Run the batch, or go on with it; return how many results are new, and how many are not."""
    backend = SimulatedBackend(pass_rate=0.5, median=0.02)
    strategy = RejectionSamplingStrategy(backend, loop_budget=8, concurrency_budget=2)
    new = replayed = 0
    async with sample_many(
        strategy, PROMPTS, concurrency=CONCURRENCY, requirements=[passes], journal=journal
    ) as results:
        async for item in results:
            new += not item.replayed
            replayed += item.replayed
            if tell:
                print(f"have item {item.id}", flush=True)
    return new, replayed


def run_and_kill(journal: Path) -> set[str]:
    """Start the run in its own process, and kill it; return what it had told of by then."""
    told: set[str] = set()
    command = [sys.executable, __file__, str(journal)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            told.add(line)
            if len(told) == RESULTS_BEFORE_THE_KILL:
                process.kill()
    return told


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "run.db"
        told = run_and_kill(journal)
        left = read_run(journal)
        kept = left["counts"]["passed"] + left["counts"]["failed"]
        print(f"Killed: ended at {left['ended']}, results kept: {kept}")
        print(f"Each of the {len(told)} results it had told of is kept: {kept >= len(told)}")

        new, replayed = anyio.run(run, journal)
        print(f"Resumed: {new} new and {replayed} replayed, {new + replayed} in all")
        print(f"Nothing that was kept was sampled again: {replayed == kept}")

        items = list(read_items(journal))
        again = [item for item in items if item["attempts"] > 1]
        print(
            f"Begun again: {len(again)} items, at most {CONCURRENCY}: {len(again) <= CONCURRENCY}"
        )
        requests = sum(item["usage"]["requests"] for item in items)
        print(f"Requests in all, those of the killed run too: {requests}")


# expect: Killed: ended at None, results kept: ...
# expect: Each of the ... results it had told of is kept: True
# expect: Resumed: ... new and ... replayed, 200 in all
# expect: Nothing that was kept was sampled again: True
# expect: Begun again: ... items, at most 8: True
# expect: Requests in all, those of the killed run too: ...

if __name__ == "__main__":
    if sys.argv[1:]:
        anyio.run(lambda: run(Path(sys.argv[1]), tell=True))
    else:
        main()
