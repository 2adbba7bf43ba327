"""What must hold after every fault, whatever it was.

In flight 0; tasks, threads, connections checked out and file descriptors as before; one outcome for
each iteration that was started; no error lost; usage equal to the server's own count, or marked
unknown::

    async with aftermath(backend, server, limiter) as after:
        result = await after.sample(strategy, "do", [yes])

It looks on as a plugin at all calls inside the block; with ``hooked=False`` it sees only what
`Aftermath.sample` returns, for calls without any plugin take other ways through the engine.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
from anyio.lowlevel import checkpoint, current_token
from http_server import Answer, OpenAIServer, Send
from leftovers import check_at_rest, other_threads, running

from mellea_like import Requirement
from mellea_like.backends.openai import OpenAIBackend
from mellea_like.core.backend import innermost
from mellea_like.core.generation import Usage
from mellea_like.core.result import SamplingResult
from mellea_like.core.slice import Outcome, Slice
from mellea_like.errors import LimitExceeded
from mellea_like.hooks.plugins import Plugin, PluginSet, hook
from mellea_like.hooks.types import HookType
from mellea_like.limits.backoff_gate import gate_of
from mellea_like.runtime.threads import thread_statistics

FIRST = -1000
FILES = Path("/proc/self/fd")
SAYS_WON = Requirement("says won", lambda candidate: candidate.text == "won", inline=True)
SECONDS = 1.0
"""How long the test server may take to notice that its client is gone."""


class Billing(OpenAIServer):
    """A server that counts the tokens of the replies that it gave whole."""

    def __init__(self, *answers: Answer, **arguments: Any) -> None:
        super().__init__(*answers, **arguments)
        self.billed: list[tuple[int, int]] = []

    async def _chat(self, answer: Answer, request: dict[str, Any], send: Send) -> bool:
        stay = await super()._chat(answer, request, send)
        if stay and answer.usage is not None and answer.status == 200 and answer.body is None:
            self.billed.append(answer.usage)
        return stay


class Aftermath(Plugin):
    """What was seen of the calls in a block."""

    def __init__(self, things: tuple[Any, ...]) -> None:
        self.things = things
        self.begun: list[str] = []
        self.ends: dict[str, Any] = {}
        self.requested: dict[str, set[int]] = {}
        self.last_errors: dict[tuple[str, int], BaseException] = {}
        self.results: list[SamplingResult[Any]] = []
        self.warned: Counter[str] = Counter()
        self.before = self.counted()

    async def sample(self, strategy: Any, *args: Any, **kwargs: Any) -> SamplingResult[Any]:
        """Call ``strategy.sample`` and keep the result."""
        result: SamplingResult[Any] = await strategy.sample(*args, **kwargs)
        self.results.append(result)
        return result

    @property
    def slices(self) -> tuple[Slice, ...]:
        """The record of the only call."""
        [slices] = self.records().values()
        return slices

    def records(self) -> dict[str, tuple[Slice, ...]]:
        """The record of each call, by its id."""
        found = {sampling_id: end.slices for sampling_id, end in self.ends.items()}
        for result in self.results:
            assert found.setdefault(result.sampling_id, result.slices) == result.slices
        return found

    @hook(HookType.SAMPLING_LOOP_START, priority=FIRST)
    async def start(self, payload: Any) -> None:
        self.begun.append(payload.sampling_id)

    @hook(HookType.GENERATION_PRE_CALL, priority=FIRST)
    async def ask(self, payload: Any) -> None:
        self.requested.setdefault(payload.sampling_id, set()).add(payload.iteration)
        if payload.purpose == "generate":
            self.last_errors.pop((payload.sampling_id, payload.iteration), None)

    @hook(HookType.GENERATION_ERROR, priority=FIRST)
    async def error(self, payload: Any) -> None:
        if payload.purpose == "generate":
            self.last_errors[payload.sampling_id, payload.iteration] = payload.error

    @hook(HookType.GENERATION_POST_CALL, priority=FIRST)
    async def reply(self, payload: Any) -> None:
        if payload.purpose == "generate":
            self.last_errors.pop((payload.sampling_id, payload.iteration), None)

    @hook(HookType.SAMPLING_LOOP_END, priority=FIRST)
    async def end(self, payload: Any) -> None:
        assert payload.sampling_id not in self.ends, "SAMPLING_LOOP_END fired twice"
        self.ends[payload.sampling_id] = payload

    # --- the checks

    def check_records(self) -> None:
        """One outcome for each iteration that was started, and no error lost."""
        assert sorted(self.begun) == sorted(self.ends), "a start without an end"
        for sampling_id, slices in self.records().items():
            by_id = {slice_.iteration: slice_ for slice_ in slices}
            assert len(by_id) == len(slices), "an iteration has two outcomes"
            assert self.requested.get(sampling_id, set()) <= by_id.keys(), "one has none"
            for slice_ in slices:
                errored = slice_.outcome is Outcome.ERRORED
                assert (slice_.error is not None) == errored
                _behind(slice_.error)
            assert self.warned[sampling_id] == sum(s.error is not None for s in slices)
        for (sampling_id, iteration), error in self.last_errors.items():
            [slice_] = [s for s in self.records()[sampling_id] if s.iteration == iteration]
            assert slice_.outcome in {Outcome.ERRORED, Outcome.CANCELLED}
            if slice_.outcome is Outcome.ERRORED and not isinstance(error, LimitExceeded):
                assert error in _behind(slice_.error), "the error is lost"
        for result in self.results:
            errors = [slice_.error for slice_ in result.slices if slice_.error is not None]
            assert list(result.errors) == errors

    def check_usage(self) -> None:
        """Usage is the servers' own count, or marked unknown."""
        records = self.records().values()
        usage = sum((s.usage for slices in records for s in slices), Usage())
        if not records or not any(_counts(thing) for thing in self.things):
            return  # Of calls that raise, only a plugin has the record.
        sent, answered, tokens_in, tokens_out = (
            now - before for now, before in zip(self.counted(), self.before, strict=True)
        )
        servers = any(isinstance(thing, Billing) for thing in self.things)
        # A request that is cancelled on its way is of unknown cost, and may never arrive.
        cancelled = any(s.outcome is Outcome.CANCELLED for slices in records for s in slices)
        lost = usage.unknown if servers and cancelled else 0
        assert sent <= usage.requests <= sent + lost, f"{usage}, and {sent} were sent"
        assert usage.requests - usage.unknown <= answered, "more is known than was said"
        if not usage.unknown:
            assert (usage.input_tokens, usage.output_tokens) == (tokens_in, tokens_out)
        elif not servers:
            # Of a reply that was cut short, it knows what arrived; of one from a server, a guess.
            assert usage.input_tokens <= tokens_in
            # ... unless a budget charges what it would have become.
            if all(getattr(thing, "cancelled", "received") == "received" for thing in self.things):
                assert usage.output_tokens <= tokens_out

    def counted(self) -> tuple[int, int, int, int]:
        """Requests sent and answered, and tokens of prompts and replies, as the servers count."""
        servers = [thing for thing in self.things if isinstance(thing, Billing)]
        counts = [thing.statistics() for thing in self.things if _has_counts(thing)]
        billed = [tokens for server in servers for tokens in server.billed]
        return (
            sum(server.started for server in servers) + sum(c.started for c in counts),
            len(billed) + sum(c.finished for c in counts),
            sum(tokens[0] for tokens in billed) + sum(c.input_tokens for c in counts),
            sum(tokens[1] for tokens in billed) + sum(c.output_tokens for c in counts),
        )

    def check_at_rest(self) -> None:
        """Nothing is in flight, and nobody waits: at the very moment in which the calls ended."""
        assert anyio.current_effective_deadline() == math.inf
        check_at_rest(*(t for t in self.things if callable(getattr(t, "statistics", None))))
        for thing in self.things:
            if callable(getattr(thing, "generate", None)):
                assert gate_of(thing).statistics().waiting == 0
                inner = innermost(thing)
                if isinstance(inner, OpenAIBackend):
                    check_pool(inner)


