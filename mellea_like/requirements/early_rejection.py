"""Check replies while they are still arriving, to save the cost of replies that can't pass."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from mellea_like.core.backend import BackendWrapper, CallPiece, checked_reply
from mellea_like.core.format_watch import format_watch
from mellea_like.core.generation import REJECTED, Generation, cost_of
from mellea_like.core.records import record
from mellea_like.core.validation import ValidationResult, ValidationStatus, Verdict
from mellea_like.errors import BadVerdict
from mellea_like.requirements.staged_validation import combined, errored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.tools import CallWatch
    from mellea_like.core.validation import StreamCheck

_PASSED = ValidationResult(True)
_FAILED = ValidationResult(False, "it was rejected while it was still arriving")
_UNASKED = ValidationResult.skipped("the reply was rejected while it was still arriving")


@record(frozen=True, slots=True, repr=False)
class EarlyRejection(Generation):
    """The beginning of a reply that was rejected while it was still arriving, with the reason."""

    verdicts: tuple[ValidationResult, ...] = ()
    fault: Exception | None = None  # What a check raised.
    unread: str = ""  # Why it can't be of the request's format, or a tool call can't be valid.


class WatchedBackend(BackendWrapper):
    """A backend that runs incremental checks on its replies as they stream in."""

    def __init__(
        self,
        inner: Backend,
        requirements: Sequence[Requirement],
        *,
        by_format: bool = False,
        calls: Mapping[str, CallWatch] | None = None,
    ) -> None:
        super().__init__(inner)
        self._requirements = requirements
        self._by_format = by_format
        self._calls = calls

    async def generate(self, request: Request) -> Generation:
        """Return the reply to one request, or an `EarlyRejection` as soon as a check fails."""
        watch = EarlyWatch(self._requirements)
        format: Any = request.format if self._by_format else None
        fields = None if format is None else format_watch(format)
        text = ""
        calls = ArrivingCalls(self._calls or {})
        if self._calls:
            request = replace(request, shows_calls=True)
        async with self._stream(request) as pieces:
            async for piece in pieces:
                if isinstance(piece, CallPiece):
                    if unread := calls.feed(piece):
                        return self._rejected(request, text, unread=unread)
                    continue
                if not isinstance(piece, str):
                    return checked_reply(self.inner, piece)
                text += piece
                if fields is not None and (unread := fields.feed(text)):
                    return self._rejected(request, text, unread=unread)
                try:
                    found = watch.feed(text, piece)
                except Exception as exc:  # noqa: BLE001 (a check's: the iteration raises it)
                    return self._rejected(request, text, fault=exc)
                if found is not None:
                    index, verdict = found
                    verdicts = [_UNASKED] * len(self._requirements)
                    verdicts[index] = verdict
                    return self._rejected(request, text, verdicts=tuple(verdicts))
        return checked_reply(self.inner, None)

    def _rejected(self, request: Request, text: str, **why: Any) -> EarlyRejection:
        usage = cost_of(request.meter, None)
        model = request.meter.asked or self.model  # A fallback may have been asked.
        return EarlyRejection(text, None, usage, model, REJECTED, **why)


class ArrivingCalls:
    """Checks the arguments of one reply's tool calls while they are arriving."""

    def __init__(self, watches: Mapping[str, CallWatch]) -> None:
        self._watches = watches
        self._arrived: dict[int, str] = {}
        self._feeds: dict[tuple[int, str], Callable[[str], str | None]] = {}

    def feed(self, piece: CallPiece) -> str | None:
        """Take a piece of a call; return why the call can't be valid, or None while it may be."""
        text = self._arrived.get(piece.number, "") + piece.arguments
        self._arrived[piece.number] = text
        watch, place = self._watches.get(piece.name), (piece.number, piece.name)
        if watch is None or not text:
            return None
        if place not in self._feeds:
            self._feeds[place] = watch()
        why = self._feeds[place](text)
        return why and f"the call of {piece.name} can't be made: {why}"


class EarlyWatch:
    """The incremental checks of one reply. They keep state, so each reply needs a new object."""

    __slots__ = ("_rejection", "_watches")

    def __init__(self, requirements: Sequence[Requirement]) -> None:
        self._rejection: tuple[int, ValidationResult] | None = None
        self._watches = [(i, _Watch(r)) for i, r in enumerate(requirements) if r.streams]

    @property
    def certain(self) -> bool:
        """Whether all checks have returned PASS."""
        return not self._watches and self._rejection is None

    def feed(self, text_so_far: str, delta: str) -> tuple[int, ValidationResult] | None:
        """Check the newest piece; return the failed requirement's index and verdict, or None."""
        if self._rejection is not None:
            return self._rejection
        for i, watch in tuple(self._watches):
            result = watch.ask(text_so_far, delta)
            if result is None:
                continue
            if not result.passed:
                self._rejection = i, result
                return self._rejection
            # A check that has returned PASS isn't asked again, but the final check still runs.
            self._watches.remove((i, watch))
        return None


class _Watch:
    """The stream checks of a requirement and its parts, and their result once it is certain."""

    __slots__ = ("_check", "_parts", "_requirement", "result")

    def __init__(self, requirement: Requirement) -> None:
        self._requirement = requirement
        self._check: StreamCheck | None = copy.deepcopy(requirement.stream)
        self._parts = [_Watch(part) for part in requirement.parts]
        self.result: ValidationResult | None = None

    def ask(self, text: str, delta: str) -> ValidationResult | None:
        if self.result is None:
            if self._parts:
                self.result = self._follows([part.ask(text, delta) for part in self._parts])
            elif self._check is not None:
                self.result = self._asked(self._check, text, delta)
        return self.result

    def _asked(self, check: StreamCheck, text: str, delta: str) -> ValidationResult | None:
        try:
            answer: object = check(text, delta)
        except Exception as exc:  # noqa: BLE001 (a user's)
            return errored(self._requirement, exc)
        return None if answer is Verdict.UNKNOWN else _read(self._requirement, answer)

    def _follows(self, results: list[ValidationResult | None]) -> ValidationResult | None:
        """Return the verdict that follows from the parts' verdicts; None while it is uncertain."""
        known = [result for result in results if result is not None]
        passes, needed = sum(map(bool, known)), self._requirement.needed
        certain = (
            passes >= needed
            or passes + len(results) - len(known) < needed
            or any(result.status is ValidationStatus.ERRORED for result in known)
        )
        return combined(self._requirement, results) if certain else None


def _read(requirement: Requirement, answer: object) -> ValidationResult | None:
    """Convert the return value of a stream check to a verdict; return None for ``UNKNOWN``."""
    verdict: object
    match cast("Any", answer):
        case tuple((Verdict() as verdict, str(reason))):
            pass
        case _:
            verdict, reason = answer, ""
    if verdict is Verdict.UNKNOWN:
        return None
    if verdict is Verdict.FAIL:
        return ValidationResult(False, reason) if reason else _FAILED
    if verdict is Verdict.PASS:
        return _PASSED
    if inspect.iscoroutine(answer):
        answer.close()  # This avoids a warning that it was never awaited.
    msg = (
        f"requirement {requirement.name!r}: its stream check returned {ascii(answer)[:100]}, not a"
        " verdict: return Verdict.FAIL, PASS or UNKNOWN, or (Verdict, reason)"
    )
    raise BadVerdict(msg, requirement=requirement.name)
