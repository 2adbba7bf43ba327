"""A small Markov chain text generator in pure Python, without a download."""

from __future__ import annotations

import os
import random
import re
import threading
from collections import Counter, defaultdict
from contextlib import aclosing, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from anyio.lowlevel import checkpoint

from mellea_like.backends.request_counter import count_words, word_pieces
from mellea_like.core.backend import texts_only
from mellea_like.core.generation import Generation
from mellea_like.errors import InvalidRequest
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
    from random import Random

    from mellea_like.core.backend import Request
    from mellea_like.core.generation import RequestMeter

__all__ = ["MarkovBackend"]

# --- sentences from Python's help pages or from the user's texts ----------------------------------

# In the help pages, code is in quotes or backticks. A plain word in quotes is still prose.
_QUOTED_WORD = re.compile("[\u201c\"`']{1,2}([A-Za-z]+)[\u201d\"`']{1,2}")
_ASIDE = re.compile(r"\s\([^()]*\)")
_BULLET = re.compile(r"\A(?:[*•-]|\d+\.)\s+")
_PROSE = re.compile("[A-Z][a-z]*(?:,? (?:[A-Za-z][A-Za-z'\u2019-]*|[0-9]+)){3,25}[.!?]")
_REFERENCE = re.compile(r"\A(?:See|Changed|New|Deprecated|Added)\b|\bPEP\b|\bsection\b")

# After a full stop and any closing quotes or brackets, before a capital or a digit.
_SENTENCE_END = re.compile(
    "(?<!\\bMr\\.)(?<!\\bMs\\.)(?<!\\bDr\\.)(?<!\\bSt\\.)(?<!\\bMrs\\.)"
    "(?:(?<=[.!?…])|(?<=[.!?…][\"'\u201d\u2019)\\]]))\\s+(?=[\"'\u201c\u2018(\\[]?[^\\W_a-z])"
)


def prose_of(pages: Iterable[str]) -> tuple[str, ...]:
    """Return the plain English sentences of the help pages, without duplicates."""
    found: dict[str, None] = {}
    for page in pages:
        for paragraph in page.split("\n\n"):
            text = _BULLET.sub("", " ".join(_body(paragraph.splitlines())))
            text = _ASIDE.sub("", _QUOTED_WORD.sub(r"\1", text))
            for sentence in _SENTENCE_END.split(text):
                if _PROSE.fullmatch(sentence) and not _REFERENCE.search(sentence):
                    found[sentence] = None
    return tuple(found)


def sentences_of(text: str) -> list[str]:
    """Split a text into sentences; paragraphs without punctuation are split into lines instead."""
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        line = " ".join(paragraph.split())
        if re.search(r"[.!?…]", line):
            found.extend(_SENTENCE_END.split(line))
        else:
            found.extend(" ".join(part.split()) for part in paragraph.splitlines())
    return [sentence for sentence in found if sentence]


def _body(lines: list[str]) -> list[str]:
    """Return a paragraph's lines, without a first line that is a term to be defined."""
    depths = [len(line) - len(line.lstrip()) for line in lines[:2]]
    defined = len(depths) > 1 and depths[1] > depths[0] and not _BULLET.match(lines[0].strip())
    return [line.strip() for line in (lines[1:] if defined else lines)]


