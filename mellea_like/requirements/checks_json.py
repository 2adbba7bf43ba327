"""Checks of JSON, of JSON Schemas and of pydantic models."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack

from mellea_like.core.argument_checks import whole_number
from mellea_like.core.display import clipped, first_few
from mellea_like.core.format import check_format, parse_json, strip_fence
from mellea_like.core.format_watch import format_watch
from mellea_like.core.requirement import Requirement, ready_made
from mellea_like.core.validation import ValidationResult
from mellea_like.errors import RequirementError
from mellea_like.requirements.checks_common import CheckSettings, check
from mellea_like.requirements.json_arriving import OTHERS_STEPS, call_watch, watching_json
from mellea_like.requirements.json_schemas import (
    OF_THE_REST,
    TooCostly,
    counted,
    ignored,
    most_relevant,
    schema_validator,
    unknown_names,
    validator_of,
)
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import TypeForm

    from mellea_like.core.tools import CallWatch
    from mellea_like.core.validation import Candidate, StreamCheck

MAX_STEPS = 100_000
"""The most schema keywords to evaluate in one validation; this many take about two seconds."""


@ready_made
def is_json(*, early: bool = False, **settings: Unpack[CheckSettings]) -> Requirement:
    """Require a reply that is one JSON value as RFC 8259 defines it, without comments or NaN.

    White space and one Markdown code fence around the reply are allowed.

    Args:
        early: also check replies while they stream in, and close a request as soon as its reply is
            certain to fail; see `mellea_like.requirements.checks`.
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
        watching_json() if early else None,
    )


@ready_made
def json_schema(
    schema: Mapping[str, Any],
    *,
    early: bool = False,
    max_steps: int = MAX_STEPS,
    **settings: Unpack[CheckSettings],
) -> Requirement:
    r"""Require a reply that is JSON and valid under a JSON Schema.

    The draft of JSON Schema is the one that ``$schema`` names, or else 2020-12. The formats of the
    draft are checked. Patterns are in the dialect of the ``regex`` package, which includes
    ``\p{L}``. Formats and keywords that the draft doesn't have are ignored. A warning is logged for
    each of them when the check is made, except for keywords that start with ``x-``.

    White space and one Markdown code fence around the reply are allowed. If a reply takes too many
    steps, or a pattern takes too long, the requirement errs instead of blocking the event loop.

    Args:
        schema: a JSON Schema, which is copied. The schema may refer to its own parts and to the
            drafts' schemas. Nothing is fetched.
        early: also check replies while they stream in, and close a request at the first value that
            violates the schema; see `mellea_like.requirements.checks`. If an object repeats a name,
            the early check requires each of the name's values to be valid. The final check reads
            only the last value.
        max_steps: the largest number of keywords to evaluate for one reply, at least 1.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement. Its reason gives the most relevant error and where in the value it is. The
        more errors there are, the lower its score.

    Raises:
        ImportError: the ``jsonschema`` package isn't installed.
        TypeError: the schema isn't a mapping or can't be written as JSON, or ``max_steps`` isn't
            an int.
        ValueError: the schema is invalid or has a reference that leads nowhere, or ``max_steps``
            is below 1.
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
        watching_json(call_watch(validator, max_steps)) if early else None,
    )


def reader_of(schema: Mapping[str, Any]) -> Callable[[str], Any]:
    """Return a function that parses a tool's arguments and raises ``ValueError`` for wrong ones."""
    validator = schema_validator(schema)

    def read(text: str) -> Any:
        value = _loads(text.strip() or "{}")
        try:
            wrong, _ = _wrong_with(value, validator, MAX_STEPS, call=True)
        except TooCostly as exc:
            msg = f"its schema is too costly for {len(text)} characters: {exc}"
            raise ValueError(msg) from exc
        if wrong:
            raise ValueError(wrong)
        return value

    return read


def watch_of(schema: Mapping[str, Any]) -> CallWatch:
    """Return a check of a tool's arguments while they arrive, less strict than `reader_of`."""
    return call_watch(validator_of(schema), MAX_STEPS)


class ForeignSchema:
    """Checks replies against a JSON Schema from someone else, such as a client of the gateway.

    Such a schema may be costly. So the check of an arriving reply skips patterns, and it gives up
    after a number of steps. The check of the complete reply skips nothing. It may take long or need
    much memory, so run it in a process that can be ended.

    Args:
        schema: a valid schema.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema

    def stream(self) -> StreamCheck:
        """Return a check of a reply while it arrives, for ``Requirement(stream=...)``."""
        return watching_json(self.watch())

    def watch(self) -> CallWatch:
        """Return a check of a tool's arguments while they arrive, for ``Tool(watch=...)``."""
        return call_watch(validator_of(self._schema), OTHERS_STEPS, ours=False)

    def arguments(self) -> Requirement:
        """Return a requirement that a reply is JSON of valid tool arguments, without unknown names.

        Raises:
            ValueError: the schema is invalid.
        """
        validate = _validate(schema_validator(self._schema), MAX_STEPS, call=True)
        return Requirement(
            "is JSON of the tool's schema", validate, name="json_schema", inline=True
        )


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
            msg = f"the schema is too costly for a reply of {len(candidate.text)} characters: {exc}"
            raise RequirementError(msg, requirement="json_schema") from exc
        return ValidationResult(not wrong, wrong or "it is JSON of the schema", 1 / (1 + errors))

    return validate


def _wrong_with(value: Any, validator: Any, max_steps: int, *, call: bool) -> tuple[str, int]:
    """Return the errors of a value in words ("" if there are none), and the number of errors."""
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
    model: TypeForm[Any], *, early: bool = False, **settings: Unpack[CheckSettings]
) -> Requirement:
    """Require a reply that is JSON for a pydantic model or another type pydantic can validate.

    If you need the parsed value, use ``format=`` of ``sample`` instead. White space and one
    Markdown code fence around the reply are allowed.

    Args:
        model: the pydantic model or other type.
        early: also check replies while they stream in, and close a request as soon as its reply is
            certain to fail; see `mellea_like.requirements.checks`.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement. Its reason names the wrong fields.

    Raises:
        TypeError: pydantic can't validate ``model``.
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
        watching_json(lambda: format_watch(model).feed, constants=True) if early else None,
    )


def _loads(text: str) -> Any:
    try:
        return json.loads(strip_fence(text), parse_constant=_no_constant)
    except RecursionError:
        msg = "it is nested too deeply"
        raise ValueError(msg) from None


def _no_constant(name: str) -> None:
    msg = f"{name} isn't a JSON number"
    raise ValueError(msg)
