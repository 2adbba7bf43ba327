from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from mellea_like.schedules import (
    BaseSchedule,
    Eager,
    Hedged,
    Staggered,
)

if TYPE_CHECKING:
    from mellea_like.schedules import CallFacts


class OnlyBegins(BaseSchedule):
    def begin(self, facts: CallFacts) -> None: ...


@dataclass(frozen=True, slots=True)
class Bounded(BaseSchedule):
    seconds: float = field()
    extra: int = 2

    def begin(self, facts: CallFacts) -> None: ...


def answers(schedule: BaseSchedule) -> tuple[bool, int, bool, float | None]:
    return schedule.pooled, schedule.extra, schedule.timing_dependent, schedule.seconds


def test_a_schedule_that_only_begins_has_the_usual_answers():
    schedule = OnlyBegins()
    assert answers(schedule) == (True, 0, True, None)


def test_a_schedule_has_to_say_how_it_begins():
    with pytest.raises(TypeError, match="begin"):
        BaseSchedule()


def test_a_field_may_take_a_propertys_place():
    assert answers(Bounded(3.0)) == (True, 2, True, 3.0)
    assert answers(Bounded(seconds=3.0, extra=1)) == (True, 1, True, 3.0)
    with pytest.raises(TypeError, match="seconds"):
        Bounded()


@pytest.mark.parametrize(
    "schedule",
    [Eager(), Eager(pool=True), Hedged(), Staggered(1), Bounded(1)],
    ids=["eager", "pool", "hedged", "staggered", "bounded"],
)
def test_a_schedule_with_slots_has_no_other_attributes(schedule):
    assert isinstance(schedule, BaseSchedule)
    assert not hasattr(schedule, "__dict__")
