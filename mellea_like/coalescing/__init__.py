"""Coalescers: many small requests that arrive together cost one.

```python
from mellea_like.coalescing import RerunGate

async with RerunGate(rebuild) as gate:
    await gate.request("prompts changed")  # Once for all who ask meanwhile, one at a time.
```
"""

from typing import TYPE_CHECKING

from mellea_like.runtime.later import imported_later

if TYPE_CHECKING:
    from mellea_like.coalescing.audit import AuditRecord, RequestStatus
    from mellea_like.coalescing.burst_stream import Burst, BurstStatistics, BurstStream, bursts
    from mellea_like.coalescing.chat_figures import ChatStatistics, StopReport
    from mellea_like.coalescing.coordinator import SamplingCoordinator
    from mellea_like.coalescing.coordinator_figures import (
        DEFAULT_COALESCE_MAX_BATCH,
        DEFAULT_COALESCE_WINDOW,
        CoordinatorStatistics,
    )
    from mellea_like.coalescing.dispatcher import ChatDispatcher
    from mellea_like.coalescing.files import IGNORED, Changes, FileChange
    from mellea_like.coalescing.gate_state import GateState
    from mellea_like.coalescing.rerun import RerunGate
    from mellea_like.coalescing.rerun_status import RerunStatistics, RerunStatus, Tick
    from mellea_like.coalescing.runs import joined
    from mellea_like.coalescing.session import ChatPhase
    from mellea_like.coalescing.ticket import Ticket
    from mellea_like.coalescing.watching import watch

__all__ = [
    "DEFAULT_COALESCE_MAX_BATCH",
    "DEFAULT_COALESCE_WINDOW",
    "IGNORED",
    "AuditRecord",
    "Burst",
    "BurstStatistics",
    "BurstStream",
    "Changes",
    "ChatDispatcher",
    "ChatPhase",
    "ChatStatistics",
    "CoordinatorStatistics",
    "FileChange",
    "GateState",
    "RequestStatus",
    "RerunGate",
    "RerunStatistics",
    "RerunStatus",
    "SamplingCoordinator",
    "StopReport",
    "Tick",
    "Ticket",
    "bursts",
    "joined",
    "watch",
]

__getattr__, __dir__ = imported_later(
    {
        "DEFAULT_COALESCE_MAX_BATCH": "mellea_like.coalescing.coordinator_figures",
        "DEFAULT_COALESCE_WINDOW": "mellea_like.coalescing.coordinator_figures",
        "IGNORED": "mellea_like.coalescing.files",
        "AuditRecord": "mellea_like.coalescing.audit",
        "Burst": "mellea_like.coalescing.burst_stream",
        "BurstStatistics": "mellea_like.coalescing.burst_stream",
        "BurstStream": "mellea_like.coalescing.burst_stream",
        "Changes": "mellea_like.coalescing.files",
        "ChatDispatcher": "mellea_like.coalescing.dispatcher",
        "ChatPhase": "mellea_like.coalescing.session",
        "ChatStatistics": "mellea_like.coalescing.chat_figures",
        "CoordinatorStatistics": "mellea_like.coalescing.coordinator_figures",
        "FileChange": "mellea_like.coalescing.files",
        "GateState": "mellea_like.coalescing.gate_state",
        "RequestStatus": "mellea_like.coalescing.audit",
        "RerunGate": "mellea_like.coalescing.rerun",
        "RerunStatistics": "mellea_like.coalescing.rerun_status",
        "RerunStatus": "mellea_like.coalescing.rerun_status",
        "SamplingCoordinator": "mellea_like.coalescing.coordinator",
        "StopReport": "mellea_like.coalescing.chat_figures",
        "Tick": "mellea_like.coalescing.rerun_status",
        "Ticket": "mellea_like.coalescing.ticket",
        "bursts": "mellea_like.coalescing.burst_stream",
        "joined": "mellea_like.coalescing.runs",
        "watch": "mellea_like.coalescing.watching",
    },
    globals(),
)
