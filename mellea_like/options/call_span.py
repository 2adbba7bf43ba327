"""Telemetry: the span around a whole call, which tells what the call cost and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mellea_like.core.generation import Usage
from mellea_like.core.prices import cost, price_for
from mellea_like.kernel.ports import Option

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mellea_like.kernel.ending import Ending
    from mellea_like.limits.budget import Budget
    from mellea_like.telemetry.call import CallTelemetry


class Accounts(Protocol):
    """The parts of a call that tell what it cost and how it ended."""

    @property
    def usage(self) -> Usage:
        """The cost so far."""
        ...

    @property
    def usage_by_model(self) -> list[tuple[str | None, Usage]]:
        """The cost so far, by model."""
        ...

    def conclude(self, *, cancelled: bool = False) -> Ending:
        """Return how the call ended; only the first use of this method decides that."""
        ...


class CallSpan(Option):
    """Puts a span around the whole call, whose ``budgets`` may know the prices of its models."""

    def __init__(
        self, telemetry: CallTelemetry, accounts: Accounts, budgets: Sequence[Budget]
    ) -> None:
        self._telemetry = telemetry
        self._accounts = accounts
        self._budgets = budgets

    async def around(self, loop_budget: int, go: Callable[[int], Awaitable[None]]) -> None:
        """Run the call inside its span."""
        ending: Ending | None = None
        with self._telemetry.call() as span:
            try:
                await go(loop_budget)
                ending = self._accounts.conclude()
                error = self.call.fatal or ending.error
            finally:
                usage = self._accounts.usage
                self._telemetry.decided(span, ending, self.call.slices, usage, self._money())
            span.close(error)

    def _money(self) -> tuple[float, str] | None:
        """Return the cost and its currency; None if the price of a used model is unknown."""
        prices = next((budget.prices for budget in self._budgets if budget.prices), None)
        spent = [part for part in self._accounts.usage_by_model if part[1] != Usage()]
        if not prices or any(price_for(model, prices) is None for model, _ in spent):
            return None
        currency = next(iter(prices.values())).currency
        return sum((cost(usage, model, prices) for model, usage in spent), 0.0), currency
