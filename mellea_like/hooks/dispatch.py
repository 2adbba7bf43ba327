"""Run the handlers of one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import anyio

from mellea_like.core.display import error_text
from mellea_like.errors import Blocked, HookError
from mellea_like.hooks.types import HookMode, HookType
from mellea_like.runtime.event_loops import foreign, split_cancellation
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from anyio.abc import TaskGroup

    from mellea_like.hooks.payloads import Payload
    from mellea_like.hooks.plugins import Handler

__all__ = ["HookRun"]

P = TypeVar("P", bound="Payload")

SILENCED_AFTER = 3
"""After this many failures in a row, an observing plugin is silenced for the rest of the call."""


class _Handlers(NamedTuple):
    """The handlers of one hook, by mode, each in the order they run."""

    sequential: tuple[Handler, ...]
    observe: tuple[Handler, ...]
    background: tuple[Handler, ...]


class HookRun:
    """Runs the handlers of one call's plugins."""

    def __init__(self, handlers: Iterable[Handler], sampling_id: str) -> None:
        self._sampling_id = sampling_id
        self.interrupt: BaseException | None = None
        self._failures: dict[int, int] = {}
        self._background: set[anyio.CancelScope] = set()
        self._idle: anyio.Event | None = None
        self._tasks: TaskGroup | None = None
        self._by_hook: dict[HookType, _Handlers] = {}
        every = tuple(handlers)
        for hook in dict.fromkeys(handler.hook for handler in every):
            mine = [handler for handler in every if handler.hook is hook]
            self._by_hook[hook] = _Handlers(
                *(tuple(h for h in mine if h.mode is mode) for mode in HookMode)
            )
        self.types = self._by_hook.keys()
        """The hooks that have handlers; empty without plugins."""

    def decides(self, hook: HookType) -> bool:
        """Return whether any handler of a hook may change something, rather than only observe."""
        return hook in self._by_hook and bool(self._by_hook[hook].sequential)

    def open(self, tasks: TaskGroup) -> None:
        """Set the task group for background handlers."""
        self._tasks = tasks

    async def fire(self, payload: P, amend: Callable[[P, P, str], P] | None = None) -> P:
        """Run the handlers of a payload's hook, and return the payload, perhaps changed."""
        for handler in self._by_hook[payload.hook].sequential:
            payload = await self._ask(handler, payload, amend)
        await self._tell_others(payload)
        return payload

    async def announce(self, payload: Payload) -> None:
        """Run the handlers of a payload's hook at the call's end; ignore changes, log errors."""
        try:
            for handler in self._by_hook[payload.hook].sequential:
                try:
                    await self._ask(handler, payload, None)
                except HookError as exc:
                    warn("%s", exc, sampling_id=self._sampling_id)
            await self._tell_others(payload)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as exc:  # noqa: BLE001 (raised when the call has ended)
            self.interrupt = exc

    async def _tell_others(self, payload: Payload) -> None:
        """Run the observing handlers, and start the background handlers."""
        handlers = self._by_hook[payload.hook]
        if len(handlers.observe) == 1:
            await self._tell(handlers.observe[0], payload)
        elif handlers.observe:
            await self._tell_all(handlers.observe, payload)
        if self._tasks is not None:
            for handler in handlers.background:
                scope = anyio.CancelScope(shield=True)
                self._background.add(scope)
                self._tasks.start_soon(self._tell_later, handler, payload, scope)

    async def _ask(self, handler: Handler, payload: P, amend: Callable[[P, P, str], P] | None) -> P:
        try:
            answer = await _run(handler, payload)
            if answer is None or answer is payload:
                return payload
            changed = _checked(handler, payload, answer)
        except Blocked as exc:
            msg = f"plugin {handler.plugin} blocked the call at {handler.hook}: {error_text(exc)}"
            raise Blocked(msg, plugin=handler.plugin, hook=handler.hook) from exc
        except Exception as exc:
            what = f"{type(exc).__name__}: {error_text(exc)}"
            msg = f"plugin {handler.plugin} failed at {handler.hook}: {what}"
            raise HookError(msg, plugin=handler.plugin, hook=handler.hook) from exc
        return changed if amend is None else amend(payload, changed, handler.plugin)

    async def _tell(self, handler: Handler, payload: Payload) -> None:
        plugin = _identity(handler)
        if self._failures.get(plugin, 0) >= SILENCED_AFTER:
            return
        try:
            await _run(handler, payload)
        except Exception as exc:  # noqa: BLE001 (a plugin's)
            failures = self._failures[plugin] = self._failures.get(plugin, 0) + 1
            self._failed(handler, payload, exc, failures)
        else:
            self._failures.pop(plugin, None)

    def _failed(
        self, handler: Handler, payload: Payload, exc: Exception, failures: int = 0
    ) -> None:
        silenced = failures == SILENCED_AFTER
        warn(
            "plugin %s failed at %s: %s: %s%s",
            handler.plugin,
            handler.hook,
            type(exc).__name__,
            exc,
            f"; silenced for this call after {failures} failures in a row" if silenced else "",
            sampling_id=self._sampling_id,
            iteration=payload.iteration,
            subsample=payload.subsample,
        )

    async def _tell_all(self, handlers: tuple[Handler, ...], payload: Payload) -> None:
        interrupts: list[BaseException] = []

        async def tell(handler: Handler) -> None:
            try:
                await self._tell(handler, payload)
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as exc:  # noqa: BLE001 (raised again below, outside the group)
                interrupts.append(exc)

        async with anyio.create_task_group() as tasks:
            for handler in handlers:
                tasks.start_soon(tell, handler)
        if interrupts:
            raise interrupts[0]

    async def _tell_later(
        self, handler: Handler, payload: Payload, scope: anyio.CancelScope
    ) -> None:
        with scope:
            try:
                await _run(handler, payload)
            except Exception as exc:  # noqa: BLE001 (a plugin's)
                self._failed(handler, payload, exc)
            except BaseException as exc:  # noqa: BLE001 (raised again: here, or by the call)
                cancellation, _ = split_cancellation(exc)
                if cancellation is not None:
                    raise cancellation from None
                self.interrupt = exc
            finally:
                self._background.discard(scope)
                if not self._background and self._idle is not None:
                    self._idle.set()

    async def drain(self) -> None:
        """Wait until no background handler is running."""
        if self._background:
            self._idle = anyio.Event()
            await self._idle.wait()

    def stop(self) -> int:
        """Cancel the background handlers that are still running, and return their number."""
        unfinished = len(self._background)
        for scope in self._background:
            scope.cancel()
        return unfinished


