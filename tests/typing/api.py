"""The types that the public API promises; mypy and pyright check this file, nothing runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypeVar, assert_type

from pydantic import BaseModel, Field

from mellea_like import (
    BaseSamplingStrategy,
    Candidate,
    Context,
    FunctionBackend,
    Generation,
    Instruction,
    Message,
    MultiTurnStrategy,
    Outcome,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Request,
    Requirement,
    SamplingResult,
    Slice,
    SyncSampler,
    Tool,
    ValidationResult,
    check,
    check_sync,
    checks,
    requirement,
)
from mellea_like.agent import AgentResult, run_agent, run_agent_sync
from mellea_like.backends import ScriptedBackend
from mellea_like.checking import CheckResult
from mellea_like.core import Action, Options, StopReason, ToolCall, Usage, current_iteration
from mellea_like.core.backend import Backend, StreamingBackend
from mellea_like.core.conversation import Asked
from mellea_like.errors import BackendError, HookError, SamplingFailed
from mellea_like.hooks import (
    HookMode,
    HookType,
    Plugin,
    PluginSet,
    SamplingIterationPayload,
    SamplingLoopEndPayload,
    SamplingLoopStartPayload,
    hook,
)
from mellea_like.requirements.code import (
    CodeJob,
    CodeReport,
    CodeRunner,
    Sandbox,
    passes_tests,
    runs,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import TypeForm

T = TypeVar("T")


class Invoice(BaseModel):
    number: str
    total: float


@dataclass(frozen=True)
class Dice:
    """An action of one's own: its reply is read as an int."""

    sides: int

    def render(self, context: Context) -> Sequence[Message]:
        return (*context.messages, Message("user", f"Throw a die with {self.sides} sides."))

    def parse(self, text: str) -> int:
        return int(text)


class Echo:
    """A backend of one's own."""

    async def generate(self, request: Request) -> Generation:
        return Generation(text=request.messages[-1].text)


# --- sampling: the result is generic in the parsed value --------------------------------------


def a_record_is_typed_by_its_format(data: dict[str, Any]) -> None:
    assert_type(SamplingResult.from_dict(data), SamplingResult[Any])
    assert_type(SamplingResult.from_dict(data, Invoice), SamplingResult[Invoice])
    assert_type(SamplingResult.from_dict(data, int).to_dict(), dict[str, Any])


async def text_gives_text(strategy: RejectionSamplingStrategy) -> None:
    result = await strategy.sample("x")
    assert_type(result, SamplingResult[str])
    assert_type(result.value, str | None)
    assert_type(result.unwrap(), str)
    assert_type(await strategy.sample(Instruction("x"), ["short"]), SamplingResult[str])
    assert_type(await strategy.sample(Message("user", "x")), SamplingResult[str])
    assert_type(await strategy.sample({"role": "user", "content": "x"}), SamplingResult[str])
    history: list[Message | dict[str, str]] = [Message("system", "x"), {"role": "user"}]
    assert_type(await strategy.sample(history), SamplingResult[str])
    assert_type(strategy.stream("x", ["short"]).result, SamplingResult[str])
    assert_type(strategy.stream("x", format=Invoice).result, SamplingResult[Invoice])


async def format_gives_its_type(strategy: RepairTemplateStrategy) -> None:
    result = await strategy.sample("x", format=Invoice)
    assert_type(result, SamplingResult[Invoice])
    assert_type(result.value, Invoice | None)
    assert_type(result.unwrap(), Invoice)
    assert_type(await strategy.sample(Instruction("x"), format=Invoice), SamplingResult[Invoice])
    assert_type(await strategy.sample(Dice(6), format=Invoice), SamplingResult[Invoice])
    assert_type(await strategy.sample("x", format=list[int]), SamplingResult[list[int]])
    assert_type(await strategy.sample("x", format=bool), SamplingResult[bool])


class Credit(BaseModel):
    kind: Literal["credit"]


class Debit(BaseModel):
    kind: Literal["debit"]


Entry = Annotated[Credit | Debit, Field(discriminator="kind")]


