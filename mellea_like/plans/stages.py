"""Escalation: what a lane asks as it goes from model to model, and when a stage ends early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mellea_like.core.slice import Outcome
from mellea_like.plans.repairs import ChainState, Memory, Repairs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Sequence

    from mellea_like.core.slice import Slice
    from mellea_like.core.spec import Spec
    from mellea_like.kernel.ports import Ask
    from mellea_like.schedules.learned import Beta


class StageTurns(NamedTuple):
    """One stage of an escalation: how many draws each lane may make there, and what they ask."""

    spec: Spec
    repair: Callable[[Sequence[Slice]], Any]
    turns: int
    carries: bool
    """Whether the stage's model sees anything of earlier failures."""


class Stages(Repairs):
    """Decides what a chain asks in an escalation, which depends on the stage of the next draw.

    ``recorded`` has the ids of draws that a single lane has made in earlier rounds of the call. It
    asks for them again, whatever ``costs`` has learned since.
    """

    def __init__(
        self,
        stages: Sequence[StageTurns],
        costs: StageCosts | None,
        strategy: str,
        recorded: Collection[int] = (),
    ) -> None:
        super().__init__(*[(s.spec, s.repair) for s in stages], strategy=strategy)
        self._stages = stages
        self._costs = costs
        self._recorded = recorded
        self._latest = max(recorded, default=0)
        self._by_depth = [n for n, stage in enumerate(stages) for _ in range(stage.turns)]
        self._last_of: dict[int, int] = {}
        """Maps each chain to the stage of its last draw."""
        self._broken: set[tuple[int, int]] = set()
        self.over: set[int] = set()
        """The indices of the stages that have ended in all lanes of the call."""

    def ask(
        self, iteration: int, subsample: int, depth: int, chain: int, stage: int | None = None
    ) -> Ask | None:
        """Return what a chain asks in a draw; None if the draw's stage has ended for the chain."""
        # A plugin may have raised the loop budget. The last stage has the additional turns.
        stage = self._by_depth[min(depth, len(self._by_depth) - 1)]
        skipped = stage in self.over or (chain, stage) in self._broken
        if iteration not in self._recorded and (skipped or iteration < self._latest):
            return None
        memory = self._memory.get(chain)
        if self._last_of.get(chain) != stage:
            self._last_of[chain] = stage
            if memory is not None and memory.to_repair is None:
                # The last draw has errored. Earlier failures are carried on.
                spec, _ = self._ways[stage]
                *failures, to_repair = memory.failures
                self._memory[chain] = Memory(spec.action, spec.context, tuple(failures), to_repair)
        return super().ask(iteration, subsample, depth, chain, stage)

    def hear(self, slice_: Slice) -> ChainState:
        """Take note of a draw that has ended; return the state of its chain.

        After a permanent error, the chain continues in the next stage, if there is one.
        """
        chain, stage = slice_.chain, slice_.stage or 0
        if self._costs is not None and self._costs.hear(stage, slice_):
            self.over.add(stage)
        state = super().hear(slice_)
        if state is not ChainState.BROKEN or stage == len(self._stages) - 1:
            return state
        self._broken.add((chain, stage))
        return ChainState.CONTINUES

    def learn(self, slice_: Slice) -> None:
        """Learn from a draw for later calls, if they can learn from it."""
        stage = slice_.stage or 0
        first = slice_.depth == self._by_depth.index(stage)
        if self._costs is not None and (first or self._stages[stage].carries):
            self._costs.learn(self._costs.keys[stage], slice_)


@dataclass(slots=True)
class StageCosts:
    """Estimates, during one call, the expected cost of a pass in each stage.

    Args:
        learn: called with the key of a stage and the record of a draw there, to learn for later
            calls.
        keys: the key of each stage, under which ``learn`` keeps what it learned: a kind of call,
            the stage and its model.
        beliefs: each stage's pass rate, as a Beta distribution.
        costs: the expected cost of one draw in each stage, in millionths of the prices' currency.
    """

    learn: Callable[[tuple[Hashable, int, str | None], Slice], None]
    keys: Sequence[tuple[Hashable, int, str | None]]
    beliefs: list[Beta]
    costs: Sequence[float]

    def expected(self, stage: int) -> float:
        """Return the expected cost of a pass in a stage.

        Args:
            stage: the stage, 0-based.

        Returns:
            The cost in millionths of the prices' currency.
        """
        return self.costs[stage] / self.beliefs[stage].mean

    def hear(self, stage: int, slice_: Slice) -> bool:
        """Take note of a draw, and return whether the next stage should take over.

        Args:
            stage: the draw's stage.
            slice_: the draw's record.

        Returns:
            Whether a pass is expected to cost less in the next stage.
        """
        if slice_.outcome is not Outcome.FAILED:
            return False
        self.beliefs[stage] = self.beliefs[stage].after_failures(1)
        return stage + 1 < len(self.keys) and self.expected(stage + 1) < self.expected(stage)