def _read(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as exc:
        msg = f"MarkovBackend can't learn from {path}: it isn't UTF-8 text ({exc.reason})"
        raise ValueError(msg) from exc


# --- a word trigram model: which word follows two others, and how often ---------------------------

LONGEST = 32
"""The most words in a sentence. A sentence that gets longer is drawn again, and the last of
``TRIES`` attempts is cut off at this length."""

TRIES = 4
"""The most attempts to draw a sentence that is short enough and contains a word of the theme."""

MORE = 0.3
"""The probability that a text continues with another sentence."""

MOST_SENTENCES = 4
PULL = 6.0
"""The factor by which a word's weight is multiplied if the instruction contains the word."""

COMMON = 0.1
"""A word that occurs in a larger share of the sentences than this doesn't count as a theme."""

# Words that occur in instructions of any topic.
_FILLERS = (
    "about all and any are asked attempt can did does earlier exactly for from generate give has"
    " have how into its least line make most must one paragraph please put reply requirement right"
    " rejected sentence short should tell text that the them then they this two three use what"
    " which with word write you your"
)

_END = ""
_CLOSED = (".", "!", "?", "…", ")", '"', "'", "\u201d", "\u2019")
_WORD = re.compile(r"[^\W\d_]{3,}")


class TrigramModel:
    """Draws sentences from counts of word triples."""

    def __init__(self, sentences: Sequence[str]) -> None:
        self._followers: dict[tuple[str, str], list[str]] = defaultdict(list)
        starts_about: dict[str, list[list[str]]] = defaultdict(list)
        for sentence in sentences:
            words = sentence.split()
            first, second = _END, _END
            for word in [*words, _END]:
                self._followers[first, second].append(word)
                first, second = second, word
            for word in _themes(sentence):
                starts_about[word].append(words[:2])
        most = max(5.0, COMMON * len(sentences))
        self._starts_about = {
            word: starts for word, starts in starts_about.items() if len(starts) <= most
        }

    def theme(self, prompt: str) -> tuple[str, ...]:
        """Return the words of a prompt that the model can write about."""
        return tuple(
            sorted(self._starts_about.keys() & _themes(prompt).difference(_FILLERS.split()))
        )

    def draw(self, chance: Random, theme: tuple[str, ...], temperature: float) -> str:
        """Draw a text: a sentence, or occasionally several."""
        text = self._sentence(chance, theme, temperature)
        count = 1
        while temperature and count < MOST_SENTENCES and chance.random() < MORE:
            glue = " " if text.endswith(_CLOSED) else "\n"
            text += glue + self._sentence(chance, theme, temperature)
            count += 1
        return text

    def _sentence(self, chance: Random, theme: tuple[str, ...], temperature: float) -> str:
        words, ended = list[str](), False
        wanted = frozenset(theme)
        for _ in range(TRIES):
            words, ended = self._words(chance, theme, temperature)
            about = not wanted or any(wanted & _themes(word) for word in words)
            if temperature == 0 or (ended and about):
                break
        text = " ".join(words)
        return text if ended else text.rstrip(",;:-\u2013") + "."

    def _words(
        self, chance: Random, theme: tuple[str, ...], temperature: float
    ) -> tuple[list[str], bool]:
        words: list[str] = []
        if theme:
            topic = theme[0] if temperature == 0 else chance.choice(theme)
            starts = self._starts_about[topic]
            words += starts[0] if temperature == 0 else chance.choice(starts)
        wanted = frozenset(theme)
        first, second = (_END, _END, *words)[-2:]
        while len(words) < LONGEST:
            word = _choose(chance, self._followers[first, second], wanted, temperature)
            if word == _END:
                return words, True
            words.append(word)
            first, second = second, word
        return words, False


def _choose(
    chance: Random, followers: list[str], wanted: frozenset[str], temperature: float
) -> str:
    if len(followers) == 1:
        return followers[0]
    weights = {
        word: count * PULL if wanted and wanted & _themes(word) else float(count)
        for word, count in Counter(followers).items()
    }
    if temperature == 0:
        return max(weights, key=weights.__getitem__)
    if temperature != 1:
        most = max(weights.values())  # Keep the powers below in range.
        weights = {word: (weight / most) ** (1 / temperature) for word, weight in weights.items()}
    return chance.choices(list(weights), list(weights.values()))[0]


def _themes(text: str) -> frozenset[str]:
    """Return a text's words of three letters or more, in lower case and without a plural's "s"."""
    return frozenset(
        word[:-1] if word.endswith("s") and len(word) > 3 else word  # noqa: PLR2004
        for word in _WORD.findall(text.lower())
    )


# --- the backend ----------------------------------------------------------------------------------

WORDS_A_STEP = 4
"""The number of words after which a stream yields to the event loop."""

_training = threading.Lock()


@cache
def _of_help_pages() -> TrigramModel:
    from pydoc_data.topics import topics  # noqa: PLC0415 (half a megabyte, not always needed)

    return TrigramModel(prose_of(topics.values()))


class MarkovBackend:
    """A small Markov chain text generator, for trying things out and for constrained text.

    It understands nothing. It counts which words follow each pair of words in a text, and draws
    new sentences from these counts. By default it learns from the plain English sentences of
    Python's own help pages. The new sentences prefer words of the last user message that also occur
    in the learned text. Otherwise, instructions have no effect. This backend can't judge and can't
    write JSON.

    Learning takes about 0.1 s for the help pages, and about 0.5 s for each megabyte of text. It
    happens once, in a thread, at the first request. Don't use this backend in virtual time, because
    the clock jumps while a thread works.

    It supports the options ``temperature`` (0 always takes the most frequent word; the default 1
    follows the text's frequencies), ``max_tokens`` (in words; the default is one sentence or a
    few), ``stop`` and ``seed``. The same seed and messages give the same text. Without a seed,
    texts are random.

    Args:
        corpus: the path of a text file (UTF-8) to learn from, or several paths. The files are read
            immediately, not at the first request.
        text: a text to learn from, if there is no ``corpus``.
        model: the model's name, for records.

    Raises:
        OSError: a file can't be read.
        ValueError: a file isn't UTF-8 text, or the whole text is empty.
    """

    provider = "markov"
    can_judge = False

    def __init__(
        self,
        corpus: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
        *,
        text: str | None = None,
        model: str = "markov-trigram",
    ) -> None:
        if corpus is not None:
            paths = [corpus] if isinstance(corpus, str | os.PathLike) else corpus
            text = "\n\n".join(map(_read, paths))
        if text is not None and not text.strip():
            msg = f"MarkovBackend can't learn from an empty text: {corpus or 'text'}"
            raise ValueError(msg)
        self._text = text
        self._model: TrigramModel | None = None
        self.model = model

    async def generate(self, request: Request) -> Generation:
        """Draw a text, in which each word is a token.

        Raises:
            InvalidRequest: the request asks for a format, a verdict or another model.
        """
        text, reason, meter = await self._draw(request)
        return self._whole(text, reason, meter)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        """Draw a text and stream it word by word; see `StreamingBackend.stream`."""
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
        prompts = [message.text for message in request.messages if message.role == "user"]
        text = model.draw(
            random.Random(options.seed),
            model.theme(prompts[-1]) if prompts else (),
            1.0 if options.temperature is None else options.temperature,
        )
        pieces = word_pieces(text)
        reason = "stop"
        if options.max_tokens is not None and len(pieces) > options.max_tokens:
            text = "".join(pieces[: options.max_tokens]).rstrip()
            reason = "length"
        ends = [end for end in map(text.find, options.stop) if end >= 0]
        return (text[: min(ends)], "stop", meter) if ends else (text, reason, meter)

    def _whole(self, text: str, reason: str, meter: RequestMeter) -> Generation:
        meter.settle(input_tokens=meter.input_tokens, output_tokens=len(text.split()))
        return Generation(text, usage=meter.usage, model=self.model, finish_reason=reason)

    def _check(self, request: Request) -> None:
        texts_only(request, "MarkovBackend")
        wanted = request.options.model
        if request.format is not None:
            msg = (
                "MarkovBackend writes only plain text, so it can't follow a format:"
                " use OpenAIBackend or LlamaCppBackend for structured output"
            )
        elif request.meta.purpose == "judge":
            msg = "MarkovBackend can't judge: use another judge, or checks"
        elif wanted not in {None, self.model}:
            msg = f"MarkovBackend has only the model {self.model!r}, not {wanted!r}"
        else:
            return
        raise InvalidRequest(msg)

    def _learn(self) -> TrigramModel:
        with _training:
            if self._model is None:  # Another request may have learnt it.
                own = self._text
                self._model = _of_help_pages() if own is None else TrigramModel(sentences_of(own))
            return self._model

    def __repr__(self) -> str:
        return f"<MarkovBackend {self.model}>"
