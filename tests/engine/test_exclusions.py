"""The table of options that exclude each other, asked by everyone who takes options."""

from __future__ import annotations

import pytest
from engine_kit import by_iteration

from mellea_like import BestOf, Budget, Collect, Escalate, RejectionSamplingStrategy, sample_many
from mellea_like.batch import Journal
from mellea_like.core.prices import Price
from mellea_like.sampling import check_together, why_not_together
from mellea_like.sampling.escalate import ExpectedCost, Stage
from mellea_like.sampling.exclusions import EXCLUSIONS
from mellea_like.schedules import Eager, Hedged, PerRequirement, Staggered
from mellea_like.specification.strategy import StrategySpec

MODEL = by_iteration({})
RULE = ExpectedCost({"m": Price(1, 1)})


def strategy(**arguments):
    return RejectionSamplingStrategy(MODEL, **arguments)


def stages(**arguments):
    return Escalate([Stage(MODEL)], **arguments)


def breadth(drawing, **arguments):
    return sample_many(drawing, ["a"], concurrency=1, breadth_first=True, **arguments)


PAIRS = {
    ("ordered", "timed"): lambda: strategy(selection="ordered", schedule=Hedged()),
    ("ordered", "pooled"): lambda: strategy(selection="ordered", schedule=Eager(pool=True)),
    ("ordered", "give_up"): lambda: strategy(selection="ordered", give_up=PerRequirement()),
    ("ordered", "cheaper"): lambda: stages(selection="ordered", after=RULE),
    ("stages", "backend"): lambda: stages().begin("x", backend=MODEL),
    ("stages", "loop_budget"): lambda: stages(loop_budget=2),
    ("stages", "several"): lambda: stages(selection=BestOf(len)),
    ("stages", "give_up"): lambda: stages(give_up=PerRequirement()),
    ("cheaper", "lanes"): lambda: stages(after=RULE, concurrency_budget=2),
    ("stream", "collect"): lambda: strategy(selection=Collect(1)).stream("x"),
    ("rounds", "lanes"): lambda: breadth(strategy(concurrency_budget=2)),
    ("rounds", "scored"): lambda: breadth(strategy(selection=BestOf(len))),
    ("rounds", "schedule"): lambda: breadth(strategy(schedule=Staggered(1))),
    ("rounds", "stage_budget"): lambda: breadth(
        Escalate([Stage(MODEL, budget=Budget(requests=1))])
    ),
    ("rounds", "fewer_texts"): lambda: breadth(strategy(), journal=Journal("x.db", text="best")),
}
ELSEWHERE = {("agent", "collect"), ("choices", "collect")}


def test_each_pair_of_the_table_is_refused_somewhere():
    assert {(rule.one, rule.other) for rule in EXCLUSIONS} == PAIRS.keys() | ELSEWHERE


@pytest.mark.parametrize("pair", PAIRS, ids=" ".join)
def test_what_excludes_each_other_is_refused(pair):
    with pytest.raises(ValueError, match="can't be combined with"):
        PAIRS[pair]()


def test_the_names_are_the_users_and_the_reason_follows():
    features = {"ordered": "--select ordered", "give_up": "--give-up", "lanes": "--lanes"}
    both = "--select ordered can't be combined with --give-up"
    why = f"{both}: which draws come first depends on timing"
    assert why_not_together(features) == why
    with pytest.raises(ValueError, match=why):
        check_together({"ordered": "--select ordered"}, {"give_up": "--give-up"})
    assert why_not_together({"ordered": "a", "lanes": "b"}) is None


def test_a_specification_asks_the_same_table():
    with pytest.raises(ValueError, match="select: ordered can't be combined with give_up"):
        StrategySpec(select="ordered", give_up=True)
