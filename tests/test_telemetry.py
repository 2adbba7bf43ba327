"""Spans and metrics, with the real SDK reading them."""

from __future__ import annotations

import contextlib
import json
import logging
import re

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mellea_like import (
    BackendError,
    BestOf,
    Budget,
    Candidate,
    Collect,
    Generation,
    MultiTurnStrategy,
    Price,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    Tool,
    requirement,
)
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.core import Options, ToolCall, Usage
from mellea_like.errors import BackendUnavailable, RequirementError
from mellea_like.requirements.checks import word_count
from mellea_like.runtime.logs import IterationFilter
from mellea_like.telemetry import Telemetry, session

pytestmark = pytest.mark.anyio

SECRET = "the-prompt-of-a-customer"


class Recorder:
    """Providers that keep what they are given in memory."""

    def __init__(self, *, capture_content: bool = False) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.telemetry = Telemetry(
            tracer_provider=self.tracers,
            meter_provider=MeterProvider([self.reader]),
            capture_content=capture_content,
        )

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, start: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name.startswith(start)]

    def points(self, name: str) -> list:
        data = self.reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def everything(self) -> str:
        data = self.reader.get_metrics_data()
        metrics = data.to_json() if data else ""
        return "\n".join(span.to_json() for span in self.spans) + metrics


@requirement("says yes", name="yes", inline=True)
def says_yes(candidate: Candidate) -> tuple[bool, str]:
    return candidate.text == "yes", f"it says {candidate.text}"


async def test_a_call_has_a_span_with_its_iterations_requests_and_validations_below_it() -> None:
    recorder = Recorder()
    strategy = MultiTurnStrategy(ScriptedBackend(["no", "yes"]), telemetry=recorder.telemetry)
    result = await strategy.sample("Agree.", [says_yes])

    (call,) = recorder.named("sampling")
    assert call.name == "sampling MultiTurnStrategy"
    assert call.parent is None
    assert call.attributes["mellea_like.sampling_id"] == result.sampling_id
    assert call.attributes["mellea_like.stop_reason"] == "passed"
    assert call.attributes["mellea_like.success"] is True
    iterations = recorder.named("iteration")
    assert [span.attributes["mellea_like.iteration"] for span in iterations] == [1, 2]
    assert [span.attributes["mellea_like.outcome"] for span in iterations] == ["failed", "passed"]
    assert iterations[0].attributes["mellea_like.failed_requirements"] == ("yes",)
    assert {span.parent.span_id for span in iterations} == {call.context.span_id}
    for name in ("chat", "validation"):
        parents = [span.parent.span_id for span in recorder.named(name)]
        assert parents == [span.context.span_id for span in iterations]


async def test_concurrent_subsamples_keep_their_own_parents(virtual_clock: object) -> None:
    recorder = Recorder()
    backend = ScriptedBackend([Reply("no", delay=d) for d in (3, 1, 2, 1, 1, 1)])
    strategy = RejectionSamplingStrategy(
        backend, loop_budget=2, concurrency_budget=3, telemetry=recorder.telemetry
    )
    await strategy.sample("Agree.", [says_yes])
    iterations = {span.context.span_id: span for span in recorder.named("iteration")}
    assert len(iterations) == 6
    for chat in recorder.named("chat"):
        parent = iterations[chat.parent.span_id]
        assert (
            chat.attributes["mellea_like.iteration"] == parent.attributes["mellea_like.iteration"]
        )


async def test_the_request_span_follows_the_genai_conventions() -> None:
    recorder = Recorder()
    usage = Usage(1, 12, 3, cached_input_tokens=8, reasoning_tokens=2)
    reply = Generation("yes", usage=usage, model="m-2026", finish_reason="stop")
    options = Options(temperature=0.5, top_p=0.9, max_tokens=7, stop=("\n",), model="m")
    strategy = RejectionSamplingStrategy(
        ScriptedBackend([reply]), options=options, telemetry=recorder.telemetry
    )
    await strategy.sample("Agree.", [says_yes])
    (chat,) = recorder.named("chat")
    assert chat.name == "chat m"
    assert chat.kind is trace.SpanKind.CLIENT
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.stop_sequences": ("\n",),
        "gen_ai.response.model": "m-2026",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 8,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "mellea_like.purpose": "generate",
    }
    assert expected.items() <= dict(chat.attributes).items()


