"""How two runs of a batch differ, in few words. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from mellea_like.batch.identity import OPAQUE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Difference", "differences", "in_words"]

Object: TypeAlias = "dict[str, Any]"

LONGEST = 60
"""How many characters of a value are shown."""

BEFORE_IT = 15
"""How many of them stand before the place where two long values begin to differ."""

MOST = 8
"""How many differences are named one by one."""

_OF_THE_RUN = frozenset({"strategy", "model"})
"""Parts of an identity whose own parts are known by their names alone."""


class Difference(NamedTuple):
    """A part in which two runs differ.

    Args:
        name: what differs, as the user calls it.
        was: what it was, in short; None where it was not there.
        now: what it is now; None where it is gone.
    """

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
    """Say how two runs differ.

    Args:
        before: the identity of the one, as JSON gives it back.
        now: that of the other.

    Returns:
        Each part that differs, as small as it can be named; nothing where the runs are the same.
        What is null is taken not to be there.
    """
    found: list[Difference] = []
    for name in dict.fromkeys((*before, *now)):
        if before.get(name) != now.get(name):
            found += _of_part(name, before.get(name), now.get(name))
    models = {difference.name for difference in found} & {"model"}
    # A model that the options name is told as the model.
    return tuple(d for d in found if not (models and d.name == "options.model"))


def in_words(found: tuple[Difference, ...]) -> list[str]:
    """Put differences into words.

    Args:
        found: the differences.

    Returns:
        A part of a sentence for each, and one for those that are too many.
    """
    words = [str(difference) for difference in found[:MOST]]
    more = len(found) - len(words)
    return [*words, f"and {more} more"] if more else words


def _of_part(name: str, was: Any, now: Any) -> list[Difference]:
    if name == "requirements" and [type(was), type(now)] == [list, list]:
        return _of_requirements(was, now)
    if not (isinstance(was, dict) and isinstance(now, dict)):
        return [_difference(name, was, now)]
    old, new = cast("Object", was), cast("Object", now)
    if name != "strategy" and old.get("class") != new.get("class"):
        return [_difference(name, old, new)]  # What two kinds of thing have inside says little.
    found: list[Difference] = []
    for part in dict.fromkeys((*old, *new)):
        if old.get(part) != new.get(part):
            found += _of_part(_name(name, part), old.get(part), new.get(part))
    return found


def _name(whole: str, part: str) -> str:
    if part in {"class", "is"}:
        return whole
    return part if whole in _OF_THE_RUN else f"{whole}.{part}"


def _of_requirements(was: list[Any], now: list[Any]) -> list[Difference]:
    if len(was) == len(now) and all(map(_same, was, now)):
        return []
    old = [one for one in was if not any(_same(one, other) for other in now)]
    new = [one for one in now if not any(_same(one, other) for other in was)]
    if not (old or new):
        return [_difference("requirements", was, now, _requirements)]  # In another order.
    found: list[Difference] = []
    for one in old:
        same = next((other for other in new if _requirement(other) == _requirement(one)), None)
        if same is not None:
            new.remove(same)
            found.append(_of_requirement(one, same))
        else:
            found.append(_difference("requirements", one, None, _requirement))
    return found + [_difference("requirements", None, one, _requirement) for one in new]


def _same(one: Any, other: Any) -> bool:
    """Compare two requirements; where one's source is not known, all but the source."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return bool(one == other)
    was, now = cast("Object", one), cast("Object", other)
    if was.keys() == now.keys() and "description" not in was:
        [(mine, theirs)] = [(was[operator], now[operator]) for operator in was]
        return len(mine) == len(theirs) and all(map(_same, mine, theirs))
    unknown = {"code"} if None in {was.get("code"), now.get("code")} else set[str]()
    names = (was.keys() | now.keys()) - unknown
    return all(was.get(name) == now.get(name) for name in names)


def _of_requirement(was: Any, now: Any) -> Difference:
    """Say how two requirements differ that say the same."""
    if _decided(was) != _decided(now) or "validator" not in was:
        return _difference("requirements", was, now, _decided)
    name = f"the code of {was['validator']}, which decides {_cut(_requirement(was), 0)},"
    return Difference(name, *map(_version, (was, now)))


def _version(requirement: Object) -> str:
    if "version" in requirement:
        return f"version {requirement['version']}"
    return str(requirement.get("code", "without a version"))


def _difference(
    name: str, was: Any, now: Any, write: Callable[[Any], str] | None = None
) -> Difference:
    write = write or _written
    texts = [None if value is None else write(value) for value in (was, now)]
    if texts[0] == texts[1]:  # Two of one name: the rest of what they are tells them apart.
        texts = [json.dumps(value, ensure_ascii=False, sort_keys=True) for value in (was, now)]
    both = [text for text in texts if text is not None]
    start = _first_difference(*both) - BEFORE_IT if len(both) > 1 else 0
    start = start if start > LONGEST - 2 * BEFORE_IT else 0
    old, new = (None if text is None else _cut(text, start) for text in texts)
    return Difference(name, old, new)


def _first_difference(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _cut(text: str, start: int) -> str:
    cut = text[start : start + LONGEST]
    return f"{'…' if start else ''}{cut}{'…' if start + LONGEST < len(text) else ''}"


def _written(value: Any) -> str:
    if isinstance(value, dict):
        thing = cast("Object", value)
        if "class" in thing:
            return _object(thing)
        if thing.keys() == {OPAQUE}:
            return _short(str(thing[OPAQUE]))
        if thing.keys() == {"provider", "model"}:
            return str(thing["model"] or _short(str(thing["provider"])))
    if isinstance(value, str) and _is_name(value):
        return _short(value)
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _object(thing: Object) -> str:
    inside = thing.get("is", {})
    if not isinstance(inside, dict):
        return str(inside)
    fields = [f"{name}={_written(value)}" for name, value in cast("Object", inside).items()]
    return f"{_short(str(thing['class']))}({', '.join(fields)})"


def _is_name(text: str) -> bool:
    """Tell whether a text is where something of this library is defined, as identities have it."""
    return text.startswith("mellea_like.") and text.replace(".", "").isidentifier()


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _requirements(all_of_them: list[Any]) -> str:
    return ", ".join(map(_requirement, all_of_them))


def _requirement(one: Any) -> str:
    if not isinstance(one, dict):
        return _written(one)
    requirement = cast("Object", one)
    if "description" in requirement:
        return _written(requirement["description"])
    [(operator, parts)] = requirement.items()
    words = [_requirement(part) for part in parts]
    return f"{operator}({', '.join(words)})"


def _decided(one: Any) -> str:
    """Write a requirement with what decides it, which is all that tells it from another."""
    requirement = cast("Object", one) if isinstance(one, dict) else {}
    validator = str(requirement.get("validator", ""))
    if validator:
        by = "mellea_like" if validator.startswith("mellea_like.") else validator
    else:
        by = _written(requirement["judge"]) if "judge" in requirement else "a judge"
    return f"{_cut(_requirement(one), 0)} by {by}"
