"""Escalation: whose turn it is, what the next model sees, and what that leaves in the records."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from engine_kit import a_slice, says, yes
from hypothesis import given
from hypothesis import strategies as st

from mellea_like import (
    Budget,
    Escalate,
    Instruction,
    LimitExceeded,
    Message,
    MultiTurnStrategy,
    Outcome,
    Price,
    SamplingResult,
    Stage,
    SyncSampler,
)
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.core import Options
from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import AuthenticationFailed, RequirementError
from mellea_like.sampling.escalate import ExpectedCost
from mellea_like.schedules import Eager, Staggered
from mellea_like.schedules.base import CallFacts
from mellea_like.testing import run_virtual

pytestmark = pytest.mark.anyio

VERDICT = '{"passed": %s, "reason": "so"}'


class Model(ScriptedBackend):
    """A scripted backend with a name."""

    def __init__(self, model, replies, **arguments):
        super().__init__(
            (lambda request: replies) if isinstance(replies, str) else replies, **arguments
        )
        self.model = model

    @property
    def prompts(self):
        return [[message.content for message in r.messages] for r in self.requests]


def models(result) -> list[str | None]:
    return [s.generation and s.generation.model for s in result.slices]


async def test_each_subsample_goes_on_with_the_next_stage_when_its_turns_are_spent():
    small, big = Model("small", "no"), Model("big", "yes")
    strategy = Escalate([Stage(small, turns=3), Stage(big)], selection="ordered")
    result = await strategy.sample("Say yes.", [yes])
    assert result.unwrap() == "yes"
    assert models(result) == ["small"] * 3 + ["big"]
    assert [s.depth for s in result.slices] == [0, 1, 2, 3]
    assert small.prompts == [small.prompts[0]] * 3 == big.prompts * 3
    assert strategy.settings.loop_budget == 4


# --- what is carried


async def test_carry_best_shows_the_best_failure_and_why_it_failed():
    both = [yes, says("please")]
    small, big = Model("small", ["no", "please", "nope"]), Model("big", "yes please")
    strategy = Escalate([Stage(small, turns=3), Stage(big, carry="best")])
    result = await strategy.sample(Instruction("Ask.", system="Be brief."), both)
    assert result.unwrap() == "yes please"
    system, prompt = big.prompts[0]
    assert system == "Be brief."
    assert prompt == (
        "Ask.\n\nRequirements:\n- say yes\n- say please\n\n"
        "An earlier attempt:\nplease\n\nIt was rejected. Put this right:\n- say yes: it lacks yes"
    )
    # The strategy finds all reasons, as its stages hand them on.
    assert [v.status for v in result.slices[0].verdicts] == ["failed", "failed"]


async def test_carry_best_leaves_the_beginning_of_a_reply_last_and_as_it_was():
    small, big = Model("small", "no"), Model("big", "yes")
    strategy = Escalate([Stage(small), Stage(big, carry="best")])
    await strategy.sample([Message("user", "Ask."), Message("assistant", "Sure:")], [yes])
    question, begun = big.prompts[0]
    assert question.startswith("Ask.\n\nAn earlier attempt:\nno")
    assert begun == "Sure:"


async def test_carry_chat_asks_what_multi_turn_asks():
    ours, theirs = Model("m", ["one", "two", "yes"]), Model("m", ["one", "two", "yes"])
    await Escalate([Stage(ours, turns=3, carry="chat")]).sample("Say yes.", [yes])
    await MultiTurnStrategy(theirs, loop_budget=3).sample("Say yes.", [yes])
    assert ours.prompts == theirs.prompts


# --- what a stage has of its own


async def test_a_stage_has_options_requirements_and_a_judge_of_its_own():
    judge, other = Model("judge", VERDICT % "true"), Model("other", VERDICT % "false")
    small = Model("small", "no")
    big = Model("big", "yes")
    strategy = Escalate(
        [
            Stage(small, options={"temperature": 1.0}, requirements=["be kind"], judge=other),
            Stage(big, requirements=[says("yes")], options=Options(max_tokens=9)),
        ],
        options={"temperature": 0.5, "max_tokens": 5},
        judge=judge,
        requirements=["be short"],
    )
    result = await strategy.sample("Go.", options={"top_p": 0.5}, context=None)
    assert result.success
    assert (small.requests[0].options.temperature, small.requests[0].options.max_tokens) == (1.0, 5)
    assert (big.requests[0].options.temperature, big.requests[0].options.max_tokens) == (0.5, 9)
    assert {r.options.top_p for r in small.requests + big.requests} == {0.5}
    assert "be kind" in small.prompts[0][0]
    assert "be kind" not in big.prompts[0][0]
    assert "say yes" in big.prompts[0][0]
    assert len(other.requests) > 0 < len(judge.requests)
    assert [r.description for r in result.best.requirements] == ["be short", "say yes"]


async def test_new_requirements_are_told_in_a_chat():
    small, big = Model("small", "no"), Model("big", "yes please")
    stages = [Stage(small), Stage(big, carry="chat", requirements=[says("please")])]
    assert (await Escalate(stages).sample("Say yes.", [yes])).success
    assert big.prompts[0][-1].endswith("It is also required:\n- say please")


# --- a stage's budget


async def test_where_a_stages_budget_is_spent_the_next_stage_goes_on():
    small, big = Model("small", "no"), Model("big", ["no", "yes"])
    budget = Budget(requests=3, name="small's")
    strategy = Escalate([Stage(small, turns=4, budget=budget), Stage(big)])
    result = await strategy.sample("Say yes.", [yes])
    assert [(s.stage, s.depth, str(s.outcome)) for s in result.slices] == [
        (0, 0, "failed"),
        (0, 1, "failed"),
        (0, 2, "failed"),
        (0, 3, "cancelled"),
        (1, 4, "failed"),
    ]
    refused = result.slices[3]
    assert refused.reason.endswith("3 of 3 requests were made, and this would be one more")
    assert (refused.usage.requests, refused.model, result.stop_reason) == (0, "small", "exhausted")
    # It is the stage's in all calls.
    result = await strategy.sample("Say yes.", [yes])
    assert [str(s.outcome) for s in result.slices] == ["cancelled", "passed"]
    assert len(small.requests) == 3 == budget.spent.requests


async def test_a_stages_budget_has_to_have_room_for_its_judge():
    judge = Model("judge", VERDICT % "false")
    small, big = Model("small", "no"), Model("big", "yes")
    stages = [Stage(small, turns=3, judge=judge, budget=Budget(requests=3)), Stage(big, judge=big)]
    big.judged = True
    result = await Escalate(stages).sample("x", ["be kind"])
    assert [len(model.requests) for model in (small, judge)] == [2, 1]
    assert [s.stage for s in result.slices] == [0, 0, 1]
    priced = Budget(money=1, prices={"small": Price(1, 1)})
    with pytest.raises(ValueError, match="'judge'"):
        stages = [Stage(small, judge=judge, budget=priced, options={"max_tokens": 5})]
        await Escalate(stages, judge_options={"max_tokens": 5}).sample("x", ["be kind"])


async def test_the_last_stages_budget_stops_the_call_also_if_it_has_no_room_for_the_judge():
    judge, small = Model("judge", VERDICT % "false"), Model("small", "no")

    def sample(most):
        last = Stage(small, turns=3, judge=judge, budget=Budget(requests=most, name="last"))
        return Escalate([last]).sample("x", ["be kind"])

    result = await sample(3)
    assert [str(s.outcome) for s in result.slices] == ["failed", "errored"]
    assert (result.stop_reason, result.best.iteration) == ("budget", 1)
    assert result.stop_detail.startswith("budget 'last': 3 of 3 requests were made")
    with pytest.raises(LimitExceeded, match="'last'"):
        await sample(1)  # No draw was judged.


# --- after=


def priced(model: str, text: str, **arguments) -> Model:
    reply = Generation(text, usage=Usage(1, 100, 100), model=model)
    return Model(model, lambda request: reply, **arguments)


PRICES = {"small": Price(1, 1), "big": Price(10, 10)}


async def test_the_next_stage_starts_where_a_pass_is_expected_to_cost_less():
    small, big = priced("small", "no"), priced("big", "yes")
    rule = ExpectedCost(PRICES, strength=2)
    strategy = Escalate([Stage(small, turns=50), Stage(big)], after=rule)
    drawn = []
    for _ in range(30):
        result = await strategy.sample("x", [yes])
        assert result.success
        drawn.append(sum(s.stage == 0 for s in result.slices))
    # At the prior, Beta(0.5, 1), both pass a third of the time: 10 times the price is as much as 14
    # failures; what is learnt makes it fewer, but for the one that has to be.
    assert drawn[0] == 14
    assert drawn == sorted(drawn, reverse=True)
    assert drawn[-1] == 1


async def test_the_expected_cost_is_that_of_a_draw_over_the_chance_of_a_pass():
    rule = ExpectedCost(PRICES, key="k", strength=2)
    facts = CallFacts(Instruction("x"), (), 1, 9, "small")

    def costs():
        return rule.begin(facts, ["small", "big"])

    # At first: a token of each kind, and the prior Beta(0.5, 1).
    assert [costs().expected(stage) for stage in (0, 1)] == pytest.approx([6, 60])
    for outcome in (Outcome.PASSED,) * 60 + (Outcome.FAILED,) * 39:
        rule.learn(("k", 0, "small"), a_slice(1, outcome, usage=Usage(1, 300, 500)))
    rule.learn(("k", 1, "big"), a_slice(1, Outcome.CANCELLED, usage=Usage(1, 1, 1, 1)))
    # What a cache has answered tells nothing of what a draw costs.
    for outcome in (Outcome.PASSED,) * 12 + (Outcome.FAILED,) * 8:
        rule.learn(("k", 0, "small"), a_slice(1, outcome, usage=Usage(cache_hits=1)))
    # Nor does a draw of unknown cost.
    rule.learn(("k", 0, "small"), a_slice(1, Outcome.PASSED, usage=Usage(1, 1, 1, 1)))
    rate = rule.rates.mean(("k", 0, "small"))
    assert rate == pytest.approx(0.6, abs=0.02)
    state = costs()
    # The big one's draws are thought to be as long as the small one's.
    assert [state.expected(s) for s in (0, 1)] == pytest.approx([800 / rate, 8000 * 3])
    failed = a_slice(2, Outcome.FAILED, usage=Usage(1, 1, 1))
    assert not state.hear(0, failed)
    assert not state.hear(0, a_slice(3, Outcome.ERRORED))
    # Two draws' worth of what was learnt, and one failure.
    assert state.expected(0) == pytest.approx(800 * 3 / (2 * rate))
    assert costs().expected(0) == pytest.approx(800 / rate)
    heard = [state.hear(0, failed) for _ in range(50)]
    assert heard == sorted(heard)
    assert heard.index(True) == next(f for f in range(50) if (4 + f) / (2 * rate) > 30)


async def test_the_expected_cost_counts_cached_tokens_and_judges_at_their_own_prices():
    prices = {**PRICES, "small": Price(1, 1, cached_input=0.1), "judge": Price(30, 30)}
    rule = ExpectedCost(prices, key="k")
    reply = Usage(1, 1000, 100, cached_input_tokens=900)
    judged, unknown = Usage(1, 200, 10), Usage(1, 30, 10)
    for checks in ((("judge", judged),), (("judge", judged), ("another", unknown))):
        usage = sum((spent for _, spent in checks), reply)
        made = a_slice(1, Outcome.PASSED, usage=usage, check_usage=checks)
        rule.learn(("k", 0, "small"), made)
    state = rule.begin(CallFacts(Instruction("x"), (), 1, 9, "small"), ["small", "big"])
    own = 100 + 0.1 * 900 + 100
    # The table has no price for the other judge, so its tokens cost as much as the stage's own.
    assert state.costs[0] == pytest.approx(own + 30 * 210 + 40 / 2)
    assert state.costs[1] == pytest.approx(10 * (1000 + 100 + 210 + 40 / 2))


@pytest.mark.parametrize("kept", [True, False])
async def test_a_call_that_pauses_teaches_the_rule_each_draw_once(kept):
    small, big = priced("small", "no"), priced("big", "no")
    rule = ExpectedCost(PRICES, key="k")
    strategy = Escalate([Stage(small, turns=2), Stage(big, turns=2)], after=rule)
    slices = ()
    call = strategy.begin("x", [yes])
    for _ in range(4):
        if not kept:
            call = strategy.begin("x", [yes], earlier=slices)
        slices = (await call.run(1)).slices
    assert [s.stage for s in slices] == [0, 0, 1, 1]
    for key in (("k", 0, "small"), ("k", 1, "big")):
        assert rule.rates.parameters(key) == (0.5, 2)


@pytest.mark.parametrize(("carry", "failures"), [("nothing", 1), ("best", 2), ("chat", 2)])
async def test_later_attempts_are_learned_from_if_they_ask_something_else(carry, failures):
    rule = ExpectedCost(PRICES, key="k")
    stages = [Stage(priced("small", "no"), turns=2, carry=carry), Stage(priced("big", "no"))]
    await Escalate(stages, after=rule).sample("x", [yes])
    assert rule.rates.parameters(("k", 0, "small")) == pytest.approx((0.5, 1 + failures), abs=0.01)


@pytest.mark.parametrize("moved_on", [False, True])
async def test_a_call_that_goes_on_keeps_its_draws_whatever_was_learned_since(moved_on):
    def begin(earlier=(), *, small_passes):
        rule = ExpectedCost(PRICES, key="k")
        for _ in range(99):
            rule.rates.observe(("k", 0, "small"), small_passes)
            rule.rates.observe(("k", 1, "big"), not small_passes)
        stages = [Stage(priced("small", "no"), turns=9), Stage(priced("big", "no"))]
        return Escalate(stages, after=rule).begin("x", [yes], earlier=earlier)

    earlier = (await begin(small_passes=not moved_on).run(2)).slices
    assert [s.stage for s in earlier] == ([0, 1] if moved_on else [0, 0])
    result = await begin(earlier, small_passes=moved_on).run()
    assert result.slices[:2] == earlier
    assert [s.stage for s in result.slices[2:]] == ([] if moved_on else [1])


async def test_wrong_rules_are_refused():
    stages = [Stage(Model("small", "no")), Stage(Model("big", "no"))]
    with pytest.raises(TypeError, match="turns, as in"):
        Escalate(stages, after=3)
    with pytest.raises(ValueError, match="which draws fail first depends on timing"):
        Escalate(stages, after=ExpectedCost(PRICES), selection="ordered")
    with pytest.raises(ValueError, match="with racing lanes, it would see only the quick ones"):
        Escalate(stages, after=ExpectedCost(PRICES), concurrency_budget=4)
    with pytest.raises(ValueError, match="no price for the model 'big'"):
        await Escalate(stages, after=ExpectedCost({"small": Price(1, 1)})).sample("x", [yes])
    for wrong in ({"prices": {}}, {"prices": PRICES, "strength": 0}):
        with pytest.raises(ValueError, match="ExpectedCost"):
            ExpectedCost(**wrong)
    with pytest.raises(TypeError, match="PassRates"):
        ExpectedCost(PRICES, rates=0.5)


# --- any escalation


@given(st.data())
def test_any_escalation_draws_what_a_loop_by_hand_draws(data):
    """One subsample: turn by turn, within each stage's budget."""
    stages, script = [], []
    for index in range(data.draw(st.integers(1, 3))):
        replies = data.draw(st.lists(st.sampled_from(["no", "no", "yes"]), min_size=1, max_size=4))
        most = data.draw(st.none() | st.integers(1, 4))
        script.append((replies, len(replies) if most is None else most))
        budget = None if most is None else Budget(requests=most)
        stages.append(Stage(Model(f"m{index}", list(replies)), len(replies), budget=budget))
    schedule = data.draw(st.sampled_from([None, Staggered(0.01), Eager(pool=True)]))
    expected = []
    for index, (replies, most) in enumerate(script):
        for place, reply in enumerate(replies):
            if place < most:
                expected.append((index, "passed" if reply == "yes" else "failed"))
            elif place == most:
                expected.append((index, "cancelled"))
    passed = [place for place, (_, outcome) in enumerate(expected) if outcome == "passed"]
    expected = expected[: passed[0] + 1] if passed else expected
    library = data.draw(st.sampled_from(["asyncio", "trio"]))
    result = run_virtual(
        partial(Escalate(stages, schedule=schedule).sample, "x", [yes]), backend=library
    )
    assert [(s.stage, str(s.outcome)) for s in result.slices] == expected
    assert [s.model for s in result.slices] == [f"m{stage}" for stage, _ in expected]
    again = SamplingResult.from_dict(result.to_dict())
    assert [(s.stage, s.model) for s in again.slices] == [(s.stage, s.model) for s in result.slices]


