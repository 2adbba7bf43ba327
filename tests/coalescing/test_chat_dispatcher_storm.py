"""Random arrivals, cancellations, failures, stops and closings against the promises S1 to S8."""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import anyio
import pytest
from ends import ENDS, EndedError, end
from hypothesis import event, given
from hypothesis import strategies as st

from examples import examples
from mellea_like.coalescing import ChatDispatcher, Ticket
from mellea_like.errors import CoalescingError, QueueFull, Refused, ShutdownError
from mellea_like.testing.virtual_clock import run_virtual

SLACK = 1e-6

pytestmark = pytest.mark.timeout(600)


class Failed(Exception):
    """The error that runs raise."""


@dataclass(frozen=True)
class Settings:
    quiet: float
    max_wait: float
    max_pending: int
    max_sessions: int
    concurrency: int | None
    on_busy: Literal["queue", "interrupt", "reject"]
    stop_grace: float


@dataclass(frozen=True)
class Message:
    """One message, and what its run does if it is the first in it."""

    number: int
    after: float
    key: str
    run: int
    waiter: float | None
    """Seconds after which its waiter is cancelled; None: there is none; inf: it waits for good."""
    deadline: float | None
    seconds: float
    cleanup: float
    ends: Literal["answer", "fail", "stubborn"]


@dataclass(frozen=True)
class Stop:
    after: float
    key: str


@dataclass
class Ran:
    key: str
    run: int
    start: float
    messages: list[Message]
    end: float = math.inf
    how: str = "cancelled"


@dataclass
class Story:
    """A record of the runs and of the messages' ends."""

    settings: Settings
    runs: list[Ran] = field(default_factory=list)
    tickets: dict[int, Ticket[Any]] = field(default_factory=dict)
    accepted_at: dict[int, float] = field(default_factory=dict)
    seen: list[tuple[int, Any]] = field(default_factory=list)
    closed_at: float = math.inf

    def function(self, number: int) -> Any:
        async def run(messages: list[Message]) -> Ran:
            ran = Ran(messages[0].key, number, anyio.current_time(), list(messages))
            active = [other for other in self.runs if other.end == math.inf]
            assert all(other.key != ran.key for other in active), "two runs in one session"
            assert len(active) < (self.settings.concurrency or math.inf), "too many runs"
            assert {(m.key, m.run) for m in messages} == {(ran.key, number)}
            sent = [self.tickets[m.number] for m in messages]
            assert not any(ticket.done for ticket in sent), "it was settled and is sent"
            self.runs.append(ran)
            first = messages[0]
            try:
                try:
                    await anyio.sleep(first.seconds)
                except anyio.get_cancelled_exc_class():
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(first.cleanup)
                    if first.ends != "stubborn":
                        raise
                if first.ends == "fail":
                    ran.how = "failed"
                    raise Failed(ran)
                ran.how = "answered"
                return ran
            finally:
                ran.end = anyio.current_time()

        return run


TIMES = st.sampled_from([0.0, 0.0, 0.05, 0.1, 0.1, 0.2, 0.5, 1.0, 3.0])
KEYS = st.sampled_from("aaabc")
SETTINGS = st.builds(
    Settings,
    quiet=st.sampled_from([0.0, 0.1, 0.2]),
    max_wait=st.sampled_from([0.0, 0.3, 1.0]),
    max_pending=st.sampled_from([1, 2, 5, 100]),
    max_sessions=st.sampled_from([1, 2, 10]),
    concurrency=st.sampled_from([None, None, 1, 2]),
    on_busy=st.sampled_from(["queue", "queue", "interrupt", "reject"]),
    stop_grace=st.sampled_from([0.0, 0.2, 5.0]),
)
MESSAGE = st.builds(
    Message,
    number=st.just(0),
    after=TIMES,
    key=KEYS,
    run=st.sampled_from([0, 0, 0, 1]),
    waiter=st.sampled_from([None, None, math.inf, 0.0, 0.05, 0.2, 1.0]),
    deadline=st.sampled_from([None, None, None, 0.0, 0.1, 0.5, 2.0]),
    seconds=TIMES,
    cleanup=st.sampled_from([0.0, 0.0, 0.0, 0.1, 0.5, 9.0]),
    ends=st.sampled_from(["answer", "answer", "fail", "stubborn"]),
)
EVENTS = st.lists(
    st.one_of(MESSAGE, MESSAGE, MESSAGE, st.builds(Stop, TIMES, KEYS)), min_size=2, max_size=14
)
CLOSINGS = st.tuples(st.sampled_from(ENDS), TIMES, TIMES)


