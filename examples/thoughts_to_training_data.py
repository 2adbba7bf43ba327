"""From prompts to SFT and DPO files with the model's thoughts, through a kill and a resume.

The program starts itself as a run of 100 items with a journal, kills that run once it has 30
results (SIGKILL), resumes it, and exports what both sittings have drawn.

Run it: ``python examples/thoughts_to_training_data.py``
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import FunctionBackend
from mellea_like.batch import sample_many
from mellea_like.core.backend import Request
from mellea_like.core.generation import Generation
from mellea_like.export import export
from mellea_like.requirements.checks import word_count

PROMPTS = [f"Describe product {n}." for n in range(100)]
RESULTS_BEFORE_THE_KILL = 30


async def thinking_model(request: Request) -> Generation:
    """Stand in for a model that thinks: its first draft is too long, its second one isn't."""
    await anyio.sleep(0.01)
    drafts = request.meta.iteration
    text = "It is good." if drafts > 1 else "It is good, and it is cheap, and it is here."
    return Generation(text, reasoning=f"This is draft {drafts}.")


async def run(journal: Path) -> int:
    """Run the batch, or go on with it; return how many results came from the journal."""
    strategy = RejectionSamplingStrategy(
        FunctionBackend(thinking_model), loop_budget=3, concurrency_budget=1
    )
    replayed = 0
    async with sample_many(
        strategy, PROMPTS, requirements=[word_count(at_most=5)], concurrency=4, journal=journal
    ) as results:
        async for item in results:
            replayed += item.replayed
            print(f"have item {item.id}", file=sys.stderr, flush=True)
    return replayed


def run_and_kill(journal: Path) -> None:
    """Start the run in its own process, and kill it."""
    command = [sys.executable, __file__, str(journal)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for told, _ in enumerate(process.stderr or (), 1):
            if told == RESULTS_BEFORE_THE_KILL:
                process.kill()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "run.db"
        run_and_kill(journal)
        replayed = anyio.run(run, journal)
        print(f"Kept through the kill: {replayed >= RESULTS_BEFORE_THE_KILL}")
        for format in "sft", "dpo":
            file = Path(folder) / f"{format}.jsonl"
            print(f"{format}: {export(journal, file, format=format, prompt='bare')}")
            print(json.loads(file.read_text("utf-8").splitlines()[0]))


# expect: Kept through the kill: True
# expect: sft: 100 rows from 100 items
# expect: {'messages': ...'reasoning_content': 'This is draft 2.'}]}
# expect: dpo: 100 rows from 100 items
# expect: {'prompt': ...'This is draft 2.'...'reasoning_content': 'This is draft 1.'}]}

if __name__ == "__main__":
    if sys.argv[1:]:
        anyio.run(run, Path(sys.argv[1]))
    else:
        main()
