"""Names of a package that are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["imported_later"]


def imported_later(
    places: Mapping[str, str], names: Mapping[str, object]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make a package's ``__getattr__`` and ``__dir__`` (PEP 562).

    Args:
        places: for each name that is imported later, the module that has it.
        names: the package's ``globals()``.

    Returns:
        The two functions.
    """

    def attribute(name: str) -> Any:
        if name in places:
            return getattr(import_module(places[name]), name)
        msg = f"module {names['__name__']!r} has no attribute {name!r}"
        raise AttributeError(msg)

    def listed() -> list[str]:
        return sorted({*names, *places})

    return attribute, listed
