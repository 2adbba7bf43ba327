"""Budgets of an escalation's stages: when the budget of a stage is spent, the stage ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.core.result import StopReason
from mellea_like.errors import LimitExceeded
from mellea_like.kernel.ports import Option, Ruling, Stop
from mellea_like.limits.several_budgets import Budgets, within_budgets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.backend import Backend, Request
    from mellea_like.kernel.ports import Sent
    from mellea_like.limits.base import Permit
    from mellea_like.limits.budget import Budget


class StageBudgets(Option):
    """Limits a stage's requests to its budget; a refused request adds the stage to ``over``."""

    def __init__(self, budgets: Sequence[Budget | None], over: set[int]) -> None:
        self._budgets = budgets
        self._over = over

    def request(self, inner: Backend, sent: Sent) -> Backend:
        """Wrap a backend so that its requests must fit into the stage's budget, if there is one."""
        if sent.stage is None or (budget := self._budgets[sent.stage]) is None:
            return inner
        stage, call, over = sent.stage, self.call, self._over
        last = stage == len(self._budgets) - 1

        class Refusing(Budgets):
            async def acquire(self, request: Request, backend: Backend) -> Permit:
                try:
                    return await super().acquire(request, backend)
                except LimitExceeded as exc:
                    over.add(stage)
                    exc.stage = stage
                    if last:
                        call.rule(Ruling(why=Stop(StopReason.BUDGET, str(exc), exc)))
                    raise

        return within_budgets(inner, [budget], Refusing)
