"""How many examples a property is tried with."""

from __future__ import annotations

import os

from hypothesis import settings

STORM = bool(os.environ.get("STORM"))


def examples(usual: int, in_a_storm: int) -> settings:
    """The same few examples each time, or, with ``STORM=1``, many and others each time."""
    return settings(max_examples=in_a_storm if STORM else usual, derandomize=not STORM)
