"""Escalation: each lane goes from model to model, and a stage may end early."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mellea_like.core.result import StopReason
from mellea_like.errors import LimitExceeded
from mellea_like.kernel.ports import Option, Ruling, Stop
from mellea_like.limits.several_budgets import Budgets, within_budgets
from mellea_like.options.repairs import Chain, Memory, Repairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.slice import Slice
    from mellea_like.core.spec import Spec
    from mellea_like.kernel.ports import Ask, Sent
    from mellea_like.limits.base import Permit
    from mellea_like.sampling.escalate import Stage, StageCosts

__all__ = ["StageBudgets", "Stages"]


class Stages(Repairs):
    """Decides what a chain asks in an escalation, where each turn belongs to a stage."""

    def __init__(
        self,
        specs: Sequence[Spec],
        stages: Sequence[Stage],
        costs: StageCosts | None,
        strategy: str,
    ) -> None:
        ways = [(s, partial(stage.repair, s)) for s, stage in zip(specs, stages, strict=True)]
        super().__init__(*ways, strategy=strategy)
        self._stages = stages
        self._costs = costs
        self._by_depth = [n for n, stage in enumerate(stages) for _ in range(stage.turns)]
        self._last_of: dict[int, int] = {}
        """The stage of each chain's last draw."""
        self._broken: set[tuple[int, int]] = set()
        self.over: set[int] = set()
        """The stages that are over for the whole call."""

    def ask(
        self, iteration: int, subsample: int, depth: int, chain: int, stage: int | None = None
    ) -> Ask | None:
        """Return what a chain asks at a turn; None if the turn's stage is over for that chain."""
        # A plugin may have raised the loop budget. The last stage has the additional turns.
        stage = self._by_depth[min(depth, len(self._by_depth) - 1)]
        if stage in self.over or (chain, stage) in self._broken:
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

    def hear(self, slice_: Slice) -> Chain:
        """Take note of a draw; if it had a permanent error, end its stage for its chain."""
        chain, stage = slice_.chain, slice_.stage or 0
        if self._costs is not None:
            first = slice_.depth == self._by_depth.index(stage)
            telling = first or self._stages[stage].carry != "nothing"
            if self._costs.hear(stage, slice_, telling=telling):
                self.over.add(stage)
        state = super().hear(slice_)
        if state is not Chain.BROKEN or stage == len(self._stages) - 1:
            return state
        self._broken.add((chain, stage))
        return Chain.GOES_ON


class StageBudgets(Option):
    """Limits a stage's requests to the stage's budget; a refused request ends the stage."""

    def __init__(self, stages: Sequence[Stage], plan: Stages) -> None:
        self._stages = stages
        self._plan = plan

    def request(self, inner: Backend, sent: Sent) -> Backend:
        """Wrap a backend of a stage that has a budget."""
        if sent.stage is None or (budget := self._stages[sent.stage].budget) is None:
            return inner
        stage, call, over = sent.stage, self.call, self._plan.over
        last = stage == len(self._stages) - 1

        class Refusing(Budgets):
            async def acquire(self, request: Request, backend: Backend) -> Permit:
                try:
                    return await super().acquire(request, backend)
                except LimitExceeded as exc:
                    over.add(stage)
                    exc.stage = stage
                    if last and request.meta.purpose == "generate":
                        call.rule(Ruling(why=Stop(StopReason.BUDGET, str(exc), exc)))
                    raise

        return within_budgets(inner, [budget], Refusing)
