"""Coalescers, which turn many small requests that arrive together into a single one.

```python
from mellea_like.coalescing import RerunGate

async with RerunGate(rebuild) as gate:
    await gate.request("prompts changed")  # Requests during a rebuild share the next one.
```
"""

from typing import TYPE_CHECKING

from mellea_like.lazy import lazy_exports

if TYPE_CHECKING:
    from mellea_like.coalescing.chat.chat_run import joined
    from mellea_like.coalescing.chat.dispatcher import ChatDispatcher, ChatStatistics, StopReport
    from mellea_like.coalescing.chat.session import ChatPhase
    from mellea_like.coalescing.choices import ChoicesBackend, ChoicesStatistics
    from mellea_like.coalescing.coordinator.audit import AuditRecord, RequestStatus
    from mellea_like.coalescing.coordinator.coordinator import (
        DEFAULT_COALESCE_MAX_BATCH,
        DEFAULT_COALESCE_WINDOW,
        CoordinatorStatistics,
        SamplingCoordinator,
    )
    from mellea_like.coalescing.rerun.gate import RerunGate, RerunStatus, Tick
    from mellea_like.coalescing.rerun.watch import IGNORED, Changes, FileChange, watch
    from mellea_like.coalescing.ticket import Ticket

__all__ = [
    "DEFAULT_COALESCE_MAX_BATCH",
    "DEFAULT_COALESCE_WINDOW",
    "IGNORED",
    "AuditRecord",
    "Changes",
    "ChatDispatcher",
    "ChatPhase",
    "ChatStatistics",
    "ChoicesBackend",
    "ChoicesStatistics",
    "CoordinatorStatistics",
    "FileChange",
    "RequestStatus",
    "RerunGate",
    "RerunStatus",
    "SamplingCoordinator",
    "StopReport",
    "Tick",
    "Ticket",
    "joined",
    "watch",
]

__getattr__, __dir__ = lazy_exports(
    globals(),
    {
        "mellea_like.coalescing.chat.chat_run": "joined",
        "mellea_like.coalescing.chat.dispatcher": "ChatDispatcher ChatStatistics StopReport",
        "mellea_like.coalescing.chat.session": "ChatPhase",
        "mellea_like.coalescing.choices": "ChoicesBackend ChoicesStatistics",
        "mellea_like.coalescing.coordinator.audit": "AuditRecord RequestStatus",
        "mellea_like.coalescing.coordinator.coordinator": (
            "CoordinatorStatistics DEFAULT_COALESCE_MAX_BATCH DEFAULT_COALESCE_WINDOW "
            "SamplingCoordinator"
        ),
        "mellea_like.coalescing.rerun.gate": "RerunGate RerunStatus Tick",
        "mellea_like.coalescing.rerun.watch": "Changes FileChange IGNORED watch",
        "mellea_like.coalescing.ticket": "Ticket",
    },
)
