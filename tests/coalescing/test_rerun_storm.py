"""Random stories of requests, cancellations, failures and closing: a `RerunGate` keeps S1 to S8."""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from dataclasses import dataclass, field

import anyio
import pytest
from ends import ENDS, EndedError, end
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from mellea_like.coalescing import RerunGate, Tick
from mellea_like.errors import Expired, Refused, ShutdownError
from mellea_like.testing import run_virtual

pytestmark = pytest.mark.timeout(600)
storm = examples(25, 500)

# Eighths, which floats hold exactly.
seconds = st.integers(0, 32).map(lambda eighths: eighths / 8)


class BrokenTickError(Exception):
    """The error that a tick raises."""


@dataclass(frozen=True)
class Ask:
    """A submission: a poke, or a request that may be given up or expire."""

    at: float
    poke: bool
    patience: float | None
    deadline: float | None


@dataclass(frozen=True)
class Story:
    """A gate, what is asked of it, how its ticks go, and how it ends."""

    asks: list[Ask]
    ticks: list[tuple[float, bool]]
    options: dict
    end: str
    end_at: float


@st.composite
def stories(draw):
    some = st.one_of(st.none(), seconds)
    return Story(
        asks=draw(st.lists(st.builds(Ask, seconds, st.booleans(), some, some), max_size=14)),
        ticks=draw(st.lists(st.tuples(seconds, st.booleans()), min_size=1, max_size=5)),
        options={
            "min_interval": draw(st.sampled_from([0.0, 0.0, 1.0, 2.5])),
            "on_busy": draw(st.sampled_from(["queue", "ignore", "restart"])),
            "max_wait": draw(st.sampled_from([0.0, 1.0, 3.0])),
        },
        end=draw(st.sampled_from(ENDS)),
        end_at=draw(seconds),
    )


@dataclass
class Answered:
    """How a submission came out."""

    ask: Ask
    at: float
    got: object
    asked_before_tick: int
    """The number of the next tick to begin when it was asked."""


@dataclass
class Scene:
    """Plays a story."""

    story: Story
    outcomes: list[Answered] = field(default_factory=list)
    began: list[float] = field(default_factory=list)
    ended: dict[int, tuple[float, str]] = field(default_factory=dict)
    running: int = 0

    async def tick(self, tick: Tick) -> int:
        self.began.append(anyio.current_time())
        assert tick.number == len(self.began)
        assert tick.submissions >= 1
        assert self.running == 0
        self.running += 1
        how = "cancelled"
        length, fails = self.story.ticks[tick.number % len(self.story.ticks)]
        try:
            await anyio.sleep(length)
            how = "failed" if fails else "well"
        finally:
            self.running -= 1
            self.ended[tick.number] = anyio.current_time(), how
        if fails:
            raise BrokenTickError(tick.number)
        return tick.number

    async def ask(self, ask: Ask) -> None:
        await anyio.sleep_until(ask.at)
        following = len(self.began) + 1
        got: object = "left"
        until = None if ask.deadline is None else ask.at + ask.deadline
        with anyio.move_on_after(math.inf if ask.patience is None else ask.patience):
            try:
                got = (
                    self.gate.poke("poke")
                    if ask.poke
                    else await self.gate.request("request", deadline=until)
                )
            except (BrokenTickError, Expired, Refused, ShutdownError) as error:
                got = error
        self.outcomes.append(Answered(ask, anyio.current_time(), got, following))

    async def play(self) -> None:
        self.gate: RerunGate[int] = RerunGate(self.tick, **self.story.options)
        async with anyio.create_task_group() as outside:
            with suppress(EndedError), anyio.CancelScope() as scope:
                async with self.gate:
                    for ask in self.story.asks:
                        outside.start_soon(self.ask, ask)
                    await anyio.sleep_until(self.story.end_at)
                    await end(self.gate, self.story.end, scope)
            assert not self.running
            assert not self.gate.in_flight
            assert self.gate.status().pending == 0
            # All requesters have been refused; only those that have not asked yet remain.
            await anyio.wait_all_tasks_blocked()
            now = anyio.current_time()
            waiting = [ask for ask in self.story.asks if ask.at > now]
            assert len(self.outcomes) + len(waiting) >= len(self.story.asks)
        self.closed = self.gate.status()


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@storm
@given(story=stories())
def test_a_gate_keeps_its_promises(loop, story, caplog):
    caplog.set_level(logging.CRITICAL)
    scene = Scene(story)
    run_virtual(scene.play, backend=loop)
    options, status = story.options, scene.closed

    # S1: each submission comes out once.
    assert len(scene.outcomes) == len(story.asks)
    for one in scene.outcomes:
        check_outcome(scene, one)

    # One tick at a time, no more often than allowed, and none for nobody.
    gaps = [b - a for a, b in zip(scene.began, scene.began[1:], strict=False)]
    assert all(gap >= options["min_interval"] - 1e-9 for gap in gaps)
    ended = [how for _, how in scene.ended.values()]
    accepted = [one for one in scene.outcomes if one.got is not False]
    finished = len(ended) - ended.count("cancelled")
    assert len(scene.began) == status.ticks
    assert status.pending == 0
    assert finished + status.coalesced <= len(accepted)
    assert status.failed == ended.count("failed")
    if story.end == "leave":
        assert "cancelled" not in ended or options["on_busy"] == "restart"


def check_outcome(scene: Scene, one: Answered) -> None:
    if one.ask.poke:
        check_poke(scene, one)
    elif isinstance(one.got, int):
        check_answer(scene, one, one.got)
    elif isinstance(one.got, BrokenTickError):
        check_answer(scene, one, one.got.args[0])
    else:
        check_refusal(scene, one)
    if not one.ask.poke and one.ask.deadline is not None:
        assert one.at <= one.ask.at + one.ask.deadline + 1e-9


def check_poke(scene: Scene, one: Answered) -> None:
    if one.got is True and scene.story.end == "leave":
        # A tick that began after it ran to its end.
        ended = [how for n, (_, how) in scene.ended.items() if n >= one.asked_before_tick]
        assert set(ended) - {"cancelled"}
    elif one.got is not True:
        assert one.got is False or isinstance(one.got, ShutdownError)
        assert one.got is not False or scene.story.options["on_busy"] == "ignore"


def check_answer(scene: Scene, one: Answered, number: int) -> None:
    """The tick began after the request, which is told when it has ended, and in time."""
    story, options = scene.story, scene.story.options
    assert number >= one.asked_before_tick
    assert scene.ended[number][0] == pytest.approx(one.at)
    longest = max(length for length, _ in story.ticks)
    restarts = options["max_wait"] if options["on_busy"] == "restart" else 0
    assert one.at - one.ask.at <= restarts + 2 * (longest + options["min_interval"]) + 1e-6


def check_refusal(scene: Scene, one: Answered) -> None:
    options, asked = scene.story.options, one.ask.at
    if one.got == "left":
        assert one.ask.patience is not None
        assert one.at == pytest.approx(asked + one.ask.patience)
    elif isinstance(one.got, Expired):
        assert one.ask.deadline is not None
        assert one.at == pytest.approx(asked + one.ask.deadline)
    elif isinstance(one.got, Refused):
        assert (options["on_busy"], one.at) == ("ignore", pytest.approx(asked))
    else:
        assert isinstance(one.got, ShutdownError)
        assert one.at >= scene.story.end_at - 1e-9