async def test_metrics_count_durations_tokens_slices_and_failed_requirements() -> None:
    recorder = Recorder()
    replies = [Generation("no", usage=Usage(1, 5, 2)), Generation("yes", usage=Usage(1, 6, 1))]
    strategy = RejectionSamplingStrategy(ScriptedBackend(replies), telemetry=recorder.telemetry)
    await strategy.sample("Agree.", [says_yes])
    (duration,) = recorder.points("gen_ai.client.operation.duration")
    assert duration.count == 2
    tokens = {
        point.attributes["gen_ai.token.type"]: point.sum
        for point in recorder.points("gen_ai.client.token.usage")
    }
    assert tokens == {"input": 11, "output": 3}
    slices = {
        point.attributes["mellea_like.outcome"]: point.value
        for point in recorder.points("mellea_like.slices")
    }
    assert slices == {"failed": 1, "passed": 1}
    (failures,) = recorder.points("mellea_like.requirement.failures")
    assert (failures.attributes["mellea_like.requirement"], failures.value) == ("yes", 1)


async def test_a_circuit_breaker_shows_in_the_metrics(virtual_clock: object) -> None:
    recorder = Recorder()
    backend = ScriptedBackend([BackendUnavailable], cycle=True)
    strategy = RejectionSamplingStrategy(backend, retry=None, telemetry=recorder.telemetry)
    for _ in range(3):
        with pytest.raises(BackendUnavailable):
            await strategy.sample("Agree.", [says_yes])
    counted = {
        point.attributes["error.type"]: point.value
        for point in recorder.points("mellea_like.slices")
    }
    names = ("BackendUnavailable", "CircuitOpen")
    assert counted == {
        f"mellea_like.errors.{name}": n for name, n in zip(names, (4, 2), strict=True)
    }


async def test_a_judges_request_is_a_span_below_the_validation() -> None:
    recorder = Recorder()
    backend = ScriptedBackend(["yes", '{"passed": true, "reason": "it is"}'])
    strategy = RejectionSamplingStrategy(backend, telemetry=recorder.telemetry)
    await strategy.sample("Agree.", ["is polite"])
    (validation,) = recorder.named("validation")
    judging = [
        span for span in recorder.named("chat") if span.attributes["mellea_like.purpose"] == "judge"
    ]
    assert [span.parent.span_id for span in judging] == [validation.context.span_id]


async def test_no_text_is_recorded_unless_it_is_asked_for() -> None:
    silent, open_ = Recorder(), Recorder(capture_content=True)
    for recorder in (silent, open_):
        error = BackendUnavailable(f"no answer to {SECRET}")
        strategy = RejectionSamplingStrategy(
            ScriptedBackend([error, f"{SECRET}, twice"]),
            loop_budget=2,
            telemetry=recorder.telemetry,
            retry=None,
        )
        await strategy.sample(SECRET, [says_yes])
    assert SECRET not in silent.everything()
    failed, answered = open_.named("chat")
    assert json.loads(answered.attributes["gen_ai.input.messages"])[0]["role"] == "user"
    assert SECRET in answered.attributes["gen_ai.output.messages"]
    assert SECRET in failed.status.description


async def test_exceptions_are_recorded_by_type() -> None:
    recorder = Recorder()
    strategy = RejectionSamplingStrategy(
        ScriptedBackend([BackendUnavailable(SECRET, status=503)]),
        loop_budget=1,
        retry=None,
        telemetry=recorder.telemetry,
    )
    with pytest.raises(BackendError):
        await strategy.sample("Agree.", [says_yes])
    for name in ("chat", "iteration", "sampling"):
        (span,) = recorder.named(name)
        assert span.attributes["error.type"] == "mellea_like.errors.BackendUnavailable"
        assert span.status.status_code is trace.StatusCode.ERROR
        assert span.status.description is None
        assert not span.events
    (duration,) = recorder.points("gen_ai.client.operation.duration")
    assert duration.attributes["error.type"] == "mellea_like.errors.BackendUnavailable"
    (call,) = recorder.named("sampling")
    assert call.attributes["mellea_like.stop_reason"] == "error"


