"""Batches: sample very many items with one strategy, in runs that survive a crash.

```python
from mellea_like.batch import sample_many

async with sample_many(strategy, prompts, concurrency=64, journal="run.db") as results:
    async for item in results:
        print(item.id, item.status, item.value)
```
"""

from typing import TYPE_CHECKING

from mellea_like.lazy import lazy_exports

if TYPE_CHECKING:
    from mellea_like.batch.api import sample_many
    from mellea_like.batch.batch_run import BatchRun
    from mellea_like.batch.given_replies import check_many
    from mellea_like.batch.item import ItemResult
    from mellea_like.batch.jobs.backend import BatchJobs
    from mellea_like.batch.journal.journal import Journal
    from mellea_like.batch.journal.reader import read_items, read_run
    from mellea_like.batch.process_run import ProcessedItem, ProcessRun, sample_in_processes
    from mellea_like.batch.progress import Progress

__all__ = [
    "BatchJobs",
    "BatchRun",
    "ItemResult",
    "Journal",
    "ProcessRun",
    "ProcessedItem",
    "Progress",
    "check_many",
    "read_items",
    "read_run",
    "sample_in_processes",
    "sample_many",
]

__getattr__, __dir__ = lazy_exports(
    globals(),
    {
        "mellea_like.batch.api": "sample_many",
        "mellea_like.batch.batch_run": "BatchRun",
        "mellea_like.batch.given_replies": "check_many",
        "mellea_like.batch.item": "ItemResult",
        "mellea_like.batch.jobs.backend": "BatchJobs",
        "mellea_like.batch.journal.journal": "Journal",
        "mellea_like.batch.journal.reader": "read_items read_run",
        "mellea_like.batch.process_run": "ProcessRun ProcessedItem sample_in_processes",
        "mellea_like.batch.progress": "Progress",
    },
)
