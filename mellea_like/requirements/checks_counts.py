"""Checks of length, in words, characters, lines and sentences."""

# ruff: noqa: RUF001, RUF002, SIM905 (typographic punctuation is meant; lists of words)

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, Unpack

from mellea_like.core.argument_checks import whole_number
from mellea_like.core.requirement import ready_made
from mellea_like.core.validation import ValidationResult, Verdict
from mellea_like.requirements.checks_common import Answer, CheckSettings, Fresh, Look, check

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.core.requirement import Requirement
    from mellea_like.core.validation import Candidate

Counter: TypeAlias = "Callable[[str, str], int]"
"""A function that counts words or the like in a reply so far, given its text and newest piece."""

_CLOSERS = r"[\"'”’»)\]}*_]*+"
_SENTENCE_END = re.compile(
    rf"(?<![.!?…])[.!?…]++{_CLOSERS}(?=\s|\Z)|[。！？｡]++{_CLOSERS}[」』）]*+|\n[^\S\n]*+\n"
)
_LIST_NUMBER = re.compile(r"(?:\A|\n)[ \t>]*\d{1,3}\Z")
_NEVER_LAST = frozenset(
    "approx cf dr e.g gen gov hon i.e lt messrs mr mrs ms mt mx pp prof rep rev sen sgt st viz"
    " vs".split()
)
_BEFORE_DIGITS = frozenset("ca ch eq fig no nos nr p sec vol".split())
_SOMETIMES_LAST = frozenset(
    "a.d a.k.a a.m al apr aug ave b.c blvd co corp d.c dec dept ed eds esq est etc feb inc jan jr"
    " jul jun ltd mar nov oct op p.m ph.d sep sept sr u.k u.n u.s u.s.a".split()
)


class Range(NamedTuple):
    """The smallest and the largest number allowed; None for no limit."""

    low: int | None
    high: int | None

    def __contains__(self, number: object) -> bool:
        return (
            isinstance(number, int)
            and (self.low is None or number >= self.low)
            and (self.high is None or number <= self.high)
        )

    def __str__(self) -> str:
        if self.low == self.high:
            return f"exactly {self.low}"
        if self.low is None:
            return f"at most {self.high}"
        if self.high is None:
            return f"at least {self.low}"
        return f"between {self.low} and {self.high}"

    @property
    def last(self) -> int | None:
        """The number that decides whether a noun after the range is singular or plural."""
        return self.low if self.high is None else self.high

    @property
    def limit(self) -> str:
        """The end of a reason, such as "at most 20 are allowed"."""
        verb = "required" if self.high is None or self.low is not None else "allowed"
        return f"{self} {'is' if self.last == 1 else 'are'} {verb}"

    def closeness(self, number: int) -> float:
        """Return a number's score: 1.0 inside the range, and lower the farther it is outside."""
        if self.high is not None and number > self.high:
            return (self.high + 1) / (number + 1)
        if self.low is not None and number < self.low:
            return (number + 1) / (self.low + 1)
        return 1.0


@ready_made
def word_count(
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    exactly: int | None = None,
    early: bool = False,
    **settings: Unpack[CheckSettings],
) -> Requirement:
    """Require that the number of words is within limits.

    Words are separated by white space and contain a letter or digit. So ``well-known`` is one
    word, and a lone ``-`` isn't a word. In scripts without spaces, count characters instead.

    Args:
        at_least: the smallest number allowed.
        at_most: the largest number allowed.
        exactly: the only number allowed, instead of the other two limits.
        early: also check replies while they stream in, and close a request as soon as its reply is
            certain to fail; see `mellea_like.requirements.checks`.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement. Its score tells how close the number is to the allowed range.

    Raises:
        TypeError: no number is given, or one isn't an int.
        ValueError: a number is negative, the numbers contradict each other, or ``early`` is used
            without an upper limit.
    """
    given = (at_least, at_most, exactly)
    return _counted("word_count", "word", given, _count_words, settings, _words if early else None)


