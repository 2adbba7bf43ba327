"""Extra fields of protocol objects, which this library passes on without reading them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from mellea_like.core.argument_checks import check_type


class Extra(Mapping[str, Any]):
    """Extra fields by name; immutable, and equal to any mapping with the same fields."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        self._fields = dict(fields)

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __hash__(self) -> int:
        return hash(frozenset(self._fields))  # The values may be lists and dicts.

    def __repr__(self) -> str:
        return repr(self._fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return Extra, (self._fields,)


NO_EXTRA: Mapping[str, Any] = Extra()


def as_extra(fields: object, what: str) -> Mapping[str, Any]:
    """Return extra fields as an `Extra`. In errors, ``what`` names the object that has them."""
    if type(fields) is Extra:
        return fields
    check_type(f"{what}'s extra", fields, Mapping, "a mapping of further fields")
    return Extra(cast("Mapping[str, Any]", fields))


def with_extra(written: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Add extra fields to ``written`` and to the dicts inside it. Existing fields are kept."""
    for name, value in extra.items():
        known = written.get(name)
        if isinstance(known, dict) and isinstance(value, Mapping):
            written[name] = with_extra(
                dict(cast("dict[str, Any]", known)), cast("Mapping[str, Any]", value)
            )
        else:
            written.setdefault(name, value)
    return written
