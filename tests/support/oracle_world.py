"""The backends, validators, plugins and tools of a generated call, which note what happens.

Only names that users can import are used, so that recordings outlive an engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import oracle_calls as calls
from anyio.lowlevel import checkpoint
from pydantic import BaseModel, Field

from mellea_like import (
    BestOf,
    Budget,
    Candidate,
    Collect,
    Context,
    Escalate,
    Generation,
    Instruction,
    Message,
    MultiTurnStrategy,
    Price,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Request,
    Requirement,
    Slice,
    Stage,
    Tool,
    ValidationResult,
    Vote,
)
from mellea_like.core import ToolCall, Usage, Verdict, current_iteration
from mellea_like.core.requirement import at_least
from mellea_like.errors import (
    AuthenticationFailed,
    BackendTimeout,
    BackendUnavailable,
    InvalidRequest,
    MalformedResponse,
    RateLimited,
)
from mellea_like.hooks import Blocked, hook
from mellea_like.limits import (
    AdaptiveLimiter,
    ConcurrencyLimiter,
    LimitedBackend,
    RateLimiter,
    Retry,
    gate_of,
)
from mellea_like.sampling.escalate import ExpectedCost
from mellea_like.schedules import (
    BaseSchedule,
    CallFacts,
    CallProgress,
    Eager,
    Go,
    Hedged,
    LatencyQuantiles,
    PerRequirement,
    Restart,
    SchedulePlan,
    Staggered,
)
from mellea_like.selections import Consensus, Tournament

Spec = dict[str, Any]
NAMES = ["main", "judge", "own judge", "referee", *(f"stage {n}" for n in range(3))]
PRICES = {name: Price(10 + n, 60) for n, name in enumerate(NAMES)}


class Foreign(Exception):
    """An exception that no backend of the library would raise."""


class Answer(BaseModel):
    said: str
    n: int = Field(le=9)


class Ask:
    """An action whose replies can fail to parse."""

    def render(self, context: Context) -> Sequence[Message]:
        return (*context.messages, Message("user", "say yes"))

    def parse(self, text: str) -> str:
        if "garbled" in text:
            raise ValueError("it is garbled")
        return text.upper()


def on_asyncio() -> bool:
    return anyio.get_cancelled_exc_class() is asyncio.CancelledError


def stray() -> BaseException:
    """A cancellation that nobody asked for; trio has none."""
    return asyncio.CancelledError() if on_asyncio() else Foreign("no stray cancellation on trio")


async def wait(delay: float | None) -> None:
    await (
        anyio.sleep_forever() if delay is None else anyio.sleep(delay) if delay else checkpoint()
    )


def said(candidate: Candidate) -> list[str]:
    return re.findall(r"\w+", candidate.text)


class World:
    """The surroundings of one call, with notes of everything that happens."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.begun = anyio.current_time()
        self.over = False
        self.late: list[str] = []
        self.requests: list[Spec] = []
        self.checks: list[list[Any]] = []
        self.events: list[list[Any]] = []
        self.told: list[list[Any]] = []
        self.tools_run: list[list[Any]] = []
        self.in_flight = Counter[str]()
        self.most_in_flight = Counter[str]()
        self.limits: dict[str, Any] = {}
        self.nested: list[list[Any]] = []
        self.acted = Counter[tuple[Any, ...]]()

    @property
    def now(self) -> float:
        return anyio.current_time() - self.begun

    def note(self, where: list[list[Any]], *what: Any) -> None:
        if self.over:
            self.late.append(str(what[0]))
        where.append([self.now, *what])