async def test_every_span_is_closed_when_the_caller_leaves(virtual_clock: object) -> None:
    recorder = Recorder()
    strategy = RejectionSamplingStrategy(
        ScriptedBackend([Reply("yes", delay=10)] * 3),
        concurrency_budget=3,
        telemetry=recorder.telemetry,
    )
    with anyio.move_on_after(1):
        await strategy.sample("Agree.", [says_yes])
    assert len(recorder.named("chat")) == len(recorder.named("iteration")) == 3
    (call,) = recorder.named("sampling")
    assert call.attributes["mellea_like.stop_reason"] == "cancelled"
    assert call.attributes["mellea_like.success"] is False
    assert {span.attributes["mellea_like.outcome"] for span in recorder.named("iteration")} == {
        "cancelled"
    }
    assert not trace.get_current_span().get_span_context().is_valid


async def test_what_loses_the_race_is_cancelled_and_no_error(virtual_clock: object) -> None:
    recorder = Recorder()
    replies = [Reply("no", delay=1), Reply("yes", delay=3), *[Reply("yes", delay=9)] * 3]
    strategy = RejectionSamplingStrategy(
        ScriptedBackend(replies), concurrency_budget=4, telemetry=recorder.telemetry
    )
    await strategy.sample("Agree.", [says_yes])
    outcomes = [span.attributes["mellea_like.outcome"] for span in recorder.named("iteration")]
    assert sorted(outcomes) == ["cancelled"] * 3 + ["failed", "passed"]
    cut = [s for s in recorder.named("chat") if "mellea_like.outcome" in s.attributes]
    assert [span.attributes["mellea_like.outcome"] for span in cut] == ["cancelled"] * 3
    durations = recorder.points("gen_ai.client.operation.duration")
    counted = {point.attributes.get("mellea_like.outcome"): point.count for point in durations}
    assert counted == {None: 2, "cancelled": 3}
    assert not any("error.type" in point.attributes for point in durations)
    assert {span.status.status_code for span in recorder.spans} == {trace.StatusCode.UNSET}
    assert all("error.type" not in span.attributes for span in recorder.spans)


async def test_a_cancelled_call_is_no_error(virtual_clock: object) -> None:
    recorder = Recorder()
    strategy = RejectionSamplingStrategy(
        ScriptedBackend([Reply("yes", delay=9)]), telemetry=recorder.telemetry
    )
    with anyio.move_on_after(1):
        await strategy.sample("Agree.", [says_yes])
    assert {span.status.status_code for span in recorder.spans} == {trace.StatusCode.UNSET}


async def test_a_call_that_pauses_is_not_cancelled(virtual_clock: object) -> None:
    recorder = Recorder()
    backend = ScriptedBackend(["no", "yes"])
    strategy = RejectionSamplingStrategy(backend, loop_budget=2, telemetry=recorder.telemetry)
    call = strategy.begin("Agree.", [says_yes])
    await call.run(1)
    assert call.paused
    await call.run(1)
    ended = [span.attributes["mellea_like.stop_reason"] for span in recorder.named("sampling")]
    assert ended == ["exhausted", "passed"]


@pytest.mark.parametrize(
    ("selection", "winners"),
    [("first", {2}), (BestOf(lambda c: len(c.text), inline=True), {3}), (Collect(2), {2, 3})],
)
async def test_the_winners_are_marked(
    virtual_clock: object, selection: object, winners: set[int]
) -> None:
    recorder = Recorder()
    replies = [Reply("x"), Reply("yes", delay=1), Reply("yes!", delay=2)]
    strategy = RejectionSamplingStrategy(
        ScriptedBackend(replies),
        loop_budget=3,
        selection=selection,
        telemetry=recorder.telemetry,
    )
    agrees = Requirement("agrees", lambda c: c.text.startswith("yes"), inline=True)
    await strategy.sample("Agree.", [agrees])
    marked = [s for s in recorder.named("iteration") if "mellea_like.winner" in s.attributes]
    assert {span.attributes["mellea_like.iteration"] for span in marked} == winners
    ends = {
        span.attributes["mellea_like.iteration"]: span.end_time
        for span in recorder.spans
        if span.name.startswith("iteration")
    }
    assert sorted(ends, key=ends.__getitem__) == sorted(ends)  # Not when the call was decided.