async def format_is_any_type_that_is_read_at_run_time(
    strategy: BaseSamplingStrategy, data: dict[str, Any]
) -> None:
    either = await strategy.sample("x", format=Invoice | Credit)
    assert_type(either.unwrap(), Invoice | Credit)
    assert_type(either.value, Invoice | Credit | None)
    assert_type((await strategy.sample("x", format=int | None)).unwrap(), int | None)
    assert_type((await strategy.sample("x", format=Optional[int])).unwrap(), int | None)  # noqa: UP045
    assert_type((await strategy.sample("x", format=Entry)).unwrap(), Credit | Debit)
    assert_type((await strategy.sample("x", format=list[Entry])).unwrap(), list[Credit | Debit])
    assert_type((await strategy.sample("x", format=Literal["a", "b"])).unwrap(), Literal["a", "b"])
    assert_type((await strategy.sample("x", format=Annotated[int, Field(gt=0)])).unwrap(), int)
    assert_type(
        (await strategy.sample(Dice(6), format=list[int] | None)).unwrap(), list[int] | None
    )
    assert_type(strategy.sample_sync("x", format=Entry), SamplingResult[Credit | Debit])
    assert_type(strategy.sample_sync("x", format=int | str), SamplingResult[int | str])
    assert_type(SamplingResult.from_dict(data, Entry), SamplingResult[Credit | Debit])
    assert_type(SamplingResult.from_dict(data, int | None), SamplingResult[int | None])
    checks.parses_as(Entry)


def format_may_be_passed_on(strategy: BaseSamplingStrategy, format: type[T]) -> T:
    return strategy.sample_sync("x", format=format).unwrap()


def any_type_may_be_passed_on(strategy: BaseSamplingStrategy, format: TypeForm[T]) -> T:
    return strategy.sample_sync("x", format=format).unwrap()


async def whatever_may_be_asked_can_be_passed_on(
    strategy: BaseSamplingStrategy, action: Asked[T], text: Asked, some: str | Action[Any]
) -> T:
    assert_type(await strategy.sample(text), SamplingResult[str])
    assert_type(strategy.sample_sync(some), SamplingResult[Any])
    return (await strategy.sample(action)).unwrap()