class Played:
    """A backend that follows the description of a call."""

    provider = "played"

    def __init__(self, world: World, name: str, mood: str, *, whole: Spec | None = None) -> None:
        self.world, self.name, self.model, self.mood = world, name, name, mood
        self.can_judge = True
        self.spec = whole or world.spec
        self._places = Counter[tuple[Any, ...]]()

    async def generate(self, request: Request) -> Generation:
        draw, seen, meter = self._begin(request)
        with self._watched(request, seen):
            try:
                await self._work(draw)
            except anyio.get_cancelled_exc_class():
                if draw["manner"] != "swallow":
                    raise
            reply = self._reply(request, draw)
            self._settle(draw, meter, reply)
            return reply

    def _begin(self, request: Request) -> tuple[Spec, Spec, Any]:
        meta = request.meta
        content = "\n".join(message.text for message in request.messages)
        place: tuple[Any, ...] = (meta.iteration, meta.purpose)
        if meta.purpose == "judge":
            place += tuple(sorted(set(re.findall(r"req-\d+|\bi\d+\b", content))))
        self._places[place] += 1
        place += (self._places[place],)
        if meta.purpose == "judge":
            draw = calls.verdict(self.spec, self.name, place)
        else:
            draw = calls.reply(self.spec, self.name, self.mood, place)
        meter = request.meter.start()
        meter.update(input_tokens=len(request.messages) * 5)
        seen = {
            "backend": self.name,
            "iteration": meta.iteration,
            "subsample": meta.subsample,
            "purpose": meta.purpose,
            "retry": meta.retry,
            "seed": request.options.seed,
            "temperature": request.options.temperature,
            "deadline": None if meta.deadline is None else meta.deadline - self.world.begun,
            "began": None if meta.call_started is None else meta.call_started - self.world.begun,
            "tools": [tool.name for tool in request.tools],
            "tool_choice": request.tool_choice,
            "format": getattr(request.format, "__name__", None),
            "current": current_iteration(),
            "start": self.world.now,
            "prompt": [(message.role, message.text) for message in request.messages],
        }
        return draw, seen, meter

    @contextlib.contextmanager
    def _watched(self, request: Request, seen: Spec):
        world = self.world
        if world.over:
            world.late.append(f"request to {self.name}")
        world.requests.append(seen)
        kind = f"{self.name} {request.meta.purpose}"
        world.in_flight[kind] += 1
        world.most_in_flight[kind] = max(world.most_in_flight[kind], world.in_flight[kind])
        try:
            yield
        except anyio.get_cancelled_exc_class():
            seen["how"] = "cancelled"
            raise
        except BaseException as exc:
            seen["how"] = type(exc).__name__
            raise
        else:
            seen["how"] = "replied"
        finally:
            seen["end"] = world.now
            world.in_flight[kind] -= 1

    async def _work(self, draw: Spec, share: float = 1.0) -> None:
        delay, manner = draw["delay"], draw["manner"]
        try:
            await wait(None if delay is None else delay * share)
        except anyio.get_cancelled_exc_class():
            if manner == "replace":
                raise Foreign("cleaning up failed") from None
            if manner == "unavailable":
                raise BackendUnavailable("the connection broke") from None
            if manner == "slow":
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(draw["cleanup"])
            raise

    def _reply(self, request: Request, draw: Spec) -> Generation:
        kind = draw["kind"]
        if request.meta.purpose == "judge":
            return self._verdict(request, draw)
        error = _error(kind, draw)
        if error is not None:
            raise error
        tools = self.spec["tools"]
        if tools and request.tools and draw["calls"] < tools["share"]:
            called = [ToolCall(f"c{n}", name, arguments) for n, name, arguments in _called(draw)]
            return Generation(
                "", tool_calls=tuple(called), finish_reason="tool_calls", model=self.name
            )
        text = self._text(request, draw)
        finish = {"cut": "length", "filtered": "content_filter"}.get(kind, "stop")
        refusal = "I would rather not" if kind == "refused" else None
        return Generation(text, model=self.name, finish_reason=finish, refusal=refusal)

    def _text(self, request: Request, draw: Spec) -> str:
        kind, words = draw["kind"], list(draw["words"])
        if kind in {"empty", "refused", "filtered"}:
            return ""
        if kind == "garbled":
            words.insert(1, "garbled")
        if self.spec["selection"]["kind"] == "tournament":
            words.append(f"i{request.meta.iteration}")
        text = " ".join(words)
        if request.format is None:
            return text
        return '{"said": ' if kind == "garbled" else f'{{"said": "{text}", "n": {draw["n"]}}}'

    def _verdict(self, request: Request, draw: Spec) -> Generation:
        kind = draw["kind"]
        if kind == "transient":
            raise BackendUnavailable("the judge is away", status=503)
        if kind == "permanent":
            raise AuthenticationFailed("the judge's key is wrong", status=401)
        if kind == "garbled":
            return Generation("it depends", model=self.name)
        if "You compare" in request.messages[0].text:
            return Generation(f'{{"better": "{draw["better"]}"}}', model=self.name)
        passed = "true" if kind == "pass" else "false"
        return Generation(f'{{"passed": {passed}, "reason": "so it is"}}', model=self.name)

    def _settle(self, draw: Spec, meter: Any, reply: Generation) -> None:
        if draw.get("metered", True):
            meter.settle(input_tokens=meter.input_tokens, output_tokens=len(reply.text.split()) + 1)


