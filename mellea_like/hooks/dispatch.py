"""Run the hook handlers of the plugins of one call."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio

from mellea_like.core.display import error_text
from mellea_like.errors import Blocked, HookError
from mellea_like.hooks.plugins import RUNNING
from mellea_like.hooks.types import HookMode, HookType
from mellea_like.kernel.ports import Ruling
from mellea_like.runtime.event_loops import foreign, split_cancellation
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from anyio.abc import TaskGroup

    from mellea_like.core.generation import Meter
    from mellea_like.hooks.payload import Payload
    from mellea_like.hooks.plugins import Handler
    from mellea_like.kernel.call import Call

__all__ = ["Hooks", "failure"]

P = TypeVar("P", bound="Payload")

SILENCED_AFTER = {HookMode.OBSERVE: 3, HookMode.BACKGROUND: math.inf}
"""Maps a mode to the number of failures in a row that silence a plugin.

For the rest of the call, a silenced plugin's handlers of that mode don't run.
"""


class _Iteration(Protocol):
    """The id and the lane of the draw that a hook is about, as a `Slice` has them."""

    @property
    def iteration(self) -> int | None: ...

    @property
    def subsample(self) -> int | None: ...


class Hooks:
    """Fires the hooks of one call: makes each hook's payload, and passes it to plugins' handlers.

    Args:
        handlers: the plugins' handlers, in the order in which they run.
        strategy: the name of the call's strategy.
    """

    call: Call
    """The call, whose errors include those of handlers. It is set before the first hook."""
    tasks: TaskGroup
    """The task group in which background handlers run. It is set before the first hook."""
    outside: Meter | None = None
    """The meter of the draw that the call belongs to, if it belongs to one: it pays for the calls
    that handlers make while none of this call's draws is under way."""
    _interrupt: BaseException | None = None
    """A ``BaseException``, such as ``KeyboardInterrupt``, that a handler raised in another task."""

    def __init__(self, handlers: Iterable[Handler], strategy: str) -> None:
        self._strategy = strategy
        self._failures: Counter[tuple[HookMode, int]] = Counter()
        self._background: dict[anyio.CancelScope, anyio.Event] = {}
        self._handlers: dict[tuple[HookType, HookMode], list[Handler]] = {}
        for handler in handlers:
            self._handlers.setdefault((handler.hook, handler.mode), []).append(handler)
        self.types = {hook for hook, _ in self._handlers}
        """The hooks that have handlers."""

    def decides(self, hook: HookType) -> bool:
        """Return whether a hook has a sequential handler, which may change or block something."""
        return (hook, HookMode.SEQUENTIAL) in self._handlers

    async def fire(
        self,
        kind: type[P],
        at: _Iteration | None,
        amend: Callable[[P, P, str], P] | None = None,
        **fields: Any,
    ) -> P | None:
        """Run the handlers of a payload's hook, and return the payload as they have changed it.

        ``at`` is the draw that the hook is about, or None for the whole call. After each change,
        ``amend`` gets the payload before the change, the changed one, and the plugin's name. It
        returns the payload to use. If no plugin listens to the hook, return None.

        The error of a sequential handler ends the call. At the hook for the end of the call, such
        an error is only logged.
        """
        hook = kind.hook
        if hook not in self.types:
            return None
        payload = kind(
            sampling_id=self.call.id,
            strategy=self._strategy,
            iteration=None if at is None else at.iteration,
            subsample=None if at is None else at.subsample,
            **fields,
        )
        for handler in self._handlers.get((hook, HookMode.SEQUENTIAL), ()):
            try:
                payload = await _ask(handler, payload, amend)
            except HookError as exc:
                if hook is not HookType.SAMPLING_LOOP_END:
                    self.call.rule(Ruling(fatal=exc))
                    raise
                warn("%s", exc, sampling_id=self.call.id)
        observers = self._handlers.get((hook, HookMode.OBSERVE), ())
        if len(observers) == 1:
            await self._tell(observers[0], payload)
        elif observers:
            async with anyio.create_task_group() as tasks:
                for handler in observers:
                    tasks.start_soon(self._tell_in_task, handler, payload)
            if self._interrupt is not None:
                raise self._interrupt
        for handler in self._handlers.get((hook, HookMode.BACKGROUND), ()):
            scope = anyio.CancelScope(shield=True)
            self._background[scope] = anyio.Event()
            self.tasks.start_soon(self._tell_later, handler, payload, scope)
        return payload

    async def _tell(self, handler: Handler, payload: Payload) -> None:
        """Run an observing or background handler, and log its failure instead of raising it.

        After several failures in a row, the plugin is silenced; see `SILENCED_AFTER`.
        """
        plugin = handler.mode, id(getattr(handler.function, "__self__", handler.function))
        most = SILENCED_AFTER[handler.mode]
        if self._failures[plugin] >= most:
            return
        try:
            await _run(handler, payload)
        except Exception as exc:  # noqa: BLE001 (a plugin's)
            self._failures[plugin] += 1
            silenced = self._failures[plugin] == most
            warn(
                "plugin %s failed at %s: %s: %s%s",
                handler.plugin,
                handler.hook,
                type(exc).__name__,
                exc,
                f"; silenced for this call after {most} failures in a row" if silenced else "",
                sampling_id=self.call.id,
                iteration=payload.iteration,
                subsample=payload.subsample,
            )
        else:
            self._failures[plugin] = 0

    async def _tell_in_task(self, handler: Handler, payload: Payload) -> None:
        try:
            await self._tell(handler, payload)
        except BaseException as exc:  # noqa: BLE001 (raised again: here, or outside the task group)
            cancellation, _ = split_cancellation(exc)
            if cancellation is not None:
                raise cancellation from None
            self._interrupt = exc
            self.call.rule(Ruling(fatal=exc))

    async def _tell_later(
        self, handler: Handler, payload: Payload, scope: anyio.CancelScope
    ) -> None:
        with scope:
            try:
                await self._tell_in_task(handler, payload)
            finally:
                self._background.pop(scope).set()

    async def drain(self, deadline: float) -> int:
        """Wait for background handlers, and return how many were cancelled at the deadline."""
        with anyio.CancelScope(deadline=deadline):
            for ended in tuple(self._background.values()):
                await ended.wait()
        for scope in self._background:
            scope.cancel()
        return len(self._background)


