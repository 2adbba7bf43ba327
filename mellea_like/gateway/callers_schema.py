"""JSON Schemas that come with requests: checked before anything is asked for them, and bounded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from mellea_like.core.action import Instruction
from mellea_like.core.context import Context
from mellea_like.core.generation import Generation
from mellea_like.core.validation import Candidate
from mellea_like.errors import RequirementError
from mellea_like.gateway.callers_pattern import problem_with_pattern
from mellea_like.gateway.fields import refuse, wrong
from mellea_like.requirements.checks import json_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mellea_like.core.requirement import Requirement

__all__ = ["callers_schema", "warm_up"]

PARAM = "response_format.json_schema.schema"

MAX_CHARACTERS = 16_384
"""A longer schema takes more than a tenth of a second to check, in which nobody else is served."""

MAX_STEPS = 10_000
"""Keywords that are looked at for one reply; so many take about a fifth of a second."""

REFUSED = frozenset({"patternProperties", "unevaluatedItems", "unevaluatedProperties"})
"""Keywords whose cost for a reply has no bound."""


def callers_schema(schema: Mapping[str, Any], *, early: bool, check_only: bool) -> Requirement:
    """Make a requirement of a schema that came with a request.

    Args:
        schema: the schema.
        early: have it reject a reply while it arrives, where it can.
        check_only: whether the prompt is to leave it out.

    Returns:
        The requirement.

    Raises:
        Refusal: it is no JSON Schema, too large, or has a keyword that costs too much.
    """
    if len(json.dumps(schema)) > MAX_CHARACTERS:
        refuse(PARAM, f"{MAX_CHARACTERS} characters are the most for a request's schema")
    _look_for_refused(schema)
    try:
        made = json_schema(schema, early=early, check_only=check_only, max_steps=MAX_STEPS)
        _try_out(made)
    except (TypeError, ValueError, RequirementError) as exc:
        problem = str(exc)
    else:
        return made
    raise wrong(PARAM, problem)


def warm_up() -> None:
    """Load what the first schema would load from the disk, and hold everybody up for."""
    _try_out(json_schema({"$ref": "#/$defs/any", "$defs": {"any": {"pattern": "."}}}))


def _look_for_refused(part: object) -> None:
    inside: Iterable[object] = ()
    if isinstance(part, dict):
        keywords = cast("Mapping[str, object]", part)
        for name in keywords.keys() & REFUSED:
            refuse(PARAM, f"{name} is not supported in a request's schema")
        pattern = keywords.get("pattern")
        if isinstance(pattern, str) and (problem := problem_with_pattern(pattern)):
            refuse(PARAM, problem)
        inside = keywords.values()
    elif isinstance(part, list):
        inside = cast("Iterable[object]", part)
    for inner in inside:
        _look_for_refused(inner)


def _try_out(requirement: Requirement) -> None:
    """Look at a reply with it: references that go round in a circle show themselves."""
    text = "{}"
    candidate = Candidate(text, text, Generation(text), Context(), Instruction(text))
    assert requirement.validator is not None  # noqa: S101 (a ready-made check has one)
    requirement.validator(candidate)
