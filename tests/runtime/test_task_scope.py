"""Task groups that are cancelled when their block ends."""

from __future__ import annotations

import anyio
import pytest

from mellea_like.runtime.task_scope import task_scope

pytestmark = pytest.mark.anyio


async def test_a_task_is_told_why_it_is_cancelled():
    told = []

    async def task():
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class() as exc:
            told.append(str(exc))
            raise

    async with task_scope() as tasks:
        tasks.start_soon(task)
        await anyio.wait_all_tasks_blocked()
    # The block may be a stream's as well as a batch's.
    assert "the block was left" in told[0]
