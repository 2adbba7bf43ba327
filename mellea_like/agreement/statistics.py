"""Statistics of two raters: shares, Cohen's kappa and thresholds, with intervals."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mellea_like.core.display import three_decimals
from mellea_like.lazy import needs_extra
from mellea_like.pass_rates import pass_rate_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Decisions", "Estimate", "best_threshold", "decisions_of", "ranking", "share"]

POSTERIOR_DRAWS = 20_000
"""The number of posterior draws for kappa's interval.

Between seeds, the ends of a 95 % interval vary by about 0.003.
"""
PRIOR = 0.5
"""Jeffreys's prior: the count to add to each cell of the table of decisions."""
SEED = 0


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate from a sample, with the interval in which the true value plausibly lies.

    The confidence of the interval is approximate. With few rows, or near 0 and 1, the interval
    contains the true value less often, for example in 84 instead of 95 % of cases with 10 rows.

    Args:
        value: the estimate.
        low: the lower end of the interval.
        high: the upper end of the interval.
        count: the size of the sample.
    """

    value: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        value, low, high = map(three_decimals, (self.value, self.low, self.high))
        return f"{value} ({low} to {high}, n = {self.count})"


@dataclass(frozen=True, slots=True)
class Decisions:
    """A judge's decisions compared with people's, as a table of counts.

    Args:
        both_passed: the number of rows that both the judge and people passed.
        only_judge_passed: the number of rows that the judge passed and people failed.
        only_people_passed: the number of rows that the judge failed and people passed.
        both_failed: the number of rows that both the judge and people failed.
        confidence: the probability that an interval contains the true number, between 0 and 1.
    """

    both_passed: int
    only_judge_passed: int
    only_people_passed: int
    both_failed: int
    confidence: float = 0.95

    @property
    def count(self) -> int:
        """The number of rows."""
        return sum(self._cells)

    @property
    def _cells(self) -> tuple[int, int, int, int]:
        return self.both_passed, self.only_judge_passed, self.only_people_passed, self.both_failed

    @property
    def accuracy(self) -> Estimate | None:
        """The share of rows on which the judge decided as people did; None if there are no rows.

        The interval is Wilson's.
        """
        return share(self.both_passed + self.both_failed, self.count, self.confidence)

    @property
    def wrong_passes(self) -> Estimate | None:
        """The judge's passes, as a share of rows that people failed; None if there are none."""
        failed = self.only_judge_passed + self.both_failed
        return share(self.only_judge_passed, failed, self.confidence)

    @property
    def wrong_failures(self) -> Estimate | None:
        """The judge's failures, as a share of rows that people passed; None if there are none."""
        passed = self.only_people_passed + self.both_passed
        return share(self.only_people_passed, passed, self.confidence)

    @property
    def kappa(self) -> Estimate | None:
        """Cohen's kappa (1960), the agreement beyond chance: 1 is perfect, 0 is chance.

        The interval comes from the posterior of the four cells' shares under Jeffreys's prior. So
        it has some width even if the judge and people always agree. The result is None if there
        are no rows. It is also None if judge and people gave all rows the same label, because
        then nothing is known about agreement beyond chance.
        """
        both, judge, people, none = self._cells
        if not self.count or self.count in (both, none):
            return None
        import numpy as np  # noqa: PLC0415 (the extra)

        value: float = _metrics().cohen_kappa_score(
            [1, 1, 0, 0], [1, 0, 1, 0], sample_weight=[both, judge, people, none]
        )
        generator = np.random.default_rng(SEED)
        shares = generator.dirichlet([cell + PRIOR for cell in self._cells], POSTERIOR_DRAWS)
        observed = shares[:, 0] + shares[:, 3]
        judged, labelled = shares[:, 0] + shares[:, 1], shares[:, 0] + shares[:, 2]
        chance = judged * labelled + (1 - judged) * (1 - labelled)
        tail = (1 - self.confidence) / 2
        low, high = np.quantile((observed - chance) / (1 - chance), [tail, 1 - tail])
        # The posterior's middle is nearer to 0 than the estimate. The interval must contain both.
        return Estimate(float(value), min(float(low), value), max(float(high), value), self.count)


def share(number: float, of: int, confidence: float) -> Estimate | None:
    """Return the share of ``number`` in ``of``, with Wilson's interval; None if ``of`` is 0."""
    if not of:
        return None
    low, high = pass_rate_interval(of, round(number), confidence)
    return Estimate(number / of, low, high, of)


def decisions_of(pairs: Iterable[tuple[bool, bool]], confidence: float) -> Decisions:
    """Count decisions, given as a pair for each row: the judge's, then the people's."""
    cells = Counter(pairs)
    return Decisions(
        cells[True, True], cells[True, False], cells[False, True], cells[False, False], confidence
    )


def ranking(scores: Sequence[float], labels: Sequence[bool]) -> float | None:
    """Return the area under the ROC curve of scores; None if all labels are the same."""
    if len(set(labels)) < 2:  # noqa: PLR2004 (both labels)
        return None
    return float(_metrics().roc_auc_score(labels, scores))


def best_threshold(scores: Sequence[float], labels: Sequence[bool]) -> float | None:
    """Return the threshold with the highest Youden's J (1950); None if all labels are equal."""
    if len(set(labels)) < 2:  # noqa: PLR2004 (both labels)
        return None
    wrong, right, thresholds = _metrics().roc_curve(labels, scores, drop_intermediate=False)
    _, place = max((float(r - w), -i) for i, (r, w) in enumerate(zip(right, wrong, strict=True)))
    bar = float(thresholds[-place])
    below = max((score for score in scores if score < bar), default=bar)
    return bar if math.isinf(bar) else (bar + below) / 2


def _metrics() -> Any:
    """Import and return scikit-learn's metrics; an ImportError names the missing extra."""
    with needs_extra("agreement", "measuring agreement needs scikit-learn"):
        return import_module("sklearn.metrics")
