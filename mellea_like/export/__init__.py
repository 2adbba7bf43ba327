"""Export training data and tables from the journals of runs.

```python
from mellea_like.export import export

print(export("run.db", "pairs.jsonl", format="dpo"))
```
"""

from typing import TYPE_CHECKING

from mellea_like.lazy import lazy_exports

if TYPE_CHECKING:
    from mellea_like.export.api import Exported, export
    from mellea_like.export.journaled_run import Run

__all__ = ["Exported", "Run", "export"]

__getattr__, __dir__ = lazy_exports(
    globals(),
    {
        "mellea_like.export.api": "Exported export",
        "mellea_like.export.journaled_run": "Run",
    },
)
