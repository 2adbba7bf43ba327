"""Coalescers: many small requests that arrive together cost one.

```python
from mellea_like.coalescing import ChatDispatcher

async with ChatDispatcher(reply) as dispatcher:
    print(await dispatcher.submit("channel 7", "Hello"))
```
"""

from typing import TYPE_CHECKING

from mellea_like.runtime.later import imported_later

if TYPE_CHECKING:
    from mellea_like.coalescing.chat_figures import ChatStatistics, StopReport
    from mellea_like.coalescing.dispatcher import ChatDispatcher
    from mellea_like.coalescing.runs import joined
    from mellea_like.coalescing.session import ChatPhase
    from mellea_like.coalescing.ticket import Ticket

__all__ = [
    "ChatDispatcher",
    "ChatPhase",
    "ChatStatistics",
    "StopReport",
    "Ticket",
    "joined",
]

__getattr__, __dir__ = imported_later(
    {
        "ChatDispatcher": "mellea_like.coalescing.dispatcher",
        "ChatPhase": "mellea_like.coalescing.session",
        "ChatStatistics": "mellea_like.coalescing.chat_figures",
        "StopReport": "mellea_like.coalescing.chat_figures",
        "Ticket": "mellea_like.coalescing.ticket",
        "joined": "mellea_like.coalescing.runs",
    },
    globals(),
)
