"""Checks of JSON: whether it is any, of a JSON Schema, of a pydantic model."""

# ruff: noqa: SIM905 (a list of words)

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import lru_cache, partial
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn, Unpack, cast

from mellea_like.core.argument_checks import unknown_argument, whole_number
from mellea_like.core.display import bounded, first_few
from mellea_like.core.format import check_format, parse_json, strip_fence
from mellea_like.core.format_watch import BrokenError, FormatWatch
from mellea_like.core.requirement import Requirement
from mellea_like.core.validation import ValidationResult, Verdict
from mellea_like.errors import RequirementError
from mellea_like.requirements.checks_common import (
    Answer,
    Fresh,
    Settings,
    check,
    clipped,
    quoted,
    ready_made,
)
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from typing_extensions import TypeForm

    from mellea_like.core.tools import CallWatch
    from mellea_like.core.validation import Candidate
    from mellea_like.requirements.checks_common import Look

__all__ = ["is_json", "json_only", "json_schema", "parses_as"]

MAX_STEPS = 100_000
"""Keywords that are looked at in one validation; so many take about two seconds."""

OTHERS_STEPS = 2_000
"""Keywords that are looked at while a reply of somebody else's schema arrives; some 20 ms."""

DEEPEST = 16
"""Inside more values than that, one is validated with the value that it is in."""

PATTERN_SECONDS = 0.1
"""The most processor time for one search of a pattern."""

_ANNOTATIONS = frozenset(
    "$anchor $comment $defs $dynamicAnchor $id $recursiveAnchor $schema $vocabulary contentEncoding"
    " contentMediaType contentSchema default definitions deprecated description discriminator else"
    " example examples externalDocs format maxContains minContains readOnly then title"
    " writeOnly".split()
)
"""Keywords that are no mistakes, though they do not check anything by themselves."""

_NOT_ASCII = re.compile(r"[\u00a0-\U0010ffff]")
_COSTLY = frozenset({"format", "uniqueItems", "multipleOf"})
"""Keywords, other than those of patterns, that can take long in one step."""

_OF_THE_REST = frozenset({"additionalProperties", "unevaluatedProperties"})
"""Keywords for the names in an object that no other keyword looks at."""


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
    validator = _schema_validator(schema)
    for ignored in _ignored(validator):
        warn("json_schema: %s", ignored)
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
    return _of_schema(_validator_of(json.loads(json.dumps(schema))), OTHERS_STEPS, ours=False)


def reader_of(schema: Mapping[str, Any]) -> Callable[[str], Any]:
    """Return what reads a tool's arguments; a `ValueError` says what is wrong with a text.

    Args:
        schema: the JSON Schema of the arguments.

    Raises:
        ImportError: the ``jsonschema`` package is not installed.
        TypeError: the schema holds what JSON can't.
        ValueError: it isn't a valid JSON Schema.
    """
    validator = _schema_validator(schema)

    def read(text: str) -> Any:
        value = _loads(text.strip() or "{}")
        try:
            wrong, _ = _wrong_with(value, validator, MAX_STEPS, call=True)
        except _TooCostly as exc:
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
    validator = _validator_of(json.loads(json.dumps(dict(schema))))
    return _call_watch(validator, MAX_STEPS if ours else OTHERS_STEPS, ours=ours)


def call_arguments(schema: Mapping[str, Any]) -> Requirement:
    """Require the arguments of a tool's call, as `reader_of` reads them."""
    validate = _validate(_schema_validator(schema), MAX_STEPS, call=True)
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
        except _TooCostly as exc:
            msg = f"the schema takes {exc} on a reply of {len(candidate.text)} characters"
            raise RequirementError(msg, requirement="json_schema") from exc
        return ValidationResult(not wrong, wrong or "it is JSON of the schema", 1 / (1 + errors))

    return validate


