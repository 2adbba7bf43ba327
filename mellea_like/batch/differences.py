"""How two runs of a batch differ, in few words. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from mellea_like.batch.identity import OPAQUE

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Difference", "differences"]

Object: TypeAlias = "dict[str, Any]"

LONGEST = 60
"""How many characters of a value are shown."""

BEFORE_IT = 15
"""How many of them stand before the place where two long values begin to differ."""

_OF_THE_RUN = frozenset({"strategy", "model"})
"""Parts of an identity whose own parts are known by their names alone."""


class Difference(NamedTuple):
    """A part in which two runs differ: what it was and is, in short; None where it isn't there."""

    name: str
    was: str | None
    now: str | None

    def __str__(self) -> str:
        if self.was is None:
            return f"{self.name}: {self.now} is new"
        if self.now is None:
            return f"{self.name}: {self.was} is gone"
        return f"{self.name} was {self.was} and is {self.now}"


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Name each part in which two identities differ, as small as it can be named.

    They are as JSON gives them back; what is null is taken not to be there.
    """
    found: list[Difference] = []
    for name in dict.fromkeys((*before, *now)):
        found += _of_part(name, before.get(name), now.get(name))
    # A model set in the options is reported as the model.
    told = {difference.name for difference in found}
    return tuple(d for d in found if d.name != "options.model" or "model" not in told)


def _of_part(name: str, was: Any, now: Any) -> list[Difference]:
    if was == now:
        return []
    if name == "requirements" and [type(was), type(now)] == [list, list]:
        return _of_requirements(was, now)
    if not (isinstance(was, dict) and isinstance(now, dict)):
        return [_difference(name, was, now)]
    old, new = cast("Object", was), cast("Object", now)
    if name != "strategy" and old.get("class") != new.get("class"):
        return [_difference(name, old, new)]  # Different kinds: comparing parts would say little.
    found: list[Difference] = []
    for part in dict.fromkeys((*old, *new)):
        inner = part if name in _OF_THE_RUN else f"{name}.{part}"
        inner = name if part in {"class", "is"} else inner
        found += _of_part(inner, old.get(part), new.get(part))
    return found


def _of_requirements(was: list[Any], now: list[Any]) -> list[Difference]:
    if len(was) == len(now) and all(map(_same, was, now)):
        return []
    old = [one for one in was if not any(_same(one, other) for other in now)]
    new = [one for one in now if not any(_same(one, other) for other in was)]
    if not (old or new):
        return [Difference("requirements", *(_cut(_listed(all_), 0) for all_ in (was, now)))]
    found: list[Difference] = []
    for one in old:
        same = next((other for other in new if _written(other) == _written(one)), None)
        if same is not None:
            new.remove(same)
        found.append(_of_requirement(one, same))
    return found + [_difference("requirements", None, one) for one in new]


def _same(one: Any, other: Any) -> bool:
    """Compare two requirements; where one validator's source isn't known, by its name."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return bool(one == other)
    was, now = cast("Object", one), cast("Object", other)
    if parts := _parts(was, now):
        return all(_same(mine, theirs) for mine, theirs in parts)
    names = was.keys() | now.keys()
    if not ("code" in was and "code" in now):
        names -= {"code"}
    return all(was.get(name) == now.get(name) for name in names)


def _parts(was: Object, now: Object) -> list[tuple[Any, Any]]:
    """Pair the parts of two requirements that are put together alike; none where they aren't."""
    if "description" in was or was.keys() != now.keys():
        return []
    if any(len(was[operator]) != len(now[operator]) for operator in was):
        return []
    return [pair for operator in was for pair in zip(was[operator], now[operator], strict=True)]


def _of_requirement(was: Any, now: Any) -> Difference:
    """Tell how a requirement differs from one of the same words, or that there is none."""
    if now is None:
        return _difference("requirements", was, None)
    words = _cut(_written(was), 0)
    old, new = (cast("Object", one) if isinstance(one, dict) else {} for one in (was, now))
    if parts := _parts(old, new):
        return next(_of_requirement(*pair) for pair in parts if not _same(*pair))
    if "validator" in old and old["validator"] == new.get("validator"):
        name = f"the code of {old['validator']}, which decides {words},"
        return Difference(name, _version(old), _version(new))
    before, after = _decider(old), _decider(new)
    if before == after:  # Both are called alike: what they are made of tells them apart.
        return _difference(f"what decides {words}", was, now)
    return Difference(f"what decides {words}", before, after)


def _decider(requirement: Object) -> str:
    validator = str(requirement.get("validator", ""))
    if validator:
        return "mellea_like" if validator.startswith("mellea_like.") else validator
    return _written(requirement["judge"]) if "judge" in requirement else "a judge"


def _version(requirement: Object) -> str:
    if "version" in requirement:
        return f"version {requirement['version']}"
    return str(requirement.get("code", "without a version"))


def _difference(name: str, was: Any, now: Any) -> Difference:
    old, new = (None if value is None else _written(value) for value in (was, now))
    if old is None or new is None:
        old, new = (None if text is None else _cut(text, 0) for text in (old, new))
        return Difference(name, old, new)
    if old == new:  # Same name: compare the rest.
        old, new = (json.dumps(v, ensure_ascii=False, sort_keys=True) for v in (was, now))
    pairs = enumerate(zip(old, new, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(old), len(new))) - BEFORE_IT
    start = place if place > LONGEST - 2 * BEFORE_IT else 0
    return Difference(name, _cut(old, start), _cut(new, start))


def _cut(text: str, start: int) -> str:
    cut = text[start : start + LONGEST]
    return f"{'…' if start else ''}{cut}{'…' if start + LONGEST < len(text) else ''}"


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return _object(cast("Object", value))
    if isinstance(value, str) and value.startswith("mellea_like."):
        return _short(value)
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _listed(values: list[Any]) -> str:
    return ", ".join(map(_written, values))


def _object(thing: Object) -> str:
    if "class" in thing:
        inside = thing.get("is", {})
        if not isinstance(inside, dict):
            return str(inside)
        fields = [f"{name}={_written(value)}" for name, value in cast("Object", inside).items()]
        return f"{_short(str(thing['class']))}({', '.join(fields)})"
    if "description" in thing:
        return _written(thing["description"])
    if thing.keys() <= {"and", "or", "not"}:  # Requirements that are combined.
        return ", ".join(f"{operator}({_listed(parts)})" for operator, parts in thing.items())
    if thing.keys() == {OPAQUE}:
        return _short(str(thing[OPAQUE]))
    if thing.keys() == {"provider", "model"}:
        return str(thing["model"] or _short(str(thing["provider"])))
    return json.dumps(thing, ensure_ascii=False, sort_keys=True)


def _short(name: str) -> str:
    return name.rpartition(".")[2]
