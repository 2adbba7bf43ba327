"""How long nobody is let through after a server said that it was too much."""

from __future__ import annotations

import math

__all__ = ["LONGEST_PAUSE", "UNNAMED_PAUSE", "Pause", "pause_after"]

LONGEST_PAUSE = 120.0
"""Seconds at most, whatever a server asks for."""

UNNAMED_PAUSE = 0.2
"""Seconds where it asks for none: about a round trip, so that what is under way can answer."""


def pause_after(retry_after: float | None) -> float:
    """Choose how long to pause after a 429.

    Args:
        retry_after: the seconds that the server asked for, as it came; None where it named none.

    Returns:
        The same, at most `LONGEST_PAUSE`; `UNNAMED_PAUSE` in place of None and of what is no
        number over 0.
    """
    if retry_after is None or math.isnan(retry_after) or retry_after <= 0:
        return UNNAMED_PAUSE
    return min(float(retry_after), LONGEST_PAUSE)


class Pause:
    """A time until which nobody goes; it only ever gets later."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until = -math.inf

    def extend(self, now: float, retry_after: float | None) -> None:
        """Pause for as long as a 429 asks for.

        Args:
            now: the time in seconds.
            retry_after: the seconds that it names, or None.
        """
        self.until = max(self.until, now + pause_after(retry_after))

    def left(self, now: float) -> float:
        """Return the seconds that the pause has yet to go, at least 0.

        Args:
            now: the time in seconds.
        """
        return max(0.0, self.until - now)
