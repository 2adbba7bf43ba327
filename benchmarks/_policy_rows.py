"""The policies that `policies.py` compares, and how their calls are run."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

import anyio
from _known_bounds import Latency

from mellea_like import (
    Generation,
    RejectionSamplingStrategy,
    Request,
    Requirement,
    SamplingTimeout,
)
from mellea_like.backends.simulated import SimulatedBackend, gives_itself_away, passes
from mellea_like.core.backend import BackendWrapper
from mellea_like.schedules import (
    BaseSchedule,
    Eager,
    Hedged,
    Restart,
    Staggered,
)
from mellea_like.testing import run_virtual

PASS_RATES = (0.05, 0.1, 0.3, 0.5, 0.8)
TURNS = 32
LATENCY = Latency()
GIVEAWAY_RATE = 0.7


class Policy(NamedTuple):
    """One row: how 32 turns are spent.

    Attributes:
        name: what the table calls it.
        width: ``concurrency_budget``; each subsample has 32 / width turns.
        schedule: makes the schedule, with the state that the calls of the row share.
        early: whether replies are rejected while they arrive.
        extra: how many requests more than ``width`` may be in flight.
    """

    name: str
    width: int = 4
    schedule: Callable[[], BaseSchedule] = Eager
    early: bool = False
    extra: int = 0

    @property
    def in_flight(self) -> int:
        """How many requests may be in flight."""
        return self.width + self.extra


class Verdict(NamedTuple):
    """What one call came to.

    Attributes:
        pass_rate: the chance of its replies to pass.
        seconds: how long it took, in virtual time.
        requests: requests that it started.
        tokens: tokens of their replies that were generated, those of cancelled ones included.
        success: whether one passed.
        work: for how long the server was at work on its requests, in virtual seconds.
    """

    pass_rate: float
    seconds: float
    requests: int
    tokens: int
    success: bool
    work: float


SEQUENTIAL = Policy("sequential, 1 x 32", 1)
EAGER = Policy("Eager()")
POOLED = Policy("Eager(pool=True)", schedule=lambda: Eager(pool=True))
STAGGERED = Policy("Staggered(0.3)", schedule=lambda: Staggered(0.3))
HEDGED = Policy("Hedged()", schedule=Hedged, extra=1)
RESTART = Policy("Restart()", schedule=Restart)
RESTART_HEDGED = Policy(
    "Restart(schedule=Hedged())", schedule=lambda: Restart(schedule=Hedged()), extra=1
)
WIDE = Policy("Eager(), 8 x 4", 8)
EARLY = Policy("Eager(), early rejection", early=True)
BOTH = Policy("Hedged(), early rejection", schedule=Hedged, early=True, extra=1)

POLICIES = {
    policy.name: policy
    for policy in (
        SEQUENTIAL,
        EAGER,
        POOLED,
        STAGGERED,
        HEDGED,
        RESTART,
        RESTART_HEDGED,
        EARLY,
        BOTH,
        WIDE,
    )
}


def run(name: str, calls: int, seed: int) -> list[Verdict]:
    """Run a row: the mixture of all pass rates, one call after the other.

    The calls, their order and the fate of each of their iterations are the same for every policy
    (common random numbers), so that policies differ by what they do and not by luck.

    Args:
        name: the row's, one of `POLICIES`.
        calls: calls of each pass rate.
        seed: where the chance comes from.

    Returns:
        What each call came to, in order.
    """
    return run_virtual(lambda: _run(POLICIES[name], calls, seed))


async def _run(policy: Policy, calls: int, seed: int) -> list[Verdict]:
    order = [rate for rate in PASS_RATES for _ in range(calls)]
    random.Random(seed).shuffle(order)
    strategy = RejectionSamplingStrategy(
        concurrency_budget=policy.width,
        loop_budget=TURNS // policy.width,
        schedule=policy.schedule(),
    )
    backends = {rate: _Timed(_backend(rate, seed)) for rate in PASS_RATES}
    # Each pass rate stands for a kind of task, with a requirement of its own: it is by the names of
    # requirements that schedules keep what they learn.
    requirements = {rate: [_requirement(rate, early=policy.early)] for rate in PASS_RATES}
    verdicts = []
    for number, rate in enumerate(order):
        backend = backends[rate]
        before = backend.work
        try:
            result = await strategy.sample(
                "Do it.", requirements[rate], backend=backend, options={"seed": number}
            )
        except SamplingTimeout as exc:  # No reply before the deadline.
            if exc.result is None:
                raise
            result = exc.result
        usage = result.usage
        work = backend.work - before
        verdicts.append(
            Verdict(rate, result.elapsed, usage.requests, usage.output_tokens, result.success, work)
        )
    return verdicts


class _Timed(BackendWrapper):
    """A server, and for how many seconds it has been at work: on two requests, twice as long."""

    work = 0.0

    async def generate(self, request: Request) -> Generation:
        with self._at_work():
            return await self.inner.generate(request)

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        with self._at_work():
            async with super()._stream(request) as pieces:
                yield pieces

    @contextmanager
    def _at_work(self) -> Generator[None]:
        began = anyio.current_time()
        try:
            yield
        finally:
            self.work += anyio.current_time() - began


def _backend(pass_rate: float, seed: int) -> SimulatedBackend:
    return SimulatedBackend(
        seed=f"{seed}/{pass_rate}",
        median=LATENCY.median,
        sigma=LATENCY.sigma,
        straggler_rate=LATENCY.stragglers,
        straggler_factor=LATENCY.factor,
        pass_rate=pass_rate,
        giveaway_rate=GIVEAWAY_RATE,
        output_tokens=20,
    )


def _requirement(pass_rate: float, *, early: bool) -> Requirement:
    return Requirement(
        f"the reply passes, as {pass_rate:.0%} of them do",
        passes.validator,
        name=f"passes at {pass_rate:g}",
        inline=True,
        stream=gives_itself_away if early else None,
    )
