"""A scorer that asks a server with a reward model, a reranker or a classifier."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from mellea_like.core.argument_checks import check_one_of, real_number, whole_number
from mellea_like.lazy import needs_extra

with needs_extra("openai", "RewardModel needs the official SDK"):
    import openai

from mellea_like.backends.loop_clients import LoopClients
from mellea_like.backends.openai_server import NO_KEY, OpenAIServer

if TYPE_CHECKING:
    from mellea_like.core.validation import Candidate

__all__ = ["RewardModel"]

PATHS = {"score": "/score", "rerank": "/rerank", "classify": "/classify"}


class RewardModel:
    """A scorer for `BestOf` that asks a server how good a reply is.

    Each ``kind`` is a protocol of vLLM's server. llama.cpp's server has only ``"rerank"``. The SDK
    retries failed requests. If the last retry fails, the candidate's draw counts as errored. If the
    sampling call ends before the server answers, the request is cancelled.

    Args:
        base_url: the server's URL, such as ``http://localhost:8000/v1``. The protocol's path is
            added to it.
        model: the model's name, if the server requires one.
        kind: ``"score"`` asks ``/score`` for the similarity of prompt and reply, ``"rerank"`` asks
            ``/rerank`` for the relevance of the reply to the prompt, and ``"classify"`` asks
            ``/classify`` for the probability of a class.
        label: for ``"classify"``, the index of the class whose probability is the score. The
            default is the last class.
        api_key: the key to send as a bearer token; None for servers that need none.
        timeout: how long the server may send nothing, in seconds.
        max_retries: the most times that a failed request is sent again.

    Raises:
        TypeError: an argument that must be a number isn't one.
        ValueError: ``kind`` is unknown, ``base_url`` isn't an HTTP URL, or a number is out of
            range.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        kind: Literal["score", "rerank", "classify"] = "score",
        label: int = -1,
        api_key: str | None = None,
        timeout: float = 60.0,
        max_retries: int = 2,
    ) -> None:
        check_one_of("RewardModel: kind", kind, PATHS)
        whole_number("RewardModel: label", label, least=-math.inf)
        real_number("RewardModel: timeout", timeout, over=0, unit="seconds")
        whole_number("RewardModel: max_retries", max_retries, least=0)
        self._kind = kind
        self._model = model
        self._label = label
        self._timeout = timeout
        self._server = OpenAIServer(base_url, None, None)
        make = partial(
            openai.AsyncOpenAI,
            api_key=api_key or NO_KEY,
            base_url=base_url,
            timeout=timeout,
            max_retries=max_retries,
        )
        self._clients = LoopClients(make, close=True)

    async def __call__(self, candidate: Candidate) -> float:
        """Score one candidate.

        Args:
            candidate: the candidate. Its text is scored as a reply to its action.

        Returns:
            The score, from 0 to 1 for ``"classify"``, otherwise in the model's range.

        Raises:
            BackendError: the server can't be reached, or its answer has no score.
        """
        asked = candidate.action.render(candidate.context)
        prompt = "\n\n".join(message.text for message in asked)
        bodies: dict[str, dict[str, Any]] = {
            "score": {"text_1": prompt, "text_2": candidate.text},
            "rerank": {"query": prompt, "documents": [candidate.text]},
            "classify": {"input": f"{prompt}\n\n{candidate.text}"},
        }
        body = bodies[self._kind]
        if self._model is not None:
            body["model"] = self._model
        async with self._clients.hold() as client:
            translator = self._server.translator(client, self._model, self._timeout)
            try:
                answer = await client.post(PATHS[self._kind], body=body, cast_to=object)
            except Exception as exc:  # noqa: BLE001 (the SDK's; its text may echo the key)
                raise translator.of(exc) from None
        try:
            return self._read(answer)
        except (IndexError, KeyError, TypeError, ValueError):
            said = f"an invalid response to {PATHS[self._kind]}"
            raise translator.malformed(said, repr(answer)) from None

    def _read(self, answer: Any) -> float:
        if self._kind == "score":
            return float(answer["data"][0]["score"])
        if self._kind == "rerank":
            return float(answer["results"][0]["relevance_score"])
        return float(cast("list[float]", answer["data"][0]["probs"])[self._label])

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._clients.aclose()
