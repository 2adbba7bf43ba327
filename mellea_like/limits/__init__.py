"""Limits, retries and fallbacks: what keeps concurrent sampling affordable and alive.

Each makes a backend of a backend.

```python
from mellea_like.limits import AdaptiveLimiter, Budget, LimitedBackend

backend = LimitedBackend(OpenAIBackend("some-model"), AdaptiveLimiter())
strategy = RejectionSamplingStrategy(backend, concurrency_budget=4, budget=Budget(requests=500))
```
"""

from typing import TYPE_CHECKING

from mellea_like.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from mellea_like.core.prices import Price
    from mellea_like.limits.backoff_gate import BackoffGate, BackoffGateStatistics, gate_of
    from mellea_like.limits.base import Limit, LimitedBackend, Permit, RequestEnd
    from mellea_like.limits.budget import Budget, BudgetLimits, Budgets, BudgetStatistics
    from mellea_like.limits.concurrency import AdaptiveLimiter, ConcurrencyLimiter
    from mellea_like.limits.fair_queue import LimiterStatistics
    from mellea_like.limits.fallback import FallbackBackend
    from mellea_like.limits.memory_store import MemoryStore
    from mellea_like.limits.rate import RateLimiter
    from mellea_like.limits.retry import Retry, RetryBackend
    from mellea_like.limits.sqlite_store import SQLiteStore
    from mellea_like.limits.store import Store

__all__ = [
    "AdaptiveLimiter",
    "BackoffGate",
    "BackoffGateStatistics",
    "Budget",
    "BudgetLimits",
    "BudgetStatistics",
    "Budgets",
    "ConcurrencyLimiter",
    "FallbackBackend",
    "Limit",
    "LimitedBackend",
    "LimiterStatistics",
    "MemoryStore",
    "Permit",
    "Price",
    "RateLimiter",
    "RequestEnd",
    "Retry",
    "RetryBackend",
    "SQLiteStore",
    "Store",
    "gate_of",
]

__getattr__, __dir__ = lazy_exports(
    {
        "Price": "mellea_like.core.prices",
        "AdaptiveLimiter": "mellea_like.limits.concurrency",
        "Budget": "mellea_like.limits.budget",
        "BudgetLimits": "mellea_like.limits.budget",
        "BudgetStatistics": "mellea_like.limits.budget",
        "Budgets": "mellea_like.limits.budget",
        "ConcurrencyLimiter": "mellea_like.limits.concurrency",
        "BackoffGate": "mellea_like.limits.backoff_gate",
        "BackoffGateStatistics": "mellea_like.limits.backoff_gate",
        "FallbackBackend": "mellea_like.limits.fallback",
        "Limit": "mellea_like.limits.base",
        "LimitedBackend": "mellea_like.limits.base",
        "LimiterStatistics": "mellea_like.limits.fair_queue",
        "MemoryStore": "mellea_like.limits.memory_store",
        "Permit": "mellea_like.limits.base",
        "RateLimiter": "mellea_like.limits.rate",
        "RequestEnd": "mellea_like.limits.base",
        "Retry": "mellea_like.limits.retry",
        "RetryBackend": "mellea_like.limits.retry",
        "SQLiteStore": "mellea_like.limits.sqlite_store",
        "Store": "mellea_like.limits.store",
        "gate_of": "mellea_like.limits.backoff_gate",
    },
    globals(),
)
