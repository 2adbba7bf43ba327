"""What a session decides: which messages run together, and when. No event loop, no waiting."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mellea_like.coalescing.chat.sessions import Admission, ChatPhase, Rules, Session, Submission
from mellea_like.coalescing.flush import Window
from mellea_like.coalescing.ticket import Ticket

NEVER, AT_ONCE = math.inf, -math.inf
WINDOW = Window(quiet=0.5, max_wait=2.0)


async def reply(messages: list[Any]) -> int:
    raise NotImplementedError


async def other(messages: list[Any]) -> int:
    raise NotImplementedError


def make(**rules: Any) -> Session[Any, int]:
    return Session("key", Rules(WINDOW, **rules))


def message(text: Any, *, run: Any = reply, deadline: float = NEVER) -> Submission[Any, int]:
    return Submission("key", text, run, Ticket(), math.nan, deadline)


def texts(submissions: Any) -> list[Any]:
    return [each.message for each in submissions]


def came(session: Session[Any, int], *arrivals: tuple[float, Any], run: Any = reply) -> None:
    for at, text in arrivals:
        assert session.admit(message(text, run=run), at) is Admission.ACCEPTED


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
    assert session.due() == session.alarm() == due
    assert session.phase is (ChatPhase.GATHERING if arrivals else ChatPhase.IDLE)


def test_what_gathered_runs_together_and_in_order():
    session = make()
    came(session, (0, "a"), (0.2, "b"), (0.4, "c"))
    assert texts(session.take()) == ["a", "b", "c"]
    assert session.phase is ChatPhase.RUNNING
    assert session.due() == session.alarm() == NEVER
    session.run_ended(cancelled=False)
    assert session.phase is ChatPhase.IDLE
    assert not session.window_over


def test_nothing_else_is_taken_while_a_run_is_active():
    session = make()
    came(session, (0, "a"))
    session.take()
    came(session, (1, "b"))
    assert session.due() == NEVER
    session.end_window()
    assert session.due() == NEVER
    with pytest.raises(ValueError, match="one thing at a time"):
        session.take()


def test_nothing_is_taken_where_nothing_waits():
    with pytest.raises(ValueError, match="only what waits"):
        make().take()


@pytest.mark.parametrize("cancelled", [False, True])
def test_what_came_during_a_run_goes_when_it_ends_without_another_window(cancelled):
    session = make()
    came(session, (0, "a"))
    session.take()
    came(session, (1, "b"), (1.1, "c"))
    session.run_ended(cancelled=cancelled)
    assert session.due() == AT_ONCE
    assert session.alarm() == NEVER, "it is in the line, not on the clock"
    assert texts(session.take()) == ["b", "c"]
    assert not session.window_over


def test_what_comes_while_a_follow_up_waits_for_its_turn_joins_it_and_puts_it_off_no_more():
    session = make()
    came(session, (0, "a"))
    session.take()
    came(session, (1, "b"))
    session.run_ended(cancelled=False)
    came(session, (1.2, "c"))
    assert session.due() == AT_ONCE
    assert texts(session.take()) == ["b", "c"]


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


def test_methods_of_one_object_are_one_run_function():
    class Bot:
        async def reply(self, messages: list[Any]) -> int:
            raise NotImplementedError

    one, two = Bot(), Bot()
    session = make()
    came(session, (0, "a"), run=one.reply)
    came(session, (0, "b"), run=one.reply)
    came(session, (0, "c"), run=two.reply)
    assert texts(session.take()) == ["a", "b"]

    session = make(on_busy="interrupt")
    came(session, (0, "a"), run=one.reply)
    session.take()
    assert session.admit(message("b", run=two.reply), 1) is Admission.ACCEPTED
    session.pending.clear()
    assert session.admit(message("b", run=one.reply), 1) is Admission.INTERRUPTS


# --- room and policies ------------------------------------------------------------------------


def test_no_more_messages_wait_than_may():
    session = make(max_pending=2)
    came(session, (0, "a"), (0, "b"))
    assert session.admit(message("c"), 0) is Admission.FULL
    session.take()
    came(session, (1, "d"), (1, "e"))
    assert session.admit(message("f"), 1) is Admission.FULL
    assert texts(session.pending) == ["d", "e"]


@pytest.mark.parametrize(
    ("on_busy", "admission", "phase"),
    [
        ("queue", Admission.ACCEPTED, ChatPhase.RUNNING),
        ("interrupt", Admission.INTERRUPTS, ChatPhase.STOPPING),
        ("reject", Admission.BUSY, ChatPhase.RUNNING),
    ],
)
def test_the_policy_says_what_a_message_does_during_a_run(on_busy, admission, phase):
    session = make(on_busy=on_busy)
    came(session, (0, "a"), (0.1, "b"))
    session.take()
    assert session.admit(message("c"), 1) is admission
    assert session.phase is phase


def test_an_interrupted_run_gathers_again_with_what_interrupted_it():
    session = make(on_busy="interrupt")
    came(session, (10, "a"))
    session.take()
    assert session.admit(message("b"), 10.75) is Admission.INTERRUPTS
    came(session, (11, "c"))  # It has not ended yet.
    session.run_ended(cancelled=True)
    assert session.due() == 11.5
    assert texts(session.pending) == ["a", "b", "c"]


def test_interruptions_keep_a_message_from_its_answer_for_max_wait_at_most():
    session = make(on_busy="interrupt")
    came(session, (10, "a"))
    for at in (10.6, 11.2, 11.8):
        session.take()
        assert session.admit(message(at), at) is Admission.INTERRUPTS
        session.run_ended(cancelled=True)
    assert session.due() == 12.0
    assert texts(session.take()) == ["a", 10.6, 11.2, 11.8]
    assert session.admit(message("late"), 12.0) is Admission.ACCEPTED
    assert session.phase is ChatPhase.RUNNING


def test_only_what_would_have_joined_the_run_interrupts_it():
    session = make(on_busy="interrupt")
    came(session, (10, "a"))
    session.take()
    assert session.admit(message("b", run=other), 10.6) is Admission.ACCEPTED
    assert session.admit(message("c"), 10.7) is Admission.ACCEPTED, "b goes first"
    session.run_ended(cancelled=False)
    assert session.due() == AT_ONCE
    assert texts(session.take()) == ["b"]


def test_what_is_interrupted_keeps_its_room():
    session = make(on_busy="interrupt", max_pending=2)
    came(session, (10, "a"))
    session.take()
    assert session.admit(message("b"), 10.6) is Admission.INTERRUPTS
    assert session.admit(message("c"), 10.7) is Admission.FULL
    session.run_ended(cancelled=True)
    session.take()
    assert session.admit(message("c"), 10.8) is Admission.ACCEPTED, "there is no room to go back"
    assert session.phase is ChatPhase.RUNNING


def test_a_run_that_was_to_be_interrupted_and_came_to_its_end_is_not_repeated():
    session = make(on_busy="interrupt")
    came(session, (10, "a"))
    session.take()
    session.admit(message("b"), 10.6)
    session.run_ended(cancelled=False)
    assert session.due() == AT_ONCE
    assert texts(session.pending) == ["b"]


def test_who_is_settled_during_an_interrupted_run_does_not_come_back():
    session = make(on_busy="interrupt")
    came(session, (10, "a"), (10, "b"))
    taken = session.take()
    session.admit(message("c"), 10.6)
    taken[0].ticket.fail(TimeoutError())
    session.run_ended(cancelled=True)
    assert texts(session.pending) == ["b", "c"]


# --- stops ------------------------------------------------------------------------------------


def test_a_stop_in_the_window_leaves_nothing_to_run():
    session = make()
    came(session, (0, "a"), (0, "b"))
    stopping = session.stop(0.2)
    assert (texts(stopping.running), texts(stopping.discarded)) == ([], ["a", "b"])
    assert session.phase is ChatPhase.IDLE
    assert session.due() == NEVER


def test_a_stop_while_it_waits_for_its_turn_leaves_nothing_to_run():
    session = make()
    came(session, (0, "a"))
    session.end_window()
    session.stop(0.2)
    assert session.due() == NEVER
    came(session, (1, "b"))
    assert session.due() == 1.5


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_stop_during_a_run_gives_it_up_and_discards_what_waits(cancelled):
    session = make(stop_grace=3.0)
    came(session, (0, "a"))
    session.take()
    came(session, (1, "b"))
    stopping = session.stop(2)
    assert (texts(stopping.running), texts(stopping.discarded)) == (["a"], ["b"])
    assert session.phase is ChatPhase.STOPPING
    assert session.alarm() == 5.0
    session.run_ended(cancelled=cancelled)
    assert session.phase is ChatPhase.IDLE


@pytest.mark.parametrize("on_busy", ["queue", "interrupt", "reject"])
def test_what_comes_after_a_stop_starts_afresh(on_busy):
    session = make(on_busy=on_busy)
    came(session, (0, "a"))
    session.take()
    session.stop(2)
    came(session, (2.1, "b"), (2.2, "c"))
    assert session.due() == NEVER, "the run has not ended"
    session.run_ended(cancelled=True)
    assert session.due() == pytest.approx(2.7), "with a window of its own"
    assert texts(session.take()) == ["b", "c"]


def test_a_stop_of_an_interrupted_run_lets_nothing_come_back():
    session = make(on_busy="interrupt", stop_grace=3.0)
    came(session, (10, "a"))
    session.take()
    session.admit(message("b"), 10.6)
    assert texts(session.stop(11).discarded) == ["b"]
    assert session.alarm() == 13.6, "the run's grace has begun before"
    session.run_ended(cancelled=True)
    assert session.phase is ChatPhase.IDLE


def test_a_second_stop_gives_the_run_no_more_time():
    session = make(stop_grace=3.0)
    came(session, (0, "a"))
    session.take()
    session.stop(2)
    session.stop(4)
    assert session.alarm() == 5.0


def test_a_run_that_does_not_end_in_its_grace_makes_the_session_stuck_until_it_does():
    session = make(stop_grace=3.0)
    came(session, (0, "a"))
    session.take()
    session.stop(2)
    came(session, (3, "b"))
    assert session.check_stuck(4.99) is None
    assert texts(session.check_stuck(5) or ()) == ["b"]
    assert session.phase is ChatPhase.STUCK
    assert session.check_stuck(6) is None, "it says so once"
    assert session.admit(message("c"), 6) is Admission.STUCK
    assert session.alarm() == NEVER
    assert texts(session.stop(7).discarded) == []
    session.run_ended(cancelled=True)
    assert session.phase is ChatPhase.IDLE
    came(session, (9, "d"))
    assert session.due() == 9.5


def test_a_run_that_is_not_cancelled_is_never_stuck():
    session = make()
    came(session, (0, "a"))
    session.take()
    assert session.check_stuck(1e9) is None


# --- deadlines, and those who leave -----------------------------------------------------------


def test_what_has_expired_does_not_run():
    session = make()
    session.admit(message("a", deadline=0.3), 0)
    session.admit(message("b", deadline=5), 0)
    session.admit(message("c"), 0)
    assert session.alarm() == 0.3
    assert texts(session.expire(0.29)) == []
    assert texts(session.expire(0.3)) == ["a"]
    assert texts(session.pending) == ["b", "c"]
    assert session.alarm() == 0.5


def test_what_expires_while_it_runs_is_found_once_and_runs_on():
    session = make()
    session.admit(message("a", deadline=3), 0)
    session.take()
    assert session.alarm() == 3
    assert texts(session.expire(3)) == ["a"]
    assert texts(session.expire(3)) == []
    assert session.alarm() == NEVER
    assert session.phase is ChatPhase.RUNNING


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
        session.expire(2)
    else:
        assert session.withdraw(leaving)
    assert session.phase is ChatPhase.IDLE
    came(session, (3, "c"))
    assert session.due() == 3.5


def test_the_window_is_that_of_the_messages_that_are_left():
    session = make()
    first, last = message("a"), message("c")
    session.admit(first, 0)
    came(session, (0.4, "b"))
    session.admit(last, 0.8)
    assert session.withdraw(last)
    assert session.due() == 0.9
    assert not session.withdraw(last)
    assert texts(session.take()) == ["a", "b"]
    assert not session.withdraw(first), "a run has it"


def test_the_end_of_a_window_needs_something_to_run():
    session = make()
    session.end_window()
    assert not session.window_over
