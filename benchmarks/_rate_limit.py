"""A burst of calls on a server that takes 50 requests a second: what a limiter is worth.

The server has a bucket of 50 requests that fills with 50 a second. A request that finds it empty is
refused within 10 ms with a 429, whose ``Retry-After`` is in whole seconds, rounded up, and at least
1. One that is taken is answered after the latency of the other table, and passes with p = 0.5: so
25 calls a second can succeed, and not more, once the full bucket of the beginning is spent.

All calls start at once, each with 4 subsamples of 8 turns, and the engine's own retries.

The oracle knows the server's bucket. It never sends a request that would be refused, and of those
that wait it sends one of the call that has fewest in flight, the oldest such call first: no draw is
spent on a call that another draw is already under way for, as long as there are other calls.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import anyio
from _known_bounds import Latency
from anyio.lowlevel import checkpoint

from mellea_like import Backend, Generation, Message, RejectionSamplingStrategy, Request
from mellea_like.backends.simulated import SimulatedBackend, passes
from mellea_like.core.backend import RequestMeta
from mellea_like.errors import RateLimited
from mellea_like.limits.base import Limit, LimitedBackend, RequestEnd
from mellea_like.limits.concurrency import AdaptiveLimiter
from mellea_like.limits.rate import RateLimiter
from mellea_like.testing import run_virtual

RATE = 50.0
BURST = 50.0
REFUSAL = 0.01
CALLS = 500
WIDTH = 4
DEPTH = 8
PASS_RATE = 0.5
LATENCY = Latency()
IDEAL = RATE * PASS_RATE


class Bucket:
    """A bucket of requests that fills with `RATE` a second up to `BURST`, full at first."""

    def __init__(self) -> None:
        self.full_at = 0.0

    def missing(self) -> float:
        """Return in how many seconds there is a request in it; 0 where there is one."""
        now = anyio.current_time()
        content = BURST - max(0.0, self.full_at - now) * RATE
        # A billionth of a request is what rounding makes of the time.
        return 0.0 if content >= 1 - 1e-9 else (1 - content) / RATE

    def take(self) -> None:
        """Take one request out of it."""
        self.full_at = max(anyio.current_time(), self.full_at) + 1 / RATE


class Server:
    """Answers what its bucket has room for, and refuses the rest.

    Args:
        seed: where the chance comes from.
        bucket: None answers everything.
    """

    model = "simulated"

    def __init__(self, seed: int, bucket: Bucket | None) -> None:
        self.replies = SimulatedBackend(
            seed=seed,
            median=LATENCY.median,
            sigma=LATENCY.sigma,
            straggler_rate=LATENCY.stragglers,
            straggler_factor=LATENCY.factor,
            pass_rate=PASS_RATE,
        )
        self.bucket = bucket
        self.draws: Counter[int] = Counter()
        self.taken = 0
        self.refused = 0

    async def generate(self, request: Request) -> Generation:
        """Answer one request, or refuse it."""
        if self.bucket is not None and (missing := self.bucket.missing()):
            self.refused += 1
            request.meter.start().settle(input_tokens=0, output_tokens=0)
            await anyio.sleep(REFUSAL)
            msg = "simulated: more than 50 requests a second"
            raise RateLimited(msg, status=429, retry_after=float(max(1, math.ceil(missing))))
        if self.bucket is not None:
            self.bucket.take()
        self.taken += 1
        # The n-th request of a call that is taken has the same fate in every row, so that rows
        # differ by what the limits do and not by luck.
        call = int(request.messages[-1].content)
        self.draws[call] += 1
        fate = RequestMeta(iteration=self.draws[call])
        options = request.options.with_seed(call)
        return await self.replies.generate(replace(request, options=options, meta=fate))


class Oracle:
    """A limit that knows the server's bucket, and which calls need a request most."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        self.in_flight: Counter[str] = Counter()
        self.calls: dict[str, int] = {}
        self.waiting: list[tuple[str, anyio.Event]] = []
        self.arrived = anyio.Event()

    async def acquire(self, request: Request, backend: Backend) -> OraclePermit:
        """Wait until it is this request's turn."""
        call = request.meta.sampling_id
        self.calls.setdefault(call, len(self.calls))
        entry = call, anyio.Event()
        self.waiting.append(entry)
        self.arrived.set()
        try:
            await entry[1].wait()
        except BaseException:
            if entry in self.waiting:
                self.waiting.remove(entry)
            else:
                self.in_flight[call] -= 1
            raise
        return OraclePermit(self, call)

    async def send(self) -> None:
        """Let requests go, for good."""
        while True:
            await self.arrived.wait()
            if missing := self.bucket.missing():
                await anyio.sleep(missing)
                continue
            # Those who have just won leave before anything is spent on them.
            await checkpoint()
            if not self.waiting:
                self.arrived = anyio.Event()
                continue
            entry = min(self.waiting, key=self._rank)
            self.waiting.remove(entry)
            self.in_flight[entry[0]] += 1
            self.bucket.take()
            entry[1].set()

    def _rank(self, entry: tuple[str, anyio.Event]) -> tuple[int, int]:
        return self.in_flight[entry[0]], self.calls[entry[0]]


