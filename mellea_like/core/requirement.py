"""Requirements that a generation must meet."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import partial, wraps
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypedDict, Unpack, get_args, overload

from mellea_like.core.argument_checks import (
    check_one_of,
    check_text,
    check_type,
    is_async,
    real_number,
    takes,
)
from mellea_like.core.display import shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self, SupportsIndex

    from mellea_like.core.backend import Backend
    from mellea_like.core.validation import StreamCheck, Validator

__all__ = ["CheckStage", "OnError", "Operator", "Requirement", "at_least", "requirement"]

P = ParamSpec("P")

OnError = Literal["error", "fail", "raise"]
Operator = Literal["and", "or", "or else", "not", "at least"]


class RequirementSettings(TypedDict, total=False):
    """The keyword arguments of `Requirement`."""

    name: str | None
    inline: bool
    timeout: float | None
    weight: float
    check_only: bool
    on_error: OnError
    judge: Backend | None
    stream: StreamCheck | None
    version: str | None


class CheckStage(IntEnum):
    """The stage in which a requirement is checked. Cheap stages come first."""

    INLINE = 0
    """A function that runs on the event loop."""
    THREAD = 1
    """A function that may block, and runs in a thread."""
    AWAITED = 2
    """An async function, or a judge's verdict."""


class Requirement:
    """A condition in words with an optional validator; without one, a judge model judges it.

    A validator that is a plain function runs in a thread, so it may block; an async one runs on the
    event loop. Requirements combine with ``&``, ``|`` and ``~``. They are immutable and compare by
    identity.

    Args:
        description: the condition, in words that a model understands.
        validator: takes one `Candidate` and returns a bool, ``(bool, reason)`` or a
            `ValidationResult`, or an awaitable of one. If it is None, a judge model decides.
        name: a short name for records and metrics. The default is the validator's name or the
            description.
        inline: run a plain function on the event loop itself. Use it for checks that take under 1
            ms.
        timeout: the most seconds that the validator or judge may take; after that, the requirement
            counts as errored. A function in a thread can't be stopped, so it is abandoned: it
            continues, and ``thread_statistics`` counts it. An inline validator can't be stopped
            either; its late verdict is ignored.
        weight: how much the requirement counts when the best failure is chosen; over 0.
        check_only: whether to leave the requirement out of the prompt. It is checked all the same.
        on_error: the effect of an exception in the validator. With ``"error"``, the draw counts as
            errored and its lane continues; with ``"fail"``, the requirement has failed; with
            ``"raise"``, the whole call raises the exception.
        judge: the backend that judges this requirement, in place of the strategy's judge.
        stream: a quick check that runs on each piece of a reply as it streams in. The validator or
            judge still checks every complete reply. The stream check is a plain function of the
            text so far (newest piece included) and the newest piece, and returns a `Verdict` or
            ``(Verdict, reason)``. At the first ``FAIL``, the request is closed and the requirement
            has failed. A stream check may also be an object with ``__call__`` that keeps state:
            each draw uses a deep copy. ``on_error`` also applies to exceptions of stream checks. In
            combinations, ``a & b`` fails early when either part does, ``a | b`` when both parts do,
            and ``~a`` when ``a`` returns ``PASS``.
        version: identifies the validator when a run is resumed, in place of its source code.
            Change it when the requirement's verdicts change.

    Raises:
        TypeError: the description isn't a str, the timeout isn't a number, the validator can't be
            called with one argument, or the stream check can't be called with two arguments or
            can't be copied.
        ValueError: an argument is out of range or can't be combined with the validator.
    """

    description: str
    validator: Validator | None
    name: str
    inline: bool
    timeout: float | None
    weight: float
    check_only: bool
    on_error: OnError
    judge: Backend | None
    stream: StreamCheck | None
    version: str | None
    parts: tuple[Requirement, ...]
    operator: Operator | None
    needed: int
    origin: Callable[[], Requirement] | None
    stage: CheckStage
    judged: bool
    """Whether a judge model judges this requirement, or any part of it."""

    def __init__(
        self,
        description: str,
        validator: Validator | None = None,
        *,
        name: str | None = None,
        inline: bool = False,
        timeout: float | None = None,
        weight: float = 1.0,
        check_only: bool = False,
        on_error: OnError = "error",
        judge: Backend | None = None,
        stream: StreamCheck | None = None,
        version: str | None = None,
    ) -> None:
        check_text("a requirement's description", description)
        if not description.strip():
            msg = "a requirement's description can't be empty: describe in words what must hold"
            raise ValueError(msg)
        what = f"requirement {description!r}"
        if validator is not None:
            check_type(f"{what}: the validator", validator, Callable, "callable")
        check_one_of(f"{what}: on_error", on_error, get_args(OnError))
        real_number(f"{what}: weight", weight, over=0)
        if timeout is not None:
            real_number(f"{what}: timeout", timeout, over=0, most=math.inf, unit="seconds")
        if validator is not None and not takes(validator, 1):
            msg = (
                f"{what}: the validator must take exactly one argument, the Candidate; its text"
                " is candidate.text"
            )
            raise TypeError(msg)
        if inline and validator is not None and is_async(validator):
            msg = f"{what}: inline can't be combined with an async validator"
            raise ValueError(msg)
        if judge is not None and validator is not None:
            msg = f"{what}: judge can't be combined with a validator"
            raise ValueError(msg)
        _check_stream(f"{what}: the stream check", stream)
        vars(self).update(
            description=description,
            validator=validator,
            name=name or _name_of(validator) or description,
            inline=inline,
            timeout=timeout,
            weight=float(weight),
            check_only=check_only,
            on_error=on_error,
            judge=judge,
            stream=stream,
            version=version,
            parts=(),
            operator=None,
            needed=1,
            origin=None,
            stage=_stage_of(validator, inline=inline),
            judged=validator is None,
        )

    def __setattr__(self, name: str, value: object) -> None:
        msg = f"a requirement is immutable: create a new one instead of setting {name}"
        raise AttributeError(msg)

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        if self.origin is not None:
            return self.origin, ()
        place = _place_of(self)
        return super().__reduce_ex__(protocol) if place is None else (_found, place)

    def __and__(self, other: Requirement) -> Requirement:
        return self._with("and", other)

    def __or__(self, other: Requirement) -> Requirement:
        return self._with("or", other)

    def __invert__(self) -> Requirement:
        return _combined("not", (self,))

    def _with(self, operator: Operator, other: Requirement) -> Requirement:
        if not isinstance(other, Requirement):
            return NotImplemented
        mine = self.parts if self.operator == operator else (self,)
        theirs = other.parts if other.operator == operator else (other,)
        return _combined(operator, (*mine, *theirs))

    def __bool__(self) -> bool:
        msg = "a requirement is neither true nor false: combine requirements with &, | and ~"
        raise TypeError(msg)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {shown(self.description)}>"

    @property
    def streams(self) -> bool:
        """Whether this requirement, or any part of it, has a stream check."""
        return self.stream is not None or any(part.streams for part in self.parts)