async def test_the_calls_span_has_tokens_cost_input_and_output() -> None:
    recorder = Recorder(capture_content=True)
    replies = [
        Generation("no", usage=Usage(1, 1000, 10)),
        Generation("yes", usage=Usage(1, 500, 0)),
    ]
    strategy = RejectionSamplingStrategy(
        ScriptedBackend(replies, model="m"),
        telemetry=recorder.telemetry,
        budget=Budget(requests=9, prices={"m": Price(2.0, 8.0)}),
    )
    await strategy.sample("Agree.", [says_yes])
    (call,) = recorder.named("sampling")
    about = dict(call.attributes)
    assert about["mellea_like.requests"] == 2
    assert (about["mellea_like.input_tokens"], about["mellea_like.output_tokens"]) == (1500, 10)
    assert "gen_ai.usage.input_tokens" not in about  # Viewers would count them twice.
    assert about["mellea_like.cost"] == pytest.approx((1500 * 2 + 10 * 8) / 1e6)
    assert about["mellea_like.currency"] == "USD"
    (asked,) = json.loads(about["gen_ai.input.messages"])
    assert asked["role"] == "user"
    assert "Agree." in asked["parts"][0]["content"]
    (said,) = json.loads(about["gen_ai.output.messages"])
    assert said["parts"] == [{"type": "text", "content": "yes"}]
    assert said["finish_reason"] == "stop"
    assert about["openinference.span.kind"] == "CHAIN"
    assert (about["input.value"][:6], about["output.value"]) == ("Agree.", "yes")


async def test_calls_of_tools_and_their_results_are_recorded_as_the_conventions_say() -> None:
    recorder = Recorder(capture_content=True)

    def look_up(city: str) -> str:
        """Look a city up."""
        return f"{city} has 4 rooms"

    call = ToolCall("c1", "look_up", '{"city": "Rome"}')
    reply = Generation("", tool_calls=(call,), reasoning="I need the rooms.")
    strategy = RejectionSamplingStrategy(
        ScriptedBackend([reply, "yes"]), telemetry=recorder.telemetry
    )
    await strategy.sample("Agree.", [says_yes], tools=[Tool.of(look_up, read_only=True)])
    first, second = recorder.named("chat")
    (said,) = json.loads(first.attributes["gen_ai.output.messages"])
    assert said["parts"] == [
        {"type": "reasoning", "content": "I need the rooms."},
        {"type": "tool_call", "id": "c1", "name": "look_up", "arguments": {"city": "Rome"}},
    ]
    assert said["finish_reason"] == "tool_call"
    *_, answered = json.loads(second.attributes["gen_ai.input.messages"])
    assert answered == {
        "role": "tool",
        "parts": [{"type": "tool_call_response", "id": "c1", "response": "Rome has 4 rooms"}],
    }
    (ran,) = recorder.named("execute_tool")
    assert ran.attributes["gen_ai.tool.call.arguments"] == '{"city": "Rome"}'
    assert ran.attributes["gen_ai.tool.call.result"] == "Rome has 4 rooms"
    (whole,) = recorder.named("sampling")  # Its input is the question, not what the tool said.
    (asked,) = json.loads(whole.attributes["gen_ai.input.messages"])
    assert asked["role"] == "user"
    assert whole.attributes["input.value"].startswith("Agree.")
    assert whole.attributes["output.value"] == "yes"
    (draw,) = recorder.named("iteration")
    assert draw.attributes["output.value"] == "yes"


async def test_arguments_that_json_cannot_hold_do_not_reach_the_caller() -> None:
    recorder = Recorder(capture_content=True)
    unfit = {("a", 1): object()}
    calls = (
        ToolCall("1", "f", '{"x": 1}', value={"x": unfit}),
        ToolCall("2", "f", "not JSON", value=unfit),
    )
    reply = Generation("yes", tool_calls=calls)
    strategy = RejectionSamplingStrategy(
        ScriptedBackend([reply]), telemetry=recorder.telemetry, accept_incomplete=True
    )
    assert (await strategy.sample("Agree.", [says_yes])).success
    (call,) = recorder.named("sampling")
    (said,) = json.loads(call.attributes["gen_ai.output.messages"])
    assert [part.get("arguments") for part in said["parts"]] == [None, {"x": 1}, "not JSON"]


