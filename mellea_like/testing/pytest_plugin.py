"""The pytest fixtures ``anyio_backend`` and ``virtual_clock``.

Put ``pytest_plugins = ["mellea_like.testing.pytest_plugin"]`` into the topmost ``conftest.py``.
Each async test marked ``anyio`` then runs on asyncio and on trio; one that takes ``virtual_clock``
runs in virtual time, where nothing really sleeps:

```python
@pytest.mark.anyio
async def test_an_hour_passes(virtual_clock):
    await anyio.sleep(3600)
    assert virtual_clock.now == 3600
```

Keep worker threads and sockets out of tests in virtual time; see `VirtualClock`.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from mellea_like.lazy import needs_extra
from mellea_like.testing.virtual_clock import VirtualClock

with needs_extra("testing", "mellea_like's fixtures need pytest"):
    import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

_CLOCK = pytest.StashKey[VirtualClock]()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str | tuple[str, dict[str, Any]]:
    """The event loops that async tests run on: asyncio and trio, each in its own test."""
    if "virtual_clock" not in request.fixturenames:
        name: str = request.param
        return name
    clock = VirtualClock()
    request.node.stash[_CLOCK] = clock
    return clock.backend(request.param)


@pytest.fixture
def virtual_clock(anyio_backend: object, request: pytest.FixtureRequest) -> VirtualClock:  # noqa: ARG001
    """Run the test in virtual time: a sleep advances the clock and returns immediately.

    ``virtual_clock.now`` is the time in seconds, starting at 0. A test in which every task waits
    forever fails with a `DeadlockError`. Hypothesis tests call `run_virtual` in a plain function
    instead.
    """
    clock: VirtualClock | None = request.node.stash.get(_CLOCK, None)
    if clock is None:
        pytest.fail(
            "virtual_clock needs this plugin's anyio_backend: don't parametrize a test by it"
        )
    return clock


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Make a test in virtual time fail if all its tasks wait forever."""
    clock = pyfuncitem.stash.get(_CLOCK, None)
    if clock is None or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return (yield)
    test = pyfuncitem.obj

    @functools.wraps(test)
    async def watched(**fixtures: Any) -> None:
        await clock.run(test, **fixtures)

    pyfuncitem.obj = watched
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test
