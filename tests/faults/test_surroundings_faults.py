"""Faults around a call: telemetry that fails, and inputs that are hard to handle.

Interrupts are in ``tests/storm/test_faults_real.py`` (in `sample_sync`), ``tests/cli/test_live.py``
(on the command line) and ``tests/storm/test_interrupts.py`` (elsewhere).
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from aftermath import aftermath
from engine_kit import by_iteration, yes
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from mellea_like import (
    Candidate,
    Context,
    Message,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
)
from mellea_like.limits import Budget
from mellea_like.schedules import Eager, Hedged
from mellea_like.schedules.giving_up import PerRequirement
from mellea_like.telemetry import Telemetry

pytestmark = pytest.mark.anyio
STRATEGIES = [RejectionSamplingStrategy, RepairTemplateStrategy, MultiTurnStrategy]
TRIES = 20
"""Of what is timed the quickest try counts: a busy machine is no fault of the engine's."""


# --- telemetry -----------------------------------------------------------------------------------


class RaisesAtBothEnds(SpanProcessor):
    """A processor that fails whenever it is told something."""

    def on_start(self, span: object, parent_context: object = None) -> None:
        raise ZeroDivisionError

    def on_end(self, span: object) -> None:
        raise ZeroDivisionError


class NeverSaysAWord:
    """A collector that takes connections and answers none."""

    def __enter__(self) -> str:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1/traces"

    def __exit__(self, *exc: object) -> None:
        self._socket.close()


async def quickest(telemetry: Telemetry | None) -> float:
    """Return how long a call takes that draws four times, in seconds."""
    took: list[float] = []
    for _ in range(TRIES):
        backend = by_iteration({2: "yes", 4: "yes"})
        strategy = RejectionSamplingStrategy(
            backend, loop_budget=2, concurrency_budget=2, telemetry=telemetry
        )
        begun = time.perf_counter()
        result = await strategy.sample("Agree.", [yes])
        took.append(time.perf_counter() - begun)
        assert result.unwrap() == "yes"
        assert backend.statistics().in_flight == 0
    return min(took)


@pytest.mark.alone
async def test_a_span_processor_that_raises_does_not_hold_up_a_call(caplog):
    tracers = TracerProvider()
    tracers.add_span_processor(RaisesAtBothEnds())
    telemetry = Telemetry(tracer_provider=tracers)
    without = await quickest(None)
    assert await quickest(telemetry) - without < 0.1
    backend = by_iteration({2: "yes", 4: "yes"})
    async with aftermath(backend) as after:
        strategy = RejectionSamplingStrategy(backend, loop_budget=2, telemetry=telemetry)
        assert (await after.sample(strategy, "Agree.", [yes])).unwrap() == "yes"
    assert "telemetry could not" in caplog.text


@pytest.mark.alone
@pytest.mark.allow_blocking
async def test_an_exporter_that_hangs_holds_up_neither_a_call_nor_the_end(caplog):
    without = await quickest(None)
    with NeverSaysAWord() as collector:
        # Only this timeout bounds the SDK's shutdown.
        exporter = OTLPSpanExporter(collector, timeout=0.7)
        # A queue that is always full: further spans are dropped, and nobody waits.
        processor = BatchSpanProcessor(
            exporter, max_queue_size=4, max_export_batch_size=4, schedule_delay_millis=1
        )
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(processor)
        slower = await quickest(Telemetry(tracer_provider=tracers)) - without
        begun = time.perf_counter()
        tracers.shutdown()
        shutdown = time.perf_counter() - begun
    assert slower < 0.1  # Whoever waited for it would wait 0.7 s.
    assert shutdown < 2
    assert "errored" not in caplog.text


# --- inputs --------------------------------------------------------------------------------------


class Unhashable:
    """A validator that has no hash, and is equal to nothing."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False

    def __call__(self, candidate: Candidate) -> tuple[bool, str]:
        return candidate.text == "yes", "it does not say yes"


class UnhashableRequirement(Requirement):
    """A requirement that has no hash, and is equal to nothing."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise AssertionError


class HoldsALock:
    """An action that can be neither copied, pickled, compared nor hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    def render(self, context: Context) -> Sequence[Message]:
        with self.lock:
            return (*context.messages, Message("user", "Agree."))

    def parse(self, text: str) -> str:
        with self.lock:
            return text


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("kind", STRATEGIES)
async def test_an_unhashable_requirement_and_an_action_with_a_lock_work(kind, hooked):
    requirement = UnhashableRequirement("says yes", Unhashable(), inline=True)
    requirements = [requirement, Requirement("agrees", Unhashable(), inline=True), requirement]
    action = HoldsALock()
    schedules: list[Any] = [None, Hedged(), Eager(pool=True)]
    for schedule in schedules:
        backend = by_iteration({2: "yes", 4: "yes"})
        budget = Budget(requests=10)
        strategy = kind(
            backend,
            loop_budget=2,
            concurrency_budget=2,
            schedule=schedule,
            give_up=PerRequirement(),
            budget=budget,
        )
        async with aftermath(backend, budget, hooked=hooked) as after:
            result = await after.sample(strategy, action, requirements)
        assert result.unwrap() == "yes"
        assert result.best.validations[0][0] is requirement
        assert len(result.best.validations) == 2
