"""Batches on Ray, for work that outgrows one machine; needs the extra ``ray``.

```python
from mellea_like.batch.ray import local_cluster, sample_dataset

questions = ray.data.read_json("questions.jsonl")
results = sample_dataset(questions, make_strategy, prompt="{{ question }}")
results.write_parquet("answers")
```
"""

from mellea_like.batch.ray.cluster import NoRoom, local_cluster
from mellea_like.batch.ray.cluster_limit import ClusterLimit
from mellea_like.batch.ray.dataset import sample_dataset
from mellea_like.batch.row_outcome import RowOutcome

__all__ = ["ClusterLimit", "NoRoom", "RowOutcome", "local_cluster", "sample_dataset"]