def check_pool(backend: OpenAIBackend) -> None:
    """No connection is checked out, and nobody stands in line for one."""
    clients: Any = backend._clients
    held = clients._clients.get(current_token().native_token)
    if held is None or held.client is None:
        return
    assert held.active == 0, "a request holds its client"
    pool = held.client._client._transport._pool
    busy = [connection for connection in pool.connections if not connection.is_idle()]
    assert not busy, f"connections checked out: {busy}"
    assert not pool._requests, "a request stands in the pool's line"


def descriptors() -> int:
    """The open file descriptors of this process."""
    return len(list(FILES.iterdir())) if FILES.is_dir() else 0


def _counts(thing: Any) -> bool:
    return isinstance(thing, Billing) or _has_counts(thing)


def _has_counts(thing: Any) -> bool:
    statistics = getattr(thing, "statistics", None)
    return callable(statistics) and hasattr(statistics(), "started")


def _behind(error: BaseException | None) -> list[BaseException]:
    """An exception and all that it came of; its causes are no circle."""
    causes: list[BaseException] = []
    while error is not None:
        assert all(error is not other for other in causes), "its causes are a circle"
        causes.append(error)
        error = error.__cause__
    found = list(causes)
    for exc in found:
        more = (exc.__cause__, exc.__context__)
        found += [e for e in more if e is not None and all(e is not other for other in found)]
    return found


