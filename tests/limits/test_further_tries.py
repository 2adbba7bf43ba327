"""Backends that send several requests for one: each try is admitted by the limits around."""

from __future__ import annotations

import gc
import weakref
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio
import pytest
from limiter_kit import ask

from mellea_like import Backend, Budget, Generation, RejectionSamplingStrategy, Request
from mellea_like.backends import ScriptedBackend
from mellea_like.errors import (
    AuthenticationFailed,
    BackendError,
    BackendUnavailable,
    InvalidRequest,
    LimitExceeded,
)
from mellea_like.limits import (
    ConcurrencyLimiter,
    FallbackBackend,
    LimitedBackend,
    Retry,
    RetryBackend,
)
from mellea_like.limits.budget_accounts import Amounts

pytestmark = pytest.mark.anyio


def down(request: Request | None = None) -> BackendUnavailable:
    return BackendUnavailable("503", status=503)


def refused(request: Request) -> AuthenticationFailed:
    return AuthenticationFailed("401", status=401)


def always(item, model="scripted", delay=1.0) -> ScriptedBackend:
    answer = item if callable(item) else lambda request: item
    backend = ScriptedBackend(answer, delay=delay)
    backend.model = model
    return backend


def falling_back(*items) -> tuple[Backend, list[ScriptedBackend]]:
    members = [always(item, model) for item, model in zip(items, ("small", "big"), strict=False)]
    return FallbackBackend(*members, retry=Retry(3, trip_after=None)), members


def retrying(*items) -> tuple[Backend, list[ScriptedBackend]]:
    script = iter([*items] * 9)

    def answer(request: Request) -> object:
        item = next(script)
        return item(request) if callable(item) else item

    inner = always(answer)
    return RetryBackend(inner, Retry(3, trip_after=None)), [inner]


def both(*items) -> tuple[Backend, list[ScriptedBackend]]:
    backend, members = falling_back(*items)
    return LimitedBackend(backend, ConcurrencyLimiter(9)), members


async def whole(backend, request):
    return await backend.generate(request)


async def streamed(backend, request):
    async with backend.stream(request) as pieces:
        return [piece async for piece in pieces][-1]


@pytest.mark.parametrize("send", [whole, streamed])
@pytest.mark.parametrize("requests", [1, 2, 3, 5])
@pytest.mark.parametrize("made", [falling_back, retrying, both])
async def test_a_budget_of_requests_holds_for_all_tries(made, requests, send, virtual_clock):
    backend, members = made(down, down)
    budget = Budget(requests=requests, name="mine")
    request = ask(max_tokens=4)
    with pytest.raises(BackendUnavailable) as caught:
        await send(LimitedBackend(backend, budget), request)
    tries = 3 * len(members)
    sent = sum(len(member.requests) for member in members)
    assert sent == budget.spent.requests == request.meter.usage.requests == min(requests, tries)
    notes = " ".join(caught.value.__notes__)
    assert ("not retried: budget 'mine'" in notes) == (requests < tries)
    assert budget.statistics().reserved == Amounts()


@pytest.mark.parametrize("budgets", [1, 4, 7])
async def test_a_call_around_a_fallback_keeps_to_its_budget(budgets, virtual_clock):
    backend, members = falling_back(down, down)
    strategy = RejectionSamplingStrategy(backend, loop_budget=5, concurrency_budget=4)
    budget = Budget(requests=budgets)
    with pytest.raises(LimitExceeded) as caught:
        await strategy.sample("x", budget=budget)
    assert isinstance(caught.value.__cause__, BackendUnavailable)
    assert sum(len(member.requests) for member in members) == budget.spent.requests == budgets


@pytest.mark.parametrize("seconds", [0.5, 1.5])
async def test_who_is_cancelled_in_any_try_gives_all_back(seconds, virtual_clock):
    backend, _ = falling_back(refused, "yes")
    inner, outer = Budget(requests=9), Budget(requests=9)
    target = LimitedBackend(LimitedBackend(backend, inner), outer)
    request = ask(max_tokens=4)
    with anyio.move_on_after(seconds):
        await target.generate(request)
    for budget in (inner, outer):
        assert budget.statistics().reserved == Amounts()
        assert budget.spent.requests == 1 + (seconds > 1) == request.meter.usage.requests


async def test_what_is_tried_again_by_another_task_is_given_back_when_its_caller_has_left(
    virtual_clock,
):
    class Detached:
        """Tries again in a task that does not end with the request."""

        async def generate(self, request: Request) -> Generation:
            request.meter.start()
            tasks.start_soon(partial(request.meter.readmit, request, down()))
            await anyio.sleep(1)
            return Generation("left")

    budget = Budget(output_tokens=5, assume_output_tokens=4)
    async with anyio.create_task_group() as tasks:
        target = LimitedBackend(Detached(), budget)
        waiting = LimitedBackend(always("yes", delay=3), budget)
        tasks.start_soon(target.generate, ask(max_tokens=4))
        tasks.start_soon(waiting.generate, ask(max_tokens=4))
    assert budget.statistics().reserved == Amounts()


class Traceable(BackendUnavailable):
    """May be weakly referenced, as any exception class of Python code."""


def alone(backend, *, retry):
    return RetryBackend(backend, retry)


def after_another(backend, *, retry):
    return FallbackBackend(backend, backend, retry=retry)


class Permanent(InvalidRequest):
    """May be weakly referenced, too."""


@pytest.mark.parametrize("requests", [1, 2, 3, 9])
@pytest.mark.parametrize("send", [whole, streamed])
@pytest.mark.parametrize("made", [alone, after_another])
@pytest.mark.parametrize("then", [Traceable, Permanent])
async def test_an_error_is_gone_without_the_garbage_collector(
    then, made, send, requests, virtual_clock
):
    seen: list[weakref.ref[Exception]] = []

    class Fails:
        model = "small"

        async def generate(self, request: Request) -> Generation:
            error = then("400") if seen else Traceable("503")
            seen.append(weakref.ref(error))
            try:
                raise error
            finally:
                del error

        @asynccontextmanager
        async def stream(self, request: Request):
            yield await self.generate(request)

    backend = made(Fails(), retry=Retry(3, trip_after=None))
    budget = Budget(requests=requests, within=Budget(requests=99))
    target = LimitedBackend(LimitedBackend(backend, ConcurrencyLimiter(9)), budget)
    gc.disable()
    try:
        with suppress(BackendError):
            await send(target, ask(max_tokens=4))
        assert len(seen) >= min(requests, 2)
        assert not any(error() for error in seen)
    finally:
        gc.enable()
