"""Whose turn is next: the queue as a data structure."""

from __future__ import annotations

import sys
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limiter_kit import ask

from mellea_like.limits.fair_queue import SLACK, FairQueue, QueuedPermit


class Named(QueuedPermit):
    def __init__(self, name, *about):
        super().__init__(ask(*about), FairQueue(), lambda permit, end: None)
        self.meta = self.request.meta
        self.name = name


def drain(queue, *, admit=True):
    """Take everybody out in order; keep them in flight, or have each end at once."""
    names = []
    while (head := queue.head()) is not None:
        names.append(head.name)
        queue.admit(head)
        if not admit:
            queue.leave(head)
    return names


def queue_of(*entries):
    queue = FairQueue()
    for entry in entries:
        queue.join(entry, 0.0)
    return queue


# Each request is its call, its subsample and when the call started; one in capitals is a judge's.
@pytest.mark.parametrize(
    ("waiting", "order"),
    [
        pytest.param("", "", id="nobody"),
        pytest.param("a0@1 a1@1 b0@2 b1@2", "a0 b0 a1 b1", id="each call's first before a second"),
        pytest.param("b0@2 a0@1", "a0 b0", id="the call that started first, whoever came first"),
        pytest.param("a3@1 a1@1 a2@1", "a3 a1 a2", id="in a call, the order of arrival"),
        pytest.param("b0@1 a0@1", "b0 a0", id="calls of one moment: the order of arrival"),
        pytest.param("x-@ y-@ a0@-1", "a0 x- y-", id="outside a call: as calls that start then"),
        pytest.param("a0@1 Z0@9 B1@5 B0@5", "Z0 B1 B0 a0", id="judges go before all others"),
    ],
)
def test_the_order(waiting, order):
    queue = FairQueue()
    for name, _, started in (each.partition("@") for each in waiting.split()):
        call = (name[0].lower(), int(name[1]), float(started)) if started else ("", None, None)
        purpose = "judge" if name[0].isupper() else "generate"
        queue.join(Named(name, *call, purpose), 0.0)
    assert drain(queue) == order.split()


def test_dead_entries_do_not_pile_up():
    queue = queue_of(*(Named(f"a{n}", "a", n, 1.0) for n in range(4)))
    queue.join(first := Named("b", "b", 0, 0.0), 0.0)
    for _ in range(1000):  # The same call is ranked again and again, never at the head.
        queue.leave(first)
        queue.join(first := Named("b", "b", 0, 9.0), 0.0)
        queue.admit(first)
        queue.leave(first)
        queue.join(first := Named("b", "b", 0, 9.0), 0.0)
    assert len(queue._ready) <= 2 * queue.waiting + SLACK


# --- against the rule in its plainest form --------------------------------------------------------


class PlainQueue:
    """The same rule, sorted again each time."""

    def __init__(self):
        self.entries = []
        self.calls = {}  # key: [started, order, in flight]
        self.arrivals = 0

    def key(self, entry):
        return entry.meta.sampling_id or id(entry)

    def join(self, entry, now):
        self.arrivals += 1
        entry.number = self.arrivals
        started = now if entry.meta.call_started is None else entry.meta.call_started
        self.calls.setdefault(self.key(entry), [started, self.arrivals, 0])
        self.entries.append(entry)

    def rank(self, entry):
        started, order, in_flight = self.calls[self.key(entry)]
        judge = entry.meta.purpose == "judge"
        place = (0,) if judge else (in_flight, started, order)
        return (not judge, *place, entry.number)

    def head(self):
        return min((p for p in self.entries if p.waiting), key=self.rank, default=None)

    def count(self, entry, by):
        self.calls[self.key(entry)][2] += by

    def forget(self, entry):
        self.entries.remove(entry)
        if not any(self.key(p) == self.key(entry) for p in self.entries):
            del self.calls[self.key(entry)]


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
    queue, plain = FairQueue(), PlainQueue()
    for now, (what, *args) in enumerate(steps):
        if what == "join":
            call, subsample, purpose = args
            entry = Named("x", call, subsample, STARTED[call], purpose)
            plain.join(entry, float(now))
            queue.join(entry, float(now))
        elif what == "admit" and (head := queue.head()) is not None:
            queue.admit(head)
            plain.count(head, +1)
        elif what == "leave" and plain.entries:
            entry = plain.entries[args[0] % len(plain.entries)]
            plain.count(entry, -entry.in_flight)
            queue.leave(entry)
            plain.forget(entry)
        assert queue.head() is plain.head()
        assert queue.waiting == sum(map(attrgetter("waiting"), plain.entries))
        assert queue.in_flight == sum(map(attrgetter("in_flight"), plain.entries))
        assert set(queue._calls) == {key for key in plain.calls if isinstance(key, str)}


# --- how it grows ---------------------------------------------------------------------------------


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
    monkeypatch.setattr(QueuedPermit, "__eq__", lambda self, other: self is other, raising=False)

    def steps(calls):
        starts = [Start(n) for n in range(calls)]
        entries = [Named("x", f"call {n}", k, starts[n]) for n in range(calls) for k in range(4)]

        def work():
            queue = queue_of(*entries)
            while (head := queue.head()) is not None:
                queue.admit(head)
                if queue.in_flight > 50:
                    queue.leave(head)
            for entry in entries:
                queue.leave(entry)

        return steps_of(work)

    assert steps(1000) < 20 * steps(100)  # n log n is 14, n squared would be 100.


# --- replies that are being checked ------------------------------------------------------------


def answered(until=2.0):
    """Two calls; the first one's first subsample has just been answered."""
    entries = {n: Named(n, n[0], int(n[1]), float(n[0] == "b")) for n in ("a0", "a1", "b0", "b1")}
    queue = queue_of(*entries.values())
    queue.admit(entries["a0"])
    queue.leave(entries["a0"], until)
    return queue, entries


@pytest.mark.parametrize(
    ("then", "order"),
    [
        pytest.param([], ["b0", "a1", "b1"], id="its call comes after one that has no reply"),
        pytest.param(["a0"], ["a1", "b0", "a0", "b1"], id="its subsample asks again"),
        pytest.param(["a2"], ["b0", "a1", "b1", "a2"], id="another one's request ends no check"),
        pytest.param([1.999], ["b0", "a1", "b1"], id="the check takes its time"),
        pytest.param([2.0], ["a1", "b0", "b1"], id="the check takes too long"),
    ],
)
def test_the_order_while_a_reply_is_being_checked(then, order):
    queue, _ = answered(until=2.0)
    for step in then:
        if isinstance(step, str):
            queue.join(Named(step, step[0], int(step[1]), 0.0), 0.0)
        else:
            queue.expire(step)
    assert drain(queue) == order


def test_a_later_reply_of_the_same_subsample_counts_anew():
    queue, _ = answered(until=2.0)
    again = Named("again", "a", 0, 0.0)
    queue.join(again, 0.0)
    queue.admit(again)
    queue.leave(again, 3.0)
    queue.expire(2.0)
    assert queue.head().name == "b0"
    queue.expire(3.0)
    assert queue.head().name == "a1"


def test_a_reply_without_a_verdict_to_come_counts_at_once():
    queue, entries = answered()
    queue.admit(entries["b0"])
    queue.leave(entries["b0"])
    assert drain(queue) == ["b1", "a1"]


def test_an_empty_line_keeps_nothing_of_those_who_were_in_it():
    queue, _ = answered(until=1000.0)
    drain(queue, admit=False)
    assert not queue._undecided
    assert not queue._calls
