"""How many examples a property is tried with, and which.

``STORM=1`` in the environment tries many more, the same ones each time. ``STORM=new`` makes up as
many new ones each time: it hunts for bugs, and what it finds is added as a plain test.
"""

from __future__ import annotations

import os

from hypothesis import settings

STORM = bool(os.environ.get("STORM"))
NEW = os.environ.get("STORM") == "new"


def examples(usual: int, in_a_storm: int) -> settings:
    """Try the usual number of examples, or with ``STORM`` the other number."""
    return settings(max_examples=in_a_storm if STORM else usual, derandomize=not NEW)
