"""The behaviour that all coalescers share: the context of their work, errors, and closing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio
import pytest
from joint_kit import Person, ask
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mellea_like.coalescing import ChatDispatcher, RerunGate, SamplingCoordinator
from mellea_like.coalescing.background_service import BackgroundService
from mellea_like.core.backend import CURRENT, RequestMeta, current_iteration
from mellea_like.core.generation import Generation
from mellea_like.errors import Expired, ShutdownError

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]

WHO = ContextVar("WHO", default="nobody")


@dataclass
class Work:
    """A component's work for its callers: one thing at a time, which takes a second."""

    seconds: float = 1.0
    error: Exception | None = None
    began: list[float] = field(default_factory=list)
    cancelled: list[float] = field(default_factory=list)
    seen: list[tuple[object, ...]] = field(default_factory=list)
    inside: Callable[[], Awaitable[object]] | None = None

    async def do(self) -> str:
        self.began.append(anyio.current_time())
        span = trace.get_current_span().get_span_context().span_id
        self.seen.append((WHO.get(), current_iteration(), span))
        WHO.set("the work")
        try:
            await anyio.sleep(self.seconds)
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(anyio.current_time())
            raise
        if self.inside is not None:
            await self.inside()
        if self.error is not None:
            raise self.error
        return "done"


class Made(NamedTuple):
    component: BackgroundService
    work: Work
    request: Callable[..., Awaitable[object]]
    """Asks for the work, by its name and perhaps with a deadline, and waits for the answer."""


def gate() -> Made:
    work = Work()
    made = RerunGate(work.do)
    return Made(made, work, made.request)


def dispatcher() -> Made:
    work = Work()

    async def reply(messages: list[str]) -> str:
        return await work.do()

    async def request(message: str = "", deadline: float | None = None) -> str:
        return await made.submit("a", message, deadline=deadline)

    made: ChatDispatcher[str, str] = ChatDispatcher(reply, quiet=0)
    return Made(made, work, request)


def coordinator() -> Made:
    work = Work()

    class Backend(Person):
        async def generate(self, request: Any) -> Generation:
            return Generation(await work.do())

    async def request(message: str = "", deadline: float | None = None) -> str:
        return (await made.generate(ask(message, deadline=deadline))).text

    made = SamplingCoordinator(Backend(), window=0, max_batch=1, concurrency=1)
    return Made(made, work, request)


@pytest.fixture(params=[gate, dispatcher, coordinator], ids=lambda make: make.__name__)
def made(request) -> Made:
    return request.param()


class Callers:
    """Callers side by side; what each got is noted once, with its time."""

    def __init__(self, made: Made) -> None:
        self.request = made.request
        self.got: dict[str, tuple[object, float]] = {}

    async def __call__(self, name: str, at: float = 0.0, **more: Any) -> None:
        await anyio.sleep_until(at)
        try:
            answer: object = await self.request(name, **more)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is noted)
            answer = type(error)
        assert name not in self.got
        self.got[name] = answer, round(anyio.current_time(), 6)

    @property
    def answers(self) -> dict[str, object]:
        return {name: answer for name, (answer, _) in self.got.items()}


# --- whose work it is -----------------------------------------------------------------------------


async def test_work_sees_the_context_of_who_opened_the_component_and_no_iteration(made):
    WHO.set("the opener")
    async with made.component:
        WHO.set("a caller")
        token = CURRENT.set((RequestMeta(iteration=7), None))
        await made.request()
        await made.request()
        CURRENT.reset(token)
    assert [seen[:2] for seen in made.work.seen] == [("the opener", None)] * 2


