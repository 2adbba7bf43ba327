"""Check JSON while it is still arriving: its syntax, and its values against a JSON Schema."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn, cast

from mellea_like.core.display import bounded, clipped, quoted
from mellea_like.core.format_watch import (
    FENCE_LINE,
    LONGEST_LINE,
    SPACE,
    BrokenError,
    JsonWatch,
)
from mellea_like.core.validation import Verdict
from mellea_like.requirements.checks_common import Answer, Fresh
from mellea_like.requirements.json_schemas import (
    REFERENCES,
    TooCostly,
    count_step,
    counted,
    inside_of,
    most_relevant,
    of_item,
    of_property,
    referred_to,
    spent,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from mellea_like.core.tools import CallWatch
    from mellea_like.requirements.checks_common import Look

OTHERS_STEPS = 2_000
"""The most steps to check an arriving reply if the schema is someone else's; about 20 ms in all."""

DEEPEST = 16
"""Values at deeper levels of nesting aren't validated alone, but with the value around them."""

_FENCE_SO_FAR = re.compile(r"`{1,3}|```[A-Za-z0-9_-]*[ \t]*\r?")

_WORDS = ("true", "false", "null")
_CONSTANTS = ("NaN", "Infinity", "-Infinity")
LONGEST_WORD = 30
"""Longer scalars are numbers, which are checked when they are complete."""

_NUMBER_SO_FAR = re.compile(
    r"-?(?:(?:0|[1-9][0-9]*)(?:\.(?:[0-9]+(?:[eE][+-]?[0-9]*)?)?|[eE][+-]?[0-9]*)?)?"
)
"""Matches the beginning of a number. If the last character is a digit, the number is complete."""

_IN_STRING = re.compile(
    r'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+'
)
_ESCAPE_SO_FAR = re.compile(r"(?:\\(?:u[0-9a-fA-F]{0,3})?)?")


def call_watch(validator: Any, max_steps: int, *, ours: bool = True) -> CallWatch:
    """Return a watch for arriving JSON that reports the first value that a schema doesn't allow."""

    def begin() -> Callable[[str], str | None]:
        watch = JsonWatch(_SchemaNode([validator]), _BEGINS)
        left = max_steps

        def feed(text: str) -> str | None:
            nonlocal left
            with counted(left, ours=ours):
                why = watch.feed(text)
                left = spent.left
            return why

        return feed

    return begin


def watching_json(*further: CallWatch, constants: bool = False) -> Fresh:
    """Return a stream check that fails on broken JSON, or for a reason that another watch gives."""

    def make() -> Look:
        feeds = [_JsonSyntax(constants=constants).feed, *(begin() for begin in further)]

        def look(text: str, _: str) -> Answer:
            why = next(filter(None, (feed(text) for feed in feeds)), None)
            return (Verdict.FAIL, why) if why else Verdict.UNKNOWN

        return look

    return Fresh(make)


_KINDS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}

_BEGINS = "".join(_KINDS) + "-0123456789"
"""The characters with which a JSON value may begin."""


class _SchemaNode:
    """All schemas that one value must meet."""

    def __init__(self, validators: list[Any]) -> None:
        self._validators = validators
        self._parts: list[Any] = []

    def begin(self, character: str, place: tuple[object, ...]) -> None:
        kind = _KINDS.get(character, "number")
        self._parts = []
        for validator in self._validators:
            if not _may_be(kind, validator, self._parts, 0):
                article = "an" if kind in ("object", "array") else "a"
                self._wrong(place, f"{article} {kind} can't be what the schema asks for")

    def check(self, text: str, place: tuple[object, ...]) -> None:
        if len(place) > DEEPEST:
            return
        value = json.loads(text)
        with suppress(TooCostly):
            for validator in self._validators:
                errors: list[Any] = list(islice(validator.iter_errors(value), 100))
                if errors:
                    worst = most_relevant(errors)
                    self._wrong(place, clipped(worst.message, 200), worst.json_path[1:])

    def field(self, key: str, place: tuple[object, ...]) -> _SchemaNode | None:
        found: list[Any] = []
        for part in self._parts:
            try:
                named = of_property([part], key)
            except TooCostly:
                continue
            if not named and "additionalProperties" in part.schema:
                if part.schema["additionalProperties"] is False:
                    self._wrong(place, f"the property {quoted(key)} is not allowed")
                named = [inside_of(part, part.schema["additionalProperties"])]
            found += named
        return _SchemaNode(found) if found else None

    def item(self, index: int, place: tuple[object, ...]) -> _SchemaNode | None:
        for part in self._parts:
            if index >= part.schema.get("maxItems", index + 1):
                self._wrong(place, f"it has more items than {part.schema['maxItems']}")
        found = of_item(self._parts, index)
        return _SchemaNode(found) if found else None

    def _wrong(self, place: tuple[object, ...], why: str, inside: str = "") -> NoReturn:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
        msg = f"at ${bounded(''.join(steps), 200)}{inside}: {why}"
        raise BrokenError(msg)


