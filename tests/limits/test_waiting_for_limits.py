"""Random arrivals, cancellations and changes: no limit is exceeded, and no permit leaks."""

from __future__ import annotations

import asyncio
from collections import Counter

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from limiter_kit import Slow, ask

from mellea_like.errors import BackendUnavailable, RateLimited
from mellea_like.limits import AdaptiveLimiter, ConcurrencyLimiter, LimitedBackend, RateLimiter
from mellea_like.testing import run_virtual

LIBRARIES = ["asyncio", "trio"]
ERRORS = [
    None,
    None,
    BackendUnavailable("503", status=503),
    RateLimited("429", status=429, retry_after=0.7),
    RateLimited("429", status=429),
]

clients = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.3]),  # When it comes, after the one before.
        st.integers(0, 3),  # Its call.
        st.integers(0, 3),  # Its subsample.
        st.sampled_from(["generate", "generate", "generate", "judge"]),
        st.sampled_from([0.0, 0.1, 0.5, 2.0]),  # How long its answer takes.
        st.sampled_from(range(len(ERRORS))),
        st.sampled_from([None, None, 0.0, 0.1, 0.5, 0.6, 1.0]),  # When it is cancelled.
    ),
    max_size=30,
)
changes = st.lists(st.tuples(st.sampled_from([0.1, 0.5, 1.0]), st.integers(1, 5)), max_size=6)


class Watched(ConcurrencyLimiter):
    """Checks each admission against the rule, applied to all permits."""

    def __init__(self, limit):
        super().__init__(limit)
        self.permits = []

    def _granted(self, now, permit):
        assert self._queue.in_flight <= self.concurrency
        others = (t for t in self.permits if t.in_flight and t is not permit)
        busy = Counter(t.request.meta.sampling_id for t in others)
        best = min([permit, *(t for t in self.permits if t.waiting)], key=lambda t: rank(t, busy))
        assert rank(permit, busy) == rank(best, busy)

    def _pump(self):
        # A permit joins the queue just before this is called.
        for call in self._queue._calls.values():
            self.permits += call.permits
        self.permits += self._queue._judges
        self.permits = [t for t in dict.fromkeys(self.permits) if t.waiting or t.in_flight]
        super()._pump()


def rank(permit, busy):
    meta = permit.request.meta
    if meta.purpose == "judge":
        return (0, 0, 0)
    in_use = busy[meta.sampling_id] + len(permit.call.undecided)
    return (1, in_use, meta.call_started)


async def storm(limiter, clients, changes=()):
    """Let clients come, be answered, fail and be cancelled while the limit changes."""
    ends = Counter()

    async def client(call, subsample, purpose, seconds, error, patience):
        backend = LimitedBackend(Slow(seconds, ERRORS[error]), limiter)
        wanted = ask(f"call {call}", subsample, float(call), purpose)
        with anyio.move_on_after(1000.0 if patience is None else patience):
            try:
                await backend.generate(wanted)
            except (BackendUnavailable, RateLimited):
                ends["failed"] += 1
            else:
                ends["answered"] += 1
            return
        assert patience is not None, "a client waited for ever"
        ends["cancelled"] += 1

    async def change():
        for after, limit in changes:
            await anyio.sleep(after)
            limiter.concurrency = limit

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(change)
        for after, *about in clients:
            if after:
                await anyio.sleep(after)
            tasks.start_soon(client, *about)
    assert ends.total() == len(clients)


def drained(limiter):
    statistics = limiter.statistics()
    assert (statistics.in_flight, statistics.waiting) == (0, 0)
    assert not limiter._queue._calls
    assert limiter._queue.head() is None


@pytest.mark.parametrize("library", LIBRARIES)
@given(limit=st.integers(1, 4), clients=clients, changes=changes)
def test_a_cap_holds_and_priority_is_kept(library, limit, clients, changes):
    limiter = Watched(limit)
    run_virtual(lambda: storm(limiter, clients, changes), backend=library)
    drained(limiter)
    assert limiter.statistics().max_in_flight <= max([limit, *(new for _, new in changes)])


@pytest.mark.parametrize("library", LIBRARIES)
@given(limit=st.integers(1, 8), clients=clients, changes=changes)
def test_an_adaptive_window_loses_nobody(library, limit, clients, changes):
    limiter = AdaptiveLimiter(limit)
    run_virtual(lambda: storm(limiter, clients, changes), backend=library)
    drained(limiter)
    assert limiter.concurrency >= 1


@pytest.mark.parametrize("library", LIBRARIES)
@given(rate=st.integers(30, 600), clients=clients)
def test_a_rate_loses_nobody_and_charges_what_went(library, rate, clients):
    limiter = RateLimiter(requests_per_minute=rate, tokens_per_minute=100 * rate)

    async def all_of_it():
        began = anyio.current_time()
        await storm(limiter, clients)
        most = rate / 60
        elapsed = anyio.current_time() - began
        assert limiter.statistics().admitted <= max(1, most) + most * elapsed + 1e-3

    run_virtual(all_of_it, backend=library)
    drained(limiter)


@given(
    cancels=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 2)), max_size=8),
    limit=st.integers(1, 3),
    order=st.permutations(range(8)),
)
def test_native_cancellations_at_any_step_leak_no_permit(cancels, limit, order):
    limiter = Watched(limit)

    async def main():
        backend = LimitedBackend(Slow(0.0), limiter)
        tasks = [
            asyncio.create_task(backend.generate(ask(f"call {n // 2}", n % 2, float(n // 2))))
            for n in order
        ]
        for number, times in cancels:
            await asyncio.sleep(0)
            for _ in range(times):
                tasks[number].cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert not [end for end in ended if isinstance(end, Exception)]

    asyncio.run(main())
    drained(limiter)