async def what_may_not_be_asked_is_an_error(strategy: BaseSamplingStrategy) -> None:
    await strategy.sample(6)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await strategy.sample(b"x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await strategy.sample("x", fromat=int)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await strategy.sample("x", tool_rounds="3")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


async def action_gives_what_it_parses(strategy: MultiTurnStrategy) -> None:
    die: Action[int] = Dice(6)
    assert_type(await strategy.sample(die), SamplingResult[int])
    assert_type((await strategy.sample(Dice(6))).unwrap(), int)


def scripts_get_the_same(strategy: BaseSamplingStrategy) -> None:
    assert_type(strategy.sample_sync("x"), SamplingResult[str])
    assert_type(strategy.sample_sync("x", format=Invoice), SamplingResult[Invoice])
    assert_type(strategy.sample_sync(Dice(6)), SamplingResult[int])
    with SyncSampler(strategy) as sampler:
        assert_type(sampler.sample("x", timeout=5), SamplingResult[str])
        assert_type(sampler.sample("x", format=Invoice, strategy=strategy), SamplingResult[Invoice])
        assert_type(sampler.sample("x", format=int | None), SamplingResult[int | None])
        assert_type(sampler.sample(Dice(6)), SamplingResult[int])
        assert_type(sampler.sample("x", format=Entry), SamplingResult[Credit | Debit])
        assert_type(sampler.sample([{"role": "user", "content": "x"}]), SamplingResult[str])
        assert_type(sampler.sample({"role": "user"}, format=Invoice), SamplingResult[Invoice])


async def what_a_call_takes(
    strategy: BaseSamplingStrategy, backend: Backend, streaming: StreamingBackend
) -> None:
    def seen(slice_: Slice) -> None:
        assert_type(slice_.outcome, Outcome)

    async def seen_too(slice_: Slice) -> None:
        assert_type(slice_.usage, Usage)

    await strategy.sample(
        "x",
        [requirement("short"), "polite"],
        context=Context([Message("system", "Be brief.")]),
        backend=backend,
        options=Options(temperature=0.5),
        validation_context=Context(),
        on_slice=seen,
    )
    await strategy.sample("x", options={"seed": 1}, backend=streaming, on_slice=seen_too)
    await strategy.sample("x", backend=Echo())
    RejectionSamplingStrategy(
        Echo(),
        loop_budget=3,
        concurrency_budget=4,
        judge=backend,
        plugins=[Audit(), count_slices, PluginSet("guards", [Audit()])],
        selection="ordered",
        timeout=2.5,
    )


# --- results ----------------------------------------------------------------------------------


def result_fields(result: SamplingResult[Invoice]) -> None:
    assert_type(result.success, bool)
    assert_type(result.best, Slice)
    assert_type(result.slices, tuple[Slice, ...])
    assert_type(result.errors, tuple[BaseException, ...])
    assert_type(result.usage, Usage)
    assert_type(result.elapsed, float)
    assert_type(result.stop_reason, StopReason)
    assert_type(result.sampling_id, str)
    assert_type(result.count(Outcome.CANCELLED), int)


def slice_fields(slice_: Slice) -> None:
    assert_type(slice_.iteration, int)
    assert_type(slice_.subsample, int)
    assert_type(slice_.depth, int)
    assert_type(slice_.chain, int)
    assert_type(slice_.action, Action[Any])
    assert_type(slice_.context, Context)
    assert_type(slice_.context_after, Context)
    assert_type(slice_.rounds, tuple[Message, ...])
    assert_type(slice_.generation, Generation | None)
    assert_type(slice_.validations, tuple[tuple[Requirement, ValidationResult], ...])
    assert_type(slice_.outcome, Outcome)
    assert_type(slice_.error, BaseException | None)
    assert_type(slice_.started_at, float)
    assert_type(slice_.text, str)


def context_grows(context: Context) -> None:
    assert_type(context.add(Message("user", "x")), Context)
    assert_type(context.messages, tuple[Message, ...])
    assert_type(current_iteration(), int | None)


def errors_carry(failed: SamplingFailed, hooked: HookError, backend: BackendError) -> None:
    assert_type(failed.result, SamplingResult[Any] | None)
    assert_type(hooked.result, SamplingResult[Any] | None)
    assert_type(backend.status, int | None)
    assert_type(backend.retryable, bool)
    assert_type(backend.retry_after, float | None)


# --- requirements -----------------------------------------------------------------------------


@requirement("exactly three lines")
def three_lines(candidate: Candidate) -> tuple[bool, str]:
    return candidate.text.count("\n") == 2, "it has another number"


@requirement("polite", timeout=2.0, weight=2.0)
async def polite(candidate: Candidate) -> bool:
    return "please" in candidate.text


def short(candidate: Candidate) -> ValidationResult:
    return ValidationResult(len(candidate.text) < 80, score=0.5)


assert_type(three_lines, Requirement)
assert_type(polite, Requirement)
assert_type(requirement("short", short, inline=True), Requirement)
assert_type(Requirement("short", short) & three_lines | ~polite, Requirement)


# --- strategies and backends of one's own -----------------------------------------------------


class Patient(BaseSamplingStrategy):
    needs_all_reasons = True

    def repair(self, history: Sequence[Slice]) -> tuple[Action[Any], Context]:
        return history[-1].action, history[-1].context_after

    def select_from_failure(self, slices: Sequence[Slice]) -> int:
        return len(slices) - 1


def request_fields(request: Request) -> None:
    assert_type(request.messages, tuple[Message, ...])
    assert_type(request.options, Options)
    assert_type(request.meta.purpose, Literal["generate", "judge"])
    assert_type(request.meta.iteration, int | None)


def answer(request: Request) -> str:
    return request.messages[-1].text


async def answer_later(request: Request) -> Generation:
    return Generation(text=request.messages[-1].text)


backends: list[Backend] = [
    Echo(),
    FunctionBackend(answer),
    FunctionBackend(answer_later),
    ScriptedBackend(["a", "b"]),
]
streaming_backend: StreamingBackend = ScriptedBackend(["a"])


# --- plugins ----------------------------------------------------------------------------------


@hook(HookType.SAMPLING_ITERATION, mode=HookMode.OBSERVE)
async def count_slices(payload: SamplingIterationPayload) -> None:
    assert_type(payload.slice, Slice)
    assert_type(payload.sampling_id, str)
    assert_type(payload.iteration, int | None)


class Audit(Plugin):
    @hook(HookType.SAMPLING_LOOP_START, priority=10, timeout=1.0)
    async def begin(self, payload: SamplingLoopStartPayload) -> SamplingLoopStartPayload:
        assert_type(payload.loop_budget, int)
        return payload.model_copy(update={"loop_budget": 2})

    @hook("sampling_loop_end", mode="background")
    async def end(self, payload: SamplingLoopEndPayload) -> None:
        assert_type(payload.best, Slice | None)
        assert_type(payload.error, BaseException | None)
        assert_type(payload.stop_reason, StopReason)


async def a_decorated_function_keeps_its_type(payload: SamplingIterationPayload) -> None:
    assert_type(await count_slices(payload), None)


async def a_scope_is_a_context_manager() -> None:
    with PluginSet("guards", [Audit(), count_slices]) as guards:
        assert_type(guards, PluginSet)


class _Service:
    """Runs programs elsewhere."""

    async def run(self, job: CodeJob) -> CodeReport:
        return CodeReport(stdout=job.stdin)


def check_code(sandbox: Sandbox) -> None:
    runners: list[CodeRunner] = [sandbox, _Service()]
    assert_type(passes_tests("assert x", names=["x"], sandbox=runners[0], weight=2.0), Requirement)
    assert_type(runs(stdout="1", sandbox=runners[1]), Requirement)


def look_up(city: str) -> int:
    """How many rooms a city has."""
    return len(city)


async def look_up_later(city: str) -> int:
    return len(city)


async def tools_are_functions_or_schemas(strategy: RejectionSamplingStrategy) -> None:
    result = await strategy.sample(
        "go",
        [checks.calls_tool("look_up", city="Oslo"), checks.no_tool_calls(weight=2.0)],
        tools=[look_up, look_up_later, Tool.of(look_up, read_only=True), {"name": "x"}],
        tool_choice="required",
        tool_rounds=3,
    )
    assert_type(result, SamplingResult[str])
    assert_type(result.tool_calls, tuple[ToolCall, ...])
    answers = await result.run_tools(on_error="raise")
    assert_type(answers, tuple[Message, ...])
    further = await strategy.sample(answers, context=result.context, tools=[look_up])
    assert_type(further, SamplingResult[str])
    SyncSampler(strategy).sample("go", tools=[look_up])
    assert_type(result.context, Context)
    agent = await run_agent(strategy, "go", ["is short"], tools=[look_up], max_rounds=2)
    assert_type(agent, AgentResult[str])
    assert_type(agent.results, tuple[SamplingResult[str], ...])
    assert_type(agent.unwrap(), str)
    assert_type(await run_agent(strategy, "go", format=int, on_error="raise"), AgentResult[int])
    assert_type(await run_agent(strategy, "go", format=int | None), AgentResult[int | None])
    assert_type(run_agent_sync(strategy, "go", tools=[look_up]), AgentResult[str])
    assert_type(run_agent_sync(strategy, "go", format=int).value, int | None)
    assert_type(checks.unless_it_calls("is short"), Requirement)


async def a_check_knows_the_type_of_the_value() -> None:
    assert_type((await check("x", [checks.is_json()], format=Invoice)).value, Invoice | None)
    assert_type(check_sync("1", format=int), CheckResult[int])
    assert_type(check_sync("1", "is one", format=int | str), CheckResult[int | str])
    check_sync("x", juge=None)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
