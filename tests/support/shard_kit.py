"""Shards of rows for `ShardSampler`, without Ray, and a backend that notes what it was asked."""

from __future__ import annotations

import pyarrow as pa
from batch_kit import Plan

from mellea_like import RejectionSamplingStrategy
from mellea_like.batch.ray.shards import POSITION, ShardSampler, ShardWork, prompt_maker


class Calls(Plan):
    """Answers after a while, and notes what was asked and how many at a time."""

    def __init__(self, seconds=0.25, answer="yes"):
        super().__init__(lambda prompt: answer)
        self.seconds = seconds

    def strategy(self, **settings):
        return RejectionSamplingStrategy(self, loop_budget=1, **settings)


def block(start, end):
    return pa.table({"id": range(start, end), POSITION: range(start, end)})


def sampler(make, format=None, **more):
    arguments = {"action": prompt_maker("row {{ id }}"), "format": format}
    return ShardSampler(ShardWork(make, arguments, **more))
