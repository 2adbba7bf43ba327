"""The periods of keys' budgets: hours, days, weeks and months in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

Period: TypeAlias = Literal["hour", "day", "week", "month"]


def end_of_period(now: float, period: Period) -> float:
    """Return the end of the UTC period that contains ``now``, as seconds since 1970.

    Weeks begin on Mondays (ISO 8601).
    """
    hour = datetime.fromtimestamp(now, UTC).replace(minute=0, second=0, microsecond=0)
    day = hour.replace(hour=0)
    ends = {
        "hour": hour + timedelta(hours=1),
        "day": day + timedelta(days=1),
        "week": day + timedelta(days=7 - day.weekday()),
        "month": (day.replace(day=1) + timedelta(days=31)).replace(day=1),
    }
    return ends[period].timestamp()
