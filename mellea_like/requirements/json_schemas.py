"""Validators of JSON Schemas that count their steps, so that every validation ends."""

# ruff: noqa: SIM905 (a list of words)

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from mellea_like.core.argument_checks import unknown_argument
from mellea_like.core.display import bounded, clipped
from mellea_like.requirements.checks_common import package

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

PATTERN_SECONDS = 0.1
"""The time limit for one search with a pattern, in seconds of processor time."""

_ANNOTATIONS = frozenset(
    "$anchor $comment $defs $dynamicAnchor $id $recursiveAnchor $schema $vocabulary contentEncoding"
    " contentMediaType contentSchema default definitions deprecated description discriminator else"
    " example examples externalDocs format maxContains minContains readOnly then title"
    " writeOnly".split()
)
"""Keywords that are valid in schemas although they check nothing themselves."""

_NOT_ASCII = re.compile(r"[\u00a0-\U0010ffff]")

_COSTLY = frozenset({"format", "uniqueItems", "multipleOf"})
"""Keywords that may take long in a single step, in addition to those with patterns."""

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

OF_THE_REST = frozenset({"additionalProperties", "unevaluatedProperties"})
"""Keywords for the names in an object that no other keyword covers."""


def most_relevant(errors: list[Any]) -> Any:
    """Return the most informative of several errors."""
    from jsonschema import exceptions  # noqa: PLC0415

    return cast("Any", exceptions).best_match(errors)


def schema_validator(schema: Mapping[str, Any]) -> Any:
    """Return a schema's validator; a wrong schema raises the errors that `json_schema` lists."""
    package("jsonschema", "json_schema")
    from jsonschema import Draft202012Validator  # noqa: PLC0415 (an extra)
    from jsonschema.exceptions import SchemaError  # noqa: PLC0415
    from jsonschema.validators import validator_for  # noqa: PLC0415
    from referencing import Resource  # noqa: PLC0415
    from referencing.exceptions import Unresolvable  # noqa: PLC0415
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415

    if not isinstance(schema, Mapping):
        msg = f"json_schema: the schema must be a mapping, not {clipped(repr(schema))}"
        raise TypeError(msg)
    try:
        copied = json.loads(json.dumps(dict(schema)))
    except (TypeError, ValueError) as exc:
        msg = f"json_schema: the schema must be JSON data: {exc}"
        raise TypeError(msg) from exc
    if not isinstance(copied.get("$schema", ""), str):  # Even its check would raise other errors.
        msg = "json_schema: the schema is invalid at $['$schema']: it must be a draft's URI"
        raise ValueError(msg)  # noqa: TRY004 (like any other mistake in a schema)
    kind: Any = validator_for(copied, default=Draft202012Validator)
    try:
        kind.check_schema(copied, format_checker=_formats(kind))
        root = Resource.from_contents(copied, default_specification=DRAFT202012)
        _follow_references(root, _drafts().resolver_with_root(root))
    except SchemaError as exc:
        msg = f"json_schema: the schema is invalid at {exc.json_path}: {clipped(exc.message, 200)}"
        raise ValueError(msg) from exc
    except Unresolvable as exc:
        msg = f"json_schema: the reference {exc.ref!r} can't be resolved within the schema"
        raise ValueError(msg) from exc
    return validator_of(copied)


def validator_of(schema: Mapping[str, Any]) -> Any:
    """Return the validator of a copy of a schema that is known to be valid."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415 (an extra)
    from jsonschema.validators import validator_for  # noqa: PLC0415

    copied = json.loads(json.dumps(dict(schema)))
    kind: Any = validator_for(copied, default=Draft202012Validator)
    return _bounded(kind)(copied, registry=_drafts(), format_checker=_formats(kind))


def _drafts() -> Any:
    """Return a registry of the drafts' meta-schemas, which never fetches other schemas."""
    return import_module("jsonschema_specifications").REGISTRY


