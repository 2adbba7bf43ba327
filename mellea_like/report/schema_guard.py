"""What is said of records that are none."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["damage"]


@contextmanager
def damage(thing: str) -> Generator[None]:
    """Turn what goes wrong with data of another shape into one kind of error.

    Args:
        thing: what the data should be.

    Yields:
        Nothing; the data is read inside.

    Raises:
        ValueError: it is no such thing.
    """
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as exc:
        what = f"it lacks {exc}" if isinstance(exc, KeyError) else str(exc)
        msg = f"this {thing} is damaged: {what}"
        raise ValueError(msg) from exc
