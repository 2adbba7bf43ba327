"""Which session runs next, which is looked at when, and which is forgotten: decided in tables."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from mellea_like.coalescing.alarms import SLACK, Alarms
from mellea_like.coalescing.chat.sessions import Rules, Session, Sessions, Submission
from mellea_like.coalescing.gathering import Window
from mellea_like.coalescing.ticket import Ticket


async def reply(messages: list[Any]) -> int:
    raise NotImplementedError


def make(most: int = 10, idle_ttl: float = 60.0) -> Sessions[Any, int]:
    return Sessions(Rules(Window(0.5, 2.0)), most, idle_ttl)


def say(sessions: Sessions[Any, int], key: str, now: float) -> Session[Any, int]:
    session = sessions.open(key)
    assert session is not None
    session.admit(Submission(key, "hi", reply, Ticket(), now), now)
    sessions.update(session, now)
    return session


def finish(sessions: Sessions[Any, int], session: Session[Any, int], now: float) -> None:
    session.take()
    session.run_ended(cancelled=False)
    sessions.update(session, now)


def known(sessions: Sessions[Any, int]) -> list[Any]:
    return [session.key for session in sessions]


def test_a_session_that_has_nothing_left_to_run_leaves_the_line():
    sessions = make()
    session = say(sessions, "a", 0)
    sessions.update(session, 1)
    session.stop(1)
    sessions.update(session, 1)
    assert sessions.take_ready() is None


def test_what_waits_for_its_turn_sets_no_alarm_but_its_deadline():
    sessions = make()
    session = say(sessions, "a", 0)
    assert sessions.next_check() == 0.5
    assert sessions.due(0.5) == [session]
    sessions.update(session, 0.5)
    assert sessions.next_check() == math.inf
    session.admit(Submission("a", "hi", reply, Ticket(), 0, 7.0), 0.6)
    sessions.update(session, 0.6)
    assert sessions.next_check() == 7.0


def test_looking_at_an_idle_session_does_not_make_it_any_younger():
    sessions = make(idle_ttl=60)
    session = say(sessions, "a", 0)
    finish(sessions, session, 1)
    session.stop(50)
    sessions.update(session, 50)
    assert sessions.next_check() == 61


def test_the_session_that_was_idle_for_longest_makes_room():
    sessions = make(most=3)
    for key in "abc":
        say(sessions, key, 0)
    assert sessions.open("d") is None
    for key in "bac":
        session = sessions.get(key)
        assert session is not None
        finish(sessions, session, 1)
    say(sessions, "b", 2)  # No longer idle.
    say(sessions, "d", 3)
    assert known(sessions) == ["b", "c", "d"]
    say(sessions, "e", 4)
    assert known(sessions) == ["b", "d", "e"]
    assert sessions.open("f") is None
    assert sessions.open("d") is sessions.get("d")


# --- alarms -----------------------------------------------------------------------------------


def test_the_earliest_alarm_goes_off_first_and_once():
    alarms: Alarms[str] = Alarms()
    for thing, at in (("late", 9.0), ("early", 1.0), ("never", math.inf), ("middle", 5.0)):
        alarms.set(thing, at)
    assert alarms.next() == 1.0
    assert alarms.due(0.9) == []
    assert alarms.due(5.0) == ["early", "middle"]
    assert alarms.due(5.0) == []
    assert alarms.next() == 9.0
    assert len(alarms) == 1


@pytest.mark.parametrize(("first", "second", "goes"), [(5, 3, 3), (3, 5, 3), (4, 4, 4)])
def test_an_alarm_goes_off_at_the_time_it_was_set_to_or_before(first, second, goes):
    alarms: Alarms[str] = Alarms()
    alarms.set("a", first)
    alarms.set("a", second)
    assert alarms.next() == goes
    assert alarms.due(10) == ["a"]
    assert alarms.next() == math.inf


def test_an_alarm_that_was_cleared_does_not_go_off():
    alarms: Alarms[str] = Alarms()
    alarms.set("a", 1)
    alarms.clear("a")
    alarms.clear("b")
    assert alarms.next() == math.inf
    alarms.set("a", 2)
    assert alarms.due(1.5) == []
    assert alarms.due(2) == ["a"]


def test_alarms_that_are_set_and_cleared_for_ever_take_no_memory():
    alarms: Alarms[int] = Alarms()
    chance = random.Random(1)
    for number in range(5000):
        alarms.set(number % 10, chance.uniform(0, 1e6))
        if number % 3:
            alarms.clear(chance.randrange(10))
    assert len(alarms._heap) <= 2 * 10 + SLACK + 1
    left = dict(alarms._at)
    assert alarms.due(1e6) == sorted(left, key=left.__getitem__)
