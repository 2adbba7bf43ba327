"""Random stories of arrivals, cancellations, failures and closing: a coordinator keeps S1 to S8.

Hypothesis makes up stories and plays each in virtual time, on asyncio and on trio.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest
from ends import ENDS, EndedError, end
from hypothesis import given
from hypothesis import strategies as st
from joint_kit import ask, echo, entry, tasks_of, text_of
from trio._core import _run

from examples import examples
from mellea_like.coalescing import AuditRecord, SamplingCoordinator
from mellea_like.coalescing.coordinator.joint_prompt import BATCH_OVERHEAD, TASK_OVERHEAD
from mellea_like.core.backend import CURRENT, Request, current_iteration
from mellea_like.core.generation import Generation, Meter, Usage
from mellea_like.errors import BackendUnavailable, Expired, MissingAnswer, ShutdownError
from mellea_like.testing import run_virtual

pytestmark = pytest.mark.timeout(900)
storm = examples(25, 500)

# Eighths, which floats hold exactly.
seconds = st.integers(0, 40).map(lambda eighths: eighths / 8)

ROOM = BATCH_OVERHEAD + 3 * (10 + TASK_OVERHEAD)
"""Three requests of 10 tokens fit into one batch, or one of 150."""


@dataclass(frozen=True)
class Ask:
    """A request, whose caller may lose his patience."""

    at: float
    caller: str
    kind: str
    patience: float | None
    within: float | None


@dataclass(frozen=True)
class Turn:
    """The course of one call of the backend inside."""

    kind: str
    delay: float
    which: int


@dataclass(frozen=True)
class Story:
    asks: list[Ask]
    turns: list[Turn]
    options: dict[str, Any]
    end: str
    end_at: float


kinds = st.sampled_from(["plain", "plain", "plain", "warm", "long", "typed", "isolated", "other"])
turns = st.builds(
    Turn,
    st.sampled_from(
        ["all", "all", "lacks", "lacks", "forged", "cut", "error", "refusal", "foreign"]
    ),
    st.sampled_from([0.0, 0.0, 0.5, 3.0, 20.0]),
    st.integers(0, 6),
)


@st.composite
def stories(draw: st.DrawFn) -> Story:
    some = st.one_of(st.none(), seconds)
    asks = st.builds(Ask, seconds, st.sampled_from("abc"), kinds, some, some)
    return Story(
        asks=draw(st.lists(asks, max_size=16)),
        turns=draw(st.lists(turns, min_size=1, max_size=5)),
        options={
            "window": draw(st.sampled_from([0.0, 1.0, 2.5])),
            "idle": draw(st.sampled_from([None, None, 0.0, 0.5])),
            "max_batch": draw(st.sampled_from([1, 2, 4, 10])),
            "concurrency": draw(st.sampled_from([1, 2, 100])),
            "retry_missing": draw(st.booleans()),
        },
        end=draw(st.sampled_from(["leave", *ENDS])),
        end_at=draw(seconds),
    )


@dataclass
class Call:
    """One call of the backend inside."""

    request: Request
    texts: list[str]
    batch: int
    began: float
    ended: float = math.inf


@dataclass
class Told:
    """How a request came out."""

    ask: Ask
    request: Request
    asked: float = math.nan
    at: float = math.nan
    heard: list[Any] = field(default_factory=list)


@dataclass
class Play:
    """One story, played."""

    story: Story
    calls: list[Call] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    records: list[AuditRecord] = field(default_factory=list)
    in_flight: int = 0
    coordinator: Any = None
    closed_at: float = math.inf

    async def generate(self, request: Request) -> Generation:
        """Be the backend inside."""
        assert current_iteration() is None
        task, _, batch = (anyio.get_current_task().name or "").rpartition("-b")
        assert task.startswith("coordinator: batch ")
        tasks = tasks_of(request)
        texts = [text_of(task) for task in tasks] or [request.messages[-1].content]
        call = Call(request, texts, int(batch), anyio.current_time())
        turn = self.story.turns[len(self.calls) % len(self.story.turns)]
        self.calls.append(call)
        meter = request.meter.start()
        meter.update(input_tokens=7 * len(texts))
        self.in_flight += 1
        assert self.in_flight <= self.story.options["concurrency"]
        self.check_bounds()
        try:
            await anyio.sleep(turn.delay)
        finally:
            self.in_flight -= 1
            call.ended = anyio.current_time()
        if turn.kind == "error":
            raise BackendUnavailable("gone")
        if turn.kind == "foreign":
            raise LookupError("foreign")
        meter.settle(input_tokens=7 * len(texts), output_tokens=5 * len(texts))
        usage = meter.usage
        if turn.kind == "refusal":
            return Generation("I refuse", usage=usage, finish_reason="refusal")
        if not tasks:
            return Generation(texts[0].upper(), usage=usage)
        return Generation(reply(turn, tasks), usage=usage)

    def check_bounds(self) -> None:
        statistics = self.coordinator.statistics()
        assert statistics.in_flight <= self.story.options["concurrency"]

    def write(self, record: AuditRecord) -> None:
        self.records.append(record)
        self.check_bounds()

    async def one(self, told: Told) -> None:
        await anyio.sleep_until(told.ask.at)
        told.asked = anyio.current_time()
        CURRENT.set((told.request.meta, None))
        backend = self.coordinator.isolated if told.ask.kind == "isolated" else self.coordinator
        patience = math.inf if told.ask.patience is None else told.ask.patience
        with anyio.CancelScope(deadline=told.asked + patience):
            try:
                told.heard.append(await backend.generate(told.request))
            except Exception as error:  # noqa: BLE001 (whatever it is, it is noted)
                told.heard.append(error)
        if not told.heard:
            told.heard.append("left")
        told.at = anyio.current_time()

    async def run(self) -> None:
        self.coordinator = SamplingCoordinator(
            self, audit=self.write, max_joint_tokens=ROOM, **self.story.options
        )
        for number, each in enumerate(self.story.asks):
            self.told.append(Told(each, request_of(each, number)))
        async with anyio.create_task_group() as callers:
            with contextlib.suppress(EndedError), anyio.CancelScope() as scope:
                async with self.coordinator:
                    for told in self.told:
                        callers.start_soon(self.one, told)
                    await anyio.sleep_until(self.story.end_at)
                    self.closed_at = anyio.current_time()
                    await end(self.coordinator, self.story.end, scope)
                    assert self.story.end != "drain" or anyio.current_time() <= self.closed_at + 1
            assert self.in_flight == 0
            assert self.coordinator.statistics()[:2] == (0, 0)
        self.check()

    # --- what must hold ---------------------------------------------------------------------------

    def check(self) -> None:
        for told in self.told:
            self.check_one(told)
        for call in self.calls:
            self.check_call(call)
        self.check_records()
        self.check_order()
        spent = sum((call.request.meter.usage for call in self.calls), Usage())
        # A request that goes alone has its own meter; the parts of others are on theirs.
        assert sum((told.request.meter.usage for told in self.told), Usage()) == spent

    def check_one(self, told: Told) -> None:
        assert len(told.heard) == 1
        heard = told.heard[0]
        deadline = told.request.meta.deadline
        mine = [call for call in self.calls if told.request.messages[-1].content in call.texts]
        if isinstance(heard, Generation):
            own = told.request.messages[-1].content.upper()
            assert heard.text == own or heard.finish_reason == "refusal"
            assert heard.usage == told.request.meter.usage
        elif heard == "left":
            assert told.at == told.asked + (told.ask.patience or 0.0)
        else:
            allowed = (BackendUnavailable, LookupError, Expired, MissingAnswer, ShutdownError)
            assert isinstance(heard, allowed)
            assert not isinstance(heard, ShutdownError) or told.at >= self.closed_at
            assert not isinstance(heard, Expired) or (deadline is not None and told.at >= deadline)
        if told.asked > self.closed_at:
            assert isinstance(heard, ShutdownError) or heard == "left"
            assert told.at == told.asked
        for call in mine:
            assert deadline is None or call.began < deadline
        if not mine:
            assert told.request.meter.usage == Usage()
        self.check_wait(told, mine)

    def check_wait(self, told: Told, mine: list[Call]) -> None:
        """With room for all, nothing waits for longer than the window says."""
        options = self.story.options
        if options["concurrency"] < 100:
            return
        waited = (mine[0].began if mine else told.at) - told.asked
        assert waited <= options["window"]
        if told.ask.kind in {"typed", "isolated", "long"}:
            assert waited == 0

    def check_call(self, call: Call) -> None:
        members = [t for t in self.told if t.request.messages[-1].content in call.texts]
        assert len(members) == len(call.texts) <= self.story.options["max_batch"]
        assert len({member.ask.kind for member in members}) == 1
        first = not call.request.meta.retry
        if len(members) == 1:
            assert not tasks_of(call.request)
            assert not first or call.request is members[0].request
        else:
            assert members[0].ask.kind in {"plain", "warm", "other"}
            if members[0].ask.kind == "other":
                assert call.request.options.max_tokens is None
            else:
                whole = BATCH_OVERHEAD + len(members) * (10 + TASK_OVERHEAD)
                assert call.request.options.max_tokens == whole <= ROOM
        # Somebody waits for it as long as it is under way.
        assert call.ended <= max(member.at for member in members)
        assert first or self.story.options["retry_missing"]

    def check_records(self) -> None:
        stories: dict[str, list[str]] = {}
        for record in self.records:
            stories.setdefault(record.request_id, []).append(record.status)
        assert all(len(each) == 2 and each[0] == "asked" for each in stories.values())
        assert len(stories) == self.coordinator.statistics().asked
        assert sum(self.coordinator.statistics()[3:9]) == len(stories)
        assert self.coordinator.statistics().calls == len(self.calls)

    def check_order(self) -> None:
        """Batches are made up in the order of their requests.

        Those that are sent in one step reach the backend in any order, as trio's scheduler likes.
        """
        calls = sorted(self.calls, key=lambda call: call.batch)
        firsts = [call.began for call in calls if not call.request.meta.retry]
        assert firsts == sorted(firsts)
        for caller in "abc":
            for kind in ("plain", "warm", "other"):
                sent = [
                    told.asked
                    for call in calls
                    if not call.request.meta.retry
                    for text in call.texts
                    for told in self.told
                    if told.request.messages[-1].content == text
                    and (told.ask.caller, told.ask.kind) == (caller, kind)
                ]
                assert sent == sorted(sent)


def request_of(each: Ask, number: int) -> Request:
    options: dict[str, Any] = {"max_tokens": 10}
    if each.kind == "warm":
        options["temperature"] = 0.9
    elif each.kind == "long":
        options["max_tokens"] = 1000
    elif each.kind == "typed":
        options["format"] = str
    elif each.kind == "other":
        options = {}
    deadline = None if each.within is None else each.at + each.within
    made = ask(f"request {number}.", call=each.caller, iteration=number + 1, **options)
    return replace(made, meta=replace(made.meta, deadline=deadline), meter=Meter())


def reply(turn: Turn, tasks: list[dict[str, Any]]) -> str:
    entries = echo(tasks)
    odd = turn.which % len(tasks)
    match turn.kind:
        case "lacks":
            del entries[odd]
        case "forged":
            other = tasks[(odd + 1) % len(tasks)]
            entries[odd] = {**entry(tasks[odd], "forged"), "key": other["key"]}
        case "cut":
            return json.dumps(entries)[: -2 - turn.which * 9]
        case _:
            pass
    return f"Here:\n```json\n{json.dumps(entries)}\n```"


def test_batches_sent_in_one_step_are_in_order_even_if_trio_starts_the_later_one_first():
    kinds_at_start = ["plain", "plain", "plain", "long"]
    story = Story(
        asks=[Ask(0.0, "a", kind, None, None) for kind in kinds_at_start]
        + [Ask(1 / 8, "a", "plain", None, None)] * 3,
        turns=[Turn("all", 0.0, 0)],
        options={
            "window": 1.0,
            "idle": None,
            "max_batch": 2,
            "concurrency": 2,
            "retry_missing": False,
        },
        end="leave",
        end_at=1 / 8,
    )
    state = _run._r.getstate()
    swapped = 0
    try:
        for seed in range(50):
            _run._r.seed(seed)
            play = Play(story)
            run_virtual(play.run, backend="trio")
            batches = [call.batch for call in play.calls]
            swapped += batches != sorted(batches)
    finally:
        _run._r.setstate(state)
    assert swapped


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@storm
@given(stories())
def test_a_coordinator_keeps_its_promises_whatever_happens(backend, story):
    logging.getLogger("mellea_like").setLevel(logging.CRITICAL)
    try:
        run_virtual(Play(story).run, backend=backend)
    finally:
        logging.getLogger("mellea_like").setLevel(logging.NOTSET)
