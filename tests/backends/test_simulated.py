"""SimulatedBackend: seeded random replies, and its counts."""

from __future__ import annotations

import math
from collections import Counter
from statistics import fmean, stdev

import anyio
import pytest

from mellea_like.backends.simulated import SimulatedBackend, gives_itself_away, passes
from mellea_like.core.backend import Options, Request, RequestMeta
from mellea_like.core.conversation import Message
from mellea_like.core.generation import Generation, Usage
from mellea_like.core.validation import Candidate, Verdict
from mellea_like.errors import BackendError, BackendUnavailable, RateLimited

pytestmark = pytest.mark.anyio


def ask(seed: int | None = None, **options) -> Request:
    meta = RequestMeta(
        **{key: options.pop(key) for key in ("iteration", "retry", "purpose") if key in options}
    )
    return Request((Message("user", "two words"),), Options(seed=seed, **options), meta=meta)


def passed(reply: Generation) -> bool:
    verdict = passes.validator(Candidate(reply.text, None, reply, None, None))  # type: ignore[arg-type]
    return verdict[0]


async def fates(backend: SimulatedBackend, requests: list[Request]) -> list[object]:
    """Return the outcome and the latency of each request."""
    seen: list[object] = []
    for request in requests:
        began = anyio.current_time()
        try:
            reply: object = (await backend.generate(request)).text
        except BackendError as exc:
            reply = type(exc)
        seen.append((reply, anyio.current_time() - began))
    return seen


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
async def test_replies_pass_at_their_rate(virtual_clock, rate):
    backend = SimulatedBackend(pass_rate=rate, median=0)
    replies = [await backend.generate(ask()) for _ in range(1000)]
    assert sum(map(passed, replies)) / 1000 == pytest.approx(rate, abs=0.03)
    lengths = [reply.usage.output_tokens for reply in replies]
    assert (min(lengths), max(lengths)) == (10, 30)
    assert fmean(lengths) == pytest.approx(20, abs=0.6)


async def first_giveaway(backend: SimulatedBackend, request: Request) -> tuple[int | None, str]:
    """Return the number of the word that gives the reply away, from 1, and the whole reply."""
    seen, place = "", None
    async with backend.stream(request) as pieces:
        async for piece in pieces:
            if isinstance(piece, str):
                seen += piece
                if place is None and gives_itself_away(seen, piece)[0] is Verdict.FAIL:
                    place = len(seen.split())
    return place, seen


async def test_failing_replies_give_themselves_away_at_a_quarter(virtual_clock):
    backend = SimulatedBackend(pass_rate=0.5, giveaway_rate=0.7)
    failing = 0
    places = []
    for seed in range(300):
        place, text = await first_giveaway(backend, ask(seed))
        failing += text.startswith("failing")
        if place is not None:
            assert text.startswith("failing")
            places.append(place / len(text.split()))
    assert len(places) / failing == pytest.approx(0.7, abs=0.09)
    assert 0.25 <= min(places) <= max(places) <= 0.35


async def test_errors_come_at_their_rates(virtual_clock):
    backend = SimulatedBackend(error_rate=0.2, rate_limit_rate=0.3, retry_after=4)
    seen = [reply for reply, _ in await fates(backend, [ask()] * 1000)]
    assert seen.count(BackendUnavailable) / 1000 == pytest.approx(0.2, abs=0.03)
    assert seen.count(RateLimited) / 1000 == pytest.approx(0.3, abs=0.03)
    assert backend.statistics().failed == seen.count(BackendUnavailable) + seen.count(RateLimited)


async def seconds(backend: SimulatedBackend) -> list[float]:
    return [took for _, took in await fates(backend, [ask()] * 1000)]


async def test_latencies_are_lognormal(virtual_clock):
    logs = [math.log(took) for took in await seconds(SimulatedBackend(median=3, sigma=0.5))]
    assert fmean(logs) == pytest.approx(math.log(3), abs=0.05)
    assert stdev(logs) == pytest.approx(0.5, abs=0.035)


async def test_stragglers_take_longer_by_their_factor(virtual_clock):
    backend = SimulatedBackend(median=2, sigma=0, straggler_rate=0.2, straggler_factor=7)
    took = Counter(round(each, 6) for each in await seconds(backend))
    assert took.keys() == {2, 14}
    assert took[14] / 1000 == pytest.approx(0.2, abs=0.03)


async def test_an_error_comes_at_any_time_within_the_latency(virtual_clock):
    took = await seconds(SimulatedBackend(median=2, sigma=0, error_rate=1))
    assert fmean(took) == pytest.approx(1, abs=0.06)
    assert 0 < min(took) < 0.02
    assert 1.98 < max(took) < 2


async def test_a_request_is_answered_the_same_again_unless_its_place_or_a_seed_differs():
    def other(seed: int | str = 0, **meta) -> SimulatedBackend:
        return SimulatedBackend(seed=seed, median=0), ask(**{"seed": 7, **meta})

    asked = [other(), other(), other("a"), *[other(**{k: 1}) for k in ("iteration", "retry")]]
    texts = [(await backend.generate(request)).text for backend, request in asked]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 4


async def test_a_rate_limit_comes_at_once_and_says_how_long_to_wait(virtual_clock):
    with pytest.raises(RateLimited) as caught:
        await SimulatedBackend(rate_limit_rate=1, retry_after=4).generate(ask())
    assert (caught.value.status, caught.value.retry_after, caught.value.retryable) == (429, 4, True)
    assert virtual_clock.now == 0


async def test_a_cancelled_request_has_cost_the_tokens_so_far(virtual_clock):
    request = ask(7)
    backend = SimulatedBackend(median=10, sigma=0, output_tokens=40)
    whole = (await backend.generate(ask(7))).usage.output_tokens
    with anyio.move_on_after(5):
        await backend.generate(request)
    assert request.meter.usage == Usage(1, 2, whole // 2, unknown=1)
    assert backend.statistics() == (2, 1, 0, 1, 0, 1, 4, whole + whole // 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"pass_rate": 1.1},
        {"giveaway_rate": 1.1},
        {"error_rate": -0.1},
        {"error_rate": 0.6, "rate_limit_rate": 0.6},
        {"straggler_rate": 2},
        {"straggler_factor": 0.5},
        {"median": -1},
        {"sigma": -1},
        {"output_tokens": 0},
        {"retry_after": -1},
    ],
)
def test_a_number_out_of_its_range_is_refused(wrong):
    with pytest.raises(
        ValueError, match=rf"SimulatedBackend: .*{[*wrong][-1]} must be (greater than|at least)"
    ):
        SimulatedBackend(**wrong)
