"""Chat completions as OpenAI writes them, and what the gateway says besides."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mellea_like.gateway.chat.calls import usage_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mellea_like.core.generation import Generation, Usage
    from mellea_like.core.result import SamplingResult
    from mellea_like.core.slice import Slice
    from mellea_like.gateway.chat.calls import Draw

__all__ = ["Reply", "answerable", "failure"]

FINISHED = frozenset({"stop", "length", "content_filter"})
REFUSED = "refusal"

PIECE = 256
"""Characters of one chunk of a streamed text, about."""

MOST_PROBLEMS = 20
"""Reasons that are told, at most."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The frame that a completion and all of its chunks have in common.

    Args:
        model: the model's name in the configuration.
        id: the completion's.
        created: when, in seconds since 1970.
    """

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def completion(self, draws: Sequence[Draw], *, best: bool) -> dict[str, Any]:
        """Write a completion.

        Args:
            draws: how the sampling of each reply ended; at least one is `answerable`.
            best: whether best failures are shown.

        Returns:
            The answer's body.
        """
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", **_message(result)},
                "logprobs": None,
                "finish_reason": _finish_reason(result),
                "mellea_like": _told(result),
            }
            for index, result in enumerate(_shown(draws, best=best))
        ]
        return {
            **self._frame("chat.completion"),
            "choices": choices,
            "usage": _usage(usage_of(draws)),
            "mellea_like": summary(draws),
        }

    def chunks(
        self, draws: Sequence[Draw], *, best: bool, include_usage: bool
    ) -> Iterator[dict[str, Any]]:
        """Write the chunks of a streamed completion.

        Args:
            draws: how the sampling of each reply ended; at least one is `answerable`.
            best: whether best failures are shown.
            include_usage: whether the last chunk says what all cost.

        Yields:
            The data of each event.
        """
        shown = _shown(draws, best=best)
        for index, result in enumerate(shown):
            yield self._chunk(index, {"role": "assistant", "content": ""})
            for kind, text in _message(result).items():
                for piece in _pieces(text or ""):
                    yield self._chunk(index, {kind: piece})
            last = self._chunk(index, {}, _finish_reason(result))
            last["choices"][0]["mellea_like"] = _told(result)
            if index == len(shown) - 1:
                last["mellea_like"] = summary(draws)
            yield last
        if include_usage:
            yield {
                **self._frame("chat.completion.chunk"),
                "choices": [],
                "usage": _usage(usage_of(draws)),
            }

    def progress(self, index: int, done: Slice) -> dict[str, Any]:
        """Write a chunk that says how one draw ended.

        Args:
            index: which reply it is for.
            done: the draw's record.

        Returns:
            The data of an event; its ``choices`` are empty, so that clients skip it.
        """
        event = {
            "event": "iteration",
            "choice": index,
            "iteration": done.iteration,
            "subsample": done.subsample,
            "outcome": done.outcome.value,
            "problems": _problems(done),
            "seconds": round(done.ended_at, 3),
        }
        return {
            **self._frame("chat.completion.chunk"),
            "choices": [],
            "mellea_like": {"progress": event},
        }

    def _frame(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(
        self, index: int, delta: dict[str, Any], finish_reason: str | None = None
    ) -> dict[str, Any]:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": finish_reason,
        }
        return {**self._frame("chat.completion.chunk"), "choices": [choice]}


def answerable(draw: Draw, *, best: bool) -> bool:
    """Tell whether there is a reply to show.

    Args:
        draw: how a reply's sampling ended.
        best: whether the best failure counts.

    Returns:
        Whether there is.
    """
    return draw.passed or (best and draw.error is None)


def _shown(draws: Sequence[Draw], *, best: bool) -> list[SamplingResult[Any]]:
    return [d.result for d in draws if answerable(d, best=best) and d.result is not None]


def failure(draws: Sequence[Draw]) -> dict[str, Any]:
    """Describe the best failure of a call in which nothing passed.

    Args:
        draws: how the sampling of each reply ended.

    Returns:
        The reasons and the text, for programs; empty where nothing was judged.
    """
    judged = [d.result for d in draws if d.error is None and d.result is not None]
    if not judged:
        return {}
    result = judged[0]
    return {
        **summary(draws),
        "problems": _problems(result.best),
        "best": {**_message(result), "finish_reason": _finish_reason(result)},
        "stop_reason": result.stop_reason.value,
        "stop_detail": result.stop_detail,
        "usage": _usage(usage_of(draws)),
    }


def summary(draws: Sequence[Draw]) -> dict[str, Any]:
    """Say what a call took.

    Args:
        draws: how the sampling of each reply ended.

    Returns:
        What stands under ``mellea_like`` in an answer.
    """
    results = [d.result for d in draws if d.result is not None]
    usage = usage_of(draws)
    return {
        "passed": all(d.passed for d in draws),
        "sampling_id": results[0].sampling_id if results else None,
        "iterations": sum(len(r.slices) for r in results),
        "requests": usage.requests,
        "requests_of_unknown_cost": usage.unknown,
    }


def _told(result: SamplingResult[Any]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "passed": result.success,
        "sampling_id": result.sampling_id,
        "iterations": len(result.slices),
        "iteration": result.best.iteration,
        "stop_reason": result.stop_reason.value,
    }
    return told if result.success else {**told, "problems": _problems(result.best)}


def _message(result: SamplingResult[Any]) -> dict[str, str | None]:
    text = result.best.text
    refused = _generation(result).finish_reason == REFUSED
    return {"content": None, "refusal": text} if refused else {"content": text, "refusal": None}


def _finish_reason(result: SamplingResult[Any]) -> str:
    reason = _generation(result).finish_reason
    return reason if reason is not None and reason in FINISHED else "stop"


def _generation(result: SamplingResult[Any]) -> Generation:
    generation = result.best.generation
    assert generation is not None  # noqa: S101 (what was judged was generated)
    return generation


def _problems(done: Slice) -> list[str]:
    return list(done.problems[:MOST_PROBLEMS])


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }


def _pieces(text: str) -> Iterator[str]:
    """Cut a text where a word ends, into pieces of about the same length.

    Yields:
        The pieces.
    """
    start = 0
    while start < len(text):
        end = text.find(" ", start + PIECE)
        end = len(text) if end < 0 else min(end, start + 2 * PIECE)
        yield text[start:end]
        start = end
