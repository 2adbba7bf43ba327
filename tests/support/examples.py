"""How many examples a property is tried with, and which.

``STORM=1`` in the environment tries several times as many, the same ones each time. ``STORM=new``
makes up twice as many again, new ones each time: it hunts for bugs, and what it finds is added as a
plain test.
"""

from __future__ import annotations

import os

from hypothesis import settings

STORM = bool(os.environ.get("STORM"))
NEW = os.environ.get("STORM") == "new"


def examples(usual: int, new: int) -> settings:
    """Try the usual number of examples, with ``STORM=new`` the other number, else half of that."""
    return settings(max_examples=new if NEW else new // 2 if STORM else usual, derandomize=not NEW)
