"""Wrong settings are refused when an object is made, not at the first request."""

from __future__ import annotations

import math

import pytest

from mellea_like import Budget, Price
from mellea_like.backends import ScriptedBackend
from mellea_like.limits import (
    AdaptiveLimiter,
    Budgets,
    ConcurrencyLimiter,
    FallbackBackend,
    LimitedBackend,
    MemoryStore,
    RateLimiter,
    Retry,
    RetryBackend,
    SQLiteStore,
    StoreConcurrency,
)

BACKEND, LIMIT = ScriptedBackend(["x"]), ConcurrencyLimiter(8)
PRICES = {"m": Price(1, 1)}
STORE = MemoryStore()


@pytest.mark.parametrize(
    ("made", "settings", "error", "says"),
    [
        (AdaptiveLimiter, {"initial": 0}, ValueError, "initial must be at least 1 and at most 100"),
        (AdaptiveLimiter, {"initial": 8, "maximum": 4}, ValueError, "at most 4, not 8"),
        (AdaptiveLimiter, {"maximum": 0}, ValueError, "Limiter: maximum must be at least 1"),
        (AdaptiveLimiter, {"initial": 2.0}, TypeError, "initial must be an integer, not 2.0"),
        (RateLimiter, {}, ValueError, "needs a limit: requests_per_minute, tokens_per_minute or"),
        (RateLimiter, {"requests_per_minute": 0}, ValueError, "greater than 0 and finite, not 0"),
        (RateLimiter, {"tokens_per_minute": math.inf}, ValueError, "greater than 0 and finite"),
        (RateLimiter, {"requests_per_minute": "60"}, TypeError, "must be a number, not '60'"),
        (RateLimiter, {"requests_per_minute": 1, "burst_seconds": 0}, ValueError, "burst_seconds"),
        (RateLimiter, {"requests_per_minute": 1, "assume_output_tokens": 0}, ValueError, "assume"),
        (Retry, {"attempts": 0}, ValueError, "attempts, which includes the first try, must be at"),
        (Retry, {"attempts": 1.5}, TypeError, "attempts, .* must be an integer"),
        (Retry, {"rate_limit_attempts": 0}, ValueError, "rate_limit_attempts"),
        (Retry, {"initial": -1}, ValueError, "initial must be at least 0"),
        (Retry, {"maximum": math.inf}, ValueError, "maximum"),
        (Retry, {"maximum": "8"}, TypeError, "maximum must be a number of seconds"),
        (Retry, {"max_retry_after": -0.1}, ValueError, "max_retry_after"),
        (Budget, {}, ValueError, "needs a limit"),
        (Budget, {"money": 1}, ValueError, "prices="),
        (Budget, {"requests": 1, "within": "x"}, TypeError, "within"),
        (Budget, {"requests": 1, "name": 5}, TypeError, "name"),
        (Budget, {"requests": 1, "prices": {"m": 1}}, TypeError, "Price"),
        (Budget, {"requests": 10**400}, ValueError, "requests must be "),
        (Budget, {"output_tokens": 2.5}, TypeError, "output_tokens must be an integer"),
        (Budget, {"input_tokens": 0}, ValueError, "input_tokens "),
        (Budget, {"requests": 1, "assume_output_tokens": 0}, ValueError, "assume_output_tokens "),
        (Budget, {"money": math.nan, "prices": PRICES}, ValueError, "money must be .* and finite"),
        (Budget, {"seconds": True}, TypeError, "seconds must be a number"),
        (Budget, {"requests": 1, "cancelled": "never"}, ValueError, "'estimate', 'reserved' or "),
        *(
            (made, {**settings, "store": store, "name": name}, error, says)
            for made, settings in (
                (Budget, {"requests": 1}),
                (RateLimiter, {"requests_per_minute": 1}),
                (StoreConcurrency, {"concurrency": 1}),
            )
            for store, name, error, says in (
                (STORE, "", ValueError, f"(?i)a {made.__name__} in a store needs a name"),
                ("spent.db", "a", TypeError, "must be a store, such as .*, not 'spent.db'"),
                (MemoryStore, "a", TypeError, "must be a store, such as"),
            )
        ),
        (SQLiteStore, {"path": 5}, TypeError, "int"),
        (SQLiteStore, {"path": ""}, ValueError, "must name a file"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_setting_is_named(made, settings, error, says):
    with pytest.raises(error, match=says):
        made(**settings)


@pytest.mark.parametrize("inner", [None, "gpt-4.1", ScriptedBackend, LIMIT])
@pytest.mark.parametrize("wrap", [LimitedBackend, RetryBackend])
def test_what_is_wrapped_is_a_backend(wrap, inner):
    more = (LIMIT,) if wrap is LimitedBackend else ()
    with pytest.raises(TypeError, match=rf"{wrap.__name__} needs a backend"):
        wrap(inner, *more)


@pytest.mark.parametrize(
    ("wrap", "more", "says"),
    [
        (LimitedBackend, (), "needs at least one limit after the backend"),
        (LimitedBackend, (Budget(requests=1), 8), r"needs limits, such as ConcurrencyLimiter\(8\)"),
        (LimitedBackend, (ConcurrencyLimiter,), "needs limits, such as"),
        (LimitedBackend, (BACKEND,), "needs limits, such as"),
        (RetryBackend, (3,), "must be a Retry, not 3"),
        (FallbackBackend, (), "FallbackBackend needs"),
        (FallbackBackend, (object(),), "FallbackBackend needs"),
        (FallbackBackend, (object,), "FallbackBackend needs"),
        (FallbackBackend, (BACKEND, "other"), "FallbackBackend needs"),
    ],
)
def test_what_goes_with_a_backend_is_of_its_kind(wrap, more, says):
    with pytest.raises(TypeError, match=says):
        wrap(BACKEND, *more)


def test_retries_of_a_fallback_and_chains_and_tuples_of_budgets_are_checked_too():
    with pytest.raises(TypeError, match="combines Budget objects, not 5"):
        Budgets(Budget(requests=1), 5)
    with pytest.raises(TypeError, match="must be a Retry"):
        FallbackBackend(BACKEND, BACKEND, retry=3)
    with pytest.raises(ValueError, match="same account: 'a'"):
        Budget(store=STORE, name="a", within=Budget(requests=1, store=STORE, name="a"))
