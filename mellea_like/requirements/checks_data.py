"""Checks of data: JSON, JSON Schema, pydantic models, choices, numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack, cast

from mellea_like.core.format import check_format, parse_json, strip_fence
from mellea_like.core.numbers import real_number, whole_number
from mellea_like.core.validation import ValidationResult
from mellea_like.errors import RequirementError
from mellea_like.requirements.bounded_schema import MAX_STEPS, TooCostly, bounded, counted
from mellea_like.requirements.checks_common import (
    Settings,
    check,
    clipped,
    given_texts,
    listed,
    quoted,
    ready_made,
)
from mellea_like.requirements.early_checks import json_only

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import TypeForm

    from mellea_like.core.requirement import Requirement
    from mellea_like.core.validation import Candidate

__all__ = ["is_json", "json_schema", "number_between", "one_of", "parses_as"]

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,4})?")

MAX_DIGITS = 1_000
"""A longer text is no number that anyone meant."""


@ready_made
def is_json(*, early: bool = False, **settings: Unpack[Settings]) -> Requirement:
    """Require a reply that is one JSON value (RFC 8259: no comments, no NaN).

    White space and one Markdown code fence round the whole of it are tolerated.

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
    """Require a reply that is JSON of a schema.

    The draft is the one that ``$schema`` names, else 2020-12. ``format`` is checked where the
    ``jsonschema`` package can do so alone (``date``, ``email``, ``ipv4``, ...). White space and one
    Markdown code fence round the reply are tolerated. A schema that takes too many steps on a
    reply, or too long for a pattern, makes the requirement err instead of hanging the event loop.

    Args:
        schema: a JSON Schema; copied. References to other documents are not fetched.
        early: check a reply while it arrives, too, and close its request at the first sure failure;
            see `mellea_like.requirements.checks`.
        max_steps: how many keywords may be looked at for one reply, at least 1.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement; its reason names the most relevant error and where in the value it is, and
        its score falls with the number of errors.

    Raises:
        ImportError: the ``jsonschema`` package is not installed.
        TypeError: the schema is no mapping, or holds what JSON can't; or a number is none.
        ValueError: it is no valid JSON Schema, or has a reference that leads nowhere; or
            ``max_steps`` is below 1.
    """
    whole_number("json_schema: max_steps", max_steps)
    validator = _schema_validator(schema)

    def validate(candidate: Candidate) -> ValidationResult:
        try:
            value = _loads(candidate.text)
        except ValueError as exc:
            return ValidationResult(False, f"it is not valid JSON: {exc}", 0.0)
        try:
            with counted(max_steps):
                errors: list[Any] = list(islice(validator.iter_errors(value), 100))
        except TooCostly as exc:
            msg = f"the schema takes {exc} on a reply of {len(candidate.text)} characters"
            raise RequirementError(msg, requirement="json_schema") from exc
        if not errors:
            return ValidationResult(True, "it is JSON of the schema", 1.0)
        worst = _most_relevant(errors)
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        reason = f"at {worst.json_path}: {clipped(worst.message, 200)}{more}"
        return ValidationResult(False, reason, 1.0 / (1 + len(errors)))

    shown = clipped(json.dumps(validator.schema, ensure_ascii=False), 4000)
    return check(
        "json_schema",
        f"is JSON that meets this JSON Schema: {shown}",
        validate,
        settings,
        json_only() if early else None,
    )


