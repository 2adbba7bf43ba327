"""Shards of rows for `ShardSampler`, without Ray, and a backend that notes what it was asked."""

from __future__ import annotations

import anyio
import pyarrow as pa

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import FunctionBackend
from mellea_like.batch.ray.shards import POSITION, ShardSampler, ShardWork, prompt_maker


class Calls:
    """Answers after a while, and notes what was asked and how many at a time."""

    def __init__(self, seconds=0.25, answer="yes"):
        self.seconds = seconds
        self.answer = answer
        self.asked = []
        self.in_flight = self.most = 0

    async def __call__(self, request):
        self.asked.append(request.messages[-1].content)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await anyio.sleep(self.seconds)
        finally:
            self.in_flight -= 1
        return self.answer

    def strategy(self, **settings):
        return RejectionSamplingStrategy(FunctionBackend(self), loop_budget=1, **settings)


def block(start, end):
    return pa.table({"id": range(start, end), POSITION: range(start, end)})


def sampler(make, **more):
    return ShardSampler(ShardWork(make, prompt_maker("row {{ id }}"), **more))
