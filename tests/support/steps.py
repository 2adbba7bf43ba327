"""Counts the steps of an event loop, and does something at one of them.

A step is one turn of a task on trio, and one callback on asyncio, which is the same or finer. Both
loops run in virtual time and, but for the order in which cancelled tasks end, deterministically.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import anyio
import trio
from trio._core import _run as trio_run

from mellea_like.testing.virtual_clock import VirtualClock, VirtualLoop


class Stepper:
    """Counts steps while it is armed, and calls a function at some of them."""

    def __init__(self) -> None:
        self.armed = False
        self.count = 0
        self._at: dict[int, Callable[[], object]] = {}

    def arm(self, at: dict[int, Callable[[], object]]) -> None:
        # Trio shuffles its tasks, lest anyone rely on their order.
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True
        trio_run._r.seed(0)
        self.count, self._at, self.armed = 0, at, True

    def disarm(self) -> None:
        self.armed = False

    def step(self) -> None:
        if self.armed:
            self.count += 1
            if act := self._at.get(self.count):
                act()


class _StepLoop(VirtualLoop):
    def __init__(self, at_standstill: Callable[[], bool], stepper: Stepper) -> None:
        self._stepper = stepper
        super().__init__(at_standstill)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return super().call_soon(self._step, callback, args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return super().call_at(when, self._step, callback, args, context=context)

    def _step(self, callback: Any, args: Any) -> None:
        self._stepper.step()
        callback(*args)


class _StepInstrument(trio.abc.Instrument):
    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._stepper.step()


def run_stepped(
    main: Callable[[Stepper], Awaitable[Any]], backend: Literal["asyncio", "trio"]
) -> Any:
    """Run a function in virtual time on a loop whose steps are counted."""
    clock, stepper = VirtualClock(), Stepper()
    name, options = clock.backend(backend)
    if backend == "asyncio":
        options = {"loop_factory": lambda: _StepLoop(clock._at_standstill, stepper)}
    else:
        options["instruments"].append(_StepInstrument(stepper))
    return anyio.run(clock.run, main, stepper, backend=name, backend_options=options)
