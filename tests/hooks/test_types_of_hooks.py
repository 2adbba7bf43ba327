"""Each hook is fired at its moment, with a payload of real types, and may change what it may."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from engine_kit import a_slice, after, by_iteration, outcomes, yes

from mellea_like import (
    Context,
    Generation,
    Instruction,
    Message,
    Outcome,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    hooks,
)
from mellea_like.backends.function import FunctionBackend
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.core import Options, StopReason, Usage
from mellea_like.core.ledger import ledger
from mellea_like.errors import BackendTimeout, BackendUnavailable, HookError, SamplingTimeout
from mellea_like.hooks import (
    GenerationErrorPayload,
    GenerationPostCallPayload,
    GenerationPreCallPayload,
    HookType,
    Payload,
    Plugin,
    SamplingIterationPayload,
    SamplingLoopEndPayload,
    hook,
)
from mellea_like.limits import Budget, Price, Retry
from mellea_like.testing import RecordingPlugin

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]

STRATEGY = RepairTemplateStrategy.__name__
JUDGED = '{"passed": true, "reason": "fine"}'


async def recorded(replies, *, strategy=RepairTemplateStrategy, requirements=(yes,), **settings):
    recording = RecordingPlugin()
    made = strategy(by_iteration(replies), plugins=[recording], **settings)
    result = await made.sample("do", requirements)
    return recording, result


def test_there_is_one_payload_class_for_each_hook():
    names = [name for name in hooks.__all__ if name.endswith("Payload") and name != "Payload"]
    classes = [getattr(hooks, name) for name in names]
    assert sorted(c.hook for c in classes) == sorted(HookType)


async def test_the_order_of_a_failure_its_repair_and_a_pass():
    # A second between the steps leaves the delivery task no choice when to run.
    recording, _ = await recorded({1: after(1, "no"), 2: after(1, "yes")})
    assert [(p.hook.value, p.iteration, p.subsample) for p in recording.payloads] == [
        ("sampling_loop_start", None, None),
        ("generation_pre_call", 1, 0),
        ("generation_post_call", 1, 0),
        ("validation_pre_check", 1, 0),
        ("validation_post_check", 1, 0),
        ("sampling_repair", 1, 0),
        ("generation_pre_call", 2, 0),
        ("sampling_iteration", 1, 0),  # beside the call: the producer does not wait for it
        ("generation_post_call", 2, 0),
        ("validation_pre_check", 2, 0),
        ("validation_post_check", 2, 0),
        ("sampling_iteration", 2, 0),
        ("sampling_loop_end", None, None),
    ]


async def test_each_payload_shows_what_it_is_about():
    down = BackendUnavailable("down")
    replies = {1: after(1, down), 2: after(2, "no"), 3: after(3, "yes"), 5: after(9, "no")}
    recording, result = await recorded(replies, retry=None, loop_budget=4, concurrency_budget=2)
    said = {payload.hook: payload for payload in reversed(recording.payloads)}  # The first of each.
    for payload in recording.payloads:
        outside = payload.hook in {HookType.SAMPLING_LOOP_START, HookType.SAMPLING_LOOP_END}
        assert isinstance(payload, Payload)
        assert (payload.sampling_id, payload.strategy) == (result.sampling_id, STRATEGY)
        assert (payload.iteration is None) is (payload.subsample is None) is outside

    start = said[HookType.SAMPLING_LOOP_START]
    assert start.action == Instruction("do", requirements=(yes,))
    assert (start.context, start.requirements) == (Context(), (yes,))
    assert (start.loop_budget, start.concurrency_budget) == (4, 2)
    asked = said[HookType.GENERATION_PRE_CALL]
    assert asked.messages == (Message("user", "do\n\nRequirements:\n- say yes"),)
    assert (asked.purpose, asked.retry, asked.model) == ("generate", 0, "scripted")
    failed = said[HookType.GENERATION_ERROR]
    assert (failed.error, failed.iteration, failed.usage.unknown) == (down, 1, 1)
    assert failed.duration == pytest.approx(1)
    answered = said[HookType.GENERATION_POST_CALL]
    assert (answered.generation.text, answered.usage) == ("no", Usage(1, 5, 1))
    assert (answered.iteration, answered.duration) == (2, pytest.approx(2))
    before, checked = said[HookType.VALIDATION_PRE_CHECK], said[HookType.VALIDATION_POST_CHECK]
    assert (before.candidate.text, before.requirements) == ("no", (yes,))
    assert checked.candidate is before.candidate
    assert [(r, v.passed) for r, v in checked.validations] == [(yes, False)]
    assert not checked.passed
    repair = said[HookType.SAMPLING_REPAIR]
    assert repair.failed is result.slices[1]
    assert (repair.action, repair.context) == (result.best.action, result.best.context)
    assert "An earlier attempt was rejected" in repair.action.prompt

    told = recording.of(SamplingIterationPayload)
    assert [p.slice for p in told] == list(result.slices)
    assert all(p.iteration == p.slice.iteration for p in told)
    assert {p.slice.outcome for p in told} == set(Outcome)
    end = said[HookType.SAMPLING_LOOP_END]
    assert (end.slices, end.best, end.error) == (result.slices, result.best, None)
    assert (end.success, end.stop_reason) == (True, StopReason.PASSED)
    assert end.iterations_used == 2  # the errored and the cancelled one never saw a verdict
    assert (end.started, end.started.tzinfo) == (result.started, UTC)
    assert abs((datetime.now(UTC) - end.started).total_seconds()) < 60
    assert end.elapsed == pytest.approx(6)


@pytest.mark.parametrize(
    ("own", "asked", "told"), [(None, None, None), ("m", None, "m"), ("m", "other", "other")]
)
async def test_pre_call_names_the_model_where_it_is_known(own, asked, told):
    recording = RecordingPlugin()
    backend = ScriptedBackend(["yes"], model=own)
    strategy = RejectionSamplingStrategy(backend, plugins=[recording], options={"model": asked})
    await strategy.sample("do", [yes])
    [payload] = recording.of(GenerationPreCallPayload)
    assert payload.model == told


@pytest.mark.parametrize(
    "reply", [Generation("no"), BackendUnavailable("down"), Reply("late", delay=9)], ids=type
)
async def test_a_draw_whose_model_a_plugin_has_chosen_is_recorded_and_priced_as_that_model(
    virtual_clock, reply
):
    class Dearer(Plugin):
        @hook(HookType.GENERATION_PRE_CALL)
        async def choose(self, payload):
            options = replace(payload.options, model="dear")
            return payload.model_copy(update={"options": options})

    prices = {"cheap": Price(1, 1), "dear": Price(100, 100)}
    slices, budget = [], Budget(money=1, prices=prices, assume_output_tokens=10)
    strategy = RejectionSamplingStrategy(
        ScriptedBackend([reply], model="cheap"),
        plugins=[Dearer()],
        loop_budget=1,
        retry=None,
        budget=budget,
        timeout=5,
    )
    with suppress(BackendUnavailable, SamplingTimeout):
        await strategy.sample("do", [yes], on_slice=slices.append)
    [made] = slices
    assert (made.asked, made.model, made.usage.requests) == ("dear", "dear", 1)
    row = ledger(slices, None, prices).rows[0]
    assert (row.model, row.cost) == ("dear", pytest.approx(budget.spent.money))


@pytest.mark.parametrize("first", [True, False])
async def test_tries_for_which_a_plugin_chose_different_models_have_their_own_prices(first):
    class Switches(Plugin):
        @hook(HookType.GENERATION_PRE_CALL)
        async def choose(self, payload):
            if (payload.retry == 0) is first:
                options = replace(payload.options, model="dear")
                return payload.model_copy(update={"options": options})
            return None

    prices = {"cheap": Price(1, 1), "dear": Price(100, 100)}
    budget = Budget(money=1, prices=prices, assume_output_tokens=10)
    late = BackendTimeout("late", retryable=True)  # The server may have generated all of it.
    reply = Generation("no", usage=Usage(1, 5, 5))
    strategy = RejectionSamplingStrategy(
        ScriptedBackend([late, reply], model="cheap"),
        plugins=[Switches()],
        loop_budget=1,
        retry=Retry(2),
        budget=budget,
    )
    result = await strategy.sample("do", [yes])
    [made] = result.slices
    models = ["cheap", "dear"] if first else ["dear", "cheap"]
    assert [model for model, _ in made.usage_by_model] == models
    assert result.ledger(prices).total.cost == pytest.approx(budget.spent.money)


async def test_a_cancelled_request_is_no_error():
    recording, _ = await recorded({1: after(1, "yes"), 4: after(9, "no")}, concurrency_budget=2)
    assert recording.of(GenerationErrorPayload) == []
    assert len(recording.of(GenerationPreCallPayload)) == 2
    assert len(recording.of(GenerationPostCallPayload)) == 1


async def test_judge_calls_have_hooks_of_their_own_kind():
    recording = RecordingPlugin()
    judge = ScriptedBackend([BackendUnavailable("down"), JUDGED], model="the judge")
    strategy = RejectionSamplingStrategy(
        ScriptedBackend(["a", "b"]), judge=judge, plugins=[recording], loop_budget=2, retry=None
    )
    result = await strategy.sample("do", ["is kind"])
    assert result.success
    calls = [
        (type(p).__name__, p.purpose, p.iteration)
        for p in recording.payloads
        if "Generation" in type(p).__name__
    ]
    assert calls == [
        ("GenerationPreCallPayload", "generate", 1),
        ("GenerationPostCallPayload", "generate", 1),
        ("GenerationPreCallPayload", "judge", 1),
        ("GenerationErrorPayload", "judge", 1),
        ("GenerationPreCallPayload", "generate", 2),
        ("GenerationPostCallPayload", "generate", 2),
        ("GenerationPreCallPayload", "judge", 2),
        ("GenerationPostCallPayload", "judge", 2),
    ]
    judged = [p for p in recording.of(GenerationPreCallPayload) if p.purpose == "judge"]
    assert {p.model for p in judged} == {"the judge"}


async def test_iterations_used_counts_slices_that_finished_validation():
    def broken(candidate):
        raise ValueError("bug")

    recording = RecordingPlugin()
    strategy = RejectionSamplingStrategy(
        by_iteration({1: BackendUnavailable("x")}), plugins=[recording], loop_budget=3
    )
    checks = [Requirement("broken", broken, inline=True)]
    with pytest.raises(BackendUnavailable):
        await strategy.sample("do", checks)
    [end] = recording.of(SamplingLoopEndPayload)
    assert end.iterations_used == 2  # both verdicts were errors, but verdicts


# --- what may be changed ----------------------------------------------------------------------


async def test_pre_call_may_change_the_options_of_this_request():
    @hook(HookType.GENERATION_PRE_CALL)
    async def warmer(payload):
        assert len(backend.requests) == payload.iteration - 1  # It is not sent yet.
        options = Options(temperature=payload.iteration / 10)
        return payload.model_copy(update={"options": options})

    backend = by_iteration({})
    await RejectionSamplingStrategy(backend, plugins=[warmer]).sample("do", [yes])
    assert [r.options.temperature for r in backend.requests] == [0.1, 0.2, 0.3]


PRE_CHECK, LOOP_START = HookType.VALIDATION_PRE_CHECK, HookType.SAMPLING_LOOP_START


@pytest.mark.parametrize(
    ("when", "change", "message"),
    [
        (
            HookType.GENERATION_PRE_CALL,
            {"options": {"temperature": 1}},
            "failed at generation_pre_call: it set options to .*, which is not an Options object",
        ),
        (PRE_CHECK, {"requirements": (1,)}, "failed at validation_pre_check: requirements"),
        (
            PRE_CHECK,
            {"requirements": "a lone text"},
            "failed at validation_pre_check: requirements",
        ),
        (PRE_CHECK, {"requirements": ("",)}, "failed at validation_pre_check: requirements"),
        (LOOP_START, {"loop_budgets": 9}, "it set loop_budgets, but the payload"),
    ],
)
async def test_a_change_of_the_wrong_type_or_name_is_an_error(when, change, message):
    @hook(when)
    async def odd(payload):
        return payload.model_copy(update=change)

    with pytest.raises(HookError, match=f"odd.* {message}"):
        await RejectionSamplingStrategy(by_iteration({}), plugins=[odd]).sample("do", [yes])


async def test_pre_check_may_not_add_what_nobody_can_judge():
    @hook(HookType.VALIDATION_PRE_CHECK)
    async def odd(payload):
        return payload.model_copy(update={"requirements": ("is kind",)})

    backend = FunctionBackend(lambda request: "yes", inline=True)
    with pytest.raises(HookError, match="'is kind' needs a judge, but FunctionBackend can't judge"):
        await RejectionSamplingStrategy(backend, plugins=[odd]).sample("do", [yes])


async def test_post_check_may_turn_a_pass_into_a_failure():
    @hook(HookType.VALIDATION_POST_CHECK)
    async def picky(payload):
        if payload.passed and payload.candidate.text == "yes":
            return payload.model_copy(update={"passed": False, "reason": "too short"})
        return None

    backend = by_iteration({1: "yes", 2: "yes indeed"})
    strategy = RepairTemplateStrategy(backend, plugins=[picky])
    result = await strategy.sample("do", [yes])
    assert outcomes(result) == {1: "failed", 2: "passed"}
    assert result.slices[0].problems[0].endswith("picky: too short")
    assert "too short" in backend.requests[1].messages[-1].content
    assert result.slices[0].validations[0][0] is yes


@pytest.mark.parametrize("reason", [None, ""])
async def test_a_failure_by_a_plugin_without_a_reason_names_the_plugin(reason):
    @hook(HookType.VALIDATION_POST_CHECK)
    async def picky(payload):
        return payload.model_copy(update={"passed": False, "reason": reason})

    result = await RejectionSamplingStrategy(by_iteration({1: "yes"}), plugins=[picky]).sample(
        "do", [yes]
    )
    [problem] = result.slices[0].problems
    assert problem.endswith("picky")


@pytest.mark.parametrize("value", [True, 1, "yes", None])
async def test_post_check_may_not_turn_a_failure_into_a_pass(value):
    @hook(HookType.VALIDATION_POST_CHECK)
    async def generous(payload):
        return payload.model_copy(update={"passed": value})

    with pytest.raises(HookError, match="a pass into a failure, but not the reverse"):
        await RejectionSamplingStrategy(by_iteration({}), plugins=[generous]).sample("do", [yes])


@pytest.mark.parametrize(
    ("when", "change", "allowed"),
    [
        (HookType.SAMPLING_LOOP_START, {"concurrency_budget": 9}, "loop_budget"),
        (HookType.GENERATION_PRE_CALL, {"messages": ()}, "options"),
        (HookType.GENERATION_POST_CALL, {"generation": Generation("yes")}, "nothing"),
        (HookType.VALIDATION_PRE_CHECK, {"strategy": "x"}, "requirements"),
        (HookType.VALIDATION_POST_CHECK, {"validations": ()}, "passed, reason"),
        (HookType.SAMPLING_REPAIR, {"action": Instruction("other")}, "nothing"),
        (HookType.SAMPLING_ITERATION, {"slice": a_slice()}, "nothing"),
    ],
)
async def test_nothing_else_may_be_changed(when, change, allowed):
    @hook(when)
    async def meddler(payload):
        return payload.model_copy(update=change)

    strategy = RejectionSamplingStrategy(by_iteration({}), plugins=[meddler])
    [field] = change
    with pytest.raises(
        HookError, match=f"it changed {field}, but {when} lets handlers change {allowed}"
    ):
        await strategy.sample("do", [yes])


@pytest.mark.parametrize("answer", [True, {"loop_budget": 1}, "payload", 1])
async def test_an_answer_that_is_no_payload_is_an_error(answer):
    @hook(HookType.SAMPLING_LOOP_START)
    async def odd(payload):
        return answer

    with pytest.raises(HookError, match=r"it returned \w+: return None, or payload.model_copy"):
        await RejectionSamplingStrategy(by_iteration({}), plugins=[odd]).sample("do", [yes])


@pytest.mark.parametrize("moment", [HookType.SAMPLING_REPAIR, HookType.GENERATION_PRE_CALL])
async def test_what_a_plugin_asks_a_model_is_paid_by_the_draw_that_its_call_belongs_to(moment):
    side = RejectionSamplingStrategy(by_iteration({}, default="yes"))

    @hook(moment)
    async def asks(payload):
        await side.sample("why?", [yes])

    inner = RepairTemplateStrategy(by_iteration({1: "no", 2: "yes"}), plugins=[asks])

    async def answer(request):
        return (await inner.sample("do", [yes])).text

    result = await RejectionSamplingStrategy(FunctionBackend(answer)).sample("do", [yes])
    asked = 1 if moment is HookType.SAMPLING_REPAIR else 2
    assert result.usage.requests == 2 + asked
