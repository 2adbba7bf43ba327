"""Runs a generated call in virtual time, and records everything the public API shows of it.

The trace is JSON. Its parts are the kinds of differences between two engines. Texts for people
are left out, and the order of things that happen at the same instant, because it isn't promised.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import signal
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import anyio
import oracle_calls as calls
import trio
from anyio._backends import _asyncio as anyio_asyncio
from leftovers import running
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from oracle_world import (
    World,
    action,
    actor,
    budget,
    requirement,
    strategy,
    teller,
    tools,
    usage_of,
)
from trio._core import _run as trio_run

from mellea_like import Message
from mellea_like.core import current_iteration
from mellea_like.hooks import PluginSet, register, unregister
from mellea_like.telemetry import Telemetry
from mellea_like.testing import run_virtual

Loop = Literal["asyncio", "trio"]
LOOPS: tuple[Loop, ...] = ("asyncio", "trio")
Spec = dict[str, Any]
AFTERMATH = 700.0
"""Virtual seconds to watch for anything that an ended call still does."""
PATIENCE = 20.0
"""Real seconds before a call counts as stuck."""


def trace(seed: int, loop: Loop) -> Spec:
    """Run a call, and return its trace."""
    spec = calls.make(seed)
    with _in_order(), _alarm(), _logs() as logged:
        try:
            seen = run_virtual(lambda: _play(spec, loop, logged), backend=loop)
        except BaseException as exc:
            if isinstance(exc, KeyboardInterrupt):
                raise
            seen = {"ends": {"broke": type(exc).__name__}}
    if spec["latency"] != "distinct":
        seen["ties"] = True
    return seen


# --- the same order each time ----------------------------------------------------------------


class _Ordered(dict[Any, None]):
    """An ordered set, because the order of anyio's sets depends on memory addresses."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)

    def remove(self, item: Any) -> None:
        del self[item]

    def __iter__(self):
        return iter(list(self.keys()))


class _Unshuffled:
    """Replaces trio's random numbers, so that tasks run in the order they were created."""

    def shuffle(self, batch: list[Any]) -> None:
        batch.reverse()  # Trio takes tasks from the end.

    def random(self) -> float:
        return 1.0


@contextlib.contextmanager
def _in_order():
    make_scope = anyio_asyncio.CancelScope.__init__

    def ordered(self: Any, *args: Any, **kwargs: Any) -> None:
        make_scope(self, *args, **kwargs)
        self._child_scopes, self._tasks = _Ordered(), _Ordered()

    was = trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r
    anyio_asyncio.CancelScope.__init__ = ordered
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r = True, _Unshuffled()
    try:
        yield
    finally:
        anyio_asyncio.CancelScope.__init__ = make_scope
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r = was


class Stuck(BaseException):
    """A call took far too long in real time."""


@contextlib.contextmanager
def _alarm():
    if not hasattr(signal, "SIGALRM"):  # On Windows.
        yield
        return

    def stuck(*_: Any) -> None:
        raise Stuck

    before = signal.signal(signal.SIGALRM, stuck)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.kept: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        record.getMessage()  # Its arguments fit its format.
        self.kept.append(record.levelname)


@contextlib.contextmanager
def _logs():
    kept, log = _Kept(), logging.getLogger("mellea_like")
    was = log.level, log.propagate
    log.addHandler(kept)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield kept.kept
    finally:
        log.removeHandler(kept)
        log.level, log.propagate = was


# --- playing ---------------------------------------------------------------------------------


class Ended:
    """How a call ended."""

    result: Any = None
    error: BaseException | None = None
    at: float | None = None
    left: int = 0
    caught: bool = False
    pieces: list[list[Any]]
    broken: bool = False

    def __init__(self) -> None:
        self.pieces = []


async def _play(spec: Spec, loop: Loop, logged: Sequence[Any]) -> Spec:
    world, ended = World(spec), Ended()
    exporter, reader, telemetry = _telemetry() if spec["telemetry"] else (None, None, None)
    handlers = [] if spec["told"] is None else teller(world, spec["told"])
    handlers += [actor(world, number, made) for number, made in enumerate(spec["acts"])]
    own = handlers if spec["plugins_by"] == "strategy" else []
    try:
        made = strategy(world, own, telemetry)
        arguments = _arguments(world)
    except Exception as exc:  # noqa: BLE001 (part of the trace)
        ended.error = exc
        return _seen(world, ended, logged, None, None)
    before = running()
    with _plugins(spec["plugins_by"], [] if own else handlers):
        await _leave(world, ended, lambda: _call(world, made, arguments, ended, before), loop)
    world.over = True
    await anyio.sleep(AFTERMATH)
    return _seen(world, ended, logged, exporter, reader)


