"""Runs whose requests are answered by jobs of a batch API."""

from __future__ import annotations

from pathlib import Path

import pytest

from mellea_like import RepairTemplateStrategy, requirement
from mellea_like.batch import BatchJobs, JobsRun, Journal, sample_many
from tests.support.batch_api import FakeAPI, FakeProvider


@requirement("is in capitals", inline=True)
def in_capitals(candidate):
    return candidate.text.isupper(), "it has small letters"


def answer(texts):
    """Answer well once the prompt says what was wrong."""
    return texts[-1].split()[0].upper() if "small letters" in texts[-1] else texts[-1].split()[0]


async def collect(strategy, items, path, **given):
    async with sample_many(
        strategy, items, concurrency=8, order="breadth", journal=Journal(path), **given
    ) as results:
        assert isinstance(results, JobsRun)
        return [item async for item in results], results


async def test_what_failed_goes_into_the_next_job(virtual_clock, tmp_path: Path):
    provider = FakeProvider(answer)
    strategy = RepairTemplateStrategy(
        BatchJobs(FakeAPI(provider)), requirements=[in_capitals], loop_budget=3
    )
    found, _ = await collect(strategy, [f"word{n} please" for n in range(20)], tmp_path / "run.db")
    assert [item.status for item in found] == ["passed"] * 20
    assert len(provider.jobs) == 2
    assert set(provider.asked.values()) == {1}
    assert sum((i.usage for i in found), start=type(provider.usage)()) == provider.usage
    assert all(s.model == "small:batch" for item in found for s in item.result.slices)
