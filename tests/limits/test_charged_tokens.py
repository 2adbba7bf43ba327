"""What a request is charged when it has ended."""

from __future__ import annotations

import asyncio

import pytest

from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import (
    AuthenticationFailed,
    BackendTimeout,
    BackendUnavailable,
    InvalidRequest,
    MalformedResponse,
    RateLimited,
)
from mellea_like.limits.accounts import charged_tokens
from mellea_like.limits.base import RequestEnd

ESTIMATED = 7
REPLY = Generation("fünf Wörter sind es")  # 21 bytes
LOST = Usage(1, 0, 0, 1)


@pytest.mark.parametrize(
    ("usage", "reply", "error", "charged"),
    [
        pytest.param(Usage(), None, None, (0, 0), id="nothing was sent"),
        pytest.param(Usage(), None, asyncio.CancelledError(), (0, 0), id="cancelled before it was"),
        pytest.param(Usage(1, 3, 4), REPLY, None, (3, 4), id="known"),
        pytest.param(Usage(1, 0, 0), REPLY, None, (0, 0), id="known to be nothing"),
        pytest.param(Usage(2, 6, 8), None, BackendTimeout(), (6, 8), id="an error, and known"),
        pytest.param(LOST, REPLY, None, (7, 6), id="a reply that nobody counted"),
        pytest.param(Usage(1, 3, 4, 1), REPLY, None, (3, 4), id="a reply of which parts are known"),
        pytest.param(LOST, None, asyncio.CancelledError(), (7, 0), id="cancelled"),
        pytest.param(LOST, None, None, (7, 0), id="left early"),
        pytest.param(Usage(1, 0, 4, 1), None, None, (7, 4), id="left early, some arrived"),
        pytest.param(Usage(1, 3, 4, 1), None, None, (3, 4), id="left early, the prompt is known"),
        pytest.param(LOST, None, BackendTimeout(), (7, 0), id="timed out"),
        pytest.param(LOST, None, MalformedResponse(), (7, 0), id="unreadable"),
        pytest.param(LOST, None, ValueError(), (7, 0), id="a bug after it was sent"),
        pytest.param(LOST, None, BackendUnavailable(status=503), (0, 0), id="refused: 503"),
        pytest.param(LOST, None, RateLimited(status=429), (0, 0), id="refused: 429"),
        pytest.param(LOST, None, AuthenticationFailed(status=401), (0, 0), id="refused: 401"),
        pytest.param(LOST, None, InvalidRequest(status=400), (0, 0), id="refused: 400"),
        pytest.param(
            Usage(1, 0, 4, 1), None, BackendUnavailable(), (7, 4), id="broke off in the middle"
        ),
    ],
)
def test_what_is_charged(usage, reply, error, charged):
    assert charged_tokens(RequestEnd(usage, reply, error), ESTIMATED) == charged