def _combined(operator: Operator, parts: tuple[Requirement, ...], number: int = 1) -> Requirement:
    words = [part.description if not part.parts else f"({part.description})" for part in parts]
    description = f"not: {words[0]}" if operator == "not" else f" {operator} ".join(words)
    if operator == "at least":
        of_one = f"{len(parts)} verdicts: {words[0]}" if len(set(words)) == 1 else ""
        description = f"at least {number} of {of_one or 'these: ' + '; '.join(words)}"
    needed = len(parts) if operator == "and" else number
    whole = Requirement(description, check_only=all(part.check_only for part in parts))
    vars(whole).update(
        parts=parts,
        operator=operator,
        needed=needed,
        stage=max(part.stage for part in parts),
        judged=any(part.judged for part in parts),
    )
    return whole


def or_else(first: Requirement, other: Requirement) -> Requirement:
    """Make a requirement that the first part or else the second meets; prompts have the second."""
    whole = _combined("or else", (first, other))
    vars(whole).update({name: getattr(other, name) for name in _SAME_AS_THE_OTHER})
    return whole


_SAME_AS_THE_OTHER = ("description", "name", "weight", "check_only")


class _Undecided(Requirement):
    """A judged requirement. Calling it with a validator makes a requirement with this validator."""

    def __call__(self, validator: Validator) -> Requirement:
        settings: Any = {name: getattr(self, name) for name in RequirementSettings.__annotations__}
        if self.name == self.description:
            del settings["name"]
        return Requirement(self.description, validator, **settings)


@overload
def requirement(
    description: str, validator: None = None, **settings: Unpack[RequirementSettings]
) -> _Undecided: ...
@overload
def requirement(
    description: str, validator: Validator, **settings: Unpack[RequirementSettings]
) -> Requirement: ...
def requirement(
    description: str, validator: Validator | None = None, **settings: Unpack[RequirementSettings]
) -> Requirement:
    """Make a requirement, by decorating its validator or by a plain call.

    ``@requirement("exactly three lines")`` above a function makes that function the validator.
    ``requirement("mentions a colour")`` has no validator, so a judge model judges it.

    Args:
        description: the condition, in words that a model understands.
        validator: the function that checks it; see `Requirement`.
        **settings: the keyword arguments of `Requirement`.

    Returns:
        The requirement. Without a validator, it can be called with one, as a decorator.

    Raises:
        TypeError: the description isn't a str: the decorator needs one, in parentheses.
        ValueError: an argument is out of range.
    """
    if not isinstance(description, str):
        msg = "requirement needs a description first: @requirement('exactly three lines')"
        raise TypeError(msg)
    make = _Undecided if validator is None else Requirement
    return make(description, validator, **settings)


