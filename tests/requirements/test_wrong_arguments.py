"""Arguments of ready-made checks that make no sense are refused when the check is made."""

from __future__ import annotations

import math
from itertools import product

import pytest
from pydantic import RootModel

from mellea_like import Requirement
from mellea_like.requirements.checks import (
    at_least,
    casing,
    char_count,
    contains,
    each,
    ends_with,
    excludes,
    json_schema,
    line_count,
    matches,
    number_between,
    occurrences,
    one_of,
    parses_as,
    sentence_count,
    starts_with,
    unless_it_calls,
    word_count,
)

POLITE = Requirement("polite")
NO_PATTERN = "isn't a regular expression"
COUNTS = [
    ({}, TypeError, "needs at_least, at_most or exactly"),
    ({"at_least": 1.5}, TypeError, "at_least must be an integer, not 1.5"),
    ({"exactly": True}, TypeError, "exactly must be an integer, not True"),
    ({"at_most": "3"}, TypeError, "at_most must be an integer, not '3'"),
    ({"at_most": -1}, ValueError, "at_most must be at least 0, not -1"),
    ({"at_least": 3, "at_most": 2}, ValueError, "at_least=3 must not be greater than at_most=2"),
    ({"exactly": 3, "at_most": 4}, ValueError, "exactly can't be combined"),
]
TEXTS = [
    ((), TypeError, " needs at least one text"),
    ((3,), TypeError, " needs texts, not 3"),
    (("a", ""), ValueError, ": texts can't be empty"),
]


@pytest.mark.parametrize(
    ("make", "arguments", "options", "error", "message"),
    [
        *(
            (make, (), limits, error, f"^{make.__name__}.*{message}")
            for make, (limits, error, message) in product(
                [word_count, char_count, line_count, sentence_count], COUNTS
            )
        ),
        *(
            (make, (), {"at_least": 3, "early": True}, ValueError, "early needs at_most or exactly")
            for make in (word_count, char_count, line_count)
        ),
        *(
            (make, texts, {}, error, f"{make.__name__}{message}")
            for make, (texts, error, message) in product(
                [contains, excludes, starts_with, ends_with], TEXTS
            )
        ),
        *(
            (matches, (pattern,), {}, ValueError, NO_PATTERN)
            for pattern in ("(", "[", "*", "a{2,1}", "(?P<1>a)", "\\")
        ),
        (matches, (b"a",), {}, TypeError, "the pattern must be a str"),
        (matches, ("a",), {"timeout": 0}, ValueError, "timeout must be greater than 0"),
        (casing, ("camel",), {}, ValueError, "the kind must be 'lower' or 'upper', not 'camel'"),
        (occurrences, ("a",), {}, TypeError, "occurrences needs at_least, at_most or exactly"),
        (occurrences, ("(",), {"at_most": 1}, ValueError, NO_PATTERN),
        (occurrences, (")(",), {"at_most": 1, "words": True}, ValueError, NO_PATTERN),
        (occurrences, (1,), {"at_most": 1}, TypeError, "the pattern must be a str"),
        (occurrences, ("a",), {"at_most": 1, "timeout": 0}, ValueError, "timeout"),
        (one_of, ("yes",), {}, TypeError, r"one_of\(\['yes'\]\)"),
        (one_of, ([],), {}, TypeError, " needs at least one text"),
        (one_of, ([1],), {}, TypeError, "needs texts, not 1"),
        (one_of, (["a", " "],), {}, ValueError, "can't be blank"),
        (number_between, (), {}, TypeError, "needs low, high or both"),
        (number_between, ("1",), {}, TypeError, "low must be a number, not '1'"),
        (number_between, (1, True), {}, TypeError, "high must be a number, not True"),
        (number_between, (math.nan,), {}, ValueError, "low must be finite"),
        (number_between, (0, math.inf), {}, ValueError, "high must be finite"),
        (number_between, (2, 1), {}, ValueError, "low=2 must not be greater than high=1"),
        (parses_as, (RootModel[int](1),), {}, TypeError, "must be a pydantic model"),
        *(
            (json_schema, (schema,), {}, ValueError, message)
            for schema, message in (
                ({"type": "nonsense"}, r"the schema is invalid at \$.type"),
                ({"$schema": ["2020-12"]}, r"the schema is invalid at \$\['\$schema'\]"),
                ({"$ref": "#/$defs/missing"}, "missing' can't be resolved within the schema"),
                ({"items": {"$ref": "https://example.com/s"}}, "can't be resolved"),
                ({"items": {"$dynamicRef": "file:///etc/hostname"}}, "can't be resolved"),
            )
        ),
        *(
            (json_schema, (schema,), {}, TypeError, "the schema must be a mapping")
            for schema in ([], "{}", None)
        ),
        (json_schema, ({"const": object()},), {}, TypeError, "the schema must be JSON data"),
        (json_schema, ({},), {"max_steps": 0}, ValueError, "max_steps"),
        (json_schema, ({},), {"max_steps": True}, TypeError, "max_steps"),
        (json_schema, ({},), {"max_steps": "1"}, TypeError, "max_steps"),
        (each, ("word", contains("a")), {}, ValueError, "the part must be .*item., not 'word'"),
        (each, ("line", "a"), {}, TypeError, "each needs a check of a line"),
        (each, ("line", POLITE), {}, ValueError, "ask a judge about the whole reply"),
        (each, ("line", contains("a") | POLITE), {}, ValueError, "ask a judge"),
        (at_least, (0, "a"), {}, ValueError, "between 1 and 1, the number of requirements, not 0"),
        (at_least, (3, "a", "b"), {}, ValueError, "1 and 2, the number of requirements, not 3"),
        (at_least, ("a", "b"), {}, TypeError, "needs the number first"),
        (at_least, (True, "a"), {}, TypeError, "needs the number first"),
        (unless_it_calls, (["polite"],), {}, TypeError, "needs a Requirement or a text"),
        (at_least, (1, ["a", "b"]), {}, TypeError, "must be Requirement objects or texts, not "),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_wrong_arguments_of_a_check_are_named(make, arguments, options, error, message):
    with pytest.raises(error, match=message):
        make(*arguments, **options)
