"""Measure how often a judge agrees with people, and with itself.

```python
from mellea_like.agreement import Labelled, agreement

labelled = [Labelled("Sorry, we'll look into it today.", True), Labelled("Not our fault.", False)]
report = await agreement(labelled, "It apologises.", judges={"mini": judge})
print(report.judges["mini"].accuracy, report.judges["mini"].kappa)
```

This package needs the extra ``agreement`` (scikit-learn).
"""

from mellea_like.agreement.comparisons import (
    ComparisonReport,
    LabelledPair,
    comparison_agreement,
)
from mellea_like.agreement.scores import ScoreReport, score_agreement
from mellea_like.agreement.statistics import Decisions, Estimate
from mellea_like.agreement.verdicts import AgreementReport, JudgeReport, Labelled, agreement

__all__ = [
    "AgreementReport",
    "ComparisonReport",
    "Decisions",
    "Estimate",
    "JudgeReport",
    "Labelled",
    "LabelledPair",
    "ScoreReport",
    "agreement",
    "comparison_agreement",
    "score_agreement",
]