def _formats(kind: Any) -> Any:
    """Return a checker of a draft's formats; the ``regex`` package checks the format "regex"."""
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


def ignored(validator: Any) -> Iterator[str]:
    """Yield a message for each of a schema's formats and keywords that checks nothing."""
    from referencing import Resource  # noqa: PLC0415
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415

    properties = validator.META_SCHEMA.get("properties", {})
    # Later drafts also list old keywords that no longer check anything.
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
    return f": did you mean {close[0]!r}?" if close else ": this draft doesn't have it"


def _follow_references(resource: Any, resolver: Any) -> None:
    contents: Any = resource.contents
    for keyword in ("$ref", "$dynamicRef") if hasattr(contents, "get") else ():
        reference = contents.get(keyword)
        if isinstance(reference, str):
            resolver.lookup(reference)
    for part in resource.subresources():
        _follow_references(part, resolver.in_subresource(part))


# A schema of a few hundred bytes can require more steps than anyone can wait for (`anyOf` with
# parts that refer to each other), and so can a regular expression. So each step is counted.
spent = threading.local()


class TooCostly(Exception):
    """Raised when a validation exceeds a limit, which the message names."""


@contextmanager
def counted(most: int, *, ours: bool = True) -> Generator[None]:
    """Count the steps of a validation in this thread; raise `TooCostly` after ``most`` steps."""
    spent.left = most
    spent.ours = ours
    try:
        yield
    except RecursionError:
        msg = "circular references"
        raise TooCostly(msg) from None


@lru_cache(maxsize=16)
def _bounded(kind: Any) -> Any:
    """Return a validator class that finds the same errors as ``kind`` or raises `TooCostly`."""
    from jsonschema import validators  # noqa: PLC0415 (an extra)

    own = {**kind.VALIDATORS, "pattern": _pattern, "patternProperties": _patterns}
    for keyword, names in (("additionalProperties", _named), ("unevaluatedProperties", _evaluated)):
        if keyword in own:
            own[keyword] = _of_the_rest(own[keyword], names)
    checks = {name: _counted_step(name, check) for name, check in own.items()}
    extend: Any = getattr(validators, "extend")  # noqa: B009 (its types are half unknown)
    return extend(kind, checks)


