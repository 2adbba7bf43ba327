"""Sample many items with a journal, and make a page of what happened.

Sixty sentences from the backend that needs nothing: some pass at once, some after many draws, a few
never. The page is one file without scripts from elsewhere, fonts or pictures to load: mail it, or
open it from a disk.

Run it: ``python examples/report_of_a_run.py``, and open ``report.html``
"""

from __future__ import annotations

from pathlib import Path

import anyio

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import MarkovBackend
from mellea_like.batch import Journal, read_items, read_run, sample_many
from mellea_like.core.prices import Price
from mellea_like.report import run_report, run_text
from mellea_like.requirements.checks import contains, sentence_count, word_count

TOPICS = ("strings", "lists", "functions", "modules", "classes", "numbers")
JOURNAL, PAGE = Path("run.db"), Path("report.html")


async def sample() -> None:
    strategy = RejectionSamplingStrategy(MarkovBackend(), loop_budget=4, concurrency_budget=3)
    checks = [sentence_count(exactly=1), word_count(at_least=6, at_most=16), contains("e")]
    items = [f"Write a sentence about {TOPICS[n % 6]}, number {n}." for n in range(60)]
    # The Markov chain costs nothing; these are the prices of one that does.
    journal = Journal(JOURNAL, prices={"markov-trigram": Price(0.15, 0.60)})
    async with sample_many(
        strategy, items, requirements=checks, concurrency=8, journal=journal
    ) as results:
        async for item in results:
            if not item.success:
                print(f"Item {item.id} failed.")


def main() -> None:
    anyio.run(sample)
    print(run_text(read_run(JOURNAL), read_items(JOURNAL)))
    page = run_report(read_run(JOURNAL), read_items(JOURNAL), "Sixty sentences")
    PAGE.write_text(page, encoding="utf-8")
    print(f"{PAGE}: {len(page.encode()) // 1000} kB")


if __name__ == "__main__":
    main()

# expect: Run of 60 items: ...
# expect:   items                60
# expect:   pass rate ...
# expect: Attempts: ...
# expect: Tokens
# expect: Pass rate by requirement
# expect: report.html: ... kB