@contextlib.contextmanager
def _plugins(by: str, handlers: Sequence[Any]):
    if by == "scope" and handlers:
        with PluginSet("meddlers", handlers):
            yield
        return
    for handler in handlers:
        register(handler)
    try:
        yield
    finally:
        for handler in handlers:
            unregister(handler)


def _arguments(world: World) -> Spec:
    spec = world.spec
    asked, format_ = action(spec)
    arguments: Spec = {
        "action": asked,
        "requirements": [requirement(world, q) for q in spec["requirements"]],
        "format": format_,
        "options": spec["options"] or None,
        "budget": budget(world, "call's", spec["budget"]),
        "on_slice": _on_slice(world),
        "tools": tools(world),
    }
    if spec["tools"]:
        arguments["tool_rounds"] = spec["tools"]["rounds"]
        arguments["tool_choice"] = spec["tools"]["choice"]
    if spec["validation_context"]:
        arguments["validation_context"] = [Message("user", "seen by validators only")]
    if spec["conversation"]:
        arguments["context"] = [Message("user", "hello"), Message("assistant", "good day")]
    return arguments


def _on_slice(world: World) -> Any:
    spec = world.spec["on_slice"]
    if spec is None:
        return None

    def look(slice_: Any) -> None:
        outcome = [str(slice_.outcome), current_iteration()]
        world.note(world.told, "delivery", slice_.iteration, outcome)

    async def later(slice_: Any) -> None:
        await anyio.sleep(spec["at"])
        look(slice_)
        if spec["what"] == "fail" and world.now > spec["at"] + 1:
            raise LookupError("no such place to write to")

    return look if spec["what"] == "sync" else later


async def _call(world: World, made: Any, arguments: Spec, ended: Ended, before: set[int]) -> None:
    spec = world.spec
    inside = before | running()
    try:
        if spec["stream"] is None:
            ended.result = await made.sample(**arguments)
        else:
            await _stream(world, made, arguments, ended)
    except BaseException as exc:
        ended.error = exc
        if not isinstance(exc, Exception):
            raise
    finally:
        ended.at = world.now
        ended.left = len(running() - inside)


async def _stream(world: World, made: Any, arguments: Spec, ended: Ended) -> None:
    spec = world.spec["stream"]
    async with made.stream(release=spec["release"], **arguments) as reply:
        async for piece in reply:
            ended.pieces.append([world.now, piece])
            if spec["leave_after"] is not None and len(ended.pieces) > spec["leave_after"]:
                ended.broken = True
                return
        ended.result = reply.result


async def _leave(world: World, ended: Ended, call: Any, loop: Loop) -> None:
    leave = world.spec["leave"]
    if leave is None:
        await call()
    elif leave["how"] == "deadline":
        with anyio.CancelScope(deadline=world.begun + leave["at"]) as scope:
            await call()
        ended.caught = scope.cancelled_caught
    elif leave["how"] == "native" and loop == "asyncio":
        await _leave_natively(leave, ended, call)
    else:
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                tasks.start_soon(_cancel_later, scope, leave["at"])
                await call()
            ended.caught = scope.cancelled_caught
            tasks.cancel_scope.cancel()


async def _cancel_later(scope: anyio.CancelScope, seconds: float) -> None:
    await anyio.sleep(seconds)
    scope.cancel()


async def _leave_natively(leave: Spec, ended: Ended, call: Any) -> None:
    loop = asyncio.get_running_loop()
    task = loop.create_task(call())
    times = [leave["at"], *([leave["at"] + leave["again"]] if leave["again"] else [])]
    timers = [loop.call_later(seconds, task.cancel) for seconds in times]
    await asyncio.wait([task])
    for timer in timers:
        timer.cancel()
    ended.caught = task.cancelled()
    if not task.cancelled() and task.exception() is not None:
        ended.error = task.exception()


# --- the trace -----------------------------------------------------------------------------------


def _seen(world: World, ended: Ended, logged: Sequence[Any], exporter: Any, reader: Any) -> Spec:
    result = ended.result
    record = result if result is not None else getattr(ended.error, "result", None)
    problems = _problems(record)
    slices = [] if record is None else list(record.slices)
    seen: Spec = {
        "ends": _ending(ended, world),
        "result": _result(result, record),
        "slices": {s.iteration: _slice(s, world) for s in slices},
        "order": _by_instant([(s.ended_at, s.iteration) for s in slices]),
        "decision": _decision(record),
        "requests": _grouped(world.requests, _request),
        "in_flight": {name: [n, world.in_flight[name]] for name, n in world.most_in_flight.items()},
        "prompts": _grouped(world.requests, lambda r: _digest(r["prompt"], problems)),
        "sent": {
            s.iteration: _digest([(m.role, m.text) for m in s.messages], problems) for s in slices
        },
        "checks": _noted(world.checks, 2),
        **_told(world, slices),
        "tools": _noted(world.tools_run, 1),
        "nested": _noted(world.nested, 1),
        "pieces": ended.pieces,
        "limits": {name: _statistics(limit) for name, limit in world.limits.items()},
        "spans": [] if exporter is None else _spans(exporter),
        "metrics": [] if reader is None else _metrics(reader),
        "late": sorted(world.late),
        "logs": sorted(logged),
    }
    return _rounded(seen)


