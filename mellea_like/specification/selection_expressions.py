"""The grammar of selections in configuration, such as ``first`` or ``collect:3:lower``."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mellea_like.core.format import strip_fence
from mellea_like.scoring import judge_score
from mellea_like.selections import BestOf, Collect, Consensus, Tournament, Vote

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend
    from mellea_like.core.validation import Candidate
    from mellea_like.sampling.prepare import Selection

__all__ = ["KEYS", "SCORES", "SELECTIONS", "SelectionSpec", "parse_selection"]

SCORES = ("length", "words", "json:PATH", "-length", "-words", "-json:PATH", "judge[:RUBRIC]")
"""The forms of the score in ``best:SCORE``. With a ``-`` in front, the lowest score wins."""

KEYS = ("text", "lower", "json:PATH")
"""The keys of ``vote`` and ``collect``. Replies with equal keys are the same answer."""

RUBRIC = "How well does it answer the request?"

_MOST_DIGITS = 4
_BY_SCORE = re.compile(r"-?(length|words|json:[^.]+(\.[^.]+)*)|judge(:.+)?", re.DOTALL)
_BY_KEY = re.compile(r"text|lower|json:[^.]+(\.[^.]+)*")
_GOES_BY = {
    "best": (_BY_SCORE, "scores", SCORES),
    "vote": (_BY_KEY, "keys", KEYS),
    "collect": (_BY_KEY, "keys", KEYS),
}


class _Form(NamedTuple):
    """A kind of selection as text: its form, and an example.

    ``features`` are those of `BaseSelection.features`. ``counted`` is whether it takes an ``n``.
    """

    written: str
    example: str
    features: tuple[str, ...] = ("several", "scored")
    counted: bool = False


_FORMS = {
    "first": _Form("first", "first", ("first",)),
    "ordered": _Form("ordered", "ordered", ("ordered",)),
    "best": _Form("best:SCORE", "best:length", counted=True),
    "vote": _Form("vote[:KEY]", "vote:lower", ("several",), counted=True),
    "collect": _Form("collect:K[:KEY]", "collect:3", ("several", "collect")),
    "consensus": _Form("consensus", "consensus", counted=True),
    "tournament": _Form("tournament", "tournament", counted=True),
}

SELECTIONS = tuple(form.written for form in _FORMS.values())
"""The forms of all selections, for help and error messages."""


@dataclass(frozen=True)
class SelectionSpec:
    """A selection read from an expression such as ``best:length``; `make` makes the selection."""

    kind: str
    by: str = ""
    n: int | None = None

    @property
    def judged(self) -> bool:
        """Whether the selection asks a judge model."""
        by_judge = self.kind == "best" and self.by.partition(":")[0] == "judge"
        return by_judge or self.kind == "tournament"

    @property
    def features(self) -> tuple[str, ...]:
        """The selection's features, as named in `EXCLUSIONS`; see `BaseSelection.features`."""
        return _FORMS[self.kind].features

    def make(self, judge: Backend, turns: int) -> Selection:
        """Make the selection for calls of at most ``turns`` draws.

        An ``n`` greater than ``turns`` is reduced to ``turns``.
        """
        key = _Key(self.by) if self.by else None
        match self.kind:
            case "best":
                n = None if self.n is None else min(self.n, turns)
                if not self.judged:
                    return BestOf(_Score(self.by), n, inline=True)
                return BestOf(judge_score(self.by.partition(":")[2] or RUBRIC, judge=judge), n)
            case "vote":
                return Vote(key, min(self.n or Vote().n, turns))
            case "collect":
                return Collect(min(self.n or 1, turns), key)
            case "consensus":
                return Consensus(n=min(self.n or Consensus().n, turns))
            case "tournament":
                return Tournament(n=min(self.n or Tournament().n, turns))
            case "ordered":
                return "ordered"
            case _:
                return "first"


def parse_selection(text: str, n: int | None = None) -> SelectionSpec:
    """Parse a selection that decides after ``n`` passing replies; None for the default number."""
    name, colon, rest = text.partition(":")
    kind, by = name.strip().lower(), rest.strip()
    if kind not in _FORMS:
        close = difflib.get_close_matches(kind, _FORMS, n=1)
        hint = f"; did you mean {_FORMS[close[0]].example}?" if close else ""
        allowed = "  ".join(SELECTIONS)
        msg = f"select {text!r} is unknown{hint}\nAllowed: {allowed}"
        raise ValueError(msg)
    form = _FORMS[kind]
    needs_more, takes_more = form.written.startswith(f"{kind}:"), ":" in form.written
    if (colon and not by) or (by and not takes_more) or (needs_more and not by):
        msg = f"select {text!r} must have the form {form.written}, as in {form.example}"
        raise ValueError(msg)
    if n is not None and not form.counted:
        counted = ", ".join(name for name, form in _FORMS.items() if form.counted)
        what = ", which has its own number" if kind == "collect" else ""
        msg = f"n is for {counted}, not for {kind}{what}"
        raise ValueError(msg)
    if kind == "collect":
        number, keyed, by = by.partition(":")
        if not (number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS):
            number = "0"
        n = int(number)
        if not n or (keyed and not by):
            msg = f"select {text!r}: write a positive integer after the colon, as in collect:3"
            msg += ", and optionally a key, as in collect:3:lower" if n else ""
            raise ValueError(msg)
    if by and kind in _GOES_BY:
        pattern, what, forms = _GOES_BY[kind]
        if pattern.fullmatch(by) is None:
            known = "  ".join(forms)
            msg = f"select {text!r}: {by!r} isn't one of the known {what}\nAllowed: {known}"
            raise ValueError(msg)
    return SelectionSpec(kind, by, n)


@dataclass(frozen=True)
class _Score:
    """Scores replies for ``best``. A batch's journal identifies the scorer by the field ``by``."""

    by: str

    def __call__(self, candidate: Candidate) -> float:
        name, _, path = self.by.removeprefix("-").partition(":")
        sign = -1 if self.by.startswith("-") else 1
        if name == "json":
            number = _field(candidate.text, path)
            if isinstance(number, bool) or not isinstance(number, int | float):
                msg = f"{path} in the reply isn't a number"
                raise ValueError(msg)
            return sign * float(number)
        text = candidate.text.strip()
        return sign * float(len(text) if name == "length" else len(text.split()))


@dataclass(frozen=True)
class _Key:
    """A key function for ``vote`` and ``collect``. Replies with equal keys are the same answer."""

    by: str

    def __call__(self, candidate: Candidate) -> Any:
        name, _, path = self.by.partition(":")
        if name == "json":
            return _field(candidate.text, path)
        text = candidate.text.strip()
        return text.lower() if name == "lower" else text


def _field(text: str, path: str) -> Any:
    """Return the value at a path of names and indices in a JSON text."""
    try:
        found: Any = json.loads(strip_fence(text))
        for step in path.split("."):
            found = found[int(step) if type(found) is list else step]
    except (IndexError, KeyError, RecursionError, TypeError, ValueError):
        msg = f"the reply isn't JSON with {path} in it"
        raise ValueError(msg) from None
    return found