def at_least(number: int, *parts: Requirement | str) -> Requirement:
    """Require that at least ``number`` of several requirements are met, such as two of three.

    Requirements that cost the same are checked in parallel. More expensive ones are checked only
    if they can still change the verdict. As with ``&`` and ``|``, an error in one part is an error
    of the whole.

    Args:
        number: how many must be met, from 1 to the number of parts.
        *parts: the requirements. A judge model judges those that are plain texts.

    Returns:
        The requirement. Its reason names the parts that were met or failed and, if all were
        checked, how many were met. Its score is the ``number``-th highest of the parts' scores.

    Raises:
        TypeError: a part is neither a requirement nor a text, or the number isn't an int.
        ValueError: there are fewer parts than the number, or it is below 1.
    """
    if not isinstance(number, int) or isinstance(number, bool):
        msg = f"at_least needs the number first: at_least(2, a, b, c), not {number!r}"
        raise TypeError(msg)
    if not 1 <= number <= len(parts):
        msg = (
            f"at_least: the number must be between 1 and {len(parts)}, the number of requirements,"
            f" not {number}"
        )
        raise ValueError(msg)
    made = [Requirement(part) if isinstance(part, str) else part for part in parts]
    for part in made:
        check_type("at_least: requirements", part, Requirement, "Requirement objects or texts")
    return _combined("at least", tuple(made), number)


def ready_made(make: Callable[P, Requirement]) -> Callable[P, Requirement]:
    """Decorate a factory, whose requirements are then pickled as a call of the factory."""

    @wraps(make)
    def made(*args: P.args, **settings: P.kwargs) -> Requirement:
        requirement = make(*args, **settings)
        vars(requirement)["origin"] = partial(made, *args, **settings)
        return requirement

    return made


def _place_of(requirement: Requirement) -> tuple[str, str] | None:
    """Return the module and name of a requirement made by a decorator; None for others."""
    # Such a validator can't be pickled by name, because its name now means the requirement.
    module = getattr(requirement.validator, "__module__", None)
    name = getattr(requirement.validator, "__qualname__", "<locals>")
    carried = any(carrier in sys.modules for carrier in ("cloudpickle", "ray.cloudpickle"))
    if not isinstance(module, str) or "<" in name or (module == "__main__" and carried):
        return None  # cloudpickle pickles functions of the main program by value.
    try:
        return (module, name) if _found(module, name) is requirement else None
    except (AttributeError, ImportError):
        return None


def _found(module: str, name: str) -> object:
    return attrgetter(name)(import_module(module))


def _check_stream(which: str, stream: Any) -> None:
    """Make sure that something is a stream check, before any reply costs money."""
    if stream is None:
        return
    check_type(which, stream, Callable, "callable")
    if is_async(stream):
        msg = f"{which} can't be async: it runs on each piece of a reply, so use a plain function"
        raise TypeError(msg)
    if isinstance(stream, type) or not takes(stream, 2):
        msg = (
            f"{which} must be a callable that takes exactly two arguments, the text so far and its"
            f" newest piece, not {stream!r}"
        )
        raise TypeError(msg)
    try:
        copy.deepcopy(stream)
    except Exception as exc:
        msg = (
            f"{which} can't be copied, but each draw needs its own copy: {exc}; give it"
            " a __deepcopy__ that returns a fresh one"
        )
        raise TypeError(msg) from exc


def _stage_of(validator: Validator | None, *, inline: bool) -> CheckStage:
    if validator is None or is_async(validator):
        return CheckStage.AWAITED
    return CheckStage.INLINE if inline else CheckStage.THREAD


def _name_of(validator: Validator | None) -> str | None:
    name = getattr(validator, "__name__", None)
    return name if isinstance(name, str) and name != "<lambda>" else None


def several(requirements: Requirement | str | Sequence[Requirement | str]) -> Sequence[Any]:
    """Return requirements as a sequence, even if there is only one, such as ``a & b``.

    Those of a generator are kept: a second look at it would find none, so that everything passes.
    """
    if isinstance(requirements, str | Requirement):
        return [requirements]
    return list(requirements) if isinstance(requirements, Iterator) else requirements
