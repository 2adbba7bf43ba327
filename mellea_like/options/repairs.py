"""Chains of repairs: what a chain asks next, given what has failed in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from mellea_like.core.conversation import Context, is_action
from mellea_like.core.slice import Outcome
from mellea_like.kernel.ports import Ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.conversation import Action
    from mellea_like.core.slice import Slice
    from mellea_like.kernel.ports import Turn

__all__ = ["Chain", "Memory", "Repairs"]

_PASSED, _FAILED, _CANCELLED = Outcome.PASSED, Outcome.FAILED, Outcome.CANCELLED


class Chain(Enum):
    """The state of a chain after a draw."""

    GOES_ON = 1
    ENDED = 2
    BROKEN = 3
    """A permanent error has ended it."""


@dataclass(slots=True)
class Memory:
    """The memory of a chain before its next draw: its question, and its failures."""

    action: Action[Any]
    context: Context
    failures: tuple[Slice, ...] = ()
    to_repair: Slice | None = None
    """The last failure, until the chain is asked again."""


class Repairs:
    """Ask the same again, or what the strategy's ``repair`` makes of the failures.

    Args:
        spec: the call's inputs.
        repair: the strategy's.
        strategy: its name, for errors.
        several: whether several draws have to pass, so that a chain continues after a pass.
    """

    def __init__(self, spec: Any, repair: Any, strategy: str, *, several: bool) -> None:
        self._spec = spec
        self._repair = repair
        self._strategy = strategy
        self._several = several
        self._memory: dict[int, Memory] = {}

    def ask(self, turn: Turn, chain: int) -> Ask | None:
        """Return what a chain asks at a turn; None if the turn is of no use to it."""
        spec, memory = self._spec, self._memory.get(chain)
        if memory is None:
            return Ask(turn, chain, spec.action, spec.context, spec)
        return self._asked(turn, chain, memory, spec, self._repair)

    def hear(self, slice_: Slice) -> Chain:
        """Take note of a draw that has ended; return the state of its chain."""
        chain, outcome = slice_.chain, slice_.outcome
        if outcome is _FAILED:
            self._memory_of(chain).to_repair = slice_
        elif outcome is _PASSED:
            if not self._several:
                return Chain.ENDED
            self._memory.pop(chain, None)  # The next draw is independent.
        elif not slice_.may_continue:
            return Chain.BROKEN
        return Chain.GOES_ON

    def _memory_of(self, chain: int) -> Memory:
        memory = self._memory.get(chain)
        if memory is None:
            memory = self._memory[chain] = Memory(self._spec.action, self._spec.context)
        return memory

    def _asked(
        self, turn: Turn, chain: int, memory: Memory, spec: Any, repair: Any, stage: Any = None
    ) -> Ask:
        to_repair = memory.to_repair
        if to_repair is not None:
            memory.to_repair = None
            memory.failures = (*memory.failures, to_repair)
            memory.action, memory.context = self._repaired(repair, memory.failures)
        return Ask(turn, chain, memory.action, memory.context, spec, stage, to_repair)

    def _repaired(self, repair: Any, failures: Sequence[Slice]) -> tuple[Action[Any], Context]:
        answer: object = repair(failures)
        if isinstance(answer, tuple) and len(pair := cast("tuple[object, ...]", answer)) == 2:  # noqa: PLR2004
            action, context = pair
            first = failures[0].action
            if isinstance(context, Context) and action is first:
                return first, context  # It was checked when the call began.
            if isinstance(context, Context) and is_action(action):
                return action, context
        msg = f"{self._strategy}.repair returned {answer!r}, not (Action, Context)"
        raise TypeError(msg)
