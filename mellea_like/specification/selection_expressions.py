"""The grammar of selections in configuration, such as ``first`` or ``collect:3:lower``."""

from __future__ import annotations

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

_PATH = r"json:[^.]+(?:\.[^.]+)*"
_SCORE = rf"(?P<by>-?(?:length|words|{_PATH})|judge(?::.+)?)"
_KEY = rf"(?::(?P<by>text|lower|{_PATH}))?"


class _Form(NamedTuple):
    """A kind of selection as text: its form, and the pattern of what follows its name.

    ``features`` are those of `BaseSelection.features`. ``counted`` is whether it takes an ``n``.
    """

    written: str
    rest: str = ""
    features: tuple[str, ...] = ("several", "scored")
    counted: bool = False


_FORMS = {
    "first": _Form("first", features=("first",)),
    "ordered": _Form("ordered", features=("ordered",)),
    "best": _Form("best:SCORE", f":{_SCORE}", counted=True),
    "vote": _Form("vote[:KEY]", _KEY, ("several",), counted=True),
    "collect": _Form("collect:K[:KEY]", f":(?P<k>[1-9][0-9]{{0,3}}){_KEY}", ("several", "collect")),
    "consensus": _Form("consensus", counted=True),
    "tournament": _Form("tournament", counted=True),
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
                return Vote(key, min(self.n or Vote().n or turns, turns))
            case "collect":
                return Collect(min(self.n or 1, turns), key)
            case "consensus":
                return Consensus(n=min(self.n or Consensus().n or turns, turns))
            case "tournament":
                return Tournament(n=min(self.n or Tournament().n or turns, turns))
            case "ordered":
                return "ordered"
            case "first":
                return "first"
            case _:
                raise AssertionError(self.kind)  # `_FORMS` has a selection that isn't made here.


def parse_selection(text: str, n: int | None = None) -> SelectionSpec:
    """Parse a selection that decides after ``n`` passing replies; None for the default number."""
    name, colon, rest = text.partition(":")
    kind = name.strip().lower()
    form = _FORMS.get(kind)
    found = form and re.fullmatch(form.rest, colon + rest.strip(), re.DOTALL)
    if form is None or found is None:
        msg = (
            f"select {text!r} isn't one of the known selections\nAllowed: {'  '.join(SELECTIONS)}"
            f"\nSCORE: {'  '.join(SCORES)}\nKEY: {'  '.join(KEYS)}"
        )
        raise ValueError(msg)
    if n is not None and not form.counted:
        counted = ", ".join(name for name, form in _FORMS.items() if form.counted)
        msg = f"n is for {counted}, not for {kind}"
        raise ValueError(msg)
    parts = found.groupdict()
    if "k" in parts:
        n = int(parts["k"])
    return SelectionSpec(kind, parts.get("by") or "", n)


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
