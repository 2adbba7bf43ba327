"""Batches on Ray, for those who outgrow one machine; needs the extra ``ray``.

```python
from mellea_like.batch.ray import local_cluster, sample_dataset

questions = ray.data.read_json("questions.jsonl")
results = sample_dataset(questions, make_strategy, prompt="{{ question }}")
results.write_parquet("answers")
```
"""

from typing import TYPE_CHECKING

from mellea_like.runtime.later import imported_later

if TYPE_CHECKING:
    from mellea_like.batch.ray.capacity import NoRoom
    from mellea_like.batch.ray.cluster import local_cluster
    from mellea_like.batch.ray.columns import RowOutcome
    from mellea_like.batch.ray.dataset import sample_dataset
    from mellea_like.batch.ray.limit import ClusterLimit

__all__ = ["ClusterLimit", "NoRoom", "RowOutcome", "local_cluster", "sample_dataset"]

__getattr__, __dir__ = imported_later(
    {
        "ClusterLimit": "mellea_like.batch.ray.limit",
        "NoRoom": "mellea_like.batch.ray.capacity",
        "RowOutcome": "mellea_like.batch.ray.columns",
        "local_cluster": "mellea_like.batch.ray.cluster",
        "sample_dataset": "mellea_like.batch.ray.dataset",
    },
    globals(),
)