@ready_made
def char_count(
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    exactly: int | None = None,
    early: bool = False,
    **settings: Unpack[CheckSettings],
) -> Requirement:
    """Require that the number of characters is within limits.

    Characters are Unicode code points, as ``len`` counts them. White space counts, too.

    Args:
        at_least: the smallest number allowed.
        at_most: the largest number allowed.
        exactly: the only number allowed, instead of the other two limits.
        early: also check replies while they stream in, and close a request as soon as its reply is
            certain to fail; see `mellea_like.requirements.checks`.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement. Its score tells how close the number is to the allowed range.

    Raises:
        TypeError: no number is given, or one isn't an int.
        ValueError: a number is negative, the numbers contradict each other, or ``early`` is used
            without an upper limit.
    """
    given = (at_least, at_most, exactly)
    return _counted("char_count", "character", given, len, settings, _characters if early else None)


@ready_made
def line_count(
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    exactly: int | None = None,
    early: bool = False,
    **settings: Unpack[CheckSettings],
) -> Requirement:
    """Require that the number of lines is within limits.

    Lines end as in ``str.splitlines``. Blank lines don't count.

    Args:
        at_least: the smallest number allowed.
        at_most: the largest number allowed.
        exactly: the only number allowed, instead of the other two limits.
        early: also check replies while they stream in, and close a request as soon as its reply is
            certain to fail; see `mellea_like.requirements.checks`.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement. Its score tells how close the number is to the allowed range.

    Raises:
        TypeError: no number is given, or one isn't an int.
        ValueError: a number is negative, the numbers contradict each other, or ``early`` is used
            without an upper limit.
    """
    given = (at_least, at_most, exactly)
    return _counted("line_count", "line", given, _count_lines, settings, _lines if early else None)


@ready_made
def sentence_count(
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    exactly: int | None = None,
    **settings: Unpack[CheckSettings],
) -> Requirement:
    """Require that the number of sentences, as `sentences_of` finds them, is within limits.

    Args:
        at_least: the smallest number allowed.
        at_most: the largest number allowed.
        exactly: the only number allowed, instead of the other two limits.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement. Its score tells how close the number is to the allowed range.

    Raises:
        TypeError: no number is given, or one isn't an int.
        ValueError: a number is negative, or the numbers contradict each other.
    """
    given = (at_least, at_most, exactly)
    return _counted("sentence_count", "sentence", given, _count_sentences, settings)


def _count_words(text: str) -> int:
    return sum(map(_is_word, text.split()))


def _is_word(text: str) -> bool:
    return any(map(str.isalnum, text))


def _count_lines(text: str) -> int:
    return sum(map(_is_line, text.splitlines()))


def _is_line(text: str) -> bool:
    return bool(text) and not text.isspace()


def _count_sentences(text: str) -> int:
    return len(sentences_of(text))


def sentences_of(text: str) -> list[str]:
    """Split a text into sentences by rules, without white space around the sentences.

    A sentence ends at a blank line, at ``。``, ``！`` or ``？``, and at ``.``, ``!``, ``?`` or
    ``…`` before white space or the end of the text. Closing quotes or brackets after such a mark
    belong to the sentence. A part without a letter or digit isn't a sentence.

    If a lower-case letter follows ``…``, ``...`` or a mark with closing quotes, the sentence
    continues (``"Why?" she asked``). A full stop doesn't end a sentence in these places:

    - after a title or an initial (``Dr.``, ``J.``);
    - after ``No.``, ``Fig.`` and the like, before a digit;
    - after an abbreviation that can end a sentence (``etc.``, ``p.m.``, ``Inc.``), before a
      lower-case letter or a digit;
    - after a number that begins a line (``1.``).
    """
    sentences: list[str] = []
    start = 0
    for end in _SENTENCE_END.finditer(text):
        if _ends_sentence(text, start, end):
            sentences.append(text[start : end.end()].strip())
            start = end.end()
    sentences.append(text[start:].strip())
    return list(filter(_is_word, sentences))