async def _ask(handler: Handler, payload: P, amend: Callable[[P, P, str], P] | None) -> P:
    """Run a sequential handler, and return the payload, perhaps changed."""
    plugin, hook = handler.plugin, handler.hook
    try:
        answer = await _run(handler, payload)
        if answer is None or answer is payload:
            return payload
        _check_changes(payload, answer)
    except Blocked as exc:
        msg = f"plugin {plugin} blocked the call at {hook}: {error_text(exc)}"
        raise Blocked(msg, plugin=plugin, hook=hook) from exc
    except Exception as exc:
        raise failure(plugin, hook, f"{type(exc).__name__}: {error_text(exc)}") from exc
    changed: P = answer
    return changed if amend is None else amend(payload, changed, plugin)


async def _run(handler: Handler, payload: Payload) -> Any:
    """Run a handler within its time limit.

    If the handler raises a cancellation that nobody asked for, raise a `RuntimeError` instead.
    """
    outer = RUNNING.set((*RUNNING.get(), handler.function))
    try:
        with foreign("it"):
            with anyio.move_on_after(handler.timeout) as scope:
                return await handler.function(payload)
    finally:
        RUNNING.reset(outer)
    if scope.cancelled_caught:
        msg = f"it took longer than {handler.timeout:g} s"
        raise TimeoutError(msg)
    return None


def _check_changes(payload: Payload, answer: Any) -> None:
    if type(answer) is not type(payload):
        msg = (
            f"it returned {type(answer).__name__}: return None, or"
            " payload.model_copy(update={...}) to change the payload"
        )
        raise TypeError(msg)
    for field in vars(answer):
        if field not in type(payload).model_fields:
            msg = f"it set {field}, but the payload of {payload.hook} has no such field"
            raise ValueError(msg)
        before, after = getattr(payload, field), getattr(answer, field)
        if field not in payload.writable and before is not after and before != after:
            allowed = ", ".join(sorted(payload.writable)) or "nothing"
            msg = f"it changed {field}, but {payload.hook} lets handlers change {allowed}"
            raise ValueError(msg)


def failure(plugin: str, hook: HookType, why: str) -> HookError:
    """Make the error of a plugin that has failed, or has changed something that it must not."""
    return HookError(f"plugin {plugin} failed at {hook}: {why}", plugin=plugin, hook=hook)
