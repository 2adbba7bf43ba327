"""What a check says of a reply that is still arriving."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["StreamCheck", "Verdict"]


class Verdict(StrEnum):
    """What an incremental check knows of the reply so far."""

    FAIL = "fail"
    """Whatever may follow, the requirement will not be met: the request is closed."""
    PASS = "pass"  # noqa: S105 (no password)
    """Whatever may follow, the requirement will be met. The final check is made all the same."""
    UNKNOWN = "unknown"
    """It depends on what follows."""


StreamCheck: TypeAlias = "Callable[[str, str], Verdict | tuple[Verdict, str]]"
"""Takes the text so far, the newest piece included, and that piece; may give a reason, too."""
