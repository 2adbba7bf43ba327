"""Checks of JSON: whether it is any, of a JSON Schema, of a pydantic model."""

from __future__ import annotations

import copy
import json
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack

from mellea_like.core.argument_checks import whole_number
from mellea_like.core.display import first_few
from mellea_like.core.format import check_format, parse_json, strip_fence
from mellea_like.core.format_watch import FormatWatch
from mellea_like.core.requirement import Requirement
from mellea_like.core.validation import ValidationResult, Verdict
from mellea_like.errors import RequirementError
from mellea_like.requirements.checks_common import (
    Answer,
    Fresh,
    Settings,
    check,
    clipped,
    ready_made,
)
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import TypeForm

    from mellea_like.core.tools import CallWatch
    from mellea_like.core.validation import Candidate
    from mellea_like.requirements.checks_common import Look

from mellea_like.requirements.json_arriving import SchemaShape, json_only
from mellea_like.requirements.json_schemas import (
    OF_THE_REST,
    TooCostly,
    counted,
    ignored,
    most_relevant,
    schema_validator,
    spent,
    unknown_names,
    validator_of,
)

__all__ = ["is_json", "json_only", "json_schema", "parses_as"]

MAX_STEPS = 100_000
"""Keywords that are looked at in one validation; so many take about two seconds."""

OTHERS_STEPS = 2_000
"""Keywords that are looked at while a reply of somebody else's schema arrives; some 20 ms."""


@ready_made
def is_json(*, early: bool = False, **settings: Unpack[Settings]) -> Requirement:
    """Require a reply that is one JSON value (RFC 8259: no comments, no NaN).

    White space and one Markdown code fence around the whole of it are tolerated.

    Args:
        early: check a reply while it arrives, too, and close its request at the first sure failure;
            see `mellea_like.requirements.checks`.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement.
    """

    def validate(candidate: Candidate) -> ValidationResult:
        try:
            _loads(candidate.text)
        except ValueError as exc:
            return ValidationResult(False, f"it is not valid JSON: {exc}", 0.0)
        return ValidationResult(True, "it is valid JSON", 1.0)

    return check(
        "is_json",
        "is valid JSON and nothing else",
        validate,
        settings,
        json_only() if early else None,
    )


@ready_made
def json_schema(
    schema: Mapping[str, Any],
    *,
    early: bool = False,
    max_steps: int = MAX_STEPS,
    **settings: Unpack[Settings],
) -> Requirement:
    r"""Require a reply that is JSON of a schema.

    The draft is the one that ``$schema`` names, else 2020-12. Its formats are checked, and patterns
    are in the dialect of the ``regex`` package, which has ``\p{L}``. A format or a keyword that the
    draft doesn't have, perhaps a misspelled one, checks nothing: the log has a warning when the
    check is made, except for keywords that start with ``x-``.

    White space and one Markdown code fence around the reply are tolerated. A schema that takes too
    many steps on a reply, or too long for a pattern, makes the requirement err instead of hanging
    the event loop.

    Args:
        schema: a JSON Schema; copied. References to other documents than the drafts' own schemas
            are not fetched.
        early: check a reply while it arrives, too, and close its request at the first value that
            can't fit; see `mellea_like.requirements.checks`. If a name is twice in an object, both
            of its values must fit, though the whole check reads the last one only.
        max_steps: how many keywords may be looked at for one reply, at least 1.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement; its reason names the most relevant error and where in the value it is, and
        its score falls with the number of errors.

    Raises:
        ImportError: the ``jsonschema`` package is not installed.
        TypeError: the schema isn't a mapping, or holds what JSON can't; or ``max_steps`` isn't
            an int.
        ValueError: it isn't a valid JSON Schema, or has a reference that leads nowhere; or
            ``max_steps`` is below 1.
    """
    whole_number("json_schema: max_steps", max_steps)
    validator = schema_validator(schema)
    for idle in ignored(validator):
        warn("json_schema: %s", idle)
    validate = _validate(validator, max_steps)
    shown = clipped(json.dumps(validator.schema, ensure_ascii=False), 4000)
    return check(
        "json_schema",
        f"is JSON that meets this JSON Schema: {shown}",
        validate,
        settings,
        _of_schema(validator, max_steps) if early else None,
    )


def early_schema(schema: Mapping[str, Any]) -> Fresh:
    """Return a stream check for a schema of somebody else's: valid, but of unknown cost.

    It looks at no pattern, and gives up after some steps: then the whole check decides.
    """
    return _of_schema(validator_of(json.loads(json.dumps(schema))), OTHERS_STEPS, ours=False)


def reader_of(schema: Mapping[str, Any]) -> Callable[[str], Any]:
    """Return what reads a tool's arguments; a `ValueError` says what is wrong with a text.

    Args:
        schema: the JSON Schema of the arguments.

    Raises:
        ImportError: the ``jsonschema`` package is not installed.
        TypeError: the schema holds what JSON can't.
        ValueError: it isn't a valid JSON Schema.
    """
    validator = schema_validator(schema)

    def read(text: str) -> Any:
        value = _loads(text.strip() or "{}")
        try:
            wrong, _ = _wrong_with(value, validator, MAX_STEPS, call=True)
        except TooCostly as exc:
            msg = f"its schema takes {exc} on {len(text)} characters"
            raise ValueError(msg) from exc
        if wrong:
            raise ValueError(wrong)
        return value

    return read


