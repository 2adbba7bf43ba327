"""Pure functions that describe briefly how two runs of a batch differ."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from mellea_like.batch.journal.identity import OPAQUE

if TYPE_CHECKING:
    from collections.abc import Mapping

Object: TypeAlias = "dict[str, Any]"

LONGEST = 60
"""The maximum number of characters to show of a value."""

BEFORE_IT = 15
"""The number of characters to show before the first difference between two long values."""

_OF_THE_RUN = frozenset({"strategy", "model"})
"""Groups of settings whose names are shown without the group's name, such as ``loop_budget``."""


class Difference(NamedTuple):
    """A setting in which two runs differ: its shortened value in each, None if it has no value."""

    name: str
    was: str | None
    now: str | None

    def __str__(self) -> str:
        if self.was is None:
            return f"{self.name}: {self.now} is new"
        if self.now is None:
            return f"{self.name}: {self.was} is gone"
        return f"{self.name} was {self.was} and is now {self.now}"


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the settings in which two runs differ, given the identities of both runs."""
    found: list[Difference] = []
    for name in dict.fromkeys((*before, *now)):
        found += _of_part(name, before.get(name), now.get(name))
    # A model set in the options is reported as the model.
    told = {difference.name for difference in found}
    return tuple(d for d in found if d.name != "options.model" or "model" not in told)


def has_more_turns(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether only the loop budget has grown, so that failed items can continue."""
    old, new = _object(before.get("strategy")), _object(now.get("strategy"))
    was, is_ = old.get("loop_budget"), new.get("loop_budget")
    return (
        {**before, "strategy": {**old, "loop_budget": is_}} == now
        and isinstance(was, int)
        and isinstance(is_, int)
        and was < is_
        and old.get("concurrency_budget") == 1
        and old.get("selection") in ("first", "ordered")
        and "schedule" not in old
    )


def _of_part(name: str, was: Any, now: Any) -> list[Difference]:
    if was == now:
        return []
    if name == "requirements" and [type(was), type(now)] == [list, list]:
        return _of_requirements(was, now)
    if not (isinstance(was, dict) and isinstance(now, dict)):
        return [_difference(name, was, now)]
    old, new = _object(was), _object(now)
    if name != "strategy" and old.get("class") != new.get("class"):
        # The values are of different classes, so comparing their parts would not help.
        return [_difference(name, was, now)]
    found: list[Difference] = []
    for part in dict.fromkeys((*old, *new)):
        inner = part if name in _OF_THE_RUN else f"{name}.{part}"
        inner = name if part in {"class", "is"} else inner
        found += _of_part(inner, old.get(part), new.get(part))
    return found


def _of_requirements(was: list[Any], now: list[Any]) -> list[Difference]:
    old = [one for one in was if not any(_same(one, other) for other in now)]
    new = [one for one in now if not any(_same(one, other) for other in was)]
    if not (old or new):
        if len(was) == len(now) and all(map(_same, was, now)):
            return []
        return [Difference("requirements", *(_cut(_listed(all_)) for all_ in (was, now)))]
    found: list[Difference] = []
    for one in old:
        alike = next((other for other in new if _written(other) == _written(one)), None)
        if alike is None:
            found.append(_difference("requirements", one, None))
        else:
            new.remove(alike)
            found += _of_alike(one, alike)
    return found + [_difference("requirements", None, one) for one in new]


def _same(one: Any, other: Any) -> bool:
    return _written(one) == _written(other) and not _of_alike(one, other)


def _of_alike(was: Any, now: Any) -> list[Difference]:
    """Describe how two requirements with the same wording differ."""
    found: list[Difference] = []
    for one, other in zip(_leaves(was), _leaves(now), strict=True):
        old, new = _object(one), _object(other)
        alike = old.get("validator") == new.get("validator")
        # Digests of code with different prefixes are from different versions of Python.
        made_by = {str(leaf.get("code")).partition(" ")[0] for leaf in (old, new)}
        decides = {"code"} if alike and len(made_by) == 1 else {"validator"}
        found += [
            _difference(f"the {part} of {_cut(_written(one))}", old.get(part), new.get(part))
            for part in (*decides, "version", "judge")
            if old.get(part) != new.get(part)
        ]
    return found


def _leaves(requirement: Any) -> list[Any]:
    """Return a combined requirement's parts; for any other requirement, a list of only that."""
    if not isinstance(requirement, dict) or "description" in requirement:
        return [requirement]
    combined = cast("dict[str, list[Any]]", requirement)
    return [leaf for parts in combined.values() for part in parts for leaf in _leaves(part)]


def _difference(name: str, was: Any, now: Any) -> Difference:
    if was is None or now is None:
        old, new = (None if value is None else _cut(_written(value)) for value in (was, now))
        return Difference(name, old, new)
    old, new = _written(was), _written(now)
    if old == new:  # They have the same name, so compare everything.
        old, new = (json.dumps(v, ensure_ascii=False, sort_keys=True) for v in (was, now))
    pairs = enumerate(zip(old, new, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(old), len(new))) - BEFORE_IT
    start = place if place > LONGEST - 2 * BEFORE_IT else 0
    return Difference(name, _cut(old, start), _cut(new, start))


def _cut(text: str, start: int = 0) -> str:
    cut = text[start : start + LONGEST]
    return f"{'…' if start else ''}{cut}{'…' if start + LONGEST < len(text) else ''}"


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return _written_object(_object(value))
    if isinstance(value, str) and value.startswith("mellea_like."):
        return _short(value)
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _written_object(thing: Object) -> str:
    if "class" in thing:
        inside = thing.get("is", {})
        if not isinstance(inside, dict):
            return str(inside)
        fields = [f"{name}={_written(part)}" for name, part in _object(inside).items()]
        return f"{_short(str(thing['class']))}({', '.join(fields)})"
    if "description" in thing:
        return _written(thing["description"])
    if thing.keys() <= {"and", "or", "not"}:  # A combination.
        return ", ".join(f"{operator}({_listed(parts)})" for operator, parts in thing.items())
    if thing.keys() == {OPAQUE}:
        return _short(str(thing[OPAQUE]))
    if thing.keys() == {"provider", "model"}:
        return str(thing["model"] or _short(str(thing["provider"])))
    return json.dumps(thing, ensure_ascii=False, sort_keys=True)


def _listed(values: list[Any]) -> str:
    return ", ".join(map(_written, values))


def _object(value: Any) -> Object:
    return cast("Object", value) if isinstance(value, dict) else {}


def _short(name: str) -> str:
    return name.rpartition(".")[2]
