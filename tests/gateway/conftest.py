"""Fixtures of the gateway's tests."""

from __future__ import annotations

import pytest
from gateway_kit import InTurn, config_for, running

from mellea_like.gateway.chat import caller_checks


@pytest.fixture(scope="module")
def scenery():
    """An upstream, and a gateway that repairs replies of more than two words."""
    upstream = InTurn()
    config = config_for(checks=["words<=2"], attempts=2, strategy="repair")
    with running(config, backends={"main": upstream}) as gateway:
        yield upstream, gateway


@pytest.fixture
def upstream(scenery):
    """The upstream of `scenery`, which replies ``a b`` until a test says otherwise."""
    scenery[0].replies, scenery[0].requests = ["a b"], []
    return scenery[0]


@pytest.fixture
def client(scenery, upstream):
    """The official client of `scenery`."""
    with scenery[1].client() as client:
        yield client


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
