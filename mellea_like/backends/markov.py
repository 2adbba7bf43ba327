"""A small Markov chain text generator, in pure Python, with no download."""

from __future__ import annotations

import random
import threading
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

from anyio.lowlevel import checkpoint

from mellea_like.backends.counting import count_words, word_pieces
from mellea_like.backends.markov_model import TrigramModel
from mellea_like.backends.markov_text import help_sentences, read_corpus, sentences_of
from mellea_like.core.generation import Generation
from mellea_like.errors import InvalidRequest
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable

    from mellea_like.core.backend import Request
    from mellea_like.core.generation import RequestMeter

__all__ = ["MarkovBackend"]

WORDS_A_STEP = 4
"""Words of a stream between two checkpoints."""

_training = threading.Lock()
_of_help_pages: list[TrigramModel] = []


class MarkovBackend:
    """A small Markov chain text generator, for trying things out and for constrained text.

    It is not a model that understands: it knows which word followed which two others in the text
    that it learnt from, by default the plain English sentences of Python's own help pages, and
    draws new sentences from that. Words of the last message that also stand in that text steer
    where its sentences start; nothing else of an instruction has any effect. It can't judge and
    can't write JSON.

    Learning takes some 40 milliseconds for the help pages, and about 1 second for each 5 MB of
    text; it is done in a thread, once, at the first request. Don't use it in virtual time.

    Of the options it knows ``temperature`` (0 always takes the most frequent word; default 1, the
    frequencies of the text), ``top_p``, ``max_tokens`` (words; default: a sentence or a few),
    ``stop`` and ``seed``: the same seed and messages give the same text. Without a seed, the
    system's randomness decides.

    Args:
        corpus: the path of a text file (UTF-8, up to 256 MB) to learn from, or several; they are
            read now.
        texts: a text to learn from, or several.
        model: the model's name, for records.

    Raises:
        OSError: a file can't be read.
        ValueError: a file is a device, too large or no UTF-8 text, or there is no word in the whole
            corpus.
    """

    provider = "markov"
    can_judge = False

    def __init__(
        self,
        corpus: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
        *,
        texts: str | Iterable[str] | None = None,
        model: str = "markov-trigram",
    ) -> None:
        own = corpus is not None or texts is not None
        self._texts = read_corpus(corpus or (), texts or ()) if own else None
        self._model: TrigramModel | None = None
        self.model = model

    async def generate(self, request: Request) -> Generation:
        """Draw a text.

        Args:
            request: what is wanted.

        Returns:
            The text; its tokens are words.

        Raises:
            InvalidRequest: the request asks for a format, a verdict or another model.
            RuntimeError: this Python comes without its help pages, and there is no other corpus.
        """
        text, reason, meter = await self._draw(request)
        return self._whole(text, reason, meter)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        """Draw a text and hand it over word by word.

        Args:
            request: what is wanted.

        Yields:
            The words and, as its last item, the whole reply.

        Raises:
            InvalidRequest: the request asks for a format, a verdict or another model.
            RuntimeError: this Python comes without its help pages, and there is no other corpus.
        """
        async with aclosing(self._pieces(request)) as pieces:
            yield pieces

    async def _pieces(self, request: Request) -> AsyncGenerator[str | Generation]:
        text, reason, meter = await self._draw(request)
        for number, piece in enumerate(word_pieces(text), 1):
            if number % WORDS_A_STEP == 0:
                await checkpoint()
            meter.update(output_tokens=number)
            yield piece
        yield self._whole(text, reason, meter)

    async def _draw(self, request: Request) -> tuple[str, str, RequestMeter]:
        self._check(request)
        meter = request.meter.start()
        meter.update(input_tokens=count_words(request.messages))
        model = self._model
        if model is None:
            model = await run_in_thread(self._learn)
        else:
            await checkpoint()
        options = request.options
        prompts = [message.content for message in request.messages if message.role == "user"]
        text = model.draw(
            random.Random(options.seed),
            model.theme(prompts[-1]) if prompts else (),
            temperature=1.0 if options.temperature is None else options.temperature,
            top_p=1.0 if options.top_p is None else options.top_p,
        )
        pieces = word_pieces(text)
        reason = "stop"
        if options.max_tokens is not None and len(pieces) > options.max_tokens:
            text = "".join(pieces[: options.max_tokens]).rstrip()
            reason = "length"
        ends = [end for end in map(text.find, options.stop) if end >= 0]
        return (text[: min(ends)], "stop", meter) if ends else (text, reason, meter)

    def _check(self, request: Request) -> None:
        wanted = request.options.model
        if request.format is not None:
            msg = (
                "MarkovBackend writes plain text only, so it can't keep to a format:"
                " use OpenAIBackend or LlamaCppBackend for structured output"
            )
        elif request.meta.purpose == "judge":
            msg = "MarkovBackend can't judge: give the strategy another judge, or use checks"
        elif wanted not in {None, self.model}:
            msg = f"MarkovBackend has one model, {self.model!r}, and no {wanted!r}"
        else:
            return
        raise InvalidRequest(msg)

    def _learn(self) -> TrigramModel:
        with _training:
            if self._model is not None:  # learnt while this request waited for its turn
                return self._model
            if self._texts is not None:
                lines = (line for text in self._texts for line in sentences_of(text))
                self._model = TrigramModel(lines)
            else:
                if not _of_help_pages:
                    _of_help_pages.append(TrigramModel(help_sentences()))
                self._model = _of_help_pages[0]
            return self._model

    def _whole(self, text: str, reason: str, meter: RequestMeter) -> Generation:
        meter.settle(input_tokens=meter.input_tokens, output_tokens=len(text.split()))
        return Generation(text, usage=meter.usage, model=self.model, finish_reason=reason)

    def __repr__(self) -> str:
        return f"<MarkovBackend {self.model}>"
