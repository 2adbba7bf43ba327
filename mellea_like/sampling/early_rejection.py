"""A backend whose replies are watched while they arrive, and closed at the first hopeless one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mellea_like.core.backend import BackendWrapper, checked_reply
from mellea_like.core.generation import REJECTED, Generation, cost_of
from mellea_like.core.validation import ValidationResult
from mellea_like.requirements.early import EarlyWatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.requirement import Requirement

__all__ = ["EarlyRejection", "WatchedBackend"]

_UNASKED = ValidationResult.skipped("the reply was rejected while it was still arriving")


@dataclass(frozen=True, slots=True, repr=False)
class EarlyRejection(Generation):
    """The part of a reply that had arrived when an incremental check said that it can't pass.

    A fault is what the check raised, where that must end the call.
    """

    verdicts: tuple[ValidationResult, ...] = ()
    fault: Exception | None = None


class WatchedBackend(BackendWrapper):
    """A backend that streams its replies past the requirements' incremental checks."""

    def __init__(self, inner: Backend, requirements: Sequence[Requirement]) -> None:
        super().__init__(inner)
        self._requirements = requirements

    async def generate(self, request: Request) -> Generation:
        """Answer one request."""
        watch = EarlyWatch(self._requirements)
        text = ""
        async with self._stream(request) as pieces:
            async for piece in pieces:
                if not isinstance(piece, str):
                    return checked_reply(self.inner, piece)
                text += piece
                try:
                    found = watch.feed(text, piece)
                except Exception as exc:  # noqa: BLE001 (a check's: the iteration raises it)
                    return self._rejected(request, text, (), exc)
                if found is not None:
                    index, verdict = found
                    verdicts = [_UNASKED] * len(self._requirements)
                    verdicts[index] = verdict
                    return self._rejected(request, text, tuple(verdicts), None)
        return checked_reply(self.inner, None)

    def _rejected(
        self,
        request: Request,
        text: str,
        verdicts: tuple[ValidationResult, ...],
        fault: Exception | None,
    ) -> EarlyRejection:
        usage = cost_of(request.meter, None)
        return EarlyRejection(
            text, None, usage, self.model, REJECTED, verdicts=verdicts, fault=fault
        )
