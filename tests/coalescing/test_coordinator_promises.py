"""The promises that all coalescers make, kept by the coordinator."""

from __future__ import annotations

import contextlib
import gc

import anyio
import pytest
from anyio.lowlevel import checkpoint
from joint_kit import Person, ask, asks, gather

from mellea_like.coalescing.coordinator.coordinator import SamplingCoordinator
from mellea_like.coalescing.coordinator.request_batch import PendingRequest, RequestBatch
from mellea_like.errors import BackendUnavailable
from mellea_like.testing import check_backend

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


# --- S3: cancelling a waiter ----------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
async def test_s3_when_all_waiters_are_gone_the_request_is_closed_before_they_go(count):
    person = Person(delay=10)
    async with SamplingCoordinator(person) as coordinator:
        with anyio.move_on_after(8):
            await gather(coordinator, *asks(count))
        assert (person.cancelled, person.in_flight) == (1, 0)
        assert coordinator.statistics().in_flight == 0
        assert coordinator.statistics().cancelled == count
        assert (await coordinator.generate(ask("next"))).text == "NEXT"


async def test_s3_all_promises_of_a_backend():
    async with SamplingCoordinator(Person(delay=1)) as coordinator:
        await check_backend(lambda: coordinator)
        await check_backend(lambda: coordinator.isolated)


# --- S4: errors and cancellation ------------------------------------------------------------------


class Ends(Person):
    """Takes its time, and answers its cancellation with another exception."""

    def __init__(self, error):
        super().__init__(delay=10)
        self.error = error

    async def generate(self, request):
        with contextlib.suppress(anyio.get_cancelled_exc_class()):
            return await super().generate(request)
        raise self.error


async def leave(person):
    """Leave a request that is under way; return whether nothing else happened."""
    async with SamplingCoordinator(person, window=0) as coordinator:
        with anyio.move_on_after(1) as scope:
            await coordinator.generate(ask("x"))
    return scope.cancelled_caught


async def test_s4_what_fails_when_nobody_waits_any_more_is_logged(caplog):
    assert await leave(Ends(LookupError("while it cleaned up")))
    said = "failed when no one was waiting for it anymore: LookupError: while it cleaned up"
    assert said in caplog.text


async def test_s4_a_backend_that_answers_its_cancellation_with_another_is_not_complained_of(caplog):
    cancelled = anyio.get_cancelled_exc_class()
    if cancelled.__module__.startswith("trio"):
        return  # Nobody but trio can make one.
    await leave(Ends(cancelled))
    assert caplog.text == ""


async def test_s4_what_is_no_exception_is_never_lost():
    class Harsh(BaseException):
        pass

    with pytest.raises(BaseExceptionGroup) as caught:
        await leave(Ends(Harsh()))
    assert caught.value.subgroup(Harsh) is not None


# --- garbage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, BackendUnavailable("gone"), LookupError("bug")])
async def test_requests_leave_nothing_for_the_garbage_collector(error):
    class Moody(Person):
        async def generate(self, request):
            if error is not None:
                raise type(error)(*error.args)
            return await super().generate(request)

    async def call(coordinator, request):
        with contextlib.suppress(BackendUnavailable, LookupError):
            await coordinator.generate(request)

    def left() -> list[object]:
        return [
            each for each in gc.get_objects() if isinstance(each, PendingRequest | RequestBatch)
        ]

    gc.collect()
    before = len(left())  # The errors of other tests have kept some.
    gc.disable()
    try:
        async with (
            SamplingCoordinator(Moody(), window=0) as coordinator,
            anyio.create_task_group() as tasks,
        ):
            for request in [*asks(3), ask("f", format=int)]:
                tasks.start_soon(call, coordinator, request)
        await checkpoint()
        assert len(left()) == before
    finally:
        gc.enable()