def _told(world: World, slices: Sequence[Any]) -> Spec:
    """Whatever plugins and ``on_slice`` were told, and when."""
    events = [(event[:-1], *event[-1]) for event in world.events]
    outer = [(event, ended) for event, of, ended in events if of == events[0][1]]
    delivered = [(event, ended) for event, ended in outer if event[1] in ONCE]
    ids = [event[2] for event, _ in delivered if event[2] is not None]
    recorded = [s.iteration for s in slices]
    # Slices that end at the same instant may be delivered in any order.
    deliveries = [note[:1] for note in world.told if note[1].startswith("delivery")]
    return {
        "hooks": _noted([event for event, _ in outer if event[1] not in ONCE], 2),
        "delivered": _by_end(delivered),
        "in_order": not slices or ids == recorded[: len(ids)],
        "inner_hooks": sorted((event for event, of, _ in events if of != events[0][1]), key=repr),
        "acts": _noted([n for n in world.told if not n[1].startswith("delivery")], 2),
        "deliveries": _noted([[*n[1:]] for n in world.told if n[1].startswith("delivery")], 1),
        "delivery_times": sorted(deliveries),
    }


ONCE = {"sampling_iteration", "sampling_loop_start", "sampling_loop_end"}


def _by_end(delivered: Sequence[tuple[list[Any], float | None]]) -> list[Any]:
    """Sort the deliveries of slices that ended at the same instant; times keep their places."""
    runs = itertools.groupby(delivered, key=lambda pair: pair[1] and round(pair[1], 5))
    ordered = [event for _, run in runs for event, _ in sorted(run, key=lambda p: p[0][2] or 0)]
    return [[was[0], *event[1:]] for (was, _), event in zip(delivered, ordered, strict=True)]


def _ending(ended: Ended, world: World) -> Spec:
    error = ended.error
    return {
        "error": None if error is None else _kinds(error),
        "notes": len(getattr(error, "__notes__", ())),
        "has_record": getattr(error, "result", None) is not None,
        "plugin": [getattr(error, "plugin", None), getattr(error, "hook", None)],
        "stage": getattr(error, "stage", None),
        "text": getattr(error, "text", None),
        "at": ended.at,
        "caught": ended.caught,
        "left": ended.left,
        "broken_off": ended.broken,
        "acts": [[list(map(str, place)), n] for place, n in sorted(world.acted.items(), key=str)],
    }


def _kinds(error: BaseException | None) -> list[str]:
    """The types of an error and of its causes."""
    kinds: list[str] = []
    while error is not None and len(kinds) < 4:
        if _cancelled(error):
            return [*kinds, "cancelled"]
        inside = {type(e).__name__ for e in getattr(error, "exceptions", ())}
        kinds.append(type(error).__name__ + (f" of {sorted(inside)}" if inside else ""))
        error = error.__cause__
    return kinds


