"""What the storm tests share: a backend with a plan, a plugin that keeps count, and invariants.

`Rig` is a backend that does to each request what a plan says; `Told` is a plugin that writes down
what it is told and counts the handlers that are running; `check_record` holds a call's record
against the engine's rules, and `check_nothing_left` looks for what a call left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
from anyio.lowlevel import checkpoint
from oracle_world import Foreign, on_asyncio

from mellea_like import Requirement
from mellea_like.core.backend import Request
from mellea_like.core.generation import Generation
from mellea_like.core.slice import Outcome, Slice
from mellea_like.errors import (
    AuthenticationFailed,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    RateLimited,
)
from mellea_like.hooks import Payload, SamplingLoopEndPayload
from mellea_like.hooks.plugins import Plugin, hook
from mellea_like.hooks.types import HookMode, HookType

Kind = Literal[
    "good", "bad", "garbled", "transient", "permanent", "foreign", "group", "stray", "messy"
]

TICK = 1e-5
FIRST = -1000
"""The priority of what looks on: before everything that may fail."""


def is_good(candidate: Any) -> bool:
    return candidate.text == "good"


INLINE = Requirement("good", is_good, inline=True)


@dataclass(frozen=True)
class Draw:
    """What happens to one request.

    Its iteration's first ``failures`` tries are answered with a 503, or with a 429 that asks to
    wait for ``told`` seconds. ``messy`` is a backend with tasks of its own: cancelled, they fail
    while they clean up.
    """

    kind: Kind = "good"
    delay: float = 1.0
    cleanup: float = 0.0
    failures: int = 0
    told: float | None = None


@dataclass(frozen=True)
class Seen:
    """One request that arrived."""

    iteration: int
    purpose: str
    at: float


@dataclass
class Rig:
    """A backend that follows a plan, by iteration id; ids that the plan lacks get the default."""

    plan: dict[int, Draw] = field(default_factory=dict)
    default: Draw = Draw()
    verdict: Draw = Draw("good", 0.25)
    can_judge: bool = True
    model: str = "rig"
    seen: list[Seen] = field(default_factory=list)
    raised: dict[int, BaseException] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)
    in_flight: int = 0
    drawing: int = 0
    max_drawing: int = 0

    @contextlib.contextmanager
    def _asked(self, request: Request) -> Iterator[tuple[Draw, Seen]]:
        """Note a request while it is in flight, and find what happens to it."""
        iteration, purpose = request.meta.iteration, request.meta.purpose
        assert iteration is not None
        judging = purpose == "judge"
        comparing = judging and "You compare" in request.messages[0].text
        seen = Seen(iteration, "compare" if comparing else purpose, anyio.current_time())
        self.seen.append(seen)
        self.in_flight += 1
        self.drawing += not judging
        self.max_drawing = max(self.max_drawing, self.drawing)
        try:
            yield self.verdict if judging else self.plan.get(iteration, self.default), seen
        finally:
            self.in_flight -= 1
            self.drawing -= not judging

    async def generate(self, request: Request) -> Generation:
        meter = request.meter.start()
        with self._asked(request) as (draw, seen):
            await self._work(draw)
            if request.meta.retry < draw.failures:
                raise _again(draw)
            if draw.kind in {"good", "bad", "garbled", "messy"}:
                meter.settle(input_tokens=1, output_tokens=1)
                if seen.purpose == "compare":
                    return Generation('{"better": "b"}')
                if seen.purpose == "judge":
                    passed = "true" if draw.kind == "good" else "false"
                    return Generation(f'{{"passed": {passed}, "reason": "so it is"}}')
                self.answered.add(seen.iteration)
                return Generation("good" if draw.kind == "messy" else draw.kind)
            error = self._fault(draw.kind)
            if request.meta.purpose != "judge":
                self.raised[seen.iteration] = error
            raise error

    async def _work(self, draw: Draw) -> None:
        if draw.kind == "messy":
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_fails_when_cancelled, draw.delay)
                await anyio.sleep(draw.delay)
            return
        try:
            await (anyio.sleep(draw.delay) if draw.delay else checkpoint())
        finally:
            if draw.cleanup:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(draw.cleanup)

    def _fault(self, kind: Kind) -> BaseException:
        if kind == "transient":
            return BackendUnavailable("try again")
        if kind == "permanent":
            return AuthenticationFailed("wrong key", status=401)
        if kind == "group":
            return ExceptionGroup("the backend's own group", [Foreign("one"), Foreign("two")])
        if kind == "stray":
            return asyncio.CancelledError() if on_asyncio() else BackendUnavailable()
        return Foreign("no backend error")


@dataclass
class StreamingRig(Rig):
    """One that streams its replies in two pieces."""

    @contextlib.asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        async with contextlib.aclosing(self._pieces(request)) as pieces:
            yield pieces

    async def _pieces(self, request: Request) -> AsyncGenerator[str | Generation]:
        meter = request.meter.start()
        with self._asked(request) as (draw, seen):
            await self._work(draw)
            if request.meta.retry < draw.failures:
                raise _again(draw)
            self.answered.add(seen.iteration)
            meter.update(output_tokens=1)
            yield draw.kind[:2]
            await self._work(draw)
            yield draw.kind[2:]
            meter.settle(input_tokens=1, output_tokens=2)
            yield Generation(draw.kind)


def _again(draw: Draw) -> BackendError:
    if draw.told is None:
        return BackendUnavailable("overloaded", status=503)
    return RateLimited("slow down", status=429, retry_after=draw.told)


async def _fails_when_cancelled(seconds: float) -> None:
    try:
        await anyio.sleep(seconds)
    except anyio.get_cancelled_exc_class():
        raise Foreign("cleaning up failed") from None


@dataclass(frozen=True)
class Leaving:
    """How the caller leaves: by scope or natively, at a step; or by a scope at a time."""

    mode: str = "scope"
    step: int = -1
    again: int = 0
    seconds: float = math.inf


STAYS = Leaving()


class Told(Plugin):
    """Writes down what it is told, ahead of all other plugins, and counts what runs."""

    def __init__(self) -> None:
        self.begun = 0
        self.delivered: list[Slice] = []
        self.ends: list[SamplingLoopEndPayload] = []
        self.running = 0

    @contextlib.contextmanager
    def at_work(self):
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    @hook(HookType.SAMPLING_LOOP_START, priority=FIRST)
    async def start(self, payload: Payload) -> None:
        self.begun += 1
        with self.at_work():
            await checkpoint()

    @hook(HookType.SAMPLING_ITERATION, priority=FIRST)
    async def iteration(self, payload: Any) -> None:
        self.delivered.append(payload.slice)
        with self.at_work():
            await checkpoint()

    @hook(HookType.SAMPLING_LOOP_END, priority=FIRST)
    async def end(self, payload: SamplingLoopEndPayload) -> None:
        self.ends.append(payload)
        with self.at_work():
            await checkpoint()


def handler(
    told: Told,
    kind: HookType,
    mode: HookMode,
    act: Callable[[Any], Awaitable[Any]],
    timeout: float = 5.0,
) -> Any:
    """Return a handler that counts as running with ``told`` while it acts."""

    @hook(kind, mode=mode, timeout=timeout)
    async def handle(payload: Any) -> Any:
        with told.at_work():
            return await act(payload)

    return handle


def check_record(
    slices: Sequence[Slice],
    rig: Rig,
    *,
    loop_budget: int,
    concurrency: int,
    hooked: bool = False,
    pooled: bool = False,
    extra: int = 0,
    several: bool = False,
) -> None:
    """Hold the record of a call that has ended against rules 1, 2, 5, 6 and 17.

    Where turns are ``pooled``, any chain may take those of any subsample; where ``several`` draws
    are to pass, a chain goes on after a pass.
    """
    requested, ids = {seen.iteration for seen in rig.seen}, {s.iteration for s in slices}
    assert requested <= ids, f"requested {requested}, but recorded {ids}"
    assert rig.max_drawing <= concurrency + extra
    check_turns(slices, loop_budget, concurrency, pooled=pooled, several=several)
    for slice_ in slices:
        check_slice(slice_, rig, hooked=hooked)
    of_slices = [seen for seen in rig.seen if seen.purpose != "compare"]
    assert sum(s.usage.requests for s in slices) == len(of_slices)


def check_turns(
    slices: Sequence[Slice], loop_budget: int, concurrency: int, *, pooled: bool, several: bool
) -> None:
    """Hold the turns and the chains of a record against rules 1, 2 and 6."""
    on = {Outcome.FAILED, Outcome.ERRORED, *([Outcome.PASSED] if several else [])}
    ids = [slice_.iteration for slice_ in slices]
    assert len(set(ids)) == len(ids), f"an iteration stands twice: {ids}"
    for slice_ in slices:
        assert slice_.iteration == slice_.subsample * loop_budget + slice_.depth + 1
        assert 0 <= slice_.subsample < concurrency
        assert 0 <= slice_.depth < loop_budget
        assert pooled or slice_.chain == slice_.subsample
        assert 0 <= slice_.started_at <= slice_.ended_at
    for subsample in range(concurrency):
        depths = sorted(s.depth for s in slices if s.subsample == subsample)
        # A pooled turn may be given to a chain that is cancelled before it begins with it.
        assert pooled or depths == list(range(len(depths))), "a turn was left out"
    for number in {slice_.chain for slice_ in slices}:
        chain = chain_of(slices, number)
        assert len(chain) <= loop_budget
        if several and len({s.started_at for s in chain}) < len(chain):
            continue  # Two began at one instant: their order is not known.
        for earlier, later in itertools.pairwise(chain):
            assert earlier.ended_at <= later.started_at + TICK
            assert earlier.outcome in on, "it went on after its end"
            if isinstance(earlier.error, Foreign | AuthenticationFailed | ExceptionGroup):
                raise AssertionError("it went on after a permanent error")


def chain_of(slices: Sequence[Slice], number: int) -> list[Slice]:
    """The draws of a chain, in their order."""
    chain = [s for s in slices if s.chain == number]
    return sorted(chain, key=lambda s: (s.started_at, s.ended_at))


def check_slice(slice_: Slice, rig: Rig, *, hooked: bool) -> None:
    """Hold one slice against what happened to its request."""
    raised = rig.raised.get(slice_.iteration)
    if slice_.outcome is Outcome.ERRORED:
        assert slice_.error is not None
    elif slice_.outcome is not Outcome.CANCELLED:
        assert slice_.error is None
        assert slice_.iteration in rig.answered
    if slice_.outcome is Outcome.PASSED:
        assert slice_.text == "good"
        assert all(result.passed for _, result in slice_.validations)
    if raised is not None and slice_.outcome is not Outcome.CANCELLED and not hooked:
        assert slice_.outcome is Outcome.ERRORED
        if isinstance(raised, Exception):
            assert _same(slice_.error, raised)
        else:
            assert slice_.error is not None
            # The time may be up before a backend raises a cancellation of its own.
            late = isinstance(slice_.error, BackendTimeout)
            assert late or slice_.error.__cause__ is raised


def _same(error: BaseException | None, raised: Exception) -> bool:
    """Tell whether it is the same exception; trio's scopes make new groups of groups."""
    if isinstance(raised, ExceptionGroup) and isinstance(error, ExceptionGroup):
        return error.exceptions == raised.exceptions
    return error is raised


def check_nothing_left(before: set[int], rig: Rig, told: Told | None) -> None:
    """Look for what a call left behind, at the very moment it ended."""
    left = [task for task in anyio.get_running_tasks() if task.id not in before]
    assert not left, f"the call left tasks behind: {left}"
    assert rig.in_flight == 0
    assert told is None or told.running == 0
    assert anyio.current_effective_deadline() == math.inf