class _Warnings(logging.Handler):
    def __init__(self, seen: Counter[str]) -> None:
        super().__init__(logging.WARNING)
        self.seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        fields: Mapping[str, Any] = vars(record)
        if record.msg.startswith("error in attempt"):
            self.seen[fields["sampling_id"]] += 1
        elif record.msg.startswith("%d similar errors"):
            count: Any = record.args
            self.seen[fields["sampling_id"]] += count[0]


@contextmanager
def _listening(after: Aftermath) -> Iterator[None]:
    handler, logger = _Warnings(after.warned), logging.getLogger("mellea_like")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@asynccontextmanager
async def aftermath(
    *things: Any, hooked: bool = True, abandoned: int = 0
) -> AsyncGenerator[Aftermath, None]:
    """Watch the calls in a block, and check at its end what they left.

    Args:
        things: the backends, servers, limits and budgets that take part. It closes backends.
        hooked: whether to look on as a plugin.
        abandoned: how many validators' threads are left behind in the block.

    Yields:
        What was seen.
    """
    after = Aftermath(things)
    tasks, threads, open_files = running(), other_threads(), descriptors()
    left_before = thread_statistics().abandoned_total
    with _listening(after), PluginSet("aftermath", [after]) if hooked else nullcontext():
        yield after
    after.check_at_rest()
    assert running() <= tasks, "tasks are left"
    assert other_threads() <= threads, "threads are left"
    assert thread_statistics().abandoned_total - left_before == abandoned
    servers = [thing for thing in things if isinstance(thing, OpenAIServer)]
    for server in servers:
        await _until(lambda server=server: server.in_flight == 0, "the server is at work")
    after.check_records()
    after.check_usage()
    for thing in things:
        if isinstance(thing, OpenAIBackend):
            await thing.aclose()
    for server in servers:
        await _until(lambda server=server: server.connections == 0, "connections are open")
    if servers:
        await _until(lambda: descriptors() <= open_files, "file descriptors are open")
    else:
        await checkpoint()
    assert descriptors() <= open_files, "file descriptors are open"
    assert running() <= tasks, "tasks are left"


async def _until(condition: Any, otherwise: str) -> None:
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < SECONDS, otherwise
        await anyio.sleep(0.002)
