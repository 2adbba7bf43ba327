"""Stand-ins for a call's actions, requirements and errors, which a record can only describe."""

from __future__ import annotations

import builtins
import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mellea_like import errors
from mellea_like.core.connection_errors import connection_failed
from mellea_like.core.conversation import Context, Message
from mellea_like.core.display import add_note, error_text, fields_shown, safe_repr
from mellea_like.core.requirement import Requirement
from mellea_like.errors import BackendError, MelleaError, RequirementError, ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mellea_like.core.conversation import Action
    from mellea_like.core.slice import Slice
    from mellea_like.core.validation import Candidate, ValidatorAnswer

MOST_CAUSES = 5
"""How many causes of an error are recorded: its cause, the cause of that cause, and so on.

There is a limit because causes can form a circle.
"""

_OF_BACKENDS = ("status", "retryable", "retry_after")
_OF_CHECKS_AND_TOOLS = ("requirement", "line", "tool")


@dataclass(frozen=True, slots=True)
class RecordedAction:
    """The description of an action in a record: its class and its text."""

    type: str
    text: str

    __repr__ = fields_shown

    @classmethod
    def of(cls, action: Action[Any]) -> RecordedAction:
        """Describe an action by its type's name and its text, or else its ``repr``."""
        if isinstance(action, RecordedAction):
            return action
        if isinstance(action, Message):
            return cls(type(action).__name__, action.text)
        text = getattr(action, "description", None) or getattr(action, "content", None)
        return cls(type(action).__name__, text if isinstance(text, str) else safe_repr(action))

    def render(self, context: Context) -> tuple[Message, ...]:
        """Return the conversation with the text at its end."""
        return (*context.messages, Message("user", self.text))

    def parse(self, text: str) -> str:
        """Return the reply's text unchanged."""
        return text


class RecordedError(MelleaError):
    """Replaces a recorded error that can't be made again from its class, which ``type`` names."""

    def __init__(self, message: str = "", *, type: str = "RecordedError") -> None:  # noqa: A002 (the record's word)
        super().__init__(message)
        self.type = type


class _OfBackend(RecordedError, BackendError):
    """Replaces a recorded `BackendError` of a class that this library doesn't know."""


class _OfConnection(RecordedError, ConnectionError):
    """Replaces a recorded connection error or timeout of another library."""


def recorded_requirement(name: str, description: str, weight: float) -> Requirement:
    """Return a stand-in for a requirement of a record. It can't be checked."""
    return Requirement(description, _Unknown(name), name=name, weight=weight, inline=True)


@dataclass(frozen=True, slots=True)
class _Unknown:
    """The validator of a recorded requirement. It can't be called."""

    name: str

    def __call__(self, candidate: Candidate) -> ValidatorAnswer:
        del candidate
        msg = f"requirement {self.name!r} was read from a record, which has no validators"
        raise RequirementError(msg, requirement=self.name)


def picklable(
    slices: Sequence[Slice],
) -> tuple[tuple[Slice, ...], list[tuple[BaseException, BaseException]]]:
    """Return picklable copies of slices, and (error, cause) pairs, because pickle drops causes."""
    known: dict[int, Any] = {}
    causes: list[tuple[BaseException, BaseException]] = []

    def kept(thing: Any, instead: Callable[[Any], Any]) -> Any:
        if id(thing) not in known:
            known[id(thing)] = thing if _pickles(thing) else instead(thing)
        return known[id(thing)]

    def error(raised: BaseException | None, more: int = MOST_CAUSES) -> Any:
        again = id(raised) in known
        copied = kept(raised, lambda lost: error_from_dict(error_to_dict(lost)))
        if raised is not None and raised.__cause__ is not None and more and not again:
            causes.append((copied, error(raised.__cause__, more - 1)))
        return copied

    copies = tuple(
        replace(
            s,
            action=kept(s.action, RecordedAction.of),
            requirements=tuple(
                kept(r, lambda lost: recorded_requirement(lost.name, lost.description, lost.weight))
                for r in s.requirements
            ),
            verdicts=tuple(
                v if v.error is None else v.recorded(v.status, v.reason, v.score, error(v.error))
                for v in s.verdicts
            ),
            error=error(s.error),
        )
        for s in slices
    )
    return copies, causes


def _pickles(thing: object) -> bool:
    try:
        again = pickle.loads(pickle.dumps(thing))  # noqa: S301 (just written)
    except Exception:  # noqa: BLE001 (a user's class may raise anything)
        return False
    # Unpickling may change an exception's message, because its class is called with it again.
    return not isinstance(thing, BaseException) or error_text(again) == error_text(thing)


def error_to_dict(error: BaseException, causes: int = MOST_CAUSES) -> dict[str, Any]:
    """Describe an error as plain data, with at most ``causes`` of its causes."""
    described: dict[str, Any] = {"type": type_name(error), "message": error_text(error)}
    if isinstance(error, BackendError):
        described.update({name: getattr(error, name) for name in _OF_BACKENDS})
    elif connection_failed(error):
        described["connection"] = True
    elif isinstance(error, RequirementError | ToolError):
        fields = ((name, getattr(error, name, None)) for name in _OF_CHECKS_AND_TOOLS)
        described.update({name: value for name, value in fields if value})
    notes = getattr(error, "__notes__", None)
    if notes:
        described["notes"] = [str(note) for note in notes]
    if error.__cause__ is not None and causes:
        described["cause"] = error_to_dict(error.__cause__, causes - 1)
    return described


def error_from_dict(written: Mapping[str, Any]) -> Exception:
    """Make an error from its description."""
    name, message = written["type"], written["message"]
    error = _made(name, message, written) or _described(name, message, written)
    vars(error).update({n: written[n] for n in _OF_CHECKS_AND_TOOLS if n in written})
    for note in written.get("notes", ()):
        add_note(error, note)
    if "cause" in written:
        error.__cause__ = error_from_dict(written["cause"])
    return error


def _described(name: str, message: str, written: Mapping[str, Any]) -> RecordedError:
    """Replace an error of an unknown class by one that is as permanent or transient."""
    if "retryable" in written:
        error = _OfBackend(message, type=name)
        vars(error).update({field: written[field] for field in _OF_BACKENDS if field in written})
        return error
    return (_OfConnection if "connection" in written else RecordedError)(message, type=name)


def type_name(error: BaseException) -> str:
    """Return the name of an error's type, or of the recorded original's, as a record has it."""
    if isinstance(error, RecordedError):
        return error.type
    kind = type(error)
    if kind.__module__ in {"builtins", errors.__name__}:
        return kind.__name__
    return f"{kind.__module__}.{kind.__qualname__}"


def _made(name: str, message: str, written: Mapping[str, Any]) -> Exception | None:
    found = getattr(errors, name, None) or getattr(builtins, name, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return None
    try:
        if issubclass(found, BackendError):
            said = {field: written[field] for field in _OF_BACKENDS if field in written}
            return found(message, **said)
        error = found(message)
    except TypeError:  # The class takes more than a message.
        return None
    return error if str(error) == message else None