class Play:
    """One run of the story: callers that come, wait, leave and stop, and the end."""

    def __init__(self, rules: Settings) -> None:
        self.story = Story(rules)
        self.functions = [self.story.function(number) for number in range(2)]
        self.dispatcher: ChatDispatcher[Message, Ran] = ChatDispatcher(
            self.functions[0], **vars(rules)
        )

    async def run(self, events: list[Message | Stop], closing: Any) -> None:
        """Play it; at its end everything must be settled."""
        way = closing[0]
        async with anyio.create_task_group() as callers:
            with anyio.CancelScope() as scope, suppress(EndedError):
                async with self.dispatcher:
                    await self.arrive(callers, events)
                    await anyio.sleep(closing[1])
                    self.story.closed_at = anyio.current_time()
                    await end(self.dispatcher, way, scope, closing[2])
            self.check_settled()

    async def arrive(self, callers: Any, events: list[Message | Stop]) -> None:
        for number, action in enumerate(events):
            await anyio.sleep(action.after)
            if isinstance(action, Stop):
                callers.start_soon(self.dispatcher.stop, action.key)
            else:
                callers.start_soon(self.enter, replace(action, number=number))

    async def enter(self, message: Message) -> None:
        arguments: Any = {"run": self.functions[message.run]}
        if message.deadline is not None:
            arguments["deadline"] = anyio.current_time() + message.deadline
        with suppress(QueueFull, Refused, ShutdownError):
            ticket = self.dispatcher.submit(message.key, message, **arguments)
            await self.accepted(message, ticket)

    async def accepted(self, message: Message, ticket: Ticket[Ran]) -> None:
        self.story.tickets[message.number] = ticket
        self.story.accepted_at[message.number] = anyio.current_time()
        figures, rules = self.dispatcher.statistics(), self.story.settings
        assert figures.sessions <= rules.max_sessions
        assert figures.pending <= rules.max_pending * rules.max_sessions
        if message.waiter is not None:
            with anyio.move_on_after(message.waiter):
                try:
                    self.story.seen.append((message.number, await ticket))
                except (CoalescingError, Failed) as exc:
                    self.story.seen.append((message.number, exc))

    def check_settled(self) -> None:
        """When the block has been left, nothing runs or waits, and nobody was forgotten."""
        figures = self.dispatcher.statistics()
        assert (figures.sessions, figures.pending, figures.running) == (0, 0, 0)
        assert figures.accepted == figures.answered + figures.failed + figures.dropped
        assert all(ran.end < math.inf for ran in self.story.runs), "a run goes on"
        assert all(ticket.done for ticket in self.story.tickets.values()), "S1: one is not settled"


def check(story: Story) -> None:
    """Hold what happened against the promises."""
    over = [ran for ran in story.runs if ran.how != "cancelled"]
    answers = {m.number: ran for ran in over for m in ran.messages}
    assert len(answers) == sum(len(ran.messages) for ran in over), "a message was answered twice"
    for number, result in story.seen:
        if isinstance(result, Ran):
            assert answers[number] is result
            assert result.how == "answered"
        elif isinstance(result, Failed):
            assert result.args == (answers[number],)
    if story.settings.on_busy != "interrupt":
        sent = [m.number for ran in story.runs for m in ran.messages]
        assert len(sent) == len(set(sent)), "a message was sent twice"
    for key in {ran.key for ran in story.runs}:
        before = -math.inf
        for ran in story.runs:
            if ran.key == key:
                check_start(story, ran, before)
                before = ran.end
        came = [m.number for ran in over if ran.key == key for m in ran.messages]
        at = [story.accepted_at[number] for number in came]
        assert at == sorted(at), "their order is lost"


def check_start(story: Story, ran: Ran, before: float) -> None:
    """Hold the time of a run against its window, and S6 and S8 against it."""
    rules = story.settings
    numbers = [m.number for m in ran.messages]
    accepted = [story.accepted_at[number] for number in numbers]
    first = accepted[0]
    # A message that comes at the very instant when a window is due may join it.
    last = max((at for at in accepted if at < ran.start - SLACK), default=accepted[-1])
    due = min(last + rules.quiet, first + rules.max_wait)
    follows = ran.start == before
    closing = ran.start >= story.closed_at
    assert ran.start >= due - SLACK or follows or closing or rules.concurrency, "it came too early"
    if rules.concurrency is None:
        cap = max(first + rules.max_wait, before)
        assert ran.start <= cap + SLACK, "S6: it came too late"
    for m in ran.messages:
        if m.deadline is not None:
            assert ran.start <= story.accepted_at[m.number] + m.deadline, "S8: it had expired"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(rules=SETTINGS, events=EVENTS, closing=CLOSINGS)
@examples(25, 500)
def test_whatever_happens_the_promises_hold(backend, rules, events, closing):
    logging.getLogger("mellea_like").setLevel(logging.CRITICAL)
    played = Play(rules)
    try:
        run_virtual(lambda: played.run(events, closing), backend=backend)
    finally:
        logging.getLogger("mellea_like").setLevel(logging.NOTSET)
    figures = played.dispatcher.statistics()
    event(f"{closing[0]}, {rules.on_busy}")
    event(f"runs: {min(figures.runs, 5)}, dropped: {min(figures.dropped, 3)}")
    check(played.story)
