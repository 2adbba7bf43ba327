"""Who asks: what is known of a request that the guard let through, and what is kept of a key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mellea_like.gateway.http.admission import Door, budget_spent
from mellea_like.limits.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mellea_like.gateway.config.server import KeyLimits
    from mellea_like.specification.strategy import BudgetSpec

__all__ = ["IN_SCOPE", "IS_KNOWN", "Admitted", "KeyState", "admitted"]

IN_SCOPE = "mellea_like.gateway"
"""Where the guard leaves it in a request's ASGI scope."""

IS_KNOWN = "mellea_like.gateway.is_known"
"""In a scope, too: what the guard calls once it knows whose the request is."""

ASSUMED_OUTPUT_TOKENS = 512
"""What a key's budget reserves for a reply of a judge that has no bound."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that got through.

    Args:
        key: the name of the caller's key.
        limits: the key's limits.
        body: the parsed body of a POST; else empty.
        budget: what the key may spend, or None.
        n: how many replies are wanted.
        max_tokens: the longest reply: what the request says, else the key's limit.
    """

    key: str
    limits: KeyLimits
    body: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    budget: Budget | None = None
    n: int = 1
    max_tokens: int = 0


def admitted(scope: Mapping[str, Any]) -> Admitted:
    """Return what the guard found out about a request.

    Args:
        scope: the request's ASGI scope.

    Returns:
        The same for all that ask.
    """
    found: Admitted = scope[IN_SCOPE]
    return found


@dataclass(slots=True)
class KeyState:
    """What is kept of a key while the gateway runs.

    Args:
        name: the key's name.
        limits: its limits.
        door: where its requests wait their turn.
        budget: what it may spend, or None.
    """

    name: str
    limits: KeyLimits
    door: Door
    budget: Budget | None

    @classmethod
    def of(cls, name: str, limits: KeyLimits) -> KeyState:
        """Begin with nothing spent and nobody in line.

        Args:
            name: the key's name.
            limits: its limits.

        Returns:
            The key's state.
        """
        return cls(name, limits, Door(name, limits), _budget(name, limits.budget))

    def check_budget(self) -> None:
        """Refuse a request of a key that has spent all it may.

        Raises:
            Refusal: it has.
        """
        if self.budget is not None and any(
            limit is not None and spent >= limit
            for spent, limit in zip(
                self.budget.spent, self.budget.statistics().limits, strict=False
            )
        ):
            raise budget_spent()


def _budget(name: str, config: BudgetSpec | None) -> Budget | None:
    if config is None:
        return None
    return Budget(
        requests=config.requests,
        input_tokens=config.input_tokens,
        output_tokens=config.output_tokens,
        assume_output_tokens=ASSUMED_OUTPUT_TOKENS,
        name=f"key {name}",
    )
