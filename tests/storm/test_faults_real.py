"""Calls over real sockets: an early win returns at once, and whoever leaves closes everything."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import anyio
import pytest
from aftermath import SAYS_WON
from command_line import start
from http_server import Answer, OpenAIServer
from leftovers import other_threads, running

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends.openai import OpenAIBackend
from mellea_like.core.slice import Outcome

SLOW = Answer(" ".join(["slow"] * 40), seconds=20.0)
SOON = 3.0
"""Seconds that a busy machine may take for what is done at once; a slow reply takes far longer."""


async def warm_up() -> None:
    """Import and build whatever the first request needs."""
    with OpenAIServer() as server:
        backend = OpenAIBackend("m", base_url=server.url)
        await RejectionSamplingStrategy(backend, loop_budget=1).sample("Say something.")
        await backend.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize("keep_alive", [False, True])
async def test_a_win_at_three_tenths_of_a_second_returns_at_once_and_closes_the_rest(keep_alive):
    await warm_up()

    def choose(number, body):
        return Answer("won", seconds=0.3) if number == 2 else SLOW

    with OpenAIServer(choose=choose) as server:
        backend = OpenAIBackend("m", base_url=server.url, keep_alive=keep_alive)
        strategy = RejectionSamplingStrategy(backend, loop_budget=2, concurrency_budget=4)
        tasks, threads = running(), other_threads()
        with anyio.fail_after(SOON):
            result = await strategy.sample("Say won.", [SAYS_WON])
        assert running() <= tasks
        assert other_threads() <= threads
        await server.wait_until(lambda: server.disconnected == 3, SOON)
        await server.wait_until(lambda: server.connections <= keep_alive, SOON)
        assert server.started == 4
        assert server.finished == 1
        await backend.aclose()
        await server.wait_until(lambda: server.connections == 0, SOON)
    assert result.unwrap() == "won"
    assert result.count(Outcome.CANCELLED) == 3
    assert result.usage.requests == 4
    assert result.usage.unknown == 3


SCRIPT = """
import asyncio
import sys
import anyio
from mellea_like import RejectionSamplingStrategy, SyncSampler
from mellea_like.backends.openai import OpenAIBackend

strategy = RejectionSamplingStrategy(OpenAIBackend("m", base_url=sys.argv[1]), concurrency_budget=4)

def call():
    strategy.sample_sync("Say something.", ["is good"])

def call_with_sampler():
    with SyncSampler(strategy) as sampler:
        sampler.sample("Say something.", ["is good"])

async def in_loop():
    call()

async def in_task():
    await asyncio.create_task(in_loop())

ways = {
    "script": call,
    "sampler": call_with_sampler,
    "asyncio": lambda: anyio.run(in_loop),
    "a task of asyncio's": lambda: anyio.run(in_task),
    "trio": lambda: anyio.run(in_loop, backend="trio"),
}
try:
    ways[sys.argv[2]]()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""


def sleeps(process):
    """Return whether the main thread sleeps; elsewhere than on Linux, this isn't known."""
    stat = Path(f"/proc/{process.pid}/stat")
    return not stat.exists() or stat.read_bytes().rpartition(b")")[2].split()[0] == b"S"


@pytest.mark.parametrize("where", ["script", "sampler", "asyncio", "a task of asyncio's", "trio"])
@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_ctrl_c_in_synchronous_code_closes_every_request_and_raises_keyboard_interrupt(
    where, tmp_path
):
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    with OpenAIServer(SLOW) as server:
        script = start(server.url, where, script=str(tmp_path / "script.py"), text=True)
        try:
            # A signal right before a thread begins to wait for a lock doesn't end this wait.
            anyio.run(server.wait_until, lambda: server.in_flight == 4 and sleeps(script), 20)
            script.send_signal(signal.SIGINT)
            anyio.run(server.wait_until, lambda: server.disconnected == 4, 20)
            out, err = script.communicate(timeout=10)
        finally:
            script.kill()
            script.wait()
        assert server.started == 4
    assert out == "interrupted\n"
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "Group" not in err
    assert script.returncode != 0