def _wrong_with(value: Any, validator: Any, max_steps: int, *, call: bool) -> tuple[str, int]:
    """Return what is wrong with a value, and how many errors that are."""
    with _counted(max_steps):
        errors: list[Any] = list(islice(validator.iter_errors(value), 100))
        unknown = list(islice(_unknown(value, [validator]), 100)) if call else []
    if unknown:
        errors = [error for error in errors if error.validator not in _OF_THE_REST]
    told = list(first_few(unknown))
    if errors:
        worst = _most_relevant(errors)
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
        watch = FormatWatch(None, shape=_SchemaShape(validator))
        left = max_steps

        def feed(text: str) -> str | None:
            nonlocal left
            with _counted(left, ours=ours):
                why = watch.feed(text)
                left = _spent.left
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
    from referencing import Resource  # noqa: PLC0415
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
    kind: Any = validator_for(copied, default=Draft202012Validator)
    try:
        kind.check_schema(copied, format_checker=_formats(kind))
        root = Resource.from_contents(copied, default_specification=DRAFT202012)
        _follow_references(root, _drafts().resolver_with_root(root))
    except SchemaError as exc:
        msg = f"json_schema: the schema is wrong at {exc.json_path}: {clipped(exc.message, 200)}"
        raise ValueError(msg) from exc
    except Unresolvable as exc:
        msg = f"json_schema: the reference {exc.ref!r} leads nowhere in the schema"
        raise ValueError(msg) from exc
    return _validator_of(copied)


def _validator_of(schema: dict[str, Any]) -> Any:
    """Make the validator of a schema that is one."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415 (an extra)
    from jsonschema.validators import validator_for  # noqa: PLC0415

    kind: Any = validator_for(schema, default=Draft202012Validator)
    return _bounded(kind)(schema, registry=_drafts(), format_checker=_formats(kind))


def _drafts() -> Any:
    """Return the drafts' own documents; jsonschema's default would fetch others, too."""
    return import_module("jsonschema_specifications").REGISTRY


def _formats(kind: Any) -> Any:
    """Return a checker of a draft's formats; a pattern is one of the package that searches it."""
    import regex  # noqa: PLC0415 (an extra, the same one)
    from jsonschema import FormatChecker  # noqa: PLC0415

    def is_pattern(value: object) -> bool:
        return not isinstance(value, str) or bool(regex.compile(value))

    formats: Any = FormatChecker(())
    formats.checkers = {**kind.FORMAT_CHECKER.checkers, "regex": (is_pattern, regex.error)}

    def is_iri(uri: str, value: object) -> bool:
        # RFC 3987, section 3.1: an IRI is a URI whose characters outside ASCII are not escaped yet.
        escaped = _NOT_ASCII.sub("%C3%A4", value) if isinstance(value, str) else value
        return bool(formats.conforms(escaped, uri))

    for iri, uri in (("iri", "uri"), ("iri-reference", "uri-reference")):
        if uri in formats.checkers:
            formats.checkers.setdefault(iri, (partial(is_iri, uri), ()))
    return formats


def _ignored(validator: Any) -> Iterator[str]:
    """Yield a message for each format or keyword of a schema that does not check anything."""
    from referencing import Resource  # noqa: PLC0415
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415

    properties = validator.META_SCHEMA.get("properties", {})
    # The later drafts' lists also have old keywords that no longer check anything.
    known = {*validator.VALIDATORS, *_ANNOTATIONS, *(properties if "type" in properties else ())}
    formats = list(validator.format_checker.checkers)
    waiting = [Resource.from_contents(validator.schema, default_specification=DRAFT202012)]
    while waiting:
        resource: Any = waiting.pop()
        waiting += resource.subresources()
        contents: Any = resource.contents
        keywords: Iterable[str] = contents if hasattr(contents, "get") else ()
        for keyword in keywords:
            if keyword not in known and not keyword.startswith("x-"):
                yield f"the keyword {bounded(keyword, 60)!r} is ignored{_meant(keyword, known)}"
            value: Any = contents[keyword]
            if keyword == "format" and isinstance(value, str) and value not in formats:
                yield f"the format {bounded(value, 60)!r} is not checked{_meant(value, formats)}"


def _meant(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, sorted(known), n=1, cutoff=0.75)
    return f": did you mean {close[0]!r}?" if close else ": this draft does not have it"


def _follow_references(resource: Any, resolver: Any) -> None:
    contents: Any = resource.contents
    for keyword in ("$ref", "$dynamicRef") if hasattr(contents, "get") else ():
        reference = contents.get(keyword)
        if isinstance(reference, str):
            resolver.lookup(reference)
    for part in resource.subresources():
        _follow_references(part, resolver.in_subresource(part))


# --- validations that end ---------------------------------------------------------------------
# A schema of a few hundred bytes can ask for more steps than anyone can wait for (`anyOf` whose
# parts refer to each other), and so can a regular expression.

_spent = threading.local()


class _TooCostly(Exception):
    """A validation takes more than it may; the message says more of what."""


