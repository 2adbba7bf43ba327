"""The judge of a score is a judge of the call: in a selection and in a validator."""

from __future__ import annotations

import anyio
import pytest
from engine_kit import by_iteration, candidate
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mellea_like import (
    BestOf,
    Budget,
    Escalate,
    Generation,
    LimitExceeded,
    RejectionSamplingStrategy,
    Stage,
    ValidationResult,
    check,
    judge_score,
    requirement,
)
from mellea_like.backends.function import FunctionBackend
from mellea_like.core import Usage
from mellea_like.errors import BackendTimeout, BackendUnavailable, HookError, RequirementError
from mellea_like.hooks import Blocked, Plugin, hook
from mellea_like.hooks.types import HookType
from mellea_like.limits import Retry
from mellea_like.telemetry import Telemetry

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]

SCORE = '{"reason": "so", "score": 8}'


class Judge:
    """A judge that answers with each of ``replies`` in turn, and then with `SCORE`."""

    model = "j"

    def __init__(self, *replies):
        self.requests = []
        self._replies = list(replies)

    async def generate(self, request):
        self.requests.append(request)
        reply = self._replies.pop(0) if self._replies else SCORE
        if isinstance(reply, BaseException):
            raise reply
        if callable(reply):
            await reply()
        return Generation(SCORE if callable(reply) else reply, usage=Usage(1, 20, 4), model="j")


def strategy(how, judge, *, lanes=1, **more):
    """A strategy that scores two draws, in a selection or in a requirement."""
    score = judge_score("How nice?", judge=judge)
    given = {"loop_budget": 2, "concurrency_budget": lanes, **more}
    backend = by_iteration({1: "a", 2: "b"})
    if how == "selection":
        return RejectionSamplingStrategy(backend, selection=BestOf(score), **given)

    @requirement("is nice")
    async def nice(candidate):
        points, why = await score(candidate)
        return ValidationResult(points >= 7, why)

    return RejectionSamplingStrategy(backend, requirements=[nice], **given)


both = pytest.mark.parametrize("how", ["selection", "requirement"])


class Listener(Plugin):
    def __init__(self, blocks=False):
        self.heard = []
        self._blocks = blocks

    @hook(HookType.GENERATION_PRE_CALL)
    async def before(self, payload):
        if payload.purpose == "judge":
            self.heard.append((payload.sampling_id, payload.iteration, payload.retry))
            if self._blocks:
                raise Blocked("no judges")


@both
async def test_plugins_see_each_try_with_the_number_of_the_draw(how):
    listener, judge = Listener(), Judge(BackendUnavailable("busy"))
    result = await strategy(how, judge, plugins=[listener]).sample("do")
    tries = [(1, 0), (1, 1), (2, 0)] if how == "selection" else [(1, 0), (1, 1)]
    assert listener.heard == [(result.sampling_id, *each) for each in tries]
    assert [(r.meta.iteration, r.meta.retry) for r in judge.requests] == tries


@both
async def test_a_plugin_that_stops_a_judges_request_ends_the_call(how):
    judge = Judge()
    with pytest.raises(HookError, match="no judges"):
        await strategy(how, judge, plugins=[Listener(blocks=True)]).sample("do")
    assert judge.requests == []


@both
@pytest.mark.parametrize(("retry", "tries"), [(None, 1), (Retry(2), 2)])
async def test_the_strategys_policy_says_how_often_a_judge_is_asked(how, retry, tries):
    judge = Judge(*[BackendUnavailable("busy")] * 9)
    with pytest.raises(RequirementError):
        await strategy(how, judge, retry=retry, loop_budget=1).sample("do")
    assert len(judge.requests) == tries


@both
async def test_a_judge_has_the_options_for_judges_and_a_seed_for_each_draw(how):
    judge = Judge("no score")
    given = {"judge_options": {"max_tokens": 60}, "options": {"seed": 1}}
    result = await strategy(how, judge, **given).sample("do")
    options = [request.options for request in judge.requests]
    assert {(o.max_tokens, o.temperature) for o in options} == {(60, 0)}
    assert None not in {o.seed for o in options}
    assert len({o.seed for o in options}) == len(options) == (3 if how == "selection" else 2)
    assert result.usage.requests == len(result.slices) + len(options)


