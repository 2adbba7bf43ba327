"""The log of tasks that don't end."""

from __future__ import annotations

import anyio
import pytest

from mellea_like.runtime.task_stack import see_the_end

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


async def deep(levels: int, ends: anyio.Event) -> None:
    if levels:
        await deep(levels - 1, ends)
    else:
        await ends.wait()


async def test_however_deep_a_task_is_stuck_its_innermost_line_is_logged(caplog):
    ends = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(deep, 40, ends, name="lane 1 of a call")
        await see_the_end(anyio.Event(), "lane ", 5, "the call")
        ends.set()
    (record,) = caplog.records
    message = record.getMessage()
    assert message.startswith("lane 1 of a call was cancelled 5 s ago and still runs")
    assert "in deep: await ends.wait()" in message
    assert record.sampling_id == "the call"