def watch_of(schema: Mapping[str, Any], *, ours: bool = True) -> CallWatch:
    """Return what looks at a tool's arguments while they arrive: `reader_of` refuses what it does.

    Args:
        schema: the JSON Schema of the arguments, which is one.
        ours: whether it is the program's own; of somebody else's, it looks at no pattern, and
            gives up after some steps.
    """
    validator = validator_of(json.loads(json.dumps(dict(schema))))
    return _call_watch(validator, MAX_STEPS if ours else OTHERS_STEPS, ours=ours)


def call_arguments(schema: Mapping[str, Any]) -> Requirement:
    """Require the arguments of a tool's call, as `reader_of` reads them."""
    validate = _validate(schema_validator(schema), MAX_STEPS, call=True)
    return Requirement("is JSON of the tool's schema", validate, name="json_schema", inline=True)


def _validate(
    validator: Any, max_steps: int, *, call: bool = False
) -> Callable[[Candidate], ValidationResult]:
    def validate(candidate: Candidate) -> ValidationResult:
        try:
            value = _loads(candidate.text)
        except ValueError as exc:
            return ValidationResult(False, f"it is not valid JSON: {exc}", 0.0)
        try:
            wrong, errors = _wrong_with(value, validator, max_steps, call=call)
        except TooCostly as exc:
            msg = f"the schema takes {exc} on a reply of {len(candidate.text)} characters"
            raise RequirementError(msg, requirement="json_schema") from exc
        return ValidationResult(not wrong, wrong or "it is JSON of the schema", 1 / (1 + errors))

    return validate


def _wrong_with(value: Any, validator: Any, max_steps: int, *, call: bool) -> tuple[str, int]:
    """Return what is wrong with a value, and how many errors that are."""
    with counted(max_steps):
        errors: list[Any] = list(islice(validator.iter_errors(value), 100))
        unknown = list(islice(unknown_names(value, [validator]), 100)) if call else []
    if unknown:
        errors = [error for error in errors if error.validator not in OF_THE_REST]
    told = list(first_few(unknown))
    if errors:
        worst = most_relevant(errors)
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        told.append(f"at {worst.json_path}: {clipped(worst.message, 200)}{more}")
    return "; ".join(told), len(unknown) + len(errors)


@ready_made
def parses_as(
    model: TypeForm[Any], *, early: bool = False, **settings: Unpack[Settings]
) -> Requirement:
    """Require a reply that is JSON of a pydantic model, or of another type pydantic can validate.

    To have the parsed value too, give ``format=`` to ``sample`` instead. White space and one
    Markdown code fence around the reply are tolerated.

    Args:
        model: the type.
        early: check a reply while it arrives, too, and close its request at the first sure failure;
            see `mellea_like.requirements.checks`.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement; its reason names the fields that are wrong.

    Raises:
        TypeError: pydantic can't validate that type.
    """
    check_format(model)
    shown = getattr(model, "__name__", str(model))

    def validate(candidate: Candidate) -> ValidationResult:
        try:
            parse_json(model, candidate.text)
        except ValueError as exc:
            return ValidationResult(
                False, f"it isn't a valid {shown}: {clipped(str(exc), 400)}", 0.0
            )
        return ValidationResult(True, f"it is a {shown}", 1.0)

    return check(
        "parses_as",
        f"is JSON that is a valid {shown}",
        validate,
        settings,
        _of_type(model) if early else None,
    )


def _of_type(model: Any) -> Fresh:
    """Return a stream check that fails once a reply can't become a value of a type any more."""
    return _watching(lambda: FormatWatch(model).feed, constants=True)


def _of_schema(validator: Any, max_steps: int, *, ours: bool = True) -> Fresh:
    """Return a stream check that fails at the first value that a schema can't have."""
    return _watching(_call_watch(validator, max_steps, ours=ours))


def _call_watch(validator: Any, max_steps: int, *, ours: bool = True) -> CallWatch:
    def begin() -> Callable[[str], str | None]:
        watch = FormatWatch(None, shape=SchemaShape(validator))
        left = max_steps

        def feed(text: str) -> str | None:
            nonlocal left
            with counted(left, ours=ours):
                why = watch.feed(text)
                left = spent.left
            return why

        return feed

    return begin


def _watching(
    begin: Callable[[], Callable[[str], str | None]], *, constants: bool = False
) -> Fresh:
    """Return a stream check that reads JSON, and has something look at its values."""
    json_so_far = json_only(constants=constants)

    def make() -> Look:
        syntax, feed = copy.deepcopy(json_so_far), begin()

        def look(text: str, delta: str) -> Answer:
            said = syntax(text, delta)
            if said is not Verdict.UNKNOWN:
                return said
            why = feed(text)
            return (Verdict.FAIL, why) if why else Verdict.UNKNOWN

        return look

    return Fresh(make)


def _loads(text: str) -> Any:
    try:
        return json.loads(strip_fence(text), parse_constant=_no_constant)
    except RecursionError:
        msg = "it is nested too deeply"
        raise ValueError(msg) from None


def _no_constant(name: str) -> None:
    msg = f"{name} isn't a JSON number"
    raise ValueError(msg)
