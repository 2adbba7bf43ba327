"""The grammar of selections in configuration, such as ``first`` or ``collect:3:lower``."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mellea_like.core.format import strip_fence
from mellea_like.scoring import judge_score
from mellea_like.selections import BestOf, Collect, Consensus, Tournament, Vote

if TYPE_CHECKING:
    from collections.abc import Callable

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


@dataclass(frozen=True)
class SelectionSpec:
    """A selection read from an expression such as ``best:length``; `make` makes the selection."""

    kind: str
    by: str = ""
    n: int | None = None

    @property
    def judged(self) -> bool:
        """Whether the selection asks a judge model."""
        return _FORMS[self.kind].judged or self.by.partition(":")[0] == "judge"

    @property
    def features(self) -> tuple[str, ...]:
        """The selection's features, as named in `EXCLUSIONS`; see `BaseSelection.features`."""
        return _FORMS[self.kind].features

    def make(self, judge: Backend, turns: int) -> Selection:
        """Make the selection for calls of at most ``turns`` draws.

        An ``n`` greater than ``turns`` is reduced to ``turns``.
        """
        return _FORMS[self.kind].make(self, judge, turns)


def parse_selection(text: str, n: int | None = None) -> SelectionSpec:
    """Parse a selection that decides after ``n`` passing replies; None for the default number."""
    name, colon, rest = text.partition(":")
    kind = name.strip().lower()
    form = _FORMS.get(kind)
    found = re.fullmatch(form.rest, colon + rest.strip(), re.DOTALL) if form else None
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


# --- the table -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """A kind of selection as text: its form, the function that makes it, and what follows its name.

    ``make`` gets the `SelectionSpec`, the call's judge and the most draws of a call. ``rest`` is
    the pattern of what follows the name. ``features`` are those of `BaseSelection.features`.
    ``counted`` is whether it takes an ``n``, and ``judged`` whether it always asks a judge model.
    """

    written: str
    make: Callable[[SelectionSpec, Backend, int], Selection]
    rest: str = ""
    features: tuple[str, ...] = ("several", "scored")
    counted: bool = False
    judged: bool = False


def _best(spec: SelectionSpec, judge: Backend, turns: int) -> BestOf:
    n = None if spec.n is None else min(spec.n, turns)
    if not spec.judged:
        return BestOf(_Score(spec.by), n, inline=True)
    return BestOf(judge_score(spec.by.partition(":")[2] or RUBRIC, judge=judge), n)


def _key(spec: SelectionSpec) -> _Key | None:
    return _Key(spec.by) if spec.by else None


def _number(spec: SelectionSpec, default: int | None, turns: int) -> int:
    return min(spec.n or default or turns, turns)


_FORMS: dict[str, _Form] = {
    "first": _Form("first", lambda _s, _j, _t: "first", features=("first",)),
    "ordered": _Form("ordered", lambda _s, _j, _t: "ordered", features=("ordered",)),
    "best": _Form("best:SCORE", _best, f":{_SCORE}", counted=True),
    "vote": _Form(
        "vote[:KEY]",
        lambda spec, _, turns: Vote(_key(spec), _number(spec, Vote().n, turns)),
        _KEY,
        ("several",),
        counted=True,
    ),
    "collect": _Form(
        "collect:K[:KEY]",
        lambda spec, _, turns: Collect(_number(spec, 1, turns), _key(spec)),
        f":(?P<k>[1-9][0-9]{{0,3}}){_KEY}",
        ("several", "collect"),
    ),
    "consensus": _Form(
        "consensus",
        lambda spec, _, turns: Consensus(n=_number(spec, Consensus().n, turns)),
        counted=True,
    ),
    "tournament": _Form(
        "tournament",
        lambda spec, _, turns: Tournament(n=_number(spec, Tournament().n, turns)),
        counted=True,
        judged=True,
    ),
}

SELECTIONS = tuple(form.written for form in _FORMS.values())
"""The forms of all selections, for help and error messages."""
