"""Reports: what happened in a run of many items, or in a single call, as a page or as text.

```python
from mellea_like.report import call_report

Path("report.html").write_text(call_report(result.to_dict()), encoding="utf-8")
```
"""

from typing import TYPE_CHECKING

from mellea_like.runtime.later import imported_later, keep_installed

if TYPE_CHECKING:
    from mellea_like.report.call_page import call_report
    from mellea_like.report.call_summary import call_text
    from mellea_like.report.figures import Distribution, RunFigures, Tally, figures_of
    from mellea_like.report.run_page import run_report
    from mellea_like.report.run_summary import run_text

__all__ = [
    "Distribution",
    "RunFigures",
    "Tally",
    "call_report",
    "call_text",
    "figures_of",
    "run_report",
    "run_text",
]

keep_installed(__all__, call_report="jinja2", run_report="jinja2")

__getattr__, __dir__ = imported_later(
    {
        "Distribution": "mellea_like.report.figures",
        "RunFigures": "mellea_like.report.figures",
        "Tally": "mellea_like.report.figures",
        "call_report": "mellea_like.report.call_page",
        "call_text": "mellea_like.report.call_summary",
        "figures_of": "mellea_like.report.figures",
        "run_report": "mellea_like.report.run_page",
        "run_text": "mellea_like.report.run_summary",
    },
    globals(),
)
