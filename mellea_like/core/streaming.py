"""What a check says of a reply that is still arriving."""

from __future__ import annotations

import copy
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from mellea_like.core.callables import is_async, takes

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["REJECTED", "StreamCheck", "Verdict", "check_stream"]

REJECTED = "rejected"
"""The finish reason of a reply that was rejected while it was still arriving."""


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


def check_stream(description: str, stream: object) -> None:
    """Make sure that something is a stream check, before a reply is paid for."""
    if stream is None:
        return
    which = f"requirement {description!r}: the stream check"
    if not callable(stream):
        msg = f"{which} can't be called: {stream!r}"
        raise TypeError(msg)
    if is_async(stream):
        msg = f"{which} is async: it runs at each piece of a reply, so it is a plain function"
        raise TypeError(msg)
    if isinstance(stream, type) or not takes(stream, 2):
        msg = (
            f"{which} is a function or an object that takes exactly two arguments, the text so far"
            f" and its newest piece; this is {stream!r}"
        )
        raise TypeError(msg)
    try:
        copy.deepcopy(stream)
    except Exception as exc:
        msg = (
            f"{which} can't be copied, and each iteration needs its own: {exc}; give it a"
            " __deepcopy__ that returns a fresh one"
        )
        raise TypeError(msg) from exc
