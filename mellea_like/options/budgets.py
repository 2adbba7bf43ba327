"""``budget=``: each request must fit into the budgets of its call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.kernel.ports import Option
from mellea_like.limits.several_budgets import within_budgets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.backend import Backend
    from mellea_like.kernel.ports import Sent
    from mellea_like.limits.budget import Budget


class Budgets(Option):
    """Makes each request reserve its cost in every budget of the call."""

    def __init__(self, budgets: Sequence[Budget]) -> None:
        self._budgets = budgets

    def request(self, inner: Backend, sent: Sent) -> Backend:
        """Wrap a backend so that its requests must fit into the budgets."""
        del sent
        return within_budgets(inner, self._budgets)