# --- errors


async def test_a_permanent_error_ends_the_stage_and_not_the_subsample():
    small, big = Model("small", [AuthenticationFailed("401")]), Model("big", "yes")
    result = await Escalate([Stage(small, turns=3), Stage(big)]).sample("Say yes.", [yes])
    assert result.success
    assert [str(s.outcome) for s in result.slices] == ["errored", "passed"]
    assert [s.iteration for s in result.slices] == [1, 4]
    big = Model("big", [AuthenticationFailed("401")])
    with pytest.raises(AuthenticationFailed):
        await Escalate([Stage(big, turns=3)]).sample("Say yes.", [yes])
    assert len(big.requests) == 1


async def test_wrong_stages_are_refused():
    model = Model("m", "x")
    for stages in ([], [model], [Stage(model), "x"], Stage(model)):
        with pytest.raises(TypeError, match="needs a list of stages"):
            Escalate(stages)
    with pytest.raises(ValueError, match="turns"):
        Stage(model, turns=0)
    with pytest.raises(ValueError, match="carry"):
        Stage(model, carry="all")
    with pytest.raises(TypeError, match="backend"):
        Stage("m")
    with pytest.raises(TypeError, match="judge"):
        Stage(model, judge="m")
    with pytest.raises(ValueError, match="option"):
        Stage(model, options={"heat": 1})
    with pytest.raises(TypeError, match="must be a list"):
        Stage(model, requirements="x")
    with pytest.raises(ValueError, match="each stage has its own"):
        await Escalate([Stage(model)]).sample("x", backend=model)
    with pytest.raises(ValueError, match="each stage has its own"):
        Escalate([Stage(model)], backend=model)