class PlayedInPieces(Played):
    """A backend that streams, too."""

    @contextlib.asynccontextmanager
    async def stream(self, request: Request):
        async with contextlib.aclosing(self._stream(request)) as pieces:
            yield pieces

    async def _stream(self, request: Request):
        draw, seen, meter = self._begin(request)
        seen["streamed"] = True
        pieces = draw.get("pieces", 1)
        with self._watched(request, seen):
            try:
                await self._work(draw, 1 / pieces)
                if draw["kind"] in ERRORS and draw["begins"]:
                    yield draw["words"][0]
                    await self._work(draw, 1 / pieces)
                reply = self._reply(request, draw)
                size = max(1, -(-len(reply.text) // pieces))
                for at in range(0, len(reply.text), size):
                    if at:
                        await self._work(draw, 1 / pieces)
                    meter.update(output_tokens=1 + at // size)
                    yield reply.text[at : at + size]
            except anyio.get_cancelled_exc_class():
                if draw["manner"] != "swallow":
                    raise
                reply = self._reply(request, draw)
            except GeneratorExit:
                seen["closed"] = True
                raise
            self._settle(draw, meter, reply)
            yield reply


def _called(draw: Spec) -> list[tuple[int, str, str]]:
    """The calls of tools in a reply: their numbers, names and arguments."""
    n = draw["n"]
    calls = [(1, "look", '{"n": "many"}' if n == 99 else f'{{"n": {n}}}')]
    if draw["pieces"] == 5:
        calls.append((2, "look", '{"n": 4}'))
    if draw["pieces"] == 4:
        calls.append((3, "put", '{"n": 4}'))
    return calls


def _error(kind: str, draw: Spec) -> BaseException | None:
    return ERRORS[kind](draw) if kind in ERRORS else None


ERRORS: dict[str, Callable[[Spec], BaseException]] = {
    "transient": lambda _: BackendUnavailable("overloaded", status=503),
    "limited": lambda draw: RateLimited("slow down", status=429, retry_after=draw["after"]),
    "timeout": lambda _: BackendTimeout("it took too long"),
    "malformed": lambda _: MalformedResponse("no JSON"),
    "connection": lambda _: ConnectionError("reset"),
    "permanent": lambda _: AuthenticationFailed("wrong key", status=401),
    "invalid": lambda _: InvalidRequest("wrong model", status=400),
    "foreign": lambda _: Foreign("no backend error"),
    "group": lambda _: ExceptionGroup("the backend's own", [Foreign("one"), Foreign("two")]),
    "stray": lambda _: stray(),
}


# --- requirements ----------------------------------------------------------------------------


def requirement(world: World, spec: Spec) -> Requirement:  # noqa: C901, PLR0915 (one kind after the other)
    kind, tag = spec["kind"], spec["tag"]
    settings: Spec = {
        "name": f"{kind} {tag}",
        "weight": spec["weight"],
        "check_only": spec["check_only"],
        "on_error": spec["on_error"],
        "timeout": spec["timeout"],
    }

    def note(candidate: Candidate) -> None:
        world.note(world.checks, tag, current_iteration(), len(candidate.context.messages))

    def yes(candidate: Candidate) -> tuple[bool, str]:
        note(candidate)
        return "yes" in said(candidate), f"it lacks yes ({tag})"

    async def blue(candidate: Candidate) -> tuple[bool, str]:
        note(candidate)
        await anyio.sleep(spec["delay"])
        return "blue" in said(candidate), f"it isn't blue ({tag})"

    async def slow(candidate: Candidate) -> bool:
        note(candidate)
        await anyio.sleep(60 if "slow" in said(candidate) else spec["delay"])
        return True

    def scored(candidate: Candidate) -> ValidationResult:
        note(candidate)
        words = said(candidate)
        return ValidationResult("yes" in words, f"no yes ({tag})", min(1.0, len(words) / 10))

    def boom(candidate: Candidate) -> bool:
        note(candidate)
        if "boom" in said(candidate):
            raise Foreign(f"boom ({tag})")
        return True

    def bug(candidate: Candidate) -> bool:
        note(candidate)
        raise KeyError(tag)

    def odd(candidate: Candidate) -> Any:
        note(candidate)
        return 5 if "odd" in said(candidate) else True

    async def astray(candidate: Candidate) -> bool:
        note(candidate)
        await anyio.sleep(spec["delay"])
        if "stray" in said(candidate):
            raise stray()
        return True

    async def nested(candidate: Candidate) -> bool:
        note(candidate)
        outer = current_iteration()
        inner = Played(world, f"nested {outer}", "even")
        strategy = RejectionSamplingStrategy(inner, loop_budget=2, concurrency_budget=2, retry=None)
        good = Requirement("yes", lambda c: "yes" in said(c), inline=True)
        try:
            result = await strategy.sample("inside", [good])
        except (BackendUnavailable, Foreign) as exc:
            world.note(world.nested, outer, type(exc).__name__, current_iteration())
            return False
        outcomes = [[s.iteration, str(s.outcome)] for s in result.slices]
        world.note(world.nested, outer, outcomes, current_iteration())
        return result.success

    def certain(text: str, _: str) -> Any:
        how = spec["certain"]
        if how == "error" and "boom" in text:
            raise Foreign(f"stream ({tag})")
        if how == "odd" and "odd" in text:
            return 5
        if text.startswith(("no", '{"said": "no')):
            return (Verdict.FAIL, f"it begins with no ({tag})") if how == "reason" else Verdict.FAIL
        sure = text.startswith(("yes", '{"said": "yes')) and how != "never"
        return Verdict.PASS if sure else Verdict.UNKNOWN

    def streamed(candidate: Candidate) -> tuple[bool, str]:
        # Now and then, the final check contradicts the one of the stream.
        passed, reason = yes(candidate)
        return passed and (spec["certain"] != "blue" or "blue" in said(candidate)), reason

    description = f"{tag}: {kind}"
    if kind == "judged":
        own = Played(world, "own judge", "even") if spec.get("own_judge") else None
        return Requirement(description, judge=own, **settings)
    if kind == "composed":
        parts = [requirement(world, part) for part in spec["parts"]]
        if spec["operator"] == "not":
            return ~parts[0]
        if spec["operator"] == "at least":
            return at_least(2, *parts)
        both = spec["operator"] == "and"
        return parts[0] & parts[1] & parts[2] if both else parts[0] | parts[1] | parts[2]
    if kind == "streamed":
        return Requirement(description, streamed, inline=True, stream=certain, **settings)
    inline: Spec = {"yes": yes, "scored": scored, "boom": boom, "bug": bug, "odd": odd}
    if kind in inline:
        return Requirement(description, inline[kind], inline=True, **settings)
    awaited: Spec = {"blue": blue, "slow": slow, "stray": astray, "nested": nested}
    return Requirement(description, awaited[kind], **settings)


# --- strategies ------------------------------------------------------------------------------


class OwnStrategy(RejectionSamplingStrategy):
    """A user's strategy, which may have bugs."""

    needs_all_reasons = True
    spec: Spec

    def repair(self, history: Sequence[Slice]) -> tuple[Any, Context]:
        if self.spec["repair_fails"] and len(history) > 1:
            raise Foreign("repair")
        action, context = super().repair(history)
        return action, context.add(Message("user", f"again, for {len(history)}"))

    def select_from_failure(self, slices: Sequence[Slice]) -> int:
        if self.spec["selects"] == "error":
            raise Foreign("select")
        return {"first": 0, "last": len(slices) - 1, "nothing": len(slices)}[self.spec["selects"]]


class OwnSchedule(BaseSchedule):
    """A user's pooled schedule: it starts another draw at fixed intervals."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    @property
    def extra(self) -> int:
        return 1

    @property
    def seconds(self) -> float | None:
        return self.spec["seconds"]

    def begin(self, facts: CallFacts) -> SchedulePlan:
        return OwnPlan(self.spec)


class OwnPlan(SchedulePlan):
    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    def decide(self, progress: CallProgress) -> Go:
        every = self.spec["every"]
        due = self.spec["first"] + int((progress.now + 1e-6) / every)
        more = min(due - progress.started, 3 - len(progress.running))
        return Go(max(0, more), (int((progress.now + 1e-6) / every) + 1) * every)


def schedule(spec: Spec | None) -> BaseSchedule | None:
    if spec is None:
        return None
    if spec["kind"] == "eager":
        return Eager(pool=spec["pool"])
    if spec["kind"] == "staggered":
        return Staggered(spec["delay"])
    if spec["kind"] == "own":
        return OwnSchedule(spec)
    known = LatencyQuantiles(least=5)
    for seconds in spec["known"]:
        known.observe(seconds, "main")
    if spec["kind"] == "hedged":
        return Hedged(0.7, extra=spec["extra"], latency=known)
    inner = Hedged(0.7, latency=known) if spec["inner"] == "hedged" else Eager(pool=True)
    return Restart(0.7, schedule=inner, most=spec["most"], latency=known)


def selection(world: World, spec: Spec) -> Any:
    def length(candidate: Candidate) -> float:
        return float(len(said(candidate)) // 3)

    async def length_later(candidate: Candidate) -> tuple[float, str]:
        await anyio.sleep(0.21875)
        if "boom" in said(candidate):
            raise Foreign("no score")
        return float(len(said(candidate)) // 3), "so long"

    def answer(candidate: Candidate) -> Any:
        words = said(candidate)
        return None if "slow" in words else next((w for w in words if w in "abcd"), None)

    kind = spec["kind"]
    if kind in {"first", "ordered"}:
        return kind
    if kind == "best":
        scorer = {"inline": length, "async": length_later}[spec["scorer"]]
        inline = spec["scorer"] == "inline"
        return BestOf(scorer, n=spec["n"], threshold=spec["threshold"], inline=inline)
    if kind == "vote":
        weight = length_later if spec["weight"] else None
        confidence = spec["confidence"] if weight is None else None
        key = answer if spec["key"] else None
        return Vote(key, spec["n"], confidence, weight, spec["at_least"])
    if kind == "collect":
        return Collect(spec["k"], answer if spec["distinct"] else None, spec["ahead"])
    if kind == "consensus":
        return Consensus(n=spec["n"])
    judge = Played(world, "referee", "even") if spec["judge"] else None
    return Tournament(judge, n=spec["n"], rounds=spec["rounds"])


def budget(world: World, name: str, spec: Spec | None) -> Budget | None:
    if spec is None:
        return None
    priced = {"prices": PRICES, "assume_output_tokens": 40} if "money" in spec else {}
    made = Budget(**{**priced, **spec}, name=name)
    world.limits[name] = made
    return made


def limited(world: World, backend: Any) -> Any:
    limits: list[Any] = []
    for spec in world.spec["limits"]:
        if spec["kind"] == "concurrency":
            limits.append(ConcurrencyLimiter(spec["most"]))
        elif spec["kind"] == "rate":
            limits.append(RateLimiter(requests_per_minute=spec["requests"]))
        else:
            limits.append(AdaptiveLimiter(spec["initial"]))
        world.limits[spec["kind"]] = limits[-1]
    world.limits["gate"] = gate_of(backend)
    return LimitedBackend(backend, *limits) if limits else backend


def strategy(world: World, plugins: Sequence[Any], telemetry: Any) -> Any:
    spec = world.spec
    backend_type = PlayedInPieces if spec["pieces"] else Played
    kinds: Spec = {
        "rejection": RejectionSamplingStrategy,
        "repair": RepairTemplateStrategy,
        "multi": MultiTurnStrategy,
        "own": type("OwnStrategy", (OwnStrategy,), {"spec": spec}),
    }
    judge = Played(world, "judge", "even") if spec["judge"] else None
    arguments: Spec = {
        "concurrency_budget": spec["concurrency_budget"],
        "requirements": [requirement(world, q) for q in spec["strategy_requirements"]],
        "judge": judge,
        "plugins": plugins,
        "selection": selection(world, spec["selection"]),
        "iteration_timeout": spec["iteration_timeout"],
        "timeout": spec["timeout"],
        "validate_all": spec["validate_all"],
        "cancel_grace": spec["cancel_grace"],
        "retry": None if spec["retry"] is None else Retry(**spec["retry"]),
        "schedule": schedule(spec["schedule"]),
        "budget": budget(world, "strategy's", spec["strategy_budget"]),
        "accept_incomplete": spec["accept_incomplete"],
        "telemetry": telemetry,
    }
    if spec["strategy"] == "escalate":
        stages = [stage(world, at, made) for at, made in enumerate(spec["stages"])]
        prices = {f"stage {at}": Price(1 + 4 * at, 2) for at in range(len(stages))}
        after = ExpectedCost(prices) if spec["after"] else None
        return Escalate(stages, after=after, **arguments)
    if spec["give_up"]:
        arguments["give_up"] = PerRequirement(**spec["give_up"])
    backend = limited(world, backend_type(world, "main", spec["mood"]))
    return kinds[spec["strategy"]](backend, loop_budget=spec["loop_budget"], **arguments)


def stage(world: World, at: int, spec: Spec) -> Stage:
    backend_type = PlayedInPieces if world.spec["pieces"] else Played
    backend: Any = backend_type(world, f"stage {at}", spec["mood"])
    return Stage(
        limited(world, backend) if at == 0 else backend,
        spec["turns"],
        spec["carry"],
        options=spec["options"],
        requirements=[requirement(world, q) for q in spec["requirements"]],
        judge=Played(world, f"judge {at}", "even") if spec["judge"] else None,
        budget=spec["budget"] and budget(world, f"stage {at}'s", {"requests": spec["budget"]}),
    )


def action(spec: Spec) -> tuple[Any, Any]:
    """The action, and the format."""
    kind = spec["action"]
    if kind == "model":
        return "say yes as JSON", Answer
    if kind == "task":
        own = Requirement("it is a task's own", lambda c: True, inline=True)
        return Instruction("say yes", requirements=[own]), None
    if kind == "messages":
        return [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "yes?"},
        ], None
    return (Ask() if kind == "ask" else "say yes"), None


def tools(world: World) -> list[Any]:
    spec = world.spec["tools"]
    if not spec:
        return []

    async def look(n: int) -> str:
        """Look it up."""
        world.note(world.tools_run, current_iteration(), n)
        await anyio.sleep(spec["delay"])
        if spec["fails"] and n == 1:
            raise Foreign("no such thing")
        return str(n * 2)

    async def put(n: int) -> str:
        """Put it there."""
        world.note(world.tools_run, current_iteration(), -n)
        return "done"

    both = [Tool.of(look, read_only=spec["read_only"]), Tool.of(put)]
    return both if spec["both"] else both[:1]


# --- plugins ---------------------------------------------------------------------------------


def teller(world: World, mode: str) -> list[Any]:
    """Handlers that note every payload."""

    def handler(kind: str) -> Any:
        @hook(kind, mode=mode, priority=-1000)
        async def tell(payload: Any) -> None:
            where = [payload.subsample, current_iteration()]
            ended = payload.slice.ended_at if kind == "sampling_iteration" else None
            call = (payload.sampling_id, ended)
            world.note(world.events, kind, payload.iteration, where, seen_in(payload), call)

        return tell

    return [handler(kind) for kind in calls.HOOKS]


def seen_in(payload: Any) -> Spec:
    """The part of a payload that every engine must set alike."""
    plain = ["loop_budget", "concurrency_budget", "purpose", "retry", "model", "duration", "passed"]
    plain += ["success", "iterations_used", "elapsed", "strategy"]
    seen = {name: getattr(payload, name) for name in plain if hasattr(payload, name)}
    if hasattr(payload, "options"):
        seen["seed"] = payload.options.seed
    if hasattr(payload, "messages"):
        seen["messages"] = len(payload.messages)
    if hasattr(payload, "requirements"):
        seen["requirements"] = [r.name for r in payload.requirements]
    if hasattr(payload, "validations"):
        seen["verdicts"] = [str(v.status) for _, v in payload.validations]
    if hasattr(payload, "usage"):
        seen["usage"] = usage_of(payload.usage)
    if hasattr(payload, "error"):
        seen["error"] = payload.error and type(payload.error).__name__
    if hasattr(payload, "failed"):
        seen["failed"] = payload.failed.iteration
        seen["context"] = len(payload.context.messages)
    if hasattr(payload, "slice"):
        seen["outcome"] = [payload.slice.iteration, str(payload.slice.outcome)]
    if hasattr(payload, "slices"):
        seen["slices"] = len(payload.slices)
        seen["best"] = payload.best and payload.best.iteration
        seen["stop_reason"] = str(payload.stop_reason)
        seen["winners"] = payload.decision and list(payload.decision.winners)
    return seen


def usage_of(usage: Usage) -> list[int]:
    return [usage.requests, usage.input_tokens, usage.output_tokens, usage.unknown]


ODD: dict[str, Spec] = {
    "sampling_loop_start": {"loop_budget": "many"},
    "generation_pre_call": {"options": {"seed": 3}},
    "validation_pre_check": {"requirements": ()},
    "validation_post_check": {"passed": 1},
}
"""Changes of payloads that are wrong, or of no effect."""


def actor(world: World, number: int, spec: Spec) -> Any:  # noqa: C901
    """A handler that interferes."""

    @hook(spec["hook"], mode=spec["mode"], priority=spec["priority"], timeout=spec["timeout"])
    async def meddle(payload: Any) -> Any:  # noqa: C901, PLR0911 (one deed after the other)
        place = (number, payload.iteration, getattr(payload, "purpose", None))
        world.acted[place] += 1
        name = "delivery" if spec["hook"] == "sampling_iteration" else "act"
        world.note(world.told, f"{name} {number}", payload.iteration, current_iteration())
        if calls.chance(world.spec, place, world.acted[place]) >= spec["share"]:
            return None
        what = spec["what"]
        await anyio.sleep(spec["delay"])
        if what == "dawdle":
            await anyio.sleep(7)
        elif what == "fail":
            raise Foreign(f"plugin {number}")
        elif what == "block":
            raise Blocked(f"plugin {number} has had enough")
        elif what == "stray":
            raise stray()
        elif what == "wrong":
            return payload.model_copy(update={"sampling_id": "mine"})
        elif what == "budget":
            return payload.model_copy(update={"loop_budget": spec["value"]})
        elif what == "require":
            more = Requirement("c or d", lambda c: bool({"c", "d"} & set(said(c))), inline=True)
            return payload.model_copy(update={"requirements": (*payload.requirements, more)})
        elif what == "veto":
            return payload.model_copy(update={"passed": False, "reason": f"veto {number}"})
        elif what == "grant":
            return payload.model_copy(update={"passed": True})
        elif what == "odd":
            return payload.model_copy(update=ODD.get(spec["hook"], {"strategy": "mine"}))
        elif what == "options":
            changed = payload.options.with_seed(number)
            return payload.model_copy(update={"options": changed})
        return None

    return meddle