@both
async def test_a_judges_requests_are_spans_below_the_draw_and_counted_once(how):
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    budget = Budget(requests=9)
    telemetry = Telemetry(tracer_provider=tracers)
    asked = strategy(how, Judge(), telemetry=telemetry, budget=budget)
    result = await asked.sample("do")
    spans = exporter.get_finished_spans()
    parent = "iteration" if how == "selection" else "validation"
    above = {s.context.span_id for s in spans if s.name.startswith(parent)}
    judged = [s for s in spans if s.attributes.get("mellea_like.purpose") == "judge"]
    draws = len(result.slices)
    assert len(judged) == draws
    assert {s.parent.span_id for s in judged} <= above
    assert sum(s.name.startswith("sampling") for s in spans) == 1
    assert result.usage.requests == budget.spent.requests == 2 * draws
    assert [s.check_usage for s in result.slices] == [(("j", Usage(1, 20, 4)),)] * draws


@both
async def test_a_judge_that_hangs_is_cut_off_with_its_draw(how, virtual_clock):
    judge = Judge(anyio.sleep_forever)
    result = await strategy(how, judge, iteration_timeout=5).sample("do")
    assert virtual_clock.now == 5
    assert [s.outcome.value for s in result.slices] == ["errored", "passed"]
    assert result.usage.unknown == 1


async def test_a_score_for_a_stage_is_paid_from_the_budget_of_the_stage():
    judge, first = Judge(), Budget(requests=2)
    stages = [Stage(by_iteration({}, "a"), 2, budget=first), Stage(by_iteration({}, "b"), 1)]
    score = judge_score("How nice?", judge=judge)

    @requirement("is perfect")
    async def perfect(candidate):
        points, why = await score(candidate)
        return ValidationResult(candidate.text == "b", f"{points:g}: {why}")

    result = await Escalate(stages, requirements=[perfect]).sample("do")
    assert result.value == "b"
    assert first.spent.requests == 2
    ends = [(s.stage, s.outcome.value) for s in result.slices]
    assert ends == [(0, "failed"), (0, "cancelled"), (1, "passed")]


async def test_the_budget_of_a_check_limits_a_score_in_it():
    score = judge_score("How nice?", judge=(judge := Judge("no score")))

    @requirement("is nice")
    async def nice(candidate):
        return (await score(candidate))[0] >= 7

    with pytest.raises(LimitExceeded):
        await check("hello", nice, budget=Budget(requests=1))
    assert len(judge.requests) == 1
    assert (await check("hello", nice, budget=Budget(requests=1))).usage == Usage(1, 20, 4)


async def test_a_cancellation_that_a_scorer_makes_up_is_its_error():
    async def score(candidate):
        raise anyio.get_cancelled_exc_class()

    backend = by_iteration({}, "a")
    if anyio.get_cancelled_exc_class().__module__.startswith("trio"):
        pytest.skip("trio's can't be made")
    strategy = RejectionSamplingStrategy(backend, loop_budget=1, selection=BestOf(score))
    with pytest.raises(RequirementError, match="its scorer raised a cancellation that no one"):
        await strategy.sample("do")


async def test_outside_of_a_call_a_judge_is_retried_unless_it_retries_by_itself():
    judge = Judge(BackendUnavailable("busy"), "no score")
    assert await judge_score("How nice?", judge=judge)(candidate("hello")) == (8, "so")
    assert [request.meta.purpose for request in judge.requests] == ["judge"] * 3
    assert {request.options.temperature for request in judge.requests} == {0}

    judge = Judge(BackendTimeout("slow"))
    judge.retries = True
    with pytest.raises(BackendTimeout):
        await judge_score("How nice?", judge=judge)(candidate("hello"))


def test_a_judge_is_a_backend():
    with pytest.raises(TypeError, match="must be a backend, which scores replies, not 'big'"):
        judge_score("How nice?", judge="big")


async def test_a_score_inside_a_backend_belongs_to_that_backends_request():
    score = judge_score("How nice?", judge=Judge())

    async def answer(request):
        points, _ = await score(candidate("hello"))
        return f"{points:g}"

    result = await RejectionSamplingStrategy(FunctionBackend(answer)).sample("do")
    assert (result.value, result.usage) == ("8", Usage(1, 20, 4))