async def test_the_callers_span_is_current_again_afterwards() -> None:
    recorder = Recorder()
    strategy = RejectionSamplingStrategy(ScriptedBackend(["yes"]), telemetry=recorder.telemetry)
    tracer = recorder.tracers.get_tracer("test")
    with tracer.start_as_current_span("mine") as mine:
        await strategy.sample("Agree.", [says_yes])
        assert trace.get_current_span() is mine
    (call,) = recorder.named("sampling")
    assert call.parent.span_id == mine.get_span_context().span_id


class Raising(SpanProcessor):
    """A processor that fails at every chance."""

    def on_start(self, span: object, parent_context: object = None) -> None:
        msg = "the collector is gone"
        raise OSError(msg)

    def on_end(self, span: object) -> None:
        msg = "the collector is gone"
        raise OSError(msg)


class RaisingAtTheEnd(Raising):
    """A processor that fails when a span ends."""

    def on_start(self, span: object, parent_context: object = None) -> None:
        pass


@pytest.mark.parametrize("processor", [Raising, RaisingAtTheEnd])
async def test_a_span_processor_that_raises_does_not_reach_the_caller(
    processor: type[SpanProcessor], caplog: pytest.LogCaptureFixture
) -> None:
    tracers = TracerProvider()
    tracers.add_span_processor(processor())
    strategy = RejectionSamplingStrategy(
        ScriptedBackend(["no", "yes"]), telemetry=Telemetry(tracer_provider=tracers)
    )
    result = await strategy.sample("Agree.", [says_yes])
    assert result.unwrap() == "yes"
    assert "telemetry could not" in caplog.text


async def test_without_providers_nothing_is_recorded() -> None:
    assert Telemetry().start_call("S", "id") is None


async def test_the_log_has_no_prompt_and_no_reply_but_what_an_error_quotes(
    virtual_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="mellea_like")

    async def draw(requirement: Requirement | str, format: type[int] | None = None) -> None:
        replies = [BackendUnavailable("down"), *["the reply"] * 9]
        strategy = RepairTemplateStrategy(ScriptedBackend(replies), concurrency_budget=2)
        with contextlib.suppress(RequirementError):
            await strategy.sample("the prompt", [requirement], format=format)

    await draw(word_count(at_least=5))
    await draw(word_count(at_least=5), format=int)
    assert "down" in caplog.text
    assert not re.search("the reply|the prompt", caplog.text)
    await draw("is nice")  # The reply is the verdict, and can't be read.
    assert "the reply" in caplog.text
    assert "the prompt" not in caplog.text


async def test_log_records_carry_the_ids_of_their_iteration(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.handler.addFilter(IterationFilter())
    log = logging.getLogger("a.users.validator")

    @requirement("logged", inline=True)
    def logged(candidate: Candidate) -> bool:
        log.warning("checking")
        return candidate.text == "yes"

    backend = ScriptedBackend([BackendUnavailable("gone"), "no", "yes"])
    result = await RejectionSamplingStrategy(backend, retry=None).sample("x", [logged])
    ids = [(r.name, r.sampling_id, r.iteration, r.subsample) for r in caplog.records]
    assert ids == [
        ("a.users.validator", result.sampling_id, 2, 0),
        ("a.users.validator", result.sampling_id, 3, 0),
        ("mellea_like", result.sampling_id, 1, 0),
    ]


async def test_calls_of_a_session_carry_its_id():
    recorder = Recorder()
    strategy = RejectionSamplingStrategy(
        ScriptedBackend(["one", "two", "three"]), loop_budget=1, telemetry=recorder.telemetry
    )
    with session("conversation 7"):
        await strategy.sample("Hello.")
        await strategy.sample("And again.")
    await strategy.sample("Alone.")
    for start in ("sampling", "chat"):
        ids = [
            (s.attributes.get("session.id"), s.attributes.get("gen_ai.conversation.id"))
            for s in recorder.named(start)
        ]
        assert ids == [("conversation 7",) * 2] * 2 + [(None, None)]
    with pytest.raises(TypeError, match="session's id"), session(7):
        pass


def test_whether_content_is_recorded_is_a_bool():
    with pytest.raises(TypeError, match="capture_content must be a bool, not 'no'"):
        Telemetry(capture_content="no")
