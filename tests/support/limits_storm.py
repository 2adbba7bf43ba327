"""What the storms against limits and schedules share: a backend that is shared, and a mad schedule.

`Shared` answers the requests of several calls as a list of `Lot`s says, one after the other, and
keeps of each what was sent when; `Mad` is a schedule that answers whatever its script says.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.lowlevel import checkpoint
from hypothesis import strategies as st
from oracle_world import Foreign

from mellea_like.core.backend import Request
from mellea_like.core.generation import Generation, RequestMeter, Usage
from mellea_like.core.slice import Slice
from mellea_like.core.token_estimate import estimate_input_tokens
from mellea_like.core.validation import Verdict
from mellea_like.errors import (
    AuthenticationFailed,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    MalformedResponse,
    RateLimited,
)
from mellea_like.schedules.base import BaseSchedule, CallFacts, CallProgress, Go, SchedulePlan

MAX_TOKENS = 8
CAP = 30.0
"""The longest wait that a server may ask for."""

CALLER: ContextVar[int] = ContextVar("the storm's call")


@dataclass(frozen=True)
class Lot:
    """What happens to one request."""

    kind: str = "bad"
    delay: float = 1.0
    counted: bool = True
    """Whether the server says what it cost."""


@dataclass
class Sent:
    """One request that arrived."""

    caller: int
    iteration: int
    purpose: str
    retry: int
    at: float
    kind: str
    meter: RequestMeter
    estimated: int
    ended: float | None = None
    answered: bool = False
    """Whether its fault was told; not so where the request was closed before."""
    whole: bool = False
    """Whether its reply was handed over."""


@dataclass
class Shared:
    """A backend that several calls share; each request draws the next lot."""

    lots: Sequence[Lot]
    can_judge: bool = True
    model: str = "shared"
    sent: list[Sent] = field(default_factory=list)
    in_flight: int = 0
    max_in_flight: int = 0
    drawing: dict[int, int] = field(default_factory=dict)
    max_drawing: dict[int, int] = field(default_factory=dict)

    async def generate(self, request: Request) -> Generation:
        reply: Any = None
        async with self.stream(request) as pieces:
            async for piece in pieces:
                reply = piece
        assert isinstance(reply, Generation)
        return reply

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        lot = self.lots[len(self.sent) % len(self.lots)]
        meta = request.meta
        caller = CALLER.get()
        sent = Sent(
            caller,
            meta.iteration or 0,
            meta.purpose,
            meta.retry,
            anyio.current_time(),
            lot.kind,
            request.meter.start(),
            estimate_input_tokens(request),
        )
        self.sent.append(sent)
        drawing = meta.purpose == "generate"
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        self.drawing[caller] = self.drawing.get(caller, 0) + drawing
        self.max_drawing[caller] = max(self.max_drawing.get(caller, 0), self.drawing[caller])
        pieces = self._pieces(lot, sent)
        try:
            yield pieces
        finally:
            await pieces.aclose()
            self.in_flight -= 1
            self.drawing[caller] -= drawing
            sent.ended = anyio.current_time()

    async def _pieces(self, lot: Lot, sent: Sent) -> AsyncGenerator[str | Generation]:
        await (anyio.sleep(lot.delay / 2) if lot.delay else checkpoint())
        if lot.kind in FAULTS:
            fault: BackendError | Foreign = FAULTS[lot.kind]()
            sent.answered = True
            raise fault
        if sent.purpose == "judge":
            passed = "true" if lot.kind == "good" else "false"
            text = f'{{"passed": {passed}, "reason": "so it is"}}'
        else:
            text = f"{lot.kind} it is"
        sent.meter.update(input_tokens=2, output_tokens=1)
        yield text[:3]
        yield text[3:5]
        await (anyio.sleep(lot.delay / 2) if lot.delay else checkpoint())
        sent.meter.update(output_tokens=3)
        if lot.counted:
            sent.meter.settle(input_tokens=2, output_tokens=3)
        yield text[5:]
        sent.whole = True
        yield Generation(text, usage=Usage(1, 2, 3, 0 if lot.counted else 1))


FAULTS: dict[str, Any] = {
    "down": lambda: BackendUnavailable("try again"),
    "late": lambda: BackendTimeout("too late"),
    "refused": lambda: RateLimited("slowly", status=429),
    "told": lambda: RateLimited("slowly", status=429, retry_after=2.0),
    "told long": lambda: RateLimited("tomorrow", status=429, retry_after=10 * CAP),
    "unreadable": lambda: MalformedResponse("what is that"),
    "permanent": lambda: AuthenticationFailed("wrong key", status=401),
    "foreign": lambda: Foreign("no backend error"),
}
TRANSIENT = {"down", "late", "refused", "told"}


def no_rant(text: str, delta: str) -> Any:
    return (Verdict.FAIL, "it rants") if "rant" in text else Verdict.UNKNOWN


class FatalCheck(Exception):
    """What a stream check raises that must end the call."""


def raises_at_rant(text: str, delta: str) -> Any:
    if "rant" in text:
        raise FatalCheck
    return Verdict.UNKNOWN


class MadError(Exception):
    """What a mad schedule raises."""


@dataclass(slots=True)
class Mad(BaseSchedule):
    """A schedule that answers what its script says, over and over; some of it is no answer.

    A number in ``script`` is added to what would fill the width up.
    """

    script: Sequence[tuple[Any, Any]]
    pooled: bool = field()
    extra: int = field()
    raises_at: int | None = None
    seconds: float | None = None
    timing_dependent: bool = True
    raised: int = 0

    def begin(self, facts: CallFacts) -> MadCourse:
        return MadCourse(self, facts)


MAD = st.builds(
    Mad,
    st.lists(
        st.tuples(
            st.sampled_from([-5, 0, 1, 1, 2, 10**9, 10**9]),
            st.sampled_from([None, None, -3.0, 0.0, 0.5, 7.0, 1000.0, math.inf, -math.inf]),
        ),
        min_size=1,
        max_size=6,
    ),
    pooled=st.booleans(),
    extra=st.sampled_from([0, 0, 1, 3]),
    raises_at=st.sampled_from([None, None, None, None, 1, 2, 5, -1, -2]),
    timing_dependent=st.booleans(),
)


class MadCourse(SchedulePlan):
    """A mad schedule at work; it holds what it is told of the call against what it knows itself."""

    def __init__(self, mad: Mad, facts: CallFacts) -> None:
        self.mad = mad
        self.facts = facts
        self.asked = 0
        self.failed = 0
        self.broken = 0
        self.observed = 0
        self.before: CallProgress | None = None
        self.more = 0
        self.due = math.inf

    def decide(self, progress: CallProgress) -> Go:
        self.check(progress)
        self.asked += 1
        if self.asked == self.mad.raises_at:
            self.mad.raised += 1
            raise MadError("decide")
        more, look_again = self.mad.script[self.asked % len(self.mad.script)]
        # Asked often enough it comes to reason, for a call is to end.
        if self.asked > 50:
            more, look_again = self.facts.concurrency_budget, None
        at = None if look_again is None else progress.now + look_again
        self.before, self.more = progress, more
        self.due = math.inf if at is None or at <= progress.now else at
        return Go(more, at)

    def check(self, progress: CallProgress) -> None:
        facts = self.facts
        total = facts.concurrency_budget * facts.loop_budget
        assert len(progress.running) <= facts.concurrency_budget + self.mad.extra
        assert progress.failed == self.failed
        if self.mad.timing_dependent:  # In an ordered call a chain may be cancelled by itself.
            assert progress.broken == self.broken
        assert progress.started - self.observed >= len(progress.running)
        assert progress.turns == total - progress.started
        assert all(0 <= began <= progress.now for began in progress.running)
        assert progress.opened >= progress.broken + progress.waiting
        assert progress.turns or progress.waiting <= 1, "chains wait for turns that are gone"
        if (before := self.before) is None:
            return
        idle = not before.running
        assert not (idle and self.more <= 0 and self.due == math.inf), "asked, but all was over"
        if idle and not before.waiting and not self.mad.pooled:
            assert before.opened < facts.concurrency_budget, "asked, but no chain may be opened"
        assert progress.now >= before.now
        assert progress.started - before.started <= max(0, self.more)
        fresh = progress.opened - before.opened
        assert fresh <= max(0, self.more - before.waiting), "a fresh chain came before one at work"
        under_way = len(before.running) + progress.started - before.started
        if progress.turns and under_way < min(total, facts.concurrency_budget + self.mad.extra):
            assert progress.now <= self.due + 1e-5, "it was not asked when it wanted to be"

    def observe(self, slice_: Slice) -> None:
        self.observed += 1
        self.failed += slice_.outcome == "failed"
        self.broken += slice_.outcome == "errored" and not slice_.may_continue
        if self.mad.raises_at == -self.observed:
            self.mad.raised += 1
            raise MadError("observe")