def _may_be(kind: str, validator: Any, parts: list[Any], depth: int) -> bool:
    """Return whether a schema may allow values of a type; add the schema's rules to ``parts``."""
    count_step()
    schema: Any = validator.schema
    if not isinstance(schema, dict) or depth > DEEPEST:
        return schema is not False
    # Before draft 2019-09, a reference disables all other keywords.
    applicable: Any = validator.__class__._APPLICABLE_VALIDATORS(schema)
    rules: dict[str, Any] = {k: v for k, v in applicable if k in validator.VALIDATORS}
    if not _own_rules_allow(kind, validator, rules):
        return False
    parts.append(validator.evolve(schema=rules))
    every = [inside_of(validator, part) for part in rules.get("allOf", ())]
    every += [referred_to(validator, keyword) for keyword in REFERENCES if keyword in rules]
    if not all(_may_be(kind, part, parts, depth + 1) for part in every):
        return False
    for keyword in ("anyOf", "oneOf"):
        choices: list[list[Any]] = []
        for choice in rules.get(keyword, ()):
            chosen: list[Any] = []
            if _may_be(kind, inside_of(validator, choice), chosen, depth + 1):
                choices.append(chosen)
        if keyword in rules and not choices:
            return False
        if len(choices) == 1:  # Only this one can be met.
            parts += choices[0]
    return True


def _own_rules_allow(kind: str, validator: Any, rules: dict[str, Any]) -> bool:
    types: Any = rules.get("type", kind)
    names: list[Any] = cast("Any", types) if isinstance(types, list) else [types]
    kinds = {"number", "integer"} if kind == "number" else {kind}
    if not any(name in kinds or name == "any" or not isinstance(name, str) for name in names):
        return False
    values = [rules["const"]] if "const" in rules else rules.get("enum", ())
    return not values or any(validator.is_type(value, kind) for value in values)


class _JsonSyntax(JsonWatch):
    """Checks that an arriving reply can be one JSON value, perhaps in a fence and white space."""

    def __init__(self, *, constants: bool) -> None:
        self._words = (*_WORDS, *(_CONSTANTS if constants else ()))
        super().__init__(None, "")

    def _read(self) -> Generator[None]:
        at = yield from self._skip(SPACE, 0)
        fenced = self._text[at] == "`"
        if fenced:
            at = yield from self._opening_fence(at)
        at = yield from self._value(at, None, ())
        if fenced:
            at = yield from self._skip(SPACE, at)
        yield from self._ending(at, at + 3 if fenced else at)

    def _opening_fence(self, start: int) -> Generator[None, None, int]:
        seen = start
        while self._text.find("\n", seen) < 0:
            line = self._text[start : start + LONGEST_LINE]
            if len(line) < LONGEST_LINE and not _FENCE_SO_FAR.fullmatch(line):
                break
            seen = len(self._text)
            yield
        fence = FENCE_LINE.match(self._text, start)
        if fence is None:
            self._no_json("a code fence", start)
        return fence.end()

    def _ending(self, start: int, end: int) -> Generator[None]:
        """Allow backticks up to the index ``end``, and white space after that."""
        seen = start
        while True:
            for at in range(seen, len(self._text)):
                if not (self._text[at] == "`" if at < end else self._text[at].isspace()):
                    self._no_json("the end", at)
            seen = len(self._text)
            yield

    def _check_scalar(self, start: int, end: int, *, ended: bool) -> None:
        if not ended and end - start >= LONGEST_WORD:
            return
        token = self._text[start:end]
        number = (token[-1:].isdigit() or not ended) and _NUMBER_SO_FAR.fullmatch(token)
        if not number and not any(
            word == token if ended else word.startswith(token) for word in self._words
        ):
            self._no_json("a value", start)

    def _string(self, at: int) -> Generator[None, None, int]:
        at += 1
        while True:
            at = cast("re.Match[str]", _IN_STRING.match(self._text, at)).end()
            if self._text[at : at + 1] == '"':
                return at + 1
            if not _ESCAPE_SO_FAR.fullmatch(self._text, at):
                self._no_json("a character of a string", at)
            yield

    def _no_json(self, expected: str, at: int) -> NoReturn:
        found = ascii(self._text[at : at + 20])
        msg = f"it is not valid JSON: expected {expected} at character {at + 1}, not {found}"
        raise BrokenError(msg)
