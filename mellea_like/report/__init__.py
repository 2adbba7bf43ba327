"""Reports about a run of many items, or about a single call, as an HTML page or as text.

```python
from mellea_like.report import call_report

Path("report.html").write_text(call_report(result.to_dict()), encoding="utf-8")
```
"""

from mellea_like.report.call import call_report, call_text
from mellea_like.report.comparison import (
    Comparison,
    compare,
    comparison_report,
    comparison_text,
)
from mellea_like.report.run_figures import (
    Distribution,
    FinalFailure,
    RepairDepth,
    RunFigures,
    Tally,
    figures_of,
)
from mellea_like.report.run_page import run_report
from mellea_like.report.run_summary import run_text

__all__ = [
    "Comparison",
    "Distribution",
    "FinalFailure",
    "RepairDepth",
    "RunFigures",
    "Tally",
    "call_report",
    "call_text",
    "compare",
    "comparison_report",
    "comparison_text",
    "figures_of",
    "run_report",
    "run_text",
]