async def test_mistakes_in_any_stage_are_found_before_the_first_request():
    small, big = Model("small", "no"), Model("big", "yes")
    big.can_judge = False
    strategy = Escalate([Stage(small), Stage(big, requirements=["be kind"])])
    with pytest.raises(RequirementError, match="can't judge"):
        await strategy.sample("x")
    budget = Budget(money=1.0, prices={"small": Price(1, 1)})
    strategy = Escalate([Stage(small), Stage(big)], options={"max_tokens": 5}, budget=budget)
    with pytest.raises(ValueError, match="'big'"):
        await strategy.sample("x")
    assert not small.requests


# --- with the rest of the engine


async def test_sync_calls_close_the_connections_of_all_stages():
    closed: list[str] = []

    class Closing(Model):
        async def aclose(self):
            closed.append(self.model)

    stages = [
        Stage(Closing("small", "no"), judge=Closing("judge", "x")),
        Stage(Closing("big", "yes")),
    ]
    strategy = Escalate(stages)
    assert await anyio.to_thread.run_sync(strategy.sample_sync, "x", [yes])
    assert sorted(closed) == ["big", "judge", "small"]

    def threaded():
        with SyncSampler(strategy) as sampler:
            return sampler.sample("x", [yes]).unwrap()

    assert await anyio.to_thread.run_sync(threaded) == "yes"
    assert sorted(closed) == ["big", "big", "judge", "judge", "small", "small"]