def _cancelled(error: BaseException) -> bool:
    """Whether it is a cancellation, or a nursery's group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_cancelled, error.exceptions))
    return isinstance(error, asyncio.CancelledError | trio.Cancelled)


def _result(result: Any, record: Any) -> Spec | None:
    if record is None:
        return None
    seen: Spec = {
        "success": record.success,
        "stop_reason": str(record.stop_reason),
        "best": None if record.best_index is None else record.best.iteration,
        "elapsed": record.elapsed,
        "undelivered": record.undelivered,
        "usage": usage_of(record.usage),
        "errors": sorted(type(e).__name__ for e in record.errors),
    }
    if result is not None:
        seen["value"] = repr(result.value)
        seen["tool_calls"] = [call.arguments for call in result.tool_calls]
        seen["candidates"] = sorted(s.iteration for s in result.candidates)
        if result.success:
            seen["context"] = len(result.context.messages)
    return seen


def _slice(s: Any, world: World) -> Spec:
    return {
        "lane": [s.subsample, s.depth, s.chain, s.stage],
        "outcome": str(s.outcome),
        "error": s.error and _kinds(s.error),
        "reason": bool(s.reason),
        "times": [s.started_at, s.ended_at],
        "usage": usage_of(s.usage),
        "check_usage": [[m, usage_of(u)] for m, u in s.check_usage or ()],
        "models": [s.asked, s.model],
        "verdicts": [
            [r.name, str(v.status), v.score, v.error and _kinds(v.error)] for r, v in s.validations
        ],
        "text": s.text,
        "value": repr(s.value),
        "finish": s.generation and s.generation.finish_reason,
        "calls": [call.arguments for call in s.tool_calls],
        "rounds": len(s.rounds),
    }


def _request(r: Spec) -> Spec:
    quiet = {"prompt", "iteration"}
    return {k: v for k, v in r.items() if k not in quiet and v not in (None, [])}


def _decision(record: Any) -> Spec | None:
    decision = record.decision if record is not None else None
    if decision is None:
        return None
    return {
        "kind": decision.kind,
        "winners": list(decision.winners),
        "complete": decision.complete,
        "scores": dict(sorted(decision.scores.items())),
        "notes": dict(sorted(decision.notes.items())),
        "answers": [[a.label, a.votes, list(a.draws)] for a in decision.answers],
        "share": decision.share,
        "abstentions": decision.abstentions,
        "comparisons": sorted([c.first, c.second, c.points] for c in decision.comparisons),
        "usage": usage_of(decision.usage),
        "errors": len(decision.errors),
        "model": decision.model,
    }


def _grouped(requests: Sequence[Spec], show: Any) -> dict[str, list[Any]]:
    """Requests by iteration, purpose and backend, in the order they started."""
    groups: dict[str, list[Any]] = defaultdict(list)
    for r in requests:
        groups[f"{r['iteration']} {r['purpose']} {r['backend']}"].append((r["start"], show(r)))
    return {
        name: [shown for _, shown in sorted(group, key=lambda pair: (pair[0], repr(pair[1])))]
        for name, group in sorted(groups.items())
    }


def _noted(notes: Iterable[list[Any]], key: int) -> dict[str, list[Any]]:
    """Notes by iteration, in order of time."""
    groups: dict[str, list[Any]] = defaultdict(list)
    for note in notes:
        groups[str(note[key])].append([*note[:key], *note[key + 1 :]])
    return dict(sorted(groups.items()))


def _by_instant(pairs: Sequence[tuple[float, int]]) -> list[Any]:
    """Ids in order; ids of the same instant are grouped and sorted."""
    instants = itertools.groupby(pairs, key=lambda pair: round(pair[0], 5))
    groups = [sorted(i for _, i in group) for _, group in instants]
    return [group if len(group) > 1 else group[0] for group in groups]


def _statistics(limit: Any) -> Any:
    return [list(v) if isinstance(v, tuple) else v for v in limit.statistics()]


# --- prompts ---------------------------------------------------------------------------------


def _problems(record: Any) -> list[str]:
    """Reasons of failures, the longest first."""
    slices = record.slices if record is not None else ()
    problems = {problem for s in slices for problem in (s.reason, *s.problems) if problem}
    return sorted(problems, key=lambda problem: (-len(problem), problem))


def _digest(messages: Iterable[tuple[str, str]], problems: Sequence[str]) -> list[str]:
    """Messages without the wording of what was wrong."""
    texts = []
    for role, text in messages:
        for problem in problems:
            text = text.replace(problem, "<problem>")  # noqa: PLW2901 (one after the other)
        texts.append(f"{role}: {text}")
    return texts


# --- telemetry -------------------------------------------------------------------------------


def _telemetry() -> tuple[Any, Any, Telemetry]:
    exporter, reader, tracers = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider([reader], shutdown_on_exit=False)
    return exporter, reader, Telemetry(tracer_provider=tracers, meter_provider=meters)


def _spans(exporter: Any) -> list[Any]:
    spans = exporter.get_finished_spans()
    children: dict[Any, list[Any]] = defaultdict(list)
    known = {span.context.span_id for span in spans}
    for span in spans:
        parent = span.parent.span_id if span.parent else None
        children[parent if parent in known else None].append(span)

    def tree(parent: Any) -> list[Any]:
        found = []
        for span in children[parent]:
            attributes = {
                key.removeprefix("mellea_like.").removeprefix("gen_ai."): value
                for key, value in sorted((span.attributes or {}).items())
                if key != "mellea_like.sampling_id" and not key.endswith("decision.reason")
            }
            events = [event.name for event in span.events]
            shown = [span.name, span.status.status_code.name, attributes, events, len(span.links)]
            found.append([*shown, tree(span.context.span_id)])
        return sorted(found, key=repr)

    return tree(None)


def _metrics(reader: Any) -> list[Any]:
    data = reader.get_metrics_data()
    points = [
        [metric.name, sorted(map(str, p.attributes.items())), getattr(p, "value", None) or p.count]
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for p in metric.data.data_points
    ]
    return sorted(points, key=repr)


def _rounded(value: Any) -> Any:
    """Convert to JSON types, with rounded numbers."""
    if isinstance(value, dict):
        return {str(k): _rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    if isinstance(value, float):
        return round(value, 5) + 0.0
    return value if value is None or isinstance(value, int | str | bool) else str(value)
