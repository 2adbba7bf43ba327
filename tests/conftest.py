"""What every test has: both event loops, virtual time, and watches for leaks and blocking calls."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import inspect
import ipaddress
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import zlib
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint
from blockbuster import BlockBuster
from hypothesis import HealthCheck, settings
from pydantic import TypeAdapter

from mellea_like.limits import backoff_gate

pytest_plugins = ["mellea_like.testing.pytest_plugin", "pytester"]

# What the tests' modules import stays, and the collector would look through it again and again.
gc.disable()

# A job in the background may be started so that it ignores Ctrl-C, or, by nohup, the end of its
# terminal, and would hand that down to the processes of its tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

settings.register_profile(
    "default",
    deadline=None,
    # The one fixture that all examples of a test share is the name of its event loop's library.
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
    max_examples=20,
)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.register_profile("storm", settings.get_profile("ci"), max_examples=100)
settings.register_profile("new storm", settings.get_profile("default"), max_examples=250)
settings.load_profile(
    "new storm"
    if os.environ.get("STORM") == "new"
    else "storm"
    if os.environ.get("STORM")
    else "ci"
    if os.environ.get("CI")
    else "default"
)


# Thousands of commits to small databases would wait for a disk.
MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Reading the certificates takes 20 ms, and hundreds of tests make a client.
ssl.create_default_context = functools.cache(ssl.create_default_context)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One more than there are cores: many tests wait, for a process or a clock."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (cores or 1) + 1


def pytest_ignore_collect(collection_path, config):
    """Where only tests that run alone are wanted, import only the files that have some."""
    if config.option.markexpr.startswith("alone") and collection_path.name.startswith("test_"):
        return "mark.alone" not in collection_path.read_text(encoding="utf-8") or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    """Each worker begins with other files, and finds the bytecode of the rest written already.

    In a fresh clone the rewriting of assertions takes most of the time, and each worker collects
    all files.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    of = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if number and session.config.args == session.config.getini("testpaths"):
        (tests,) = session.config.args
        places = sorted(str(path) for path in Path(tests).iterdir() if _may_have_tests(path))
        first = len(places) * number // of
        session.config.args[:] = [*places[first:], *places[:first]]


def _may_have_tests(path):
    return (path.is_dir() and any(path.rglob("test_*.py"))) or path.match("test_*.py")


ON_ONE_LOOP = {
    Path(__file__).parent / name
    for name in ("backends", "batch", "gateway", "requirements", "selections")
}
"""The folders whose tests run on one event loop, by turns; a storm runs them on the other, too."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """All workers have the tests in the same order again."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.path)
    _take_turns(
        item
        for item in items
        if ON_ONE_LOOP.intersection(item.path.parents) and not item.get_closest_marker("alone")
    )


def _take_turns(items):
    """Leave an event loop to the storm, where a test would run on both."""
    cases = {}
    for item in items:
        if hasattr(item, "callspec") and (loop := item.callspec.params.get("anyio_backend")):
            cases.setdefault(item.nodeid.replace(loop, "", 1), {})[loop] = item
    for case, loops in cases.items():
        if len(loops) > 1:
            turn = zlib.crc32(case.encode()) % 2
            loops["asyncio" if turn else "trio"].add_marker("storm")


def pytest_collection_finish():
    """What was imported stays: the garbage collector need not look through it at each turn."""
    gc.enable()
    gc.collect()
    gc.freeze()


# --- a call that blocks the event loop fails the test -----------------------------------------

_watched_threads: set[int] = set()


def _watch(owner: object, name: str, event: str) -> None:
    """Put the watch before a function that blocks.

    No audit hook: one written in Python lets threads in while a trace function is being installed,
    and then coverage can't measure the thread that just began, which dies of it.
    """
    blocking = getattr(owner, name)

    @functools.wraps(blocking)
    def watched(*args, **kwargs):
        if threading.get_ident() in _watched_threads:
            _check(event, args)
        return blocking(*args, **kwargs)

    setattr(owner, name, watched)


def _check(event: str, args: tuple[object, ...]) -> None:
    if event == "socket.getaddrinfo" and _is_address(args[0]):
        return  # Nothing to look up: trio asks, in the loop, whether it is an address.
    # Only our own code answers for what it does: a frame of the package must have called.
    frame = inspect.currentframe()
    while frame is not None:
        path = frame.f_code.co_filename
        if f"{os.sep}mellea_like{os.sep}" in path and f"{os.sep}testing{os.sep}" not in path:
            msg = f"{event}{args!r} blocks the event loop, called from {path}:{frame.f_lineno}"
            raise AssertionError(msg)
        frame = frame.f_back


def _is_address(host: object) -> bool:
    try:
        ipaddress.ip_address(host.decode() if isinstance(host, bytes) else str(host))
    except ValueError:
        return False
    return True


_watch(os, "system", "os.system")
_watch(socket, "getaddrinfo", "socket.getaddrinfo")
_watch(subprocess.Popen, "__init__", "subprocess.Popen")
_watch(time, "sleep", "time.sleep")


@pytest.fixture(scope="session")
def _blockbuster() -> BlockBuster:
    TypeAdapter(int)  # With its first schema pydantic looks for plugins on the disk, once.
    for name in ("jsonschema", "mellea_like.batch.journal.journal"):
        with contextlib.suppress(ImportError):  # The first test that needs them would import them.
            importlib.import_module(name)
    watch = BlockBuster("mellea_like", excluded_modules=["mellea_like.testing"])
    # A store's transactions take some 20 us each, less than handing them to a thread.
    store = {
        "decide",
        "settle",
        "in_use",
        "look",
        "_settle",
        "forget",
        "accounts",
        "check",
        "close",
    }
    for function in watch.functions.values():
        function.can_block_in("mellea_like/limits/sqlite_store.py", store | {"give_up"})
        function.can_block_in("mellea_like/limits/bucket.py", {"_take", "correct", "give_back"})
    return watch


# --- what every async test is wrapped in -------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Watch an async test for blocking calls and for tasks that it leaves behind."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test) or pyfuncitem.get_closest_marker("allow_blocking"):
        return (yield)
    detector = pyfuncitem.funcargs["_detector"]

    @functools.wraps(test)
    async def watched(**fixtures):
        before = {task.id for task in anyio.get_running_tasks()}
        thread = threading.get_ident()
        if detector is not None:
            detector.activate()
        _watched_threads.add(thread)
        try:
            await test(**fixtures)
        finally:
            _watched_threads.discard(thread)
            if detector is not None:
                detector.deactivate()
        await checkpoint()
        left = [task for task in anyio.get_running_tasks() if task.id not in before]
        assert not left, f"the test left tasks behind: {left}"

    pyfuncitem.obj = watched
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test


@pytest.fixture(autouse=True)
def _detector(request, _blockbuster):
    """On asyncio, blockbuster sees more: locks, files, sockets. Trio it does not know."""
    backend = request.getfixturevalue("anyio_backend") if _is_async(request.node) else None
    name = backend if isinstance(backend, str) else backend and backend[0]
    return _blockbuster if name == "asyncio" else None


@pytest.fixture(autouse=True)
def _open_gates():
    """A gate belongs to an address and a key, and a later test's server may have the same port."""
    yield
    backoff_gate._by_key.clear()
    backoff_gate._by_backend.clear()


def _is_async(node: object) -> bool:
    return inspect.iscoroutinefunction(getattr(node, "obj", None))
