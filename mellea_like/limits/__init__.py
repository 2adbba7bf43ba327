"""Limits: what keeps concurrent sampling affordable. Each makes a backend of a backend.

```python
from mellea_like.limits import AdaptiveLimiter, Budget, LimitedBackend

backend = LimitedBackend(OpenAIBackend("some-model"), AdaptiveLimiter())
strategy = RejectionSamplingStrategy(backend, concurrency_budget=4, budget=Budget(requests=500))
```
"""

from typing import TYPE_CHECKING

from mellea_like.core.prices import Price
from mellea_like.limits.base import Limit, LimitedBackend, Permit, RequestEnd
from mellea_like.limits.retry import Retry, RetryBackend
from mellea_like.runtime.later import imported_later

if TYPE_CHECKING:
    from mellea_like.limits.adaptive import AdaptiveLimiter, AdaptiveStatistics
    from mellea_like.limits.budget import Budget
    from mellea_like.limits.budget_figures import BudgetLimits, BudgetStatistics
    from mellea_like.limits.concurrency import ConcurrencyLimiter, ConcurrencyStatistics
    from mellea_like.limits.gate import Gate, GateStatistics, gate_of
    from mellea_like.limits.rate import RateLimiter, RateStatistics

__all__ = [
    "AdaptiveLimiter",
    "AdaptiveStatistics",
    "Budget",
    "BudgetLimits",
    "BudgetStatistics",
    "ConcurrencyLimiter",
    "ConcurrencyStatistics",
    "Gate",
    "GateStatistics",
    "Limit",
    "LimitedBackend",
    "Permit",
    "Price",
    "RateLimiter",
    "RateStatistics",
    "RequestEnd",
    "Retry",
    "RetryBackend",
    "gate_of",
]

__getattr__, __dir__ = imported_later(
    __name__,
    {
        "AdaptiveLimiter": "adaptive",
        "AdaptiveStatistics": "adaptive",
        "Budget": "budget",
        "BudgetLimits": "budget_figures",
        "BudgetStatistics": "budget_figures",
        "ConcurrencyLimiter": "concurrency",
        "ConcurrencyStatistics": "concurrency",
        "Gate": "gate",
        "GateStatistics": "gate",
        "RateLimiter": "rate",
        "RateStatistics": "rate",
        "gate_of": "gate",
    },
)