def _identity(handler: Handler) -> int:
    """Return a number that identifies a plugin, even among several of one class."""
    return id(getattr(handler.function, "__self__", handler.function))


async def _run(handler: Handler, payload: Payload) -> Any:
    """Run a handler within its time limit; treat a cancellation nobody asked for as a failure."""
    with foreign("it"):
        if not handler.may_wait:
            return await handler.function(payload)
        with anyio.move_on_after(handler.timeout) as scope:
            return await handler.function(payload)
    if scope.cancelled_caught:
        msg = f"it took longer than {handler.timeout:g} s"
        raise TimeoutError(msg)
    return None


def _checked(handler: Handler, payload: P, answer: Any) -> P:
    if type(answer) is not type(payload):
        msg = (
            f"it returned {type(answer).__name__}: return None, or"
            " payload.model_copy(update={...}) to change the payload"
        )
        raise TypeError(msg)
    for field in vars(answer):
        if field not in type(payload).model_fields:
            msg = f"it set {field}, but the payload of {handler.hook} has no such field"
            raise ValueError(msg)
        before, after = getattr(payload, field), getattr(answer, field)
        if field not in payload.writable and before is not after and before != after:
            allowed = ", ".join(sorted(payload.writable)) or "nothing"
            msg = f"it changed {field}, but {handler.hook} lets handlers change {allowed}"
            raise ValueError(msg)
    return answer