class OraclePermit(NamedTuple):
    """The right to send one request."""

    oracle: Oracle
    call: str

    def release(self, end: RequestEnd) -> None:
        """Give it back."""
        self.oracle.in_flight[self.call] -= 1


class Burst(NamedTuple):
    """What a burst of calls came to.

    Attributes:
        successes: calls that succeeded.
        seconds: the time until the last call had its verdict.
        times: when each call had its verdict, in seconds.
        taken: requests that the server answered, or was answering when they were cancelled.
        refused: requests that it refused with a 429.
    """

    successes: int
    seconds: float
    times: list[float]
    taken: int
    refused: int

    @property
    def goodput(self) -> float:
        """Successful calls a second."""
        return self.successes / self.seconds


class Setup(NamedTuple):
    """One row: what stands before the server.

    Attributes:
        name: what the table calls it.
        limit: makes the limit; None where there is none.
        refuses: whether the server refuses what is too much.
    """

    name: str
    limit: Callable[[], Limit] | None
    refuses: bool = True


ORACLE = Setup("oracle", Oracle, refuses=False)
ADAPTIVE = Setup("AdaptiveLimiter()", AdaptiveLimiter)
KNOWN = Setup(
    "RateLimiter(requests_per_minute=3000)", lambda: RateLimiter(requests_per_minute=3000)
)
NOTHING = Setup("no limiter", None)
SETUPS = {setup.name: setup for setup in (ORACLE, ADAPTIVE, KNOWN, NOTHING)}


def run(
    name: str, calls: int, seed: int, *, backend: Literal["asyncio", "trio"] = "asyncio"
) -> Burst:
    """Run a burst of calls in virtual time.

    Args:
        name: the row's, one of `SETUPS`.
        calls: how many calls start at once.
        seed: where the chance comes from.
        backend: the event loop's library.

    Returns:
        What it came to.
    """
    # A refused request is a warning in the log: here they are counted, and thousands.
    logging.getLogger("mellea_like").addHandler(logging.NullHandler())
    return run_virtual(lambda: _run(SETUPS[name], calls, seed), backend=backend)


async def _run(setup: Setup, calls: int, seed: int) -> Burst:
    server = Server(seed, Bucket() if setup.refuses else None)
    limit = None if setup.limit is None else setup.limit()
    backend: Backend = server if limit is None else LimitedBackend(server, limit)
    strategy = RejectionSamplingStrategy(backend, loop_budget=DEPTH, concurrency_budget=WIDTH)
    times: list[float] = []
    successes = 0

    async def call(number: int) -> None:
        nonlocal successes
        result = await strategy.sample(
            Message("user", str(number)), [passes], options={"seed": number}
        )
        times.append(anyio.current_time() - began)
        successes += result.success

    async with anyio.create_task_group() as oracle:
        if isinstance(limit, Oracle):
            oracle.start_soon(limit.send)
        began = anyio.current_time()
        async with anyio.create_task_group() as burst:
            for number in range(calls):
                burst.start_soon(call, number)
        seconds = anyio.current_time() - began
        oracle.cancel_scope.cancel()
    return Burst(successes, seconds, times, server.taken, server.refused)
