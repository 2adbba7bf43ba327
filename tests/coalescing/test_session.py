"""The decisions of a session, without an event loop: which messages run together, and when."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mellea_like.coalescing.chat.session import ChatPhase, Rules, Session, Submission
from mellea_like.coalescing.gathering_window import GatheringWindow
from mellea_like.coalescing.ticket import Ticket
from mellea_like.errors import QueueFull

NEVER, AT_ONCE = math.inf, -math.inf
WINDOW = GatheringWindow(quiet=0.5, max_wait=2.0)


async def reply(messages: list[Any]) -> int:
    raise NotImplementedError


async def other(messages: list[Any]) -> int:
    raise NotImplementedError


def make(**rules: Any) -> Session[Any, int]:
    return Session("key", Rules(WINDOW, **rules))


def message(text: Any, *, run: Any = reply, deadline: float = NEVER) -> Submission[Any, int]:
    return Submission("key", text, run, Ticket(deadline=deadline), math.nan)


def texts(submissions: Any) -> list[Any]:
    return [each.message for each in submissions]


def came(session: Session[Any, int], *arrivals: tuple[float, Any], run: Any = reply) -> None:
    for at, text in arrivals:
        session.admit(message(text, run=run), at)


@pytest.mark.parametrize(
    ("arrivals", "due"),
    [
        ([], NEVER),
        ([10], 10.5),
        ([10, 10.25], 10.75),
        ([10, 10.25, 10.5], 11.0),
        ([10, 10.4, 10.8, 11.2, 11.6], 12.0),
        ([10, 10.4, 10.8, 11.2, 11.6, 11.9], 12.0),
        ([10, 10, 10], 10.5),
    ],
)
def test_each_message_restarts_the_window_up_to_its_cap(arrivals, due):
    session = make()
    came(session, *((at, at) for at in arrivals))
    assert session.due() == session.next_look() == due
    assert session.phase is (ChatPhase.GATHERING if arrivals else ChatPhase.IDLE)


@pytest.mark.parametrize(
    ("runs", "batches"),
    [
        ([reply, reply, reply], [[0, 1, 2]]),
        ([reply, other], [[0], [1]]),
        ([reply, reply, other, other, reply], [[0, 1], [2, 3], [4]]),
        ([other, reply, other], [[0], [1], [2]]),
    ],
)
def test_messages_with_different_run_functions_are_split_at_the_boundary(runs, batches):
    session = make()
    for at, run in enumerate(runs):
        came(session, (at / 10, at), run=run)
    assert session.due() == (len(runs) - 1) / 10 + 0.5
    taken = []
    while session.pending:
        taken.append(texts(session.take()))
        session.run_ended(cancelled=False)
        assert session.due() in {AT_ONCE, NEVER}
    assert taken == batches


def test_only_what_would_have_joined_the_run_interrupts_it():
    session = make(on_busy="interrupt")
    came(session, (10, "a"))
    session.take()
    session.admit(message("b", run=other), 10.6)
    session.admit(message("c"), 10.7)  # b goes first.
    session.run_ended(cancelled=False)
    assert session.due() == AT_ONCE
    assert texts(session.take()) == ["b"]


# --- room and policies ------------------------------------------------------------------------


def test_what_is_interrupted_keeps_its_room():
    session = make(on_busy="interrupt", max_pending=2)
    came(session, (10, "a"))
    session.take()
    session.admit(message("b"), 10.6)
    assert session.phase is ChatPhase.STOPPING
    with pytest.raises(QueueFull):
        session.admit(message("c"), 10.7)
    session.run_ended(cancelled=True)
    session.take()
    session.admit(message("c"), 10.8)  # It interrupts nothing: there is no room to go back.
    assert session.phase is ChatPhase.RUNNING


def test_a_stop_of_an_interrupted_run_lets_nothing_come_back():
    session = make(on_busy="interrupt", stop_grace=3.0)
    came(session, (10, "a"))
    session.take()
    session.admit(message("b"), 10.6)
    assert texts(session.stop(11)) == ["b"]
    assert session.next_look() == 13.6, "the run's grace has begun before"
    session.run_ended(cancelled=True)
    assert session.phase is ChatPhase.IDLE


@pytest.mark.parametrize("leave", ["expire", "withdraw"])
def test_a_follow_up_that_all_have_left_does_not_spare_the_next_its_window(leave):
    session = make()
    came(session, (0, "a"))
    session.take()
    leaving = message("b", deadline=2)
    session.admit(leaving, 1)
    session.run_ended(cancelled=False)
    assert session.due() == AT_ONCE
    if leave == "expire":
        assert session.expire(2) == (leaving,)
    else:
        assert session.withdraw(leaving)
    assert session.phase is ChatPhase.IDLE
    came(session, (3, "c"))
    assert session.due() == 3.5
