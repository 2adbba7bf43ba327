"""A batch that runs until the day's budget is spent, and goes on the next day.

Each row of a table is asked about with one strategy, eight rows at a time. The journal keeps what
is done: on the second day, those rows come again from it, marked ``replayed``, and only the rest is
sampled. Then all results are written to a file, in the order of the rows.

Nothing here needs a network: ``MarkovBackend`` writes the sentences. For a real model, put its
backend there, and keep the journal in a place of your own.

Run it: ``python examples/batch_run.py``
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import MarkovBackend
from mellea_like.batch import ItemResult, Progress, sample_many
from mellea_like.errors import LimitExceeded
from mellea_like.limits import Budget
from mellea_like.requirements.checks import contains, sentence_count, word_count

TOPICS = ["string", "list", "module", "file", "class", "function", "object", "loop"]
ROWS = [{"topic": topic, "words": words} for words in (30, 25, 20, 15) for topic in TOPICS]
REQUESTS_A_DAY = 60


def prompt(row: dict[str, Any]) -> str:
    return f"Write a sentence of at most {row['words']} words about a {row['topic']}."


def show(progress: Progress) -> None:
    print(f"  {progress.done}/{progress.total} rows done", file=sys.stderr)


async def one_day(
    strategy: RejectionSamplingStrategy, journal: Path, budget: Budget | None
) -> list[ItemResult[str]]:
    """Go on with the run; return what is there, in the order of the rows."""
    items: dict[int, ItemResult[str]] = {}
    try:
        async with sample_many(
            strategy,
            ROWS,
            action=prompt,
            concurrency=8,
            journal=journal,
            budget=budget,
            on_progress=show,
        ) as results:
            async for item in results:
                items[item.id] = item
    except LimitExceeded:
        print("The budget of the day is spent.")
    return [items[number] for number in sorted(items)]


async def main() -> None:
    checks = [sentence_count(exactly=1), word_count(at_most=20), contains("the")]
    strategy = RejectionSamplingStrategy(MarkovBackend(), loop_budget=50, requirements=checks)
    with tempfile.TemporaryDirectory() as directory:
        journal, output = Path(directory) / "run.db", Path(directory) / "sentences.jsonl"

        first = await one_day(strategy, journal, Budget(requests=REQUESTS_A_DAY))
        print(f"Some rows are done, and not all: {0 < len(first) < len(ROWS)}")

        second = await one_day(strategy, journal, None)
        replayed = sum(item.replayed for item in second)
        print(f"The second day, {len(second)} of {len(ROWS)} rows")
        print(f"What was done on the first day was not sampled again: {replayed == len(first)}")

        lines = [
            json.dumps({**item.item, "status": item.status, "sentence": item.value})
            for item in second
        ]
        await anyio.Path(output).write_text("\n".join(lines) + "\n", "utf-8")
        print(lines[0])


if __name__ == "__main__":
    anyio.run(main)

# expect: The budget of the day is spent.
# expect: Some rows are done, and not all: True
# expect: The second day, 32 of 32 rows
# expect: What was done on the first day was not sampled again: True
# expect: {"topic": "string", "words": 30, "status": "...", "sentence": ...}