@ready_made
def parses_as(
    model: TypeForm[Any], *, early: bool = False, **settings: Unpack[Settings]
) -> Requirement:
    """Require a reply that is JSON of a pydantic model, or of another type pydantic can validate.

    To have the parsed value too, give ``format=`` to ``sample`` instead. White space and one
    Markdown code fence round the reply are tolerated.

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
            return ValidationResult(False, f"it is no {shown}: {clipped(str(exc), 400)}", 0.0)
        return ValidationResult(True, f"it is a {shown}", 1.0)

    return check(
        "parses_as",
        f"is JSON that is a valid {shown}",
        validate,
        settings,
        json_only(constants=True) if early else None,
    )


@ready_made
def one_of(
    choices: Iterable[str], *, ignore_case: bool = False, **settings: Unpack[Settings]
) -> Requirement:
    """Require a reply that is one of some texts, white space at its ends aside.

    Args:
        choices: the texts allowed.
        ignore_case: compare by Unicode case folding.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement.

    Raises:
        TypeError: it is a lone text, there is none, or one is no str.
        ValueError: a text is blank.
    """
    if isinstance(choices, str):
        msg = f"one_of takes a list of texts: one_of([{choices!r}])"
        raise TypeError(msg)
    allowed = given_texts("one_of", tuple(choices))
    if not all(text.strip() for text in allowed):
        msg = "one_of takes texts that are not blank"
        raise ValueError(msg)
    fold = str.casefold if ignore_case else str
    folded = {fold(text.strip()) for text in allowed}

    def validate(candidate: Candidate) -> ValidationResult:
        reply = candidate.text.strip()
        if fold(reply) in folded:
            return ValidationResult(True, f"it is {quoted(reply)}", 1.0)
        reason = f"it is {quoted(reply)}; allowed is {listed(allowed, 'or')}, and nothing else"
        return ValidationResult(False, reason, 0.0)

    return check("one_of", f"is {listed(allowed, 'or')}, and nothing else", validate, settings)


@ready_made
def number_between(
    low: float | None = None, high: float | None = None, **settings: Unpack[Settings]
) -> Requirement:
    """Require a reply that is one number, and the number to lie in a range.

    Numbers are read exactly, in the notation ``-12``, ``3.5`` or ``6e3``; white space at the ends
    aside, nothing else may stand in the reply. Where the value of the reply is an int or float
    already, that is taken.

    Args:
        low: the least allowed; None for no limit.
        high: the greatest allowed; None for no limit.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement; its score says how close the number is.

    Raises:
        TypeError: neither limit is given, or one is no number.
        ValueError: a limit is not finite, or the low one is over the high one.
    """
    if low is None and high is None:
        msg = "number_between needs a low limit, a high one, or both"
        raise TypeError(msg)
    least, most = _limit("low", low), _limit("high", high)
    if least is not None and most is not None and least > most:
        msg = f"number_between: low, {low}, is over high, {high}"
        raise ValueError(msg)
    if least is None:
        limits = f"at most {high}"
    else:
        limits = f"at least {low}" if most is None else f"between {low} and {high}"

    def validate(candidate: Candidate) -> ValidationResult:
        number = _number(candidate)
        if number is None:
            return ValidationResult(
                False, f"it is no number: {quoted(candidate.text.strip())}", 0.0
            )
        shown = clipped(str(number))
        distance = _distance(number, least, most)
        if distance == 0:
            return ValidationResult(True, f"it is {shown}", 1.0)
        size = max(Decimal(1), *(abs(limit) for limit in (least, most) if limit is not None))
        score = float(1 / (1 + distance / size))
        return ValidationResult(False, f"it is {shown}; it must be {limits}", score)

    return check("number_between", f"is a number {limits}, and nothing else", validate, settings)


def _loads(text: str) -> Any:
    try:
        return json.loads(strip_fence(text), parse_constant=_no_constant)
    except RecursionError:
        msg = "it is nested too deeply"
        raise ValueError(msg) from None


def _no_constant(name: str) -> None:
    msg = f"{name} is no JSON number"
    raise ValueError(msg)


def _most_relevant(errors: list[Any]) -> Any:
    from jsonschema import exceptions  # noqa: PLC0415

    return cast("Any", exceptions).best_match(errors)


def _schema_validator(schema: Mapping[str, Any]) -> Any:
    try:
        from jsonschema import Draft202012Validator  # noqa: PLC0415 (an extra)
    except ImportError as exc:
        msg = "json_schema needs the jsonschema package: pip install 'mellea-like[checks]'"
        raise ImportError(msg) from exc
    from jsonschema.exceptions import SchemaError  # noqa: PLC0415
    from jsonschema.validators import validator_for  # noqa: PLC0415
    from referencing import Registry, Resource  # noqa: PLC0415
    from referencing.exceptions import Unresolvable  # noqa: PLC0415
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415

    if not isinstance(schema, Mapping):
        msg = f"json_schema takes a schema as a mapping, not {clipped(repr(schema))}"
        raise TypeError(msg)
    try:
        copied = json.loads(json.dumps(dict(schema)))
    except (TypeError, ValueError) as exc:
        msg = f"json_schema takes a schema that JSON can hold: {exc}"
        raise TypeError(msg) from exc
    kind = validator_for(copied, default=Draft202012Validator)
    # An empty registry: the package's default one would fetch references over the network.
    registry: Registry[Any] = Registry()
    try:
        kind.check_schema(copied)
        root = Resource.from_contents(copied, default_specification=DRAFT202012)
        _follow_references(root, registry.resolver_with_root(root))
    except SchemaError as exc:
        msg = f"json_schema: the schema is wrong at {exc.json_path}: {clipped(exc.message, 200)}"
        raise ValueError(msg) from exc
    except Unresolvable as exc:
        msg = f"json_schema: the reference {exc.ref!r} leads nowhere in the schema"
        raise ValueError(msg) from exc
    return bounded(kind)(copied, registry=registry, format_checker=kind.FORMAT_CHECKER)


def _follow_references(resource: Any, resolver: Any) -> None:
    contents: Any = resource.contents
    for keyword in ("$ref", "$dynamicRef") if hasattr(contents, "get") else ():
        reference = contents.get(keyword)
        if isinstance(reference, str):
            resolver.lookup(reference)
    for part in resource.subresources():
        _follow_references(part, resolver.in_subresource(part))


def _limit(name: str, limit: object) -> Decimal | None:
    if limit is None:
        return None
    # By way of the shortest notation: a user's 0.1 means 0.1, not the nearest binary fraction.
    return Decimal(repr(real_number(f"number_between: {name}", limit)))


def _number(candidate: Candidate) -> Decimal | None:
    value = candidate.value
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    text = repr(value) if isinstance(value, float) else candidate.text.strip()
    if len(text) > MAX_DIGITS or _NUMBER.fullmatch(text) is None:
        return None
    return Decimal(text)


def _distance(number: Decimal, low: Decimal | None, high: Decimal | None) -> Decimal:
    if high is not None and number > high:
        return number - high
    if low is not None and number < low:
        return low - number
    return Decimal(0)
