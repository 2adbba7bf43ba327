"""The base class of all strategies: their configuration, and ``sample``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from mellea_like.core.argument_checks import (
    check_type,
    real_number,
    suggests_arguments,
    whole_number,
)
from mellea_like.core.backend import JUDGE_DEFAULTS, Options
from mellea_like.core.tools import TOOL_ROUNDS
from mellea_like.hooks.plugins import handlers_in
from mellea_like.limits.retry import Retry
from mellea_like.requirements.merging import as_backend, check_requirements
from mellea_like.sampling.best_failure import best_failure
from mellea_like.sampling.call import RunningCall
from mellea_like.sampling.exclusions import check_together, features_of
from mellea_like.sampling.prepare import (
    Settings,
    backends_of,
    check_budget,
    check_schedule,
    check_selection,
    prepare_call,
)
from mellea_like.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
    from typing import Unpack

    from typing_extensions import TypeForm

    from mellea_like.core.backend import Backend
    from mellea_like.core.conversation import Action, Asked, Context, MessageLike, Parsed
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.result import SamplingResult
    from mellea_like.core.slice import Slice
    from mellea_like.core.tools import ToolSource
    from mellea_like.hooks.plugins import Pluggable
    from mellea_like.limits.budget import Budget
    from mellea_like.sampling.arguments import Arguments, Prepared
    from mellea_like.sampling.escalate import ExpectedCost, Stage
    from mellea_like.sampling.prepare import Selection
    from mellea_like.sampling.rounds import CallInRounds
    from mellea_like.sampling.streaming import Release, StreamedReply
    from mellea_like.schedules.base import BaseSchedule
    from mellea_like.schedules.giving_up import PerRequirement

__all__ = ["BaseSamplingStrategy"]

F = TypeVar("F")

_SILENT = Telemetry()
_RETRY = Retry()


class BaseSamplingStrategy:
    """Draws replies in one or more parallel lanes until a draw meets its requirements.

    A strategy is configuration only: it is immutable, and tasks and calls can share it. To write
    your own, override `repair`, and `select_from_failure` if the default does not fit. Both must
    be pure functions.

    Args:
        backend: the model that generates; a call may name another.
        loop_budget: the maximum number of attempts in each lane, which are made one after
            another; at least 1.
        concurrency_budget: the number of lanes that run side by side, at least 1. Each call has
            that many requests in flight, so the result comes sooner, but more is spent on draws
            that lose, and a provider's rate limit is reached sooner. If a draw can fail only
            because of the backend (plain text; no requirement, tool, schedule or selection object;
            no hook that decides on the draw), one lane runs at a time, because there is nothing to
            race.
        requirements: conditions for the draws of every call. The action's and the call's own
            requirements follow them.
        judge: the model that judges those requirements that have no validator; by default the
            call's backend.
        plugins: hooks that run in every call of this strategy.
        selection: which passing draw wins. ``"first"`` takes the first to arrive, which depends on
            timing. ``"ordered"`` takes the lowest (attempt, lane), whatever the timing: it waits
            for the draws of lower rank and cancels only the others. An object waits for several
            draws to pass and chooses among them: ``BestOf(score, n=5)``, ``Vote()``,
            ``Collect(3)``, ``Consensus()``, ``Tournament()``. Then all lanes share their attempts,
            and no more draws start than the selection could still need.
        options: options for generating replies; a call's own options take precedence.
        judge_options: options for judges' requests. The default is temperature 0, unless the
            judge's model refuses that; ``{"temperature": None}`` takes the server's default.
        iteration_timeout: the longest a draw may take, in seconds. After that, the draw counts as
            errored, and its lane continues. The limit also applies to a judge's comparison of two
            draws. A comparison that takes longer counts as a tie.
        timeout: the longest a call may take, in seconds. After that, the call returns the result
            so far, with the stop reason ``"timeout"``.
        validate_all: check every requirement even after one has failed, and read a typed reply to
            its end even after a wrong field. The default is the class's ``needs_all_reasons``.
        max_iterations: the highest allowed ``loop_budget * concurrency_budget``, to guard against
            expensive mistakes.
        cancel_grace: seconds after which a backend that ignores its cancellation is logged, with
            its stack; the call still waits for it. It has no effect on a lone lane, which runs in
            the caller's task.
        retry: how to retry a request within its draw after a transient error. With None, such an
            error uses up the draw's attempt.
        schedule: when draws may start. With None, as with ``Eager()``, all lanes start together if
            a draw can fail.
        budget: a limit on the cost of all calls of this strategy together; a call can have its own
            budget, too.
        give_up: when to stop because a requirement fails too often, as in ``PerRequirement()``; by
            default, a call never stops for this reason.
        accept_incomplete: whether to accept a reply that was cut off at its length limit, refused,
            withheld by a content filter, or empty (only white space, no tool call and no value),
            or that calls a tool although none were offered. By default, such a draw has failed,
            and its reason says why. With True, which text completion needs, the reply is parsed
            and checked like any other.
        telemetry: the destination of spans and metrics; by default the process's OpenTelemetry
            providers, which then receive no prompts or replies.

    Attributes:
        needs_all_reasons: whether a repair needs the verdict on every requirement, so that none is
            skipped after a failure.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    needs_all_reasons: ClassVar[bool] = False
    _stages: tuple[Stage, ...] = ()
    _after: ExpectedCost | None = None

    @suggests_arguments
    def __init__(
        self,
        backend: Backend | None = None,
        *,
        loop_budget: int = 3,
        concurrency_budget: int = 1,
        requirements: Sequence[Requirement | str] = (),
        judge: Backend | None = None,
        plugins: Iterable[Pluggable] = (),
        selection: Selection = "first",
        options: Options | Mapping[str, Any] | None = None,
        judge_options: Options | Mapping[str, Any] | None = None,
        iteration_timeout: float | None = None,
        timeout: float | None = None,
        validate_all: bool | None = None,
        max_iterations: int = 1000,
        cancel_grace: float = 5.0,
        retry: Retry | None = _RETRY,
        schedule: BaseSchedule | None = None,
        budget: Budget | None = None,
        give_up: PerRequirement | None = None,
        accept_incomplete: bool = False,
        telemetry: Telemetry | None = None,
    ) -> None:
        whole_number("max_iterations", max_iterations)
        whole_number("loop_budget", loop_budget)
        whole_number("concurrency_budget", concurrency_budget)
        real_number("cancel_grace", cancel_grace, over=0, unit="seconds")
        for name, seconds in (("iteration_timeout", iteration_timeout), ("timeout", timeout)):
            if seconds is not None:
                real_number(name, seconds, over=0, unit="seconds")
        check_type("validate_all", validate_all, bool | None, "a bool or None")
        chosen = check_selection(selection)
        check_type("telemetry", telemetry, Telemetry | None, "a Telemetry")
        check_type("accept_incomplete", accept_incomplete, bool, "a bool")
        allowed = "a Retry, such as Retry(attempts=5), or None for no retries"
        check_type("retry", retry, Retry | None, allowed)
        check_budget(budget)
        self.__settings = Settings(
            backend=None if backend is None else as_backend(backend, "backend"),
            judge=None if judge is None else as_backend(judge, "judge"),
            requirements=check_requirements(requirements, "requirements"),
            loop_budget=loop_budget,
            concurrency_budget=concurrency_budget,
            max_iterations=max_iterations,
            selection=chosen,
            chooser=None if isinstance(chosen, str) else chosen,
            options=Options.of(options),
            judge_options=Options.of(judge_options, JUDGE_DEFAULTS),
            iteration_timeout=iteration_timeout,
            timeout=timeout,
            validate_all=validate_all,
            check_all=self.needs_all_reasons if validate_all is None else validate_all,
            cancel_grace=cancel_grace,
            handlers=handlers_in(plugins),
            retry=retry,
            schedule=check_schedule(schedule, give_up),
            budget=budget,
            give_up=give_up,
            telemetry=_SILENT if telemetry is None else telemetry,
            accept_incomplete=accept_incomplete,
            stages=self._stages,
            after=self._after,
        )
        self.__settings.check_loop_budget(loop_budget, "loop_budget is set")
        check_together(features_of(self.__settings))

    @property
    def settings(self) -> Settings:
        """The configuration."""
        return self.__settings

    def repair(self, history: Sequence[Slice]) -> tuple[Action[Any], Context]:
        """Choose a lane's next action and conversation after a failure. Pure.

        Args:
            history: the records of this lane's failed draws, oldest first, at least one. The last
                is the one to repair.

        Returns:
            The action to ask next, and the conversation to ask it in.

        Raises:
            NotImplementedError: the strategy doesn't define `repair`.
        """
        msg = f"{type(self).__name__} has no repair(history): it says what to ask after a failure"
        raise NotImplementedError(msg)

    def select_from_failure(self, slices: Sequence[Slice]) -> int:
        """Choose the best draw of a call in which none passed. Pure.

        The default takes the draw that met the most requirements (by weight). Ties go to the
        highest mean score, then to the lowest iteration id.

        Args:
            slices: the records of the failed draws, in the order recorded, at least one.

        Returns:
            The position of the best draw in ``slices``.
        """
        return best_failure(slices)

    @overload
    async def sample(
        self,
        action: Asked[Parsed],
        requirements: Sequence[Requirement | str] = (),
        *,
        format: None = None,
        **arguments: Unpack[Arguments],
    ) -> SamplingResult[Parsed]: ...
    @overload
    async def sample(
        self,
        action: Asked[Any],
        requirements: Sequence[Requirement | str] = (),
        *,
        format: TypeForm[F],
        **arguments: Unpack[Arguments],
    ) -> SamplingResult[F]: ...
    async def sample(
        self,
        action: Asked[Any],
        requirements: Sequence[Requirement | str] = (),
        *,
        context: Context | Sequence[MessageLike] | None = None,
        backend: Backend | None = None,
        format: Any = None,
        options: Options | Mapping[str, Any] | None = None,
        validation_context: Context | Sequence[MessageLike] | None = None,
        on_slice: Callable[[Slice], Awaitable[None] | None] | None = None,
        budget: Budget | None = None,
        tools: Sequence[ToolSource] = (),
        tool_choice: str | None = None,
        tool_rounds: int = TOOL_ROUNDS,
    ) -> SamplingResult[Any]:
        """Draw until a draw meets every requirement, or the attempts are spent.

        Args:
            action: the request; a text becomes an `Instruction`. It may also be one OpenAI-style
                message or a list of them: the last is the action, and the others are appended to
                ``context``.
            requirements: conditions for each draw, in addition to the strategy's and the action's.
                The judge model judges those that are texts.
            context: the conversation to start from: a `Context`, or a list of messages or of
                OpenAI-style dictionaries.
            backend: the model that generates, instead of the strategy's backend.
            format: the type to parse replies to, as JSON: a pydantic model, or any other type that
                pydantic can validate. The result's ``value`` is then of that type. A reply that
                does not parse, or breaks a rule of the type, is a failed draw. If the backend
                streams and not all reasons are needed (``validate_all``), its request is closed at
                the first field that can't be right.
            options: options for generating replies; the strategy's options fill in the rest. To
                drop a field of the strategy's options, set it to None in a mapping:
                ``options={"max_tokens": None}``.
            validation_context: the conversation that validators and judges see, instead of the one
                that the draw was generated in.
            on_slice: a sync or async function, called with the record of each draw in the order
                in which they end. An exception in it ends the call and is raised. If the call is
                already decided, the exception is only logged.
            budget: a limit on the cost of this call, within the strategy's budget. When it is
                spent, no further request is sent, and the call returns the result so far, with the
                stop reason ``"budget"``. A draw that was refused a request is in the record as
                cancelled.
            tools: the tools that the model may call: functions with type hints and a docstring,
                JSON Schemas, or either wrapped by `Tool.of`. A draw fails if the name or the
                arguments of a call are wrong. The winner's calls are in the result's
                ``tool_calls``, and ``await result.run_tools()`` makes them. A reply that calls
                tools is not parsed, and its value is None. Only tools that are ``read_only`` run
                inside a draw: the model gets their answers, and the draw continues with another
                request. If a reply also calls other tools, none of its calls run in the draw.
            tool_choice: ``"auto"``, the servers' default; ``"required"`` for any tool; ``"none"``;
                or the name of the tool to call. A draw whose reply disobeys it fails. Once tools
                have run in a draw, its next reply need not call one.
            tool_rounds: how many times ``read_only`` tools may run in a draw, each time followed
                by one more request. If the model then calls them yet again, the draw fails. With
                0, they run after the call, like the other tools.

        Returns:
            The result, whose ``success`` is true if a draw passed.

        Raises:
            TypeError: an argument is of the wrong type, or a function can't be a tool.
            ValueError: there is no backend, an option or a tool is wrong, a budget of tokens or
                money can't tell what a request may cost, a plugin set an impossible loop budget,
                or the strategy's `select_from_failure` returned an impossible position.
            RequirementError: a requirement needs a judge, and its judge can't judge; or a
                validator returned no verdict (`BadVerdict`).
            SamplingTimeout: time ran out before any draw was judged.
            LimitExceeded: a budget was spent before any draw was judged.
            HookError: a plugin failed, or stopped the call (`Blocked`).
            ToolError: a tool raised in every draw; this is the first such error.
            ImportError: a tool is a JSON Schema, and the package ``jsonschema``, which checks its
                calls, isn't installed. It is part of the extra ``checks``.
            BackendError: every draw ended in an error; this is the first one.
            Exception: every draw ended in an error, and the first one is of none of these types;
                or an exception of `repair`, or of a validator whose ``on_error`` is ``"raise"``.
        """
        inputs = prepare_call(
            self.__settings,
            action,
            requirements,
            context=context,
            backend=backend,
            format=format,
            options=options,
            validation_context=validation_context,
            budget=budget,
            tools=tools,
            tool_choice=tool_choice,
            tool_rounds=tool_rounds,
            on_slice=on_slice,
        )
        return await RunningCall(self, inputs, on_slice).run()

    def begin(
        self,
        action: Asked[Any],
        requirements: Sequence[Requirement | str] = (),
        *,
        earlier: Sequence[Slice] = (),
        marks: MutableMapping[int, Any] | None = None,
        wrap: Callable[[Backend, Backend], Backend] | None = None,
        on_slice: Callable[[Slice], Awaitable[None] | None] | None = None,
        format: Any = None,
        **arguments: Unpack[Prepared],
    ) -> CallInRounds[Any]:
        """Prepare a call of `sample` that can pause after any of its draws.

        It is for programs with many calls. A paused call can be continued later, even in another
        process, from the records of its draws.

        Args:
            action: see `sample`.
            requirements: see `sample`.
            earlier: the slices that the call has already recorded, in order. Only a call of one
                lane, without a schedule or budgets of stages, can continue from them.
            marks: the scores or keys that the selection gave to passing slices in ``earlier``, by
                iteration. The call adds those of new slices. Only some selections need them.
            wrap: a function that replaces each backend of the call. It is called with two
                arguments: the backend with the call's retries, hooks and budgets around it, and the
                bare backend. It returns the backend to use.
            on_slice: see `sample`.
            format: see `sample`.
            **arguments: see `sample`.

        Returns:
            The call, which has not started yet.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is wrong, as in `sample`.
            RequirementError: a requirement needs a judge, and its judge can't judge.
        """
        # Imported lazily: most calls never pause.
        from mellea_like.sampling.rounds import CallInRounds  # noqa: PLC0415

        inputs = prepare_call(
            self.__settings, action, requirements, on_slice=on_slice, format=format, **arguments
        )
        return CallInRounds(self, inputs, on_slice, earlier, marks, wrap)

    @overload
    def stream(
        self,
        action: Asked[Parsed],
        requirements: Sequence[Requirement | str] = (),
        *,
        format: None = None,
        release: Release = "prefix",
        **arguments: Unpack[Arguments],
    ) -> StreamedReply[Parsed]: ...
    @overload
    def stream(
        self,
        action: Asked[Any],
        requirements: Sequence[Requirement | str] = (),
        *,
        format: TypeForm[F],
        release: Release = "prefix",
        **arguments: Unpack[Arguments],
    ) -> StreamedReply[F]: ...
    def stream(
        self,
        action: Asked[Any],
        requirements: Sequence[Requirement | str] = (),
        *,
        release: Release = "prefix",
        on_slice: Callable[[Slice], Awaitable[None] | None] | None = None,
        **arguments: Any,
    ) -> StreamedReply[Any]:
        """Run `sample`, and yield the reply's text while it arrives.

        Write ``async with strategy.stream(...) as reply``, then ``async for text in reply``. After
        that, ``reply.result`` is the call's result. Leaving the block closes everything.

        With ``release="prefix"``, text comes as soon as its draw is certain to pass. That is when
        every requirement has an incremental check (``Requirement(stream=...)``) that has returned
        ``Verdict.PASS`` for the text so far, or there are no requirements. From then on no other
        draw can win. With some features, no draw can be certain before its end: a judge, a
        ``format``, a parser, ``tools`` that draws run themselves or have to call, an escalation, a
        schedule, a plugin that decides validations, a backend that doesn't stream, or a selection
        other than ``"first"``. Then the text comes in one piece when its draw has passed.

        If a reply fails after some of its text has been yielded, the iteration raises
        `ReplyBroken`. This happens if its stream broke, it was cut off at its length limit, time
        ran out, the final check contradicted the incremental one, or the text was followed by a
        wrong tool call. The text of one draw is never continued with that of another.

        Args:
            action: see `sample`.
            requirements: see `sample`.
            release: when to yield text: ``"prefix"``, as soon as its draw is certain to pass;
                ``"passed"``, only when the whole reply has passed.
            on_slice: see `sample`.
            **arguments: see `sample`.

        Returns:
            The reply, to enter with ``async with``.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is wrong, as in `sample`; or the selection is `Collect`, which
                selects several replies.
            RequirementError: a requirement needs a judge, and its judge can't judge.
        """
        # Imported lazily: most calls are not streamed.
        from mellea_like.sampling.streaming import StreamedReply  # noqa: PLC0415

        inputs = prepare_call(self.__settings, action, requirements, on_slice=on_slice, **arguments)
        return StreamedReply(self, inputs, on_slice, release)

    @overload
    def sample_sync(
        self,
        action: Asked[Parsed],
        requirements: Sequence[Requirement | str] = (),
        *,
        format: None = None,
        **arguments: Unpack[Arguments],
    ) -> SamplingResult[Parsed]: ...
    @overload
    def sample_sync(
        self,
        action: Asked[Any],
        requirements: Sequence[Requirement | str] = (),
        *,
        format: TypeForm[F],
        **arguments: Unpack[Arguments],
    ) -> SamplingResult[F]: ...
    def sample_sync(
        self,
        action: Asked[Any],
        requirements: Sequence[Requirement | str] = (),
        **arguments: Any,
    ) -> SamplingResult[Any]:
        """Run `sample` without ``await``, in its own event loop, for scripts and notebooks.

        It may be called repeatedly with the same backend, limiters and budgets. Ctrl-C cancels the
        requests in flight and raises ``KeyboardInterrupt``.

        In an async function, write ``await strategy.sample(...)`` instead. If an event loop is
        already running in this thread, as in a notebook, the call gets its own in another thread.
        This thread then blocks until the call has ended, and so does everything else on its event
        loop. In the meantime, limiters and budgets in use on that event loop are refused.

        To sample from many threads, use `SyncSampler`.

        Args:
            action: see `sample`.
            requirements: see `sample`.
            **arguments: see `sample`.

        Returns:
            The result.

        Raises:
            RuntimeError: a limiter or a budget is in use on another event loop.
            Exception: the errors of `sample`.
        """
        from mellea_like.sampling.sync import run_once  # noqa: PLC0415 (most programs don't need it)

        wanted = check_requirements(requirements, "requirements")
        backends = backends_of(self.__settings, action, wanted, arguments.get("backend"))
        return run_once(lambda: self.sample(action, wanted, **arguments), backends)
