"""Decide what the next draw of a chain asks, given the chain's earlier failures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from mellea_like.core.conversation import Context, is_action
from mellea_like.core.slice import Outcome
from mellea_like.kernel.ports import Ask

if TYPE_CHECKING:
    from mellea_like.core.conversation import Action
    from mellea_like.core.slice import Slice

_PASSED, _FAILED = Outcome.PASSED, Outcome.FAILED


class ChainState(Enum):
    """The state of a chain after one of its draws. In a chain, each draw repairs the one before."""

    CONTINUES = 1
    ENDED = 2
    BROKEN = 3
    """A permanent error has ended the chain."""


_CONTINUES = ChainState.CONTINUES


@dataclass(slots=True)
class Memory:
    """The action and conversation that a chain asks now, and the failures that led to them."""

    action: Action[Any]
    context: Context
    failures: tuple[Slice, ...] = ()
    to_repair: Slice | None = None
    """The failure that the next draw has to repair; None once ``repair`` was called for it."""


class Repairs:
    """Decides what a chain asks next: the same again or, after a failure, what ``repair`` returns.

    Each of the ``ways`` is the inputs of the call, or of a stage, and its ``repair``. With
    ``several``, a chain continues after a pass.
    """

    def __init__(self, *ways: tuple[Any, Any], strategy: str, several: bool = False) -> None:
        self._ways = ways
        self._strategy = strategy
        self._several = several
        self._memory: dict[int, Memory] = {}

    def ask(
        self, iteration: int, subsample: int, depth: int, chain: int, stage: int | None = None
    ) -> Ask | None:
        """Return what a chain asks in a draw with this id; None if the chain must skip the draw."""
        action: Any
        spec, repair = self._ways[stage or 0]
        memory = self._memory.get(chain)
        if memory is None:
            return Ask(iteration, subsample, depth, chain, spec.action, spec.context, spec, stage)
        to_repair = memory.to_repair
        if to_repair is not None:
            memory.to_repair = None
            # Each repair runs this: another way to join or unpack takes 1 % of a draw more.
            memory.failures = failures = memory.failures + (to_repair,)  # noqa: RUF005
            answer: Any = repair(failures)
            try:
                action, context = answer
            except (TypeError, ValueError):
                action = context = None
            # The first action was checked when the call began.
            asks = action is failures[0].action or is_action(action)
            if not (asks and isinstance(context, Context)):
                msg = f"{self._strategy}.repair returned {answer!r}, not (Action, Context)"
                raise TypeError(msg)
            memory.action, memory.context = action, context
        action, context = memory.action, memory.context
        return Ask(iteration, subsample, depth, chain, action, context, spec, stage, to_repair)

    def hear(self, slice_: Slice) -> ChainState:
        """Take note of a draw that has ended; return the state of its chain."""
        chain, outcome = slice_.chain, slice_.outcome
        if outcome is _FAILED:
            memory = self._memory.get(chain)
            if memory is None:
                spec, _ = self._ways[slice_.stage or 0]
                memory = self._memory[chain] = Memory(spec.action, spec.context)
            memory.to_repair = slice_
        elif outcome is _PASSED:
            if not self._several:
                return ChainState.ENDED
            self._memory.pop(chain, None)  # The next draw is independent.
        elif not slice_.may_continue:
            return ChainState.BROKEN
        return _CONTINUES
