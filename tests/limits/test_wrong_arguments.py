"""What is no backend or no limit is refused where it is written, not at the first request."""

from __future__ import annotations

import pytest

from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.limits.base import LimitedBackend
from mellea_like.limits.budget import Budget
from mellea_like.limits.concurrency import ConcurrencyLimiter
from mellea_like.limits.retry import RetryBackend


@pytest.mark.parametrize("inner", [None, "gpt-4.1", ScriptedBackend, ConcurrencyLimiter(8)])
@pytest.mark.parametrize("wrap", [LimitedBackend, RetryBackend])
def test_what_is_wrapped_is_a_backend(wrap, inner):
    more = (ConcurrencyLimiter(8),) if wrap is LimitedBackend else ()
    with pytest.raises(TypeError, match=rf"{wrap.__name__} takes a backend first"):
        wrap(inner, *more)


@pytest.mark.parametrize("limit", [8, None, ConcurrencyLimiter, ScriptedBackend(["x"])])
def test_what_limits_is_a_limit(limit):
    with pytest.raises(TypeError, match=r"takes limits, such as ConcurrencyLimiter\(8\), not "):
        LimitedBackend(ScriptedBackend(["x"]), Budget(requests=1), limit)


def test_a_backend_without_limits_is_no_limited_one():
    with pytest.raises(TypeError, match="takes limits after the backend"):
        LimitedBackend(ScriptedBackend(["x"]))
