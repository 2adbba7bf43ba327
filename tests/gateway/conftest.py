"""Fixtures of the gateway's tests."""

from __future__ import annotations

import pytest

from mellea_like.gateway.chat import caller_checks


@pytest.fixture(scope="session")
def _kept():
    kept = []
    yield kept
    while kept:
        caller_checks._end(kept.pop())


@pytest.fixture
def warm_checks(_kept, monkeypatch):
    """Let all gateways use the same processes for checks, because these take long to start."""
    start = caller_checks._start

    def take():
        return _kept.pop() if _kept else start()

    async def leave(workers, *_):
        _kept.extend(workers._idle)
        workers._idle.clear()

    monkeypatch.setattr(caller_checks, "_start", take)
    monkeypatch.setattr(caller_checks.Workers, "__aexit__", leave)
