"""Whose turn is next: the line as a data structure."""

from __future__ import annotations

import sys
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limiter_kit import meta

from mellea_like.limits.fair_queue import SLACK, Entry, FairQueue, _HeapItem


class Named(Entry):
    def __init__(self, name, *args, **kwargs):
        super().__init__(meta(*args, **kwargs))
        self.name = name


def drain(line, *, admit=True):
    """Take everybody out in order; keep them in flight, or have each end at once."""
    names = []
    while (head := line.head()) is not None:
        names.append(head.name)
        line.admit(head)
        if not admit:
            line.leave(head)
    return names


def line_of(*places):
    line = FairQueue()
    for place in places:
        line.join(place, 0.0)
    return line


@pytest.mark.parametrize(
    ("places", "order"),
    [
        pytest.param([], [], id="nobody"),
        pytest.param(
            [("a0", "a", 0, 1.0), ("a1", "a", 1, 1.0), ("b0", "b", 0, 2.0), ("b1", "b", 1, 2.0)],
            ["a0", "b0", "a1", "b1"],
            id="the first of each call goes before anyone's second",
        ),
        pytest.param(
            [("b0", "b", 0, 2.0), ("a0", "a", 0, 1.0)],
            ["a0", "b0"],
            id="the call that started first goes first, whoever arrived first",
        ),
        pytest.param(
            [("a3", "a", 3, 1.0), ("a1", "a", 1, 1.0), ("a2", "a", 2, 1.0)],
            ["a1", "a2", "a3"],
            id="in a call, the lower subsample",
        ),
        pytest.param(
            [("first", "a", 0, 1.0), ("second", "a", 0, 1.0)],
            ["first", "second"],
            id="the same subsample twice: the order of arrival",
        ),
        pytest.param(
            [("b", "b", 0, 1.0), ("a", "a", 0, 1.0)],
            ["b", "a"],
            id="calls that started in one moment: the order of arrival",
        ),
        pytest.param(
            [("x", "", None, None), ("y", "", None, None), ("a", "a", 0, -1.0)],
            ["a", "x", "y"],
            id="requests outside a call are calls of their own that start when they come",
        ),
        pytest.param(
            [
                ("a0", "a", 0, 1.0),
                ("late judge", "z", 0, 9.0, "judge"),
                ("judge", "b", 1, 5.0, "judge"),
                ("first judge", "b", 0, 5.0, "judge"),
            ],
            ["first judge", "judge", "late judge", "a0"],
            id="judges go before all others",
        ),
    ],
)
def test_the_order(places, order):
    assert drain(line_of(*(Named(*place) for place in places))) == order


def test_a_judge_in_flight_counts_as_its_calls_request():
    judge, a0 = Named("judge", "a", 0, 1.0, "judge"), Named("a0", "a", 1, 1.0)
    line = line_of(judge, a0, Named("b0", "b", 0, 2.0))
    line.admit(judge)
    assert line.head().name == "b0"
    line.leave(judge)
    assert line.head() is a0


def test_a_call_moves_up_when_its_request_ends():
    a0, a1, b0, b1 = places = [
        Named("a0", "a", 0, 1.0),
        Named("a1", "a", 1, 1.0),
        Named("b0", "b", 0, 2.0),
        Named("b1", "b", 1, 2.0),
    ]
    line = line_of(*places)
    line.admit(a0)
    line.admit(b0)
    assert line.head() is a1
    line.leave(b0)
    assert line.head() is b1


def test_who_leaves_while_waiting_is_passed_over():
    places = [Named(f"a{n}", "a", n, 1.0) for n in range(4)]
    line = line_of(*places, Named("judge", "a", 0, 1.0, "judge"))
    line.leave(line.head())
    line.leave(places[0])
    line.leave(places[2])
    assert (line.waiting, line.in_flight) == (2, 0)
    assert drain(line) == ["a1", "a3"]


def test_leaving_twice_does_nothing():
    waiting, going = Named("a", "a", 0, 1.0), Named("b", "b", 0, 1.0)
    line = line_of(waiting, going)
    line.admit(going)
    for _ in range(2):
        line.leave(waiting)
        line.leave(going)
    assert (line.waiting, line.in_flight) == (0, 0)


def test_only_who_waits_is_admitted():
    line = line_of(place := Named("a", "a", 0, 1.0))
    line.admit(place)
    with pytest.raises(ValueError, match="waits"):
        line.admit(place)
    line.leave(place)
    with pytest.raises(ValueError, match="waits"):
        line.admit(place)


def test_nothing_is_kept_of_calls_that_are_over():
    line = FairQueue()
    for number in range(1000):
        places = [Named("x", f"call {number}", n, 1.0) for n in range(4)]
        for place in places:
            line.join(place, 0.0)
        line.admit(places[0])
        for place in places:
            line.leave(place)
    assert not line._calls
    assert len(line._ready._entries) <= SLACK
    assert line.head() is None


def test_dead_entries_do_not_pile_up():
    line = line_of(*(Named(f"a{n}", "a", n, 1.0) for n in range(10_000)))
    line.join(first := Named("b", "b", 0, 0.0), 0.0)
    for _ in range(1000):  # The same call is ranked again and again, never at the head.
        line.leave(first)
        line.join(first := Named("b", "b", 0, 9.0), 0.0)
        line.admit(first)
        line.leave(first)
        line.join(first := Named("b", "b", 0, 9.0), 0.0)
    assert len(line._ready._entries) <= 2 * 2 + SLACK


# --- against the rule in its plainest form --------------------------------------------------------


