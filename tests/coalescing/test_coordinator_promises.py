"""The promises that all coalescers make, kept by the coordinator."""

from __future__ import annotations

import contextlib
import gc

import anyio
import pytest
from anyio.lowlevel import checkpoint
from joint_kit import Person, ask, entry, gather, text_of
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mellea_like.coalescing.coordinator.coordinator import SamplingCoordinator
from mellea_like.coalescing.coordinator.request_batch import PendingRequest, RequestBatch
from mellea_like.errors import BackendUnavailable
from mellea_like.testing import check_backend

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


def asks(count: int, **more):
    return [ask(f"t{number}", **more) for number in range(count)]


class Settlements:
    """Counts how often each request's caller heard, and what."""

    def __init__(self) -> None:
        self.heard: dict[str, list[object]] = {}

    async def call(self, coordinator, request) -> None:
        mine = self.heard.setdefault(request.messages[-1].content, [])
        try:
            mine.append((await coordinator.generate(request)).text)
        except Exception as exc:  # noqa: BLE001 (noted, whatever it is)
            mine.append(type(exc))
        except BaseException:
            mine.append("cancelled")
            raise


# --- S1: every accepted submission settles exactly once -------------------------------------------


# --- S2: work runs in the component's task group --------------------------------------------------


async def test_s2_the_span_of_a_batch_links_to_its_members_and_has_no_parent(monkeypatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)

    async def call(coordinator, request):
        with tracer.start_as_current_span(request.messages[-1].content):
            await coordinator.generate(request)

    async with SamplingCoordinator(Person()) as coordinator, anyio.create_task_group() as tasks:
        for request in asks(3):
            tasks.start_soon(call, coordinator, request)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    joint = spans["coalesced request"]
    assert joint.parent is None
    members = {link.context.span_id for link in joint.links}
    assert members == {spans[f"t{n}"].context.span_id for n in range(3)}
    assert joint.attributes["mellea_like.batch_size"] == 3
    assert joint.attributes["mellea_like.batch_id"].endswith("-b1")


# --- S3: cancelling a waiter ----------------------------------------------------------------------


async def test_s3_a_waiter_that_is_cancelled_in_mid_batch_affects_that_one_only():
    person = Person(delay=10)
    told = Settlements()
    async with SamplingCoordinator(person) as coordinator, anyio.create_task_group() as tasks:
        for request in asks(2):
            tasks.start_soon(told.call, coordinator, request)
        with anyio.move_on_after(8) as scope:
            await coordinator.generate(ask("gone"))
        assert scope.cancelled_caught
        assert anyio.current_time() == pytest.approx(8)
    assert person.cancelled == 0
    assert told.heard == {"t0": ["T0"], "t1": ["T1"]}


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


async def test_s3_the_last_waiter_waits_for_a_request_that_takes_time_to_close():
    class Slow(Person):
        async def generate(self, request):
            try:
                return await super().generate(request)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(3)

    async with SamplingCoordinator(Slow(delay=10)) as coordinator:
        async with anyio.create_task_group() as tasks:
            for seconds in (6, 7):

                async def leave_after(seconds):
                    with anyio.move_on_after(seconds):
                        await coordinator.generate(ask("x"))
                    left.append(anyio.current_time())

                tasks.start_soon(leave_after, seconds)
            left = []
        assert left == pytest.approx([6, 10])


async def test_s3_one_who_was_answered_does_not_keep_the_second_round_going():
    async def endless(tasks):
        await anyio.sleep_forever()

    person = Person(
        lambda tasks: [entry(task, "ok") for task in tasks if text_of(task) == "t0"], endless
    )
    async with SamplingCoordinator(person) as coordinator:
        with anyio.move_on_after(20):
            await gather(coordinator, *asks(3))
        assert person.cancelled == 1
        assert coordinator.statistics().cancelled == 2


async def test_s3_a_batch_whose_waiters_leave_before_it_runs_is_not_sent():
    person = Person()
    async with SamplingCoordinator(person, max_batch=2) as coordinator:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gather, coordinator, *asks(2))
            while not coordinator.statistics().in_flight:
                await checkpoint()
            tasks.cancel_scope.cancel()
        assert len(person.requests) <= 1
        assert coordinator.statistics().in_flight == 0


async def test_s3_all_promises_of_a_backend():
    async with SamplingCoordinator(Person(delay=1)) as coordinator:
        await check_backend(lambda: coordinator)
        await check_backend(lambda: coordinator.isolated)


# --- S4: errors and cancellation ------------------------------------------------------------------


class Interrupt(KeyboardInterrupt):
    pass


async def test_s4_an_interrupt_in_the_backend_goes_to_its_waiters():
    class Interrupted(Person):
        async def generate(self, request):
            await checkpoint()
            raise Interrupt

    async with SamplingCoordinator(Interrupted(), window=0) as coordinator:
        with pytest.raises(Interrupt):
            await coordinator.generate(ask("x"))


async def test_s4_what_fails_when_nobody_waits_any_more_is_logged(caplog):
    class Messy(Person):
        async def generate(self, request):
            try:
                return await super().generate(request)
            except anyio.get_cancelled_exc_class() as exc:
                raise LookupError("while it cleaned up") from exc

    async with SamplingCoordinator(Messy(delay=10), window=0) as coordinator:
        with anyio.move_on_after(1) as scope:
            await coordinator.generate(ask("x"))
        assert scope.cancelled_caught
    assert "failed when nobody waited any more: LookupError: while it cleaned up" in caplog.text


async def test_s4_a_backend_that_answers_its_cancellation_with_another_is_not_complained_of(caplog):
    cancelled = anyio.get_cancelled_exc_class()
    if cancelled.__module__.startswith("trio"):
        return  # Nobody but trio can make one.

    class Odd(Person):
        async def generate(self, request):
            with contextlib.suppress(cancelled):
                return await super().generate(request)
            raise cancelled

    async with SamplingCoordinator(Odd(delay=10), window=0) as coordinator:
        with anyio.move_on_after(1):
            await coordinator.generate(ask("x"))
    assert caplog.text == ""


async def test_s4_what_is_no_exception_is_never_lost():
    class Harsh(BaseException):
        pass

    class Messy(Person):
        async def generate(self, request):
            try:
                return await super().generate(request)
            except anyio.get_cancelled_exc_class() as exc:
                raise Harsh from exc

    with pytest.raises(BaseExceptionGroup) as caught:
        async with SamplingCoordinator(Messy(delay=10), window=0) as coordinator:
            with anyio.move_on_after(1):
                await coordinator.generate(ask("x"))
    assert caught.value.subgroup(Harsh) is not None


# --- S5: closing ----------------------------------------------------------------------------------


# --- S6: no starvation ----------------------------------------------------------------------------


async def test_s6_a_steady_stream_does_not_keep_a_window_open():
    person = Person()
    async with (
        SamplingCoordinator(person, idle=1.0, window=5.0, max_batch=1000) as coordinator,
        anyio.create_task_group() as tasks,
    ):
        for number in range(100):
            tasks.start_soon(coordinator.generate, ask(f"t{number}"))
            await anyio.sleep(0.1)
    assert person.times[0] == pytest.approx(5.0)
    assert len(person.times) == 2


# --- S8: deadlines --------------------------------------------------------------------------------


# --- and besides ----------------------------------------------------------------------------------


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
