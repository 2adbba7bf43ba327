"""Pure functions that describe briefly how two runs of a batch differ."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    old, new = _object(was), _object(now)
    comparable = name == "strategy" or old.get("class") == new.get("class")
    if not (isinstance(was, dict) and isinstance(now, dict) and comparable):
        return [_difference(name, was, now)]
    found: list[Difference] = []
    for part in dict.fromkeys((*old, *new)):
        inner = part if name in _OF_THE_RUN else f"{name}.{part}"
        inner = name if part in {"class", "is"} else inner
        found += _of_part(inner, old.get(part), new.get(part))
    return found


def _of_requirements(was: list[Any], now: list[Any]) -> list[Difference]:
    """Compare requirements by their words or, if all words are the same, by all else."""
    old, new = list(map(_written, was)), list(map(_written, now))
    if old == new:
        pairs = zip(_leaves(was), _leaves(now), strict=True)
        return [difference for pair in pairs for difference in _of_leaf(*pair)]
    gone, added = [w for w in old if w not in new], [w for w in new if w not in old]
    if not (gone or added):
        return [Difference("requirements", _cut(", ".join(old)), _cut(", ".join(new)))]
    return [
        *(Difference("requirements", _cut(words), None) for words in gone),
        *(Difference("requirements", None, _cut(words)) for words in added),
    ]


def _leaves(requirements: list[Any]) -> list[Any]:
    """Return the requirements, with the parts of combined ones in their place."""
    found: list[Any] = []
    for one in requirements:
        combined = isinstance(one, dict) and "description" not in one
        parts = [part for some in _object(one).values() for part in some] if combined else []
        found += _leaves(parts) if combined else [one]
    return found


def _of_leaf(was: Any, now: Any) -> list[Difference]:
    """Describe how two requirements with the same wording differ."""
    old, new = _object(was), _object(now)
    alike = old.get("validator") == new.get("validator")
    # Digests of code with different prefixes are from different versions of Python.
    made_by = {str(leaf.get("code")).partition(" ")[0] for leaf in (old, new)}
    decides = "code" if alike and len(made_by) == 1 else "validator"
    return [
        _difference(f"the {part} of {_cut(_written(was))}", old.get(part), new.get(part))
        for part in (decides, "version", "judge")
        if old.get(part) != new.get(part)
    ]


def _difference(name: str, was: Any, now: Any) -> Difference:
    if was is None or now is None:
        old, new = (None if value is None else _cut(_written(value)) for value in (was, now))
        return Difference(name, old, new)
    old, new = _written(was), _written(now)
    pairs = enumerate(zip(old, new, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(old), len(new))) - BEFORE_IT
    start = place if place > LONGEST - 2 * BEFORE_IT else 0
    return Difference(name, _cut(old, start), _cut(new, start))


def _cut(text: str, start: int = 0) -> str:
    cut = text[start : start + LONGEST]
    return f"{'…' if start else ''}{cut}{'…' if start + LONGEST < len(text) else ''}"


def _written(value: Any) -> str:
    """Return a value in a few words: a requirement's are its own, and an object's its class."""
    thing = _object(value)
    if "description" in thing:
        return _written(thing["description"])
    if "class" in thing:
        inside = thing.get("is", {})
        if isinstance(inside, dict):
            parts = cast("dict[str, Any]", inside).items()
            inside = ", ".join(f"{name}={_written(part)}" for name, part in parts)
        return f"{_short(thing['class'])}({inside})"
    if thing and all(isinstance(parts, list) for parts in thing.values()):  # A combination.
        return ", ".join(
            f"{how}({', '.join(map(_written, parts))})" for how, parts in thing.items()
        )
    if isinstance(value, str) and value.startswith("mellea_like."):
        return _short(value)
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _short(name: str) -> str:
    return name.rpartition(".")[2]