def _counted_step(keyword: str, check: Callable[..., Any]) -> Callable[..., Any]:
    def step(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        count_step()
        if keyword in _COSTLY:
            _refuse_others()
        return check(validator, value, instance, schema)

    return step


def _refuse_others() -> None:
    """Raise `TooCostly` if the schema is someone else's, because the next step may take long."""
    if not spent.ours:
        msg = "a step of unknown cost"
        raise TooCostly(msg)


def count_step() -> None:
    """Count one step of the current validation."""
    spent.left -= 1
    if spent.left < 0:
        msg = "too many steps"
        raise TooCostly(msg)


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
    """Limit a keyword's check to the names in an object that no other keyword covers."""

    def rest(validator: Any, part: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if validator.is_type(instance, "object"):
            known = names(validator, instance, schema)
            left = {name: value for name, value in instance.items() if name not in known}
            yield from check(validator, part, left, {})

    return rest


def _named(_validator: Any, instance: Any, schema: Any) -> set[str]:
    """Return the names in an object that a schema's ``properties`` or patterns cover."""
    patterns = schema.get("patternProperties", ())
    matching = {name for name in instance if any(_found(pattern, name) for pattern in patterns)}
    return matching | (set(instance) & set(schema.get("properties", ())))


def _evaluated(validator: Any, instance: Any, _schema: Any) -> set[str]:
    """Return the names in an object that are checked by a schema or an applicable part of it."""
    names: set[str] = set()
    for part in _parts(validator, instance):
        names |= _named(part, instance, part.schema)
        for keyword in OF_THE_REST & part.schema.keys():
            check = part.evolve(schema=part.schema[keyword])
            names |= {name for name, value in instance.items() if check.is_valid(value)}
    return names


def _parts(validator: Any, instance: Any) -> Iterator[Any]:
    """Yield validators of a schema and of each part of it that applies to the same value."""
    schema = validator.schema
    if not validator.is_type(schema, "object"):
        return
    count_step()
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
    for keyword in REFERENCES:
        if keyword in schema:
            yield from _parts(referred_to(validator, keyword), instance)


def referred_to(validator: Any, keyword: str) -> Any:
    """Return a validator for the schema that a keyword such as ``$ref`` refers to."""
    from referencing.jsonschema import lookup_recursive_ref  # noqa: PLC0415

    resolver: Any = validator._resolver
    if keyword == "$recursiveRef":
        found: Any = lookup_recursive_ref(resolver)
    else:
        found = resolver.lookup(validator.schema[keyword])
    return validator.evolve(schema=found.contents, _resolver=found.resolver)


def unknown_names(value: Any, validators: list[Any], path: str = "") -> Iterator[str]:
    """Yield a message for each name in a tool's arguments that isn't in their schema."""
    # JSON Schema allows names in an object that its schema does not mention, but a model that
    # writes one has misspelt or invented it. So the arguments, and objects inside with
    # `properties`, may have no other names unless `additionalProperties` allows them.
    inside: Any = value  # `isinstance` narrows only half of the type.
    if not isinstance(value, dict | list):
        return
    parts = [part for validator in validators for part in _parts(validator, value)]
    if isinstance(value, list):
        for place, item in enumerate(inside):
            yield from unknown_names(item, of_item(parts, place), f"{path}[{place}]")
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
        for keyword in OF_THE_REST & part.schema.keys()
    ]
    allowed = [part for part in rest if part.schema is not False]
    listed = not path or bool(rest) or any("properties" in s for s in schemas)
    for name, inner in inside.items():
        where = f"{path}.{bounded(name, 100)}" if path else bounded(name, 100)
        about = of_property(parts, name)
        if about or name in names or allowed or not listed:
            yield from unknown_names(inner, about or allowed, where)
        else:
            yield unknown_argument(where, name, names)


def of_property(parts: list[Any], name: str) -> list[Any]:
    """Return the validators that the parts of a schema have for a property."""
    found: list[Any] = []
    for part in parts:
        named = part.schema.get("properties", {})
        schemas = [named[name]] if name in named else []
        for pattern, schema in part.schema.get("patternProperties", {}).items():
            if _found(pattern, name):
                schemas.append(schema)
        found += [inside_of(part, schema) for schema in schemas]
    return found


def of_item(parts: list[Any], place: int) -> list[Any]:
    """Return the validators for a list's item, one for each part of the list's schema."""
    found: list[Any] = []
    for part in parts:
        items: Any = part.schema.get("items", True)
        first = part.schema.get("prefixItems", items if isinstance(items, list) else ())
        if place >= len(first) and isinstance(items, list):
            items = part.schema.get("additionalItems", True)
        found.append(inside_of(part, first[place] if place < len(first) else items))
    return found


def _found(pattern: str, text: str) -> bool:
    import regex  # noqa: PLC0415 (an extra, the same one)

    _refuse_others()
    try:
        return regex.search(pattern, text, timeout=PATTERN_SECONDS) is not None
    except TimeoutError:
        msg = f"more than {PATTERN_SECONDS:g} s for a pattern"
        raise TooCostly(msg) from None


def inside_of(validator: Any, schema: Any) -> Any:
    """Return a validator for a schema that is inside another validator's schema."""
    from referencing.jsonschema import DRAFT202012, specification_with  # noqa: PLC0415

    meta: Mapping[str, str] = validator.META_SCHEMA
    draft = specification_with(meta.get("$id", meta.get("id", "")), default=DRAFT202012)
    resolver = validator._resolver.in_subresource(draft.create_resource(schema))
    return validator.evolve(schema=schema, _resolver=resolver)
