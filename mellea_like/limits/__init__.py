"""Limits, retries and fallbacks, which keep concurrent sampling affordable and robust.

Each of them can be wrapped around a backend. A strategy also takes budgets and a retry policy as
arguments.

```python
from mellea_like.limits import AdaptiveLimiter, Budget, LimitedBackend

backend = LimitedBackend(OpenAIBackend("some-model"), AdaptiveLimiter())
strategy = RejectionSamplingStrategy(backend, concurrency_budget=4, budget=Budget(requests=500))
```
"""

from typing import TYPE_CHECKING

from mellea_like.lazy import lazy_exports

if TYPE_CHECKING:
    from mellea_like.core.prices import Price
    from mellea_like.limits.backoff_gate import BackoffGate, BackoffGateStatistics, gate_of
    from mellea_like.limits.base import Limit, LimitedBackend, Permit, RequestEnd
    from mellea_like.limits.budget import Budget, BudgetLimits, BudgetStatistics, Cancelled
    from mellea_like.limits.budget_accounts import Amounts, Denied
    from mellea_like.limits.concurrency import AdaptiveLimiter, ConcurrencyLimiter, StoreConcurrency
    from mellea_like.limits.fair_queue import LimiterStatistics
    from mellea_like.limits.fallback import FallbackBackend
    from mellea_like.limits.memory_store import MemoryStore
    from mellea_like.limits.rate import RateLimiter
    from mellea_like.limits.retry import Retry, RetryBackend
    from mellea_like.limits.several_budgets import (
        Budgets,
        ReservedRound,
        reserve_round,
        within_budgets,
    )
    from mellea_like.limits.sqlite_store import SQLiteStore
    from mellea_like.limits.store import Reservation, Store, StoreAccount, StoreBucket

__all__ = [
    "AdaptiveLimiter",
    "Amounts",
    "BackoffGate",
    "BackoffGateStatistics",
    "Budget",
    "BudgetLimits",
    "BudgetStatistics",
    "Budgets",
    "Cancelled",
    "ConcurrencyLimiter",
    "Denied",
    "FallbackBackend",
    "Limit",
    "LimitedBackend",
    "LimiterStatistics",
    "MemoryStore",
    "Permit",
    "Price",
    "RateLimiter",
    "RequestEnd",
    "Reservation",
    "ReservedRound",
    "Retry",
    "RetryBackend",
    "SQLiteStore",
    "Store",
    "StoreAccount",
    "StoreBucket",
    "StoreConcurrency",
    "gate_of",
    "reserve_round",
    "within_budgets",
]

__getattr__, __dir__ = lazy_exports(
    globals(),
    {
        "mellea_like.core.prices": "Price",
        "mellea_like.limits.backoff_gate": "BackoffGate BackoffGateStatistics gate_of",
        "mellea_like.limits.base": "Limit LimitedBackend Permit RequestEnd",
        "mellea_like.limits.budget": "Budget BudgetLimits BudgetStatistics Cancelled",
        "mellea_like.limits.budget_accounts": "Amounts Denied",
        "mellea_like.limits.concurrency": "AdaptiveLimiter ConcurrencyLimiter StoreConcurrency",
        "mellea_like.limits.fair_queue": "LimiterStatistics",
        "mellea_like.limits.fallback": "FallbackBackend",
        "mellea_like.limits.memory_store": "MemoryStore",
        "mellea_like.limits.rate": "RateLimiter",
        "mellea_like.limits.retry": "Retry RetryBackend",
        "mellea_like.limits.several_budgets": "Budgets ReservedRound reserve_round within_budgets",
        "mellea_like.limits.sqlite_store": "SQLiteStore",
        "mellea_like.limits.store": "Reservation Store StoreAccount StoreBucket",
    },
)