@contextmanager
def _counted(most: int, *, ours: bool = True) -> Generator[None]:
    """Count the steps of one validation from here on, in this thread."""
    _spent.left = most
    _spent.ours = ours
    try:
        yield
    except RecursionError:
        msg = "references that go around in a circle"
        raise _TooCostly(msg) from None


@lru_cache(maxsize=16)
def _bounded(kind: Any) -> Any:
    """Make a validator class that finds the same errors, or raises `_TooCostly`."""
    from jsonschema import validators  # noqa: PLC0415 (an extra)

    own = {**kind.VALIDATORS, "pattern": _pattern, "patternProperties": _patterns}
    for keyword, names in (("additionalProperties", _named), ("unevaluatedProperties", _evaluated)):
        if keyword in own:
            own[keyword] = _of_the_rest(own[keyword], names)
    for keyword in _COSTLY & own.keys():
        own[keyword] = _only_ours(own[keyword])
    checks = {name: _counting(check) for name, check in own.items()}
    extend: Any = getattr(validators, "extend")  # noqa: B009 (its types are half unknown)
    return extend(kind, checks)


def _counting(check: Callable[..., Any]) -> Callable[..., Any]:
    def step(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _count_step()
        return check(validator, value, instance, schema)

    return step


def _only_ours(check: Callable[..., Any]) -> Callable[..., Any]:
    def step(*args: Any) -> Any:
        _refuse_others()
        return check(*args)

    return step


def _refuse_others() -> None:
    """Refuse what takes long in one step, for a schema that somebody else wrote."""
    if not _spent.ours:
        msg = "a step of unknown cost"
        raise _TooCostly(msg)


def _count_step() -> None:
    _spent.left -= 1
    if _spent.left < 0:
        msg = "too many steps"
        raise _TooCostly(msg)


def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415

    if validator.is_type(instance, "string") and not _found(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _patterns(
    validator: Any, patterns: dict[str, Any], instance: Any, _schema: Any
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, part in patterns.items():
        for name, value in instance.items():
            if _found(pattern, name):
                yield from validator.descend(value, part, path=name, schema_path=pattern)


def _of_the_rest(
    check: Callable[..., Any], names: Callable[[Any, Any, Any], set[str]]
) -> Callable[..., Any]:
    """Have a keyword look at what others left over only, so that it searches no pattern itself."""

    def rest(validator: Any, part: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if validator.is_type(instance, "object"):
            known = names(validator, instance, schema)
            left = {name: value for name, value in instance.items() if name not in known}
            yield from check(validator, part, left, {})

    return rest


def _named(_validator: Any, instance: Any, schema: Any) -> set[str]:
    """Return the names in an object that a schema's own keywords say something of."""
    patterns = schema.get("patternProperties", ())
    matching = {name for name in instance if any(_found(pattern, name) for pattern in patterns)}
    return matching | (set(instance) & set(schema.get("properties", ())))


def _evaluated(validator: Any, instance: Any, _schema: Any) -> set[str]:
    """Return the names in an object that a schema, or a part of it that holds, has looked at."""
    names: set[str] = set()
    for part in _parts(validator, instance):
        names |= _named(part, instance, part.schema)
        for keyword in _OF_THE_REST & part.schema.keys():
            check = part.evolve(schema=part.schema[keyword])
            names |= {name for name, value in instance.items() if check.is_valid(value)}
    return names


def _parts(validator: Any, instance: Any) -> Iterator[Any]:
    """Yield validators of a schema, and of each part that looks at the same value and holds."""
    schema = validator.schema
    if not validator.is_type(schema, "object"):
        return
    _count_step()
    yield validator

    def holds(part: Any) -> bool:
        return bool(validator.evolve(schema=part).is_valid(instance))

    parts = list(schema.get("allOf", ()))
    for keyword in {"dependencies", "dependentSchemas"} & validator.VALIDATORS.keys():
        parts += [part for name, part in schema.get(keyword, {}).items() if name in instance]
    for keyword in ("anyOf", "oneOf"):
        choices = schema.get(keyword, ())
        # If none holds, it is wrong anyway.
        parts += [choice for choice in choices if holds(choice)] or choices
    if "if" in schema:
        then = holds(schema["if"])
        parts += [schema["if"], schema.get("then", True)] if then else [schema.get("else", True)]
    for part in parts:
        yield from _parts(validator.evolve(schema=part), instance)
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        if keyword in schema:
            found = _looked_up(validator, keyword)
            there = validator.evolve(schema=found.contents, _resolver=found.resolver)
            yield from _parts(there, instance)


def _looked_up(validator: Any, keyword: str) -> Any:
    """Follow a reference; a recursive one leads to the outermost schema that allows it."""
    from referencing.jsonschema import lookup_recursive_ref  # noqa: PLC0415

    if keyword == "$recursiveRef":
        return lookup_recursive_ref(validator._resolver)
    return validator._resolver.lookup(validator.schema[keyword])


def _unknown(value: Any, validators: list[Any], path: str = "") -> Iterator[str]:
    """Yield a message for each name in a tool's arguments that their schema does not know."""
    # JSON Schema lets an object have names that its schema does not mention; a model that writes
    # one has misspelt or invented it. So the arguments, and objects inside whose `properties` are
    # given, may have no others unless `additionalProperties` allows them.
    inside: Any = value  # Without the types that `isinstance` half tells.
    if not isinstance(value, dict | list):
        return
    parts = [part for validator in validators for part in _parts(validator, value)]
    if isinstance(value, list):
        for place, item in enumerate(inside):
            yield from _unknown(item, _of_item(parts, place), f"{path}[{place}]")
        return
    schemas = [part.schema for part in parts]
    names = list(
        dict.fromkeys(
            name for s in schemas for name in (*s.get("properties", ()), *s.get("required", ()))
        )
    )
    rest = [
        part.evolve(schema=part.schema[keyword])
        for part in parts
        for keyword in _OF_THE_REST & part.schema.keys()
    ]
    allowed = [part for part in rest if part.schema is not False]
    listed = not path or bool(rest) or any("properties" in s for s in schemas)
    for name, inner in inside.items():
        where = f"{path}.{bounded(name, 100)}" if path else bounded(name, 100)
        about = _of_property(parts, name)
        if about or name in names or allowed or not listed:
            yield from _unknown(inner, about or allowed, where)
        else:
            yield unknown_argument(where, name, names)


def _of_property(parts: list[Any], name: str) -> list[Any]:
    """Return validators of the schemas that some parts of a schema have for a property."""
    found: list[Any] = []
    for part in parts:
        named = part.schema.get("properties", {})
        schemas = [named[name]] if name in named else []
        for pattern, schema in part.schema.get("patternProperties", {}).items():
            if _found(pattern, name):
                schemas.append(schema)
        found += [_inside(part, schema) for schema in schemas]
    return found


def _of_item(parts: list[Any], place: int) -> list[Any]:
    """Return validators of the schemas that some parts of a schema have for an item of a list."""
    found: list[Any] = []
    for part in parts:
        items: Any = part.schema.get("items", True)
        first = part.schema.get("prefixItems", items if isinstance(items, list) else ())
        if place >= len(first) and isinstance(items, list):
            items = part.schema.get("additionalItems", True)
        found.append(_inside(part, first[place] if place < len(first) else items))
    return found


def _found(pattern: str, text: str) -> bool:
    import regex  # noqa: PLC0415 (an extra, the same one)

    _refuse_others()
    try:
        return regex.search(pattern, text, timeout=PATTERN_SECONDS) is not None
    except TimeoutError:
        msg = f"more than {PATTERN_SECONDS:g} s for a pattern"
        raise _TooCostly(msg) from None


# --- while a reply arrives --------------------------------------------------------------------

_FENCE = re.compile(r"```[A-Za-z0-9_-]*[ \t]*\r?\n")
_FENCE_SO_FAR = re.compile(r"`{1,3}|```[A-Za-z0-9_-]*[ \t]*\r?")
_LONG_LINE = 100

# White space that a reply may have around its JSON, and JSON itself doesn't have: inside of it, the
# whole check decides.
_OTHER_SPACE = {ord(c): " " for c in map(chr, range(0x3001)) if c.isspace() and c not in " \t\r\n"}


def json_only(*, constants: bool = False) -> Fresh:
    """Return a stream check that fails once a reply can't become JSON any more."""
    try:
        ijson: Any = import_module("ijson")  # An extra; it has no types.
    except ImportError as exc:
        msg = "early checks of JSON need the ijson package: pip install 'mellea-like[checks]'"
        raise ImportError(msg) from exc
    return Fresh(partial(_JsonSoFar, ijson, constants=constants))


_KINDS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
_NUMBERS = "-0123456789"


class _SchemaShape:
    """What a JSON Schema says of a value that is still arriving."""

    brackets = "".join(_KINDS) + _NUMBERS
    title = ""

    def __init__(self, validator: Any) -> None:
        self.root = _SchemaNode([validator])


class _SchemaNode:
    """The schemas that a value must meet, all of them."""

    def __init__(self, validators: list[Any]) -> None:
        self._validators = validators
        self._parts: list[Any] = []

    def begin(self, character: str, place: tuple[object, ...], _title: str) -> None:
        kind = _KINDS.get(character, "number")
        self._parts = []
        for validator in self._validators:
            if not _may_be(kind, validator, self._parts, 0):
                article = "an" if kind in ("object", "array") else "a"
                self._wrong(place, f"{article} {kind} can't be what the schema asks for")

    def check(self, text: str, place: tuple[object, ...], _title: str) -> None:
        if len(place) > DEEPEST:
            return
        value = json.loads(text)
        with suppress(_TooCostly):
            for validator in self._validators:
                errors: list[Any] = list(islice(validator.iter_errors(value), 100))
                if errors:
                    worst = _most_relevant(errors)
                    self._wrong(place, clipped(worst.message, 200), worst.json_path[1:])

    def field(self, key: str, place: tuple[object, ...], _title: str) -> _SchemaNode | None:
        found: list[Any] = []
        for part in self._parts:
            try:
                named = _of_property([part], key)
            except _TooCostly:
                continue
            if not named and "additionalProperties" in part.schema:
                if part.schema["additionalProperties"] is False:
                    self._wrong(place, f"the property {quoted(key)} is not allowed")
                named = [_inside(part, part.schema["additionalProperties"])]
            found += named
        return _SchemaNode(found) if found else None

    def item(self, index: int, place: tuple[object, ...], _title: str) -> _SchemaNode | None:
        for part in self._parts:
            if index >= part.schema.get("maxItems", index + 1):
                self._wrong(place, f"it has more items than {part.schema['maxItems']}")
        found = _of_item(self._parts, index)
        return _SchemaNode(found) if found else None

    def _wrong(self, place: tuple[object, ...], why: str, inside: str = "") -> NoReturn:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
        msg = f"at ${bounded(''.join(steps), 200)}{inside}: {why}"
        raise BrokenError(msg)


def _may_be(  # noqa: C901 (a keyword after the other)
    kind: str, validator: Any, parts: list[Any], depth: int
) -> bool:
    """Tell whether a value of a kind can meet a schema; collect the schemas that it must meet."""
    _count_step()
    schema: Any = validator.schema
    if not isinstance(schema, dict) or depth > DEEPEST:
        return schema is not False
    # Before draft 2019-09, a reference makes all other keywords void.
    applicable: Any = validator.__class__._APPLICABLE_VALIDATORS(schema)
    rules: dict[str, Any] = {k: v for k, v in applicable if k in validator.VALIDATORS}
    types: Any = rules.get("type", kind)
    names: list[Any] = cast("Any", types) if isinstance(types, list) else [types]
    kinds = {"number", "integer"} if kind == "number" else {kind}
    if not any(name in kinds or name == "any" or not isinstance(name, str) for name in names):
        return False
    values = [rules["const"]] if "const" in rules else rules.get("enum", ())
    if values and not any(validator.is_type(value, kind) for value in values):
        return False
    parts.append(validator.evolve(schema=rules))
    every = [_inside(validator, part) for part in rules.get("allOf", ())]
    for keyword in {"$ref", "$dynamicRef", "$recursiveRef"} & rules.keys():
        found = _looked_up(validator, keyword)
        every.append(validator.evolve(schema=found.contents, _resolver=found.resolver))
    if not all(_may_be(kind, part, parts, depth + 1) for part in every):
        return False
    for keyword in ("anyOf", "oneOf"):
        choices: list[list[Any]] = []
        for choice in rules.get(keyword, ()):
            chosen: list[Any] = []
            if _may_be(kind, _inside(validator, choice), chosen, depth + 1):
                choices.append(chosen)
        if keyword in rules and not choices:
            return False
        if len(choices) == 1:  # The others can't be met: this one has to be.
            parts += choices[0]
    return True


def _inside(validator: Any, schema: Any) -> Any:
    """Return the validator of a schema that is inside another."""
    from referencing.jsonschema import DRAFT202012, specification_with  # noqa: PLC0415

    meta: Mapping[str, str] = validator.META_SCHEMA
    draft = specification_with(meta.get("$id", meta.get("id", "")), default=DRAFT202012)
    resolver = validator._resolver.in_subresource(draft.create_resource(schema))
    return validator.evolve(schema=schema, _resolver=resolver)


class _JsonSoFar:
    """Reads a reply piece by piece: white space, perhaps a code fence, JSON, white space."""

    def __init__(self, ijson: Any, *, constants: bool) -> None:
        self._ijson = ijson
        self._constants = constants
        self._start = 0  # Where in the text the fence or the JSON starts.
        self._fenced = False
        self._read = 0  # Up to where the text has been read.
        self._tail: int | None = None  # Where the end of the fence starts.
        self._events: Any = ijson.sendable_list()
        self._parser: Any = None
        self._token = 0  # Where in the text the parser's unfinished token starts, at the latest.
        self._depth = 0
        self._ended = False
        self._gave_up = False

    def __call__(self, text: str, delta: str) -> Answer:
        if self._gave_up:
            return Verdict.UNKNOWN
        if self._parser is None:
            problem = self._begin(text, delta)
            if problem is not None:
                return problem
        # The parser reads an unfinished token again with each piece: in a long string they wait.
        if len(text) - self._read < (self._read - self._token) // 8:
            return Verdict.UNKNOWN
        return self._go_on(text)

    def _begin(self, text: str, delta: str) -> Answer | None:
        while self._start < len(text) and text[self._start].isspace():
            self._start += 1
        if self._start == len(text):
            return Verdict.UNKNOWN
        if text[self._start] == "`":
            self._fenced = True
            if text.find("\n", max(self._start, len(text) - len(delta))) < 0:
                line = text[self._start : self._start + _LONG_LINE]
                if len(line) == _LONG_LINE or _FENCE_SO_FAR.fullmatch(line):
                    return Verdict.UNKNOWN
            fence = _FENCE.match(text, self._start)
            if fence is None:
                return self._wrong("no code fence starts like this", text, self._start)
            self._start = fence.end()
        self._read = self._token = self._start
        self._parser = self._ijson.basic_parse_coro(self._events)
        return None

    def _go_on(self, text: str) -> Answer:
        while self._tail is None and self._read < len(text):
            tick = text.find("`", self._read) if self._fenced else -1
            if tick == self._read and self._complete():
                self._tail = tick
                break
            end = len(text) if tick < 0 else max(tick, self._read + 1)
            problem = self._feed(text, end)
            if problem is not None:
                return problem
        if self._tail is not None:
            for at in range(self._read, len(text)):
                closes = at < self._tail + 3
                if not (text[at] == "`" if closes else text[at].isspace()):
                    return self._wrong("nothing follows the end of the code fence", text, at)
            self._read = self._token = len(text)
        return Verdict.UNKNOWN

    def _feed(self, text: str, end: int) -> Answer | None:
        try:
            self._parser.send(_as_json_bytes(text[self._read : end]))
        except self._ijson.JSONError:
            return self._refused(text)
        except Exception:  # noqa: BLE001 (a number that Python doesn't read: the whole check tells)
            self._gave_up = True
            return Verdict.UNKNOWN
        self._read = end
        self._note_events()
        return None

    def _note_events(self) -> None:
        for name, _ in self._events:
            self._depth += name.startswith("start_") - name.startswith("end_")
            self._ended = not self._depth
        if self._events:
            self._token = self._read
            self._events.clear()

    def _complete(self) -> bool:
        """Tell whether the JSON so far is a whole value, so that a backtick isn't part of it."""
        if not (self._depth or self._ended):
            with suppress(Exception):  # What is wrong, the next piece will tell.
                self._parser.send(b" ")  # A number ends only with what follows it.
            self._note_events()
        return self._ended

    def _refused(self, text: str) -> Answer:
        """Read the piece that was refused again, for the character that is wrong."""
        again = self._ijson.basic_parse_coro(self._ijson.sendable_list())
        if self._read > self._start:  # The parser would take empty input for the end.
            again.send(_as_json_bytes(text[self._start : self._read]))
        at = self._read
        try:
            while at < len(text):
                again.send(_as_json_bytes(text[at]))
                at += 1
        except self._ijson.JSONError as exc:
            if not (self._constants and text[at] in "NI"):
                why = str(exc).partition("\n")[0].partition(": ")[2].rstrip(".")
                return self._wrong(why, text, at)
        self._gave_up = True
        return Verdict.UNKNOWN

    def _wrong(self, why: str, text: str, at: int) -> Answer:
        found = ascii(text[at : at + 20])
        return Verdict.FAIL, f"it is not valid JSON: {why} (at character {at + 1}, {found})"


def _as_json_bytes(text: str) -> bytes:
    return text.translate(_OTHER_SPACE).encode("utf-8", "replace")
