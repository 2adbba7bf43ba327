"""A word trigram model: which word follows two others, and how often it did."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

__all__ = ["TrigramModel"]

LONGEST = 32
"""Words of a sentence at most; one that has not ended by then is drawn again, then cut."""

TRIES = 4
"""How often a sentence is drawn again that got too long, or missed its theme."""

MORE = 0.3
"""The probability that another sentence follows."""

MOST_SENTENCES = 4
PULL = 6.0
"""How much more likely a word of the instruction is than its count says."""

COMMON = 0.1
"""A word in more than this share of the sentences says nothing about the theme."""

# What instructions consist of, whatever they are about.
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
    """Counts of word triples, from which sentences are drawn.

    Args:
        sentences: what to learn from; at least one with a word in it.

    Raises:
        ValueError: there is no word in the sentences.
    """

    def __init__(self, sentences: Iterable[str]) -> None:
        self._followers: dict[tuple[str, str], list[str]] = {}
        self._starts: list[tuple[str, str]] = []
        self._about: dict[str, list[int]] = {}
        followers = self._followers
        for sentence in sentences:
            words = sentence.split()
            if not words:
                continue
            number = len(self._starts)
            first, second = _END, _END
            for word in words:
                followers.setdefault((first, second), []).append(word)
                first, second = second, word
            followers.setdefault((first, second), []).append(_END)
            self._starts.append((words[0], words[1] if len(words) > 1 else _END))
            for word in _themes(sentence):
                self._about.setdefault(word, []).append(number)
        if not self._starts:
            msg = "a trigram model learns from at least one word"
            raise ValueError(msg)
        most = max(5.0, COMMON * len(self._starts))
        self._about = {word: where for word, where in self._about.items() if len(where) <= most}

    def theme(self, prompt: str) -> tuple[str, ...]:
        """Return the words of a prompt that the model can write about.

        Args:
            prompt: any text.

        Returns:
            Words, normalised, in alphabetical order.
        """
        return tuple(
            sorted(
                word for word in _themes(prompt).difference(_FILLERS.split()) if word in self._about
            )
        )

    def draw(
        self, chance: Random, theme: tuple[str, ...], *, temperature: float, top_p: float
    ) -> str:
        """Draw a text: a sentence, now and then a few.

        Args:
            chance: where the randomness comes from.
            theme: words to steer by, as `theme` gives them.
            temperature: 0 for the most frequent word always, 1 for the frequencies learnt, higher
                for more variety.
            top_p: the share of probability, from the top, to draw words from.

        Returns:
            The text.
        """
        text = self._sentence(chance, theme, temperature, top_p)
        count = 1
        while temperature and count < MOST_SENTENCES and chance.random() < MORE:
            glue = " " if text.endswith(_CLOSED) else "\n"
            text += glue + self._sentence(chance, theme, temperature, top_p)
            count += 1
        return text

    def _sentence(
        self, chance: Random, theme: tuple[str, ...], temperature: float, top_p: float
    ) -> str:
        words, ended = list[str](), False
        wanted = frozenset(theme)
        for _ in range(TRIES):
            words, ended = self._words(chance, theme, temperature, top_p)
            about = not wanted or any(wanted & _themes(word) for word in words)
            if temperature == 0 or (ended and about):
                break
        text = " ".join(words)
        return text if ended else text.rstrip(",;:-\u2013") + "."

    def _words(
        self, chance: Random, theme: tuple[str, ...], temperature: float, top_p: float
    ) -> tuple[list[str], bool]:
        if theme:
            topic = theme[0] if temperature == 0 else chance.choice(theme)
            where = self._about[topic]
            number = where[0] if temperature == 0 else chance.choice(where)
            words = [word for word in self._starts[number] if word]
        else:
            words = []
        wanted = frozenset(theme)
        first, second = (_END, _END, *words)[-2:]
        while len(words) < LONGEST:
            word = _choose(chance, self._followers[first, second], wanted, temperature, top_p)
            if word == _END:
                return words, True
            words.append(word)
            first, second = second, word
        return words, False


def _choose(
    chance: Random,
    followers: list[str],
    wanted: frozenset[str],
    temperature: float,
    top_p: float,
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
        most = max(weights.values())  # keeps the powers below from running out of range
        weights = {word: (weight / most) ** (1 / temperature) for word, weight in weights.items()}
    if top_p < 1:
        weights = _nucleus(weights, top_p)
    return chance.choices(list(weights), list(weights.values()))[0]


def _nucleus(weights: dict[str, float], top_p: float) -> dict[str, float]:
    """Keep the most likely words that together have at least a share of the probability.

    Source: Holtzman et al., The Curious Case of Neural Text Degeneration (2020), section 3.1.
    """
    left = top_p * sum(weights.values())
    kept: dict[str, float] = {}
    for word, weight in sorted(weights.items(), key=lambda item: -item[1]):
        kept[word] = weight
        left -= weight
        if left <= 0:
            break
    return kept


def _themes(text: str) -> frozenset[str]:
    """Return a text's words in lower case, without a plural's s."""
    return frozenset(
        word[:-1] if word.endswith("s") and len(word) > 3 else word  # noqa: PLR2004
        for word in _WORD.findall(text.lower())
    )
