"""A check of each part of a reply: each sentence, line, paragraph or list item."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Unpack

from mellea_like.core.display import quoted
from mellea_like.core.requirement import CheckStage, Requirement, ready_made
from mellea_like.core.validation import ValidationResult, ValidationStatus
from mellea_like.requirements.checks_common import CheckSettings, Decision, check, listed
from mellea_like.requirements.checks_counts import sentences_of
from mellea_like.requirements.staged_validation import StagedValidation

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.core.validation import Candidate

Part = Literal["sentence", "line", "paragraph", "item"]

_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")
_ITEM = re.compile(r"\s*(?:[-*+•‣◦–]|\d{1,3}[.)]|[A-Za-z][.)])\s+(\S.*)")


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in _BLANK_LINES.split(text) if part.strip()]


def _items(text: str) -> list[str]:
    return [item[1].rstrip() for item in map(_ITEM.match, text.splitlines()) if item]


_PARTS: dict[str, Callable[[str], list[str]]] = {
    "sentence": sentences_of,
    "line": _lines,
    "paragraph": _paragraphs,
    "item": _items,
}


@ready_made
def each(part: Part, check_of_part: Requirement, **settings: Unpack[CheckSettings]) -> Requirement:
    """Require that each part of the reply passes a check. A reply without such parts fails.

    Examples are ``each("sentence", word_count(at_most=15))`` and ``each("line", ends_with("!") &
    casing("lower"))``.

    Args:
        part: ``"sentence"`` (as in `sentence_count`), ``"line"`` (lines that aren't blank),
            ``"paragraph"`` (parts between blank lines), or ``"item"`` (the rest of a line that
            starts with ``-``, ``*``, ``+``, ``•``, ``1.``, ``1)``, ``a.`` or ``a)``).
        check_of_part: a requirement with a validator, or a combination of such requirements. The
            validator gets a candidate whose text and value are the part.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement. Its reason shows the first part that fails, and its score is the share of
        parts that pass. If the check errs for a part, the requirement errs.

    Raises:
        TypeError: ``check_of_part`` isn't a `Requirement`.
        ValueError: ``part`` is unknown, or ``check_of_part`` needs a judge.
    """
    if part not in _PARTS:
        msg = f"each: the part must be {listed(tuple(_PARTS), 'or')}, not {part!r}"
        raise ValueError(msg)
    inner = check_of_part
    if not isinstance(inner, Requirement):
        msg = f"each needs a check of a {part}, such as word_count(at_most=20), not {inner!r}"
        raise TypeError(msg)
    if inner.judged:
        msg = f"each: {inner.description!r} has no validator: ask a judge about the whole reply"
        raise ValueError(msg)
    split, staged = _PARTS[part], StagedValidation([inner])

    def validate(candidate: Candidate) -> Decision:
        texts = split(candidate.text)
        asked = [replace(candidate, text=text, value=text) for text in texts]
        begun = [staged.begin(one, True) for one in asked]
        if all(done for _, done in begun):
            return _verdict(part, texts, [verdicts[0] for verdicts, _ in begun])
        return _finish(asked, begun)

    async def _finish(
        asked: list[Candidate], begun: list[tuple[list[ValidationResult], bool]]
    ) -> ValidationResult:
        results = [
            (verdicts if done else await staged.finish(verdicts, one, True))[0]
            for one, (verdicts, done) in zip(asked, begun, strict=True)
        ]
        return _verdict(part, [one.text for one in asked], results)

    made = check("each", f"each {part} of it: {inner.description}", validate, settings)
    if inner.stage is not CheckStage.INLINE:
        vars(made).update(inline=False, stage=CheckStage.AWAITED)
    return made


def _verdict(part: str, texts: list[str], results: list[ValidationResult]) -> ValidationResult:
    for result in results:
        if result.status is ValidationStatus.ERRORED:
            return result
    if not results:
        return ValidationResult(False, f"it has no {part}", 0.0)
    failed = [i for i, result in enumerate(results) if not result]
    if not failed:
        return ValidationResult(True, f"each {part} meets it", 1.0)
    first = failed[0]
    why = f"{part} {first + 1} fails, {quoted(texts[first])}"
    if reason := results[first].reason:
        why += f": {reason}"
    if len(failed) > 1:
        why += f" (and {len(failed) - 1} more)"
    return ValidationResult(False, why, 1.0 - len(failed) / len(results))