def _ends_sentence(text: str, start: int, end: re.Match[str]) -> bool:
    mark = end[0]
    if mark[0] not in ".!?…":
        return True
    after = text[end.end() : end.end() + 64].lstrip()[:1]
    if not after:
        return True
    if after.islower() and mark != "." and not set(mark) <= {"!", "?"}:
        return False
    if mark != ".":
        return True
    # Words are short, so a window avoids a scan of the whole sentence at each full stop.
    line = text[max(start, end.start() - 32) : end.start()]
    if not line or line[-1].isspace():
        return True
    word = line.split()[-1].lstrip("\"'“‘«([{*_")
    if _LIST_NUMBER.search(text, max(0, end.start() - 16), end.start()):
        return False
    name = word.lower()
    if name in _SOMETIMES_LAST:
        return not (after.islower() or after.isdecimal())
    initial = len(word) == 1 and word.isupper() and word != "I"
    return not (initial or name in _NEVER_LAST or (name in _BEFORE_DIGITS and after.isdecimal()))


def _counted(
    name: str,
    noun: str,
    given: tuple[int | None, int | None, int | None],
    count: Callable[[str], int],
    settings: CheckSettings,
    early: Callable[[], Counter] | None = None,
) -> Requirement:
    allowed = given_range(name, *given)
    limit = allowed.limit

    def said(number: int) -> str:
        return f"it has {number} {noun}{'' if number == 1 else 's'}"

    def validate(candidate: Candidate) -> ValidationResult:
        number = count(candidate.text)
        has = said(number)
        passed = number in allowed
        reason = has if passed else f"{has}; {limit}"
        return ValidationResult(passed, reason, allowed.closeness(number))

    stream = None
    if early is not None:
        if allowed.high is None:
            msg = (
                f"{name}: early needs at_most or exactly, because a reply with too few may still"
                " grow"
            )
            raise ValueError(msg)
        stream = _fails_over(allowed.high, early, lambda number: f"{said(number)} so far; {limit}")
    plural = "" if allowed.last == 1 else "s"
    return check(name, f"has {allowed} {noun}{plural}", validate, settings, stream)


def given_range(name: str, at_least: object, at_most: object, exactly: object) -> Range:
    """Return the range that a check's arguments give; raise an error if they conflict."""
    given = {"at_least": at_least, "at_most": at_most, "exactly": exactly}
    numbers = {
        key: whole_number(f"{name}: {key}", number, least=0)
        for key, number in given.items()
        if number is not None
    }
    if not numbers:
        msg = f"{name} needs at_least, at_most or exactly"
        raise TypeError(msg)
    if "exactly" in numbers:
        if len(numbers) > 1:
            msg = f"{name}: exactly can't be combined with at_least or at_most"
            raise ValueError(msg)
        return Range(numbers["exactly"], numbers["exactly"])
    low, high = numbers.get("at_least"), numbers.get("at_most")
    if low is not None and high is not None and low > high:
        msg = f"{name}: at_least={low} must not be greater than at_most={high}"
        raise ValueError(msg)
    return Range(low, high)


# --- while a reply arrives ---


def _fails_over(limit: int, counting: Callable[[], Counter], reason: Callable[[int], str]) -> Fresh:
    def make() -> Look:
        count = counting()

        def look(text: str, delta: str) -> Answer:
            number = count(text, delta)
            return Verdict.UNKNOWN if number <= limit else (Verdict.FAIL, reason(number))

        return look

    return Fresh(make)


def _characters() -> Counter:
    return lambda text, _: len(text)


def _begun(separator: re.Pattern[str], counts: Callable[[str], bool]) -> Counter:
    """Return a counter of parts. A part counts once ``counts`` accepts any piece of it."""
    number = 0
    counted = False  # Whether the last part counts.

    def count(_: str, delta: str) -> int:
        nonlocal number, counted
        for i, part in enumerate(separator.split(delta)):
            counted = counted and i == 0
            if not counted and counts(part):
                counted = True
                number += 1
        return number

    return count


_words = partial(_begun, re.compile(r"\s"), _is_word)
# These are the line ends of `str.splitlines`.
_lines = partial(_begun, re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"), _is_line)