class PlainLine:
    """The same rule, sorted anew each time."""

    def __init__(self):
        self.places = []
        self.calls = {}  # key: [started, order, in flight]
        self.arrivals = 0

    def key(self, place):
        return place.meta.sampling_id or id(place)

    def join(self, place, now):
        self.arrivals += 1
        place.number = self.arrivals
        started = now if place.meta.call_started is None else place.meta.call_started
        self.calls.setdefault(self.key(place), [started, self.arrivals, 0])
        self.places.append(place)

    def rank(self, place):
        started, order, in_flight = self.calls[self.key(place)]
        judge = place.meta.purpose == "judge"
        busy = 0 if judge else in_flight
        return (not judge, busy, started, order, place.meta.subsample or 0, place.number)

    def head(self):
        return min((p for p in self.places if p.waiting), key=self.rank, default=None)

    def count(self, place, by):
        self.calls[self.key(place)][2] += by

    def forget(self, place):
        self.places.remove(place)
        if not any(self.key(p) == self.key(place) for p in self.places):
            del self.calls[self.key(place)]


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("join"),
            st.sampled_from(["", "a", "b", "c"]),
            st.integers(0, 3),
            st.sampled_from(["generate", "generate", "judge"]),
        ),
        st.tuples(st.just("admit")),
        st.tuples(st.just("leave"), st.integers(0, 100)),
    ),
    max_size=120,
)
STARTED = {"": None, "a": 3.0, "b": 1.0, "c": 3.0}


@given(steps)
def test_it_does_what_sorting_anew_would_do(steps):
    line, plain = FairQueue(), PlainLine()
    for now, (what, *args) in enumerate(steps):
        if what == "join":
            call, subsample, purpose = args
            place = Named("x", call, subsample, STARTED[call], purpose)
            plain.join(place, float(now))
            line.join(place, float(now))
        elif what == "admit" and (head := line.head()) is not None:
            line.admit(head)
            plain.count(head, +1)
        elif what == "leave" and plain.places:
            place = plain.places[args[0] % len(plain.places)]
            plain.count(place, -place.in_flight)
            line.leave(place)
            plain.forget(place)
        assert line.head() is plain.head()
        assert line.waiting == sum(map(attrgetter("waiting"), plain.places))
        assert line.in_flight == sum(map(attrgetter("in_flight"), plain.places))
        assert set(line._calls) == {key for key in plain.calls if isinstance(key, str)}


class Start(float):
    """A time whose comparisons can be counted."""

    def __lt__(self, other):
        return float(self) < float(other)

    def __eq__(self, other):
        return float(self) == float(other)

    __hash__ = float.__hash__


def steps_of(work):
    """Count the instructions that Python executes, instead of the time that they take."""
    steps = 0

    def trace(frame, event, arg):
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps


def test_ten_times_as_many_calls_take_about_ten_times_the_steps(monkeypatch):
    # A search through a list compares in C; so that it counts, Python compares.
    monkeypatch.setattr(_HeapItem, "__eq__", lambda self, other: self is other)

    def steps(calls):
        starts = [Start(n) for n in range(calls)]
        places = [Named("x", f"call {n}", k, starts[n]) for n in range(calls) for k in range(4)]

        def work():
            line = line_of(*places)
            while (head := line.head()) is not None:
                line.admit(head)
                if line.in_flight > 50:
                    line.leave(head)
            for place in places:
                line.leave(place)

        return steps_of(work)

    assert steps(1000) < 20 * steps(100)  # n log n is 14, n squared would be 100.


# --- replies that are being checked ------------------------------------------------------------


def answered(until=2.0):
    """Two calls; the first one's first subsample has just been answered."""
    places = {n: Named(n, n[0], int(n[1]), float(n[0] == "b")) for n in ("a0", "a1", "b0", "b1")}
    line = line_of(*places.values())
    line.admit(places["a0"])
    line.leave(places["a0"], until)
    return line, places


def test_a_call_whose_reply_is_being_checked_comes_after_one_that_has_none():
    line, _ = answered()
    assert drain(line) == ["b0", "a1", "b1"]


def test_its_turn_is_back_when_the_subsample_asks_again():
    line, _ = answered()
    line.join(Named("again", "a", 0, 0.0), 0.0)
    assert drain(line) == ["again", "b0", "a1", "b1"]


def test_another_subsamples_request_does_not_say_that_the_check_is_over():
    line, _ = answered()
    line.join(Named("a2", "a", 2, 0.0), 0.0)
    assert drain(line)[0] == "b0"


def test_its_turn_is_back_when_the_check_takes_too_long():
    line, _ = answered(until=2.0)
    line.expire(1.999)
    assert line.head().name == "b0"
    line.expire(2.0)
    assert drain(line) == ["a1", "b0", "b1"]


def test_a_later_reply_of_the_same_subsample_counts_anew():
    line, _ = answered(until=2.0)
    again = Named("again", "a", 0, 0.0)
    line.join(again, 0.0)
    line.admit(again)
    line.leave(again, 3.0)
    line.expire(2.0)
    assert line.head().name == "b0"
    line.expire(3.0)
    assert line.head().name == "a1"


def test_a_reply_without_a_verdict_to_come_counts_at_once():
    line, places = answered()
    line.admit(places["b0"])
    line.leave(places["b0"])
    assert drain(line) == ["b1", "a1"]


def test_an_empty_line_keeps_nothing_of_those_who_were_in_it():
    line, _ = answered(until=1000.0)
    drain(line, admit=False)
    assert not line._undecided
    assert not line._calls
