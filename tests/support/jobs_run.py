"""A run by jobs for the tests to kill: ``python jobs_run.py FOLDER PROVIDER URL ITEMS``."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
from batch_servers.kit import make_api

from mellea_like import RepairTemplateStrategy, requirement
from mellea_like.batch import BatchJobs, sample_many


@requirement("begins with right", inline=True)
def is_right(candidate):
    return candidate.text.startswith("right"), "it begins otherwise"


def prompts(items: int) -> list[str]:
    return [f"question {n}" for n in range(items)]


async def run(folder: Path, provider: str, url: str, items: int) -> None:
    backend = BatchJobs(
        make_api(provider, url=url),
        poll=0.05,
        settled=1.0,
        requests_per_job=items // 2,
    )
    strategy = RepairTemplateStrategy(
        backend, requirements=[is_right], loop_budget=3, options={"max_tokens": 50}
    )
    async with sample_many(
        strategy, prompts(items), concurrency=16, breadth_first=True, journal=folder / "run.db"
    ) as results:
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        async for item in results:
            assert item.status in ("passed", "failed"), item
    await backend.aclose()


if __name__ == "__main__":
    place, provider, url, items = sys.argv[1:]
    anyio.run(run, Path(place), provider, url, int(items))
