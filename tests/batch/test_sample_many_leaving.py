"""Batches that are left early, cancelled or interrupted: nothing keeps running."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import textwrap

import anyio
import pytest
from batch_kit import MemoryJournal, Plan, strategy

from mellea_like import BaseSamplingStrategy, Generation, sample_many

pytestmark = pytest.mark.anyio

PROMPTS = [str(n) for n in range(100)]


@pytest.mark.parametrize("waits", [False, True])
async def test_an_interrupt_in_a_worker_leaves_the_block_at_once(virtual_clock, waits):
    backend = Plan(lambda prompt: KeyboardInterrupt() if prompt == "3" else 50)
    with pytest.raises(KeyboardInterrupt):
        async with sample_many(strategy(backend), PROMPTS, concurrency=5) as results:
            if waits:
                await anext(results)
            else:
                await anyio.sleep(1000)
    assert virtual_clock.now < 2
    assert backend.in_flight == 0
    assert len(backend.cancelled) == 4


async def test_an_interrupt_in_an_action_leaves_the_block_at_once(virtual_clock):
    def action(item):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        async with sample_many(strategy(), PROMPTS, concurrency=5, action=action) as results:
            await anext(results)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_ctrl_c_cancels_the_calls_in_flight(loop, tmp_path):
    program = f"""
        import os, signal, anyio
        from mellea_like import RejectionSamplingStrategy
        from mellea_like.batch import sample_many

        cancelled = started = 0

        class Hangs:
            async def generate(self, request):
                global cancelled, started
                started += 1
                if started == 16:
                    os.kill(os.getpid(), signal.SIGINT)
                try:
                    await anyio.sleep(60)
                except BaseException:
                    cancelled += 1
                    raise

        async def main():
            strategy = RejectionSamplingStrategy(Hangs())
            async with sample_many(strategy, map(str, range(100)), concurrency=16) as results:
                async for item in results:
                    pass

        try:
            anyio.run(main, backend="{loop}")
        except KeyboardInterrupt:
            print("interrupted", cancelled)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert "Traceback" not in done.stderr
    word, _, cancelled = done.stdout.strip().partition(" ")
    assert word == "interrupted"
    assert int(cancelled) >= 15


class Messy(BaseSamplingStrategy):
    """A backend whose calls start a task that raises while it is being cancelled."""

    paused = False

    def begin(self, *args, **arguments):
        return self

    async def run(self, *args, **arguments):
        async def fails_to_clean_up():
            try:
                await anyio.sleep(50)
            finally:
                raise LookupError("lost")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fails_to_clean_up)
            await anyio.sleep(50)


async def test_what_fails_while_it_is_cancelled_leaves_no_group(virtual_clock, caplog):
    async with sample_many(Messy(Plan()), PROMPTS, concurrency=3):
        await anyio.sleep(1)
    with anyio.move_on_after(1) as scope:
        async with sample_many(Messy(Plan()), PROMPTS, concurrency=3) as results:
            await anext(results)
    assert scope.cancelled_caught


async def test_an_interrupt_beside_a_cancellation_is_not_lost(virtual_clock):
    class Interrupted(Messy):
        async def run(self, *args, **arguments):
            try:
                await anyio.sleep(50)
            except anyio.get_cancelled_exc_class() as exc:
                raise BaseExceptionGroup("both", [exc, KeyboardInterrupt()]) from None

    with pytest.raises(BaseExceptionGroup) as caught:
        async with sample_many(Interrupted(Plan()), PROMPTS, concurrency=1):
            await anyio.sleep(1)
    assert caught.group_contains(KeyboardInterrupt)


@pytest.mark.parametrize("journaled", [False, True])
def test_a_native_cancellation_at_any_step_leaves_nothing(journaled):
    class Steps(Plan):
        async def generate(self, request):
            self.in_flight += 1
            try:
                for _ in range(3):
                    await asyncio.sleep(0)
                return Generation("yes")
            finally:
                self.in_flight -= 1

    async def main(step: int) -> bool:
        backend, seen = Steps(), []
        journal = MemoryJournal() if journaled else None

        async def call() -> None:
            async with sample_many(
                strategy(backend), PROMPTS[:3], concurrency=2, journal=journal, in_order=True
            ) as results:
                async for item in results:
                    seen.append(item.id)  # noqa: PERF401 (it may be cancelled half-way)

        task = asyncio.create_task(call())
        for _ in range(step):
            await asyncio.sleep(0)
        cancelled = task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled() is cancelled
        assert backend.in_flight == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert seen == list(range(len(seen)))
        if journal is not None:
            assert set(seen) <= set(journal.finished)
            assert journal.opened == journal.closed
        return cancelled

    steps = 0
    while asyncio.run(main(steps)):
        steps += 1
    assert steps > 15, "the run must have taken some steps"