async def test_the_span_of_work_links_to_its_callers_and_has_no_parent(made, monkeypatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("the opener"):
        async with made.component:
            with tracer.start_as_current_span("caller"):
                await made.request()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert len(spans) == 3
    caller = spans.pop("caller")
    del spans["the opener"]
    (work,) = spans.values()
    assert work.parent is None
    assert [link.context.span_id for link in work.links] == [caller.context.span_id]
    assert made.work.seen[0][2] == work.context.span_id


async def test_a_caller_that_is_cancelled_while_it_waits_takes_only_its_own_request_back(made):
    callers = Callers(made)
    async with made.component, anyio.create_task_group() as tasks:
        tasks.start_soon(callers, "first")
        await anyio.sleep(0.2)
        with anyio.move_on_after(0.5):
            await made.request("leaves")
        await anyio.sleep(5)
    assert callers.got == {"first": ("done", 1)}
    assert made.work.began == [0]


# --- errors and cancellations ---------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError("no"), TimeoutError(), ExceptionGroup("", [OSError()])])
async def test_an_error_goes_to_its_callers_and_the_next_request_is_served(made, error):
    async with made.component:
        made.work.error = error
        for _ in range(2):
            with pytest.raises(type(error)) as caught:
                await made.request()
            assert caught.value.args == error.args
        made.work.error = None
        assert await made.request() == "done"


@pytest.mark.parametrize("end", ["it is cancelled", "its block raises", "it is aborted"])
async def test_whatever_ends_it_cancels_what_runs_and_settles_everyone_first(made, end):
    callers = Callers(made)
    made.work.seconds = 10
    raises = pytest.raises(KeyError, match="mine") if end == "its block raises" else nullcontext()
    async with anyio.create_task_group() as outside:
        with raises, anyio.move_on_after(2 if end == "it is cancelled" else 99):
            async with made.component:
                outside.start_soon(callers, "in flight")
                outside.start_soon(callers, "queued", 1)
                await anyio.sleep(2)
                if end == "its block raises":
                    raise KeyError("mine")
                if end == "it is cancelled":
                    await anyio.sleep_forever()
                await made.component.abort()
                with pytest.raises(ShutdownError, match="is closing"):
                    await made.request()
        assert made.work.cancelled == [2]
    shut = ShutdownError, 2
    assert callers.got == {"in flight": shut, "queued": shut}


# --- closing --------------------------------------------------------------------------------------


async def test_leaving_the_block_serves_what_was_accepted(made):
    callers = Callers(made)
    async with anyio.create_task_group() as outside, made.component:
        outside.start_soon(callers, "in flight")
        outside.start_soon(callers, "queued", 0.5)
        await anyio.sleep(0.6)
    assert callers.got == {"in flight": ("done", 1), "queued": ("done", 2)}


async def test_what_is_not_served_by_the_deadline_gets_a_shutdown_error(made):
    callers = Callers(made)
    async with anyio.create_task_group() as outside, made.component:
        for number, name in enumerate(["served", "in flight", "queued", "too late"]):
            outside.start_soon(callers, name, 0.6 * number)
        await anyio.sleep(1.5)
        await made.component.drain(1.9)
        assert anyio.current_time() == pytest.approx(1.9)
        assert made.component.closing
    served = {name for name, answer in callers.answers.items() if answer == "done"}
    assert served == {"served"}
    assert callers.got["too late"] == (ShutdownError, 1.8)
    assert made.work.cancelled == [1.9]


async def test_closing_twice_at_a_time_is_as_good_as_once(made):
    callers = Callers(made)
    async with anyio.create_task_group() as outside, made.component:
        outside.start_soon(callers, "in flight")
        await anyio.sleep(0.5)
        outside.start_soon(made.component.drain)
        await made.component.drain()
    assert callers.got == {"in flight": ("done", 1)}


async def test_it_takes_requests_only_inside_of_its_block_which_may_be_entered_again(made):
    with pytest.raises(ShutdownError, match="is not open: use `async with`"):
        await made.request()
    for _ in range(2):
        async with made.component:
            assert await made.request() == "done"
            with pytest.raises(RuntimeError, match="is already open"):
                await made.component.__aenter__()
        with pytest.raises(ShutdownError, match="is not open"):
            await made.request()


async def test_work_that_waits_for_its_own_end_is_told_so_and_may_abort(made):
    made.work.inside = made.component.drain
    async with made.component:
        with pytest.raises(RuntimeError, match=r"can't wait for its own end: use abort\(\)"):
            await made.request()
        made.work.inside = made.component.abort
        with pytest.raises(ShutdownError):
            await made.request()


# --- deadlines ------------------------------------------------------------------------------------


@pytest.mark.parametrize("deadline", [0.2, 0.7])
async def test_a_request_that_expires_before_its_turn_is_not_sent(made, deadline):
    callers = Callers(made)
    async with made.component, anyio.create_task_group() as tasks:
        tasks.start_soon(callers, "first")
        await anyio.sleep(0.5)
        await callers("late", deadline=deadline)
    assert callers.got == {"first": ("done", 1), "late": (Expired, max(0.5, deadline))}
    assert made.work.began == [0]
