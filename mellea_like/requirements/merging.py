"""Check and merge the requirements that users pass, and make sure that each can be judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mellea_like.core.backend import can_judge, is_backend
from mellea_like.core.requirement import Requirement
from mellea_like.errors import RequirementError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mellea_like.core.backend import Backend


def as_backend(backend: object, name: str) -> Backend:
    """Return ``backend`` if it is a `Backend`; otherwise raise an error that calls it ``name``."""
    if backend is None:
        msg = f"there is no {name}: pass one to the strategy, or {name}=... to the call"
        raise ValueError(msg)
    if not is_backend(backend):
        hint = ""
        if isinstance(backend, type):
            hint = ": pass an instance of it"
        elif callable(backend):
            hint = ": wrap it in FunctionBackend(...)"
        msg = f"{name} must be a backend, with generate(request), not {backend!r}{hint}"
        raise TypeError(msg)
    return backend


def check_requirements(
    requirements: Sequence[Requirement | str], name: str
) -> tuple[Requirement | str, ...]:
    """Return requirements as a tuple; raise an error if one is neither a requirement nor a text."""
    if isinstance(requirements, str | Requirement):
        msg = f"{name} must be a list, not a single {type(requirements).__name__}: put it in a list"
        raise TypeError(msg)
    if isinstance(requirements, Mapping) or not hasattr(requirements, "__iter__"):
        msg = f"{name} must be a list of Requirement objects and texts, not {requirements!r}"
        raise TypeError(msg)
    items = tuple(requirements)
    for item in items:
        if not isinstance(item, str | Requirement):
            hint = ""
            if getattr(item, "__annotations__", {}).get("return") in {"Requirement", Requirement}:
                hint = f": call it, as in {item.__name__}(...)"
            elif callable(item):
                hint = ": wrap it, as in Requirement('what must hold', function)"
            msg = f"{name} must contain only Requirement objects and texts, not {item!r}{hint}"
            raise TypeError(msg)
        if isinstance(item, str) and not item.strip():
            msg = f"{name} has an empty text: describe in words what must hold"
            raise ValueError(msg)
        if isinstance(item, Requirement) and item.inline and item.validator is None:
            msg = f"requirement {item.name!r} is inline but has no validator to run"
            raise ValueError(msg)
    return items


def merge_requirements(*sources: Iterable[Requirement | str]) -> tuple[Requirement, ...]:
    """Join requirements in order, skipping repetitions; texts become requirements for a judge."""
    merged: dict[object, Requirement] = {}
    for source in sources:
        for item in source:
            if isinstance(item, Requirement):
                merged.setdefault(id(item), item)
            elif item not in merged:
                merged[item] = Requirement(item)
    return tuple(merged.values())


def check_judge(requirement: Requirement, default: Backend) -> None:
    """Raise an error if the backend that would judge a requirement, or part of it, can't judge."""
    for part in requirement.parts:
        check_judge(part, default)
    if requirement.parts or not requirement.judged:
        return
    judge = default if requirement.judge is None else as_backend(requirement.judge, "judge")
    if not can_judge(judge):
        unfit = getattr(judge, "unfit", f"{type(judge).__name__} can't judge")
        msg = (
            f"requirement {requirement.description!r} needs a judge, but {unfit}: pass a backend"
            " that can judge as judge=..., or give the requirement a validator"
        )
        raise RequirementError(msg, requirement=requirement.name)
