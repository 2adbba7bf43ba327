"""The grammar of --check."""

from __future__ import annotations

import pytest
from engine_kit import verdict
from hypothesis import example, given
from hypothesis import strategies as st

from mellea_like import Requirement
from mellea_like.requirements.expressions import CHECK_FORMS, parse_check


@pytest.mark.parametrize("expression", CHECK_FORMS)
def test_every_form_that_is_shown_is_a_check(expression):
    assert isinstance(parse_check(expression), Requirement)


@pytest.mark.parametrize(
    ("expression", "good", "bad"),
    [
        ("words<=2", "one two", "one two three"),
        ("words<2", "one", "one two"),
        ("words>=2", "one two", "one"),
        ("words>2", "one two three", "one two"),
        ("words==2", "one two", "one"),
        (" Words <= 2 ", "one two", "one two three"),
        ("chars>=3", "abc", "ab"),
        ("lines==2", "a\nb", "a"),
        ("sentences==1", "One here.", "One. Two."),
        ("contains:the cat", "see the cat", "the dog"),
        ("contains: class", "class", "none"),
        ("contains:a:b", "a:b", "a"),
        ("excludes:cat", "dog", "cat"),
        (r"regex:^\d+$", "12", "a12"),
        ("regex: x", " x", "x"),
        ("starts:Dear", "Dear you", "Hello"),
        ("ends:!", "yes!", "yes"),
        ("json", "{}", "{"),
        ("JSON", "[]", ""),
        ("choice:yes|no", "yes", "maybe"),
        ("choice: yes | no ", "no", "yes|no"),
        ("contains:words<=3", "words<=3", "words"),
    ],
)
def test_each_form_checks_what_it_says(expression, good, bad):
    check = parse_check(expression)
    assert verdict(check, good).passed
    assert not verdict(check, bad).passed


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("wrods < 5", "did you mean words < 5?"),
        ("contain:cat", "did you mean contains:cat?"),
        ("start:Dear you", "did you mean starts:Dear you?"),
        ("jsn", "did you mean json?"),
        ("json:x", "did you mean json?"),
        ("contains", "did you mean contains:TEXT?"),
        ("words", "did you mean words<=20?"),
        ("words:3", "did you mean words<=20?"),
        ("lines=3", "the operator must be one of <= >= == < >, not ="),
        ("words<=", "write an integer such as 20 after <="),
        ("words<=1.5", "write an integer such as 20 after <="),
        ("words<=²", "write an integer such as 20 after <="),
        ("words<=9999999999", "write an integer such as 20 after <="),
        ("words<0", "no text has fewer than 0 words"),
        ("contains:", "there is nothing after the colon"),
        ("regex:", "there is nothing after the colon"),
        ("choice:a||b", "a choice is empty"),
        ("regex:(", "isn't a regular expression: missing )"),
        ("", "Allowed: words<=20  chars>=100"),
        ("__import__('os')", "is unknown\nAllowed: words<=20"),
    ],
)
def test_a_wrong_expression_is_shown_with_what_is_allowed(expression, message):
    with pytest.raises(ValueError) as caught:
        parse_check(expression)
    assert message in str(caught.value)
    assert repr(expression) in str(caught.value)


@given(
    st.text()
    | st.sampled_from(["words", "json", "choice"]).flatmap(
        lambda name: st.text("<>=!:|( 123").map(lambda rest: name + rest)
    )
)
@example("words<=20\n")
@example("regex:[[:foo:]]")
def test_any_text_is_a_check_or_a_value_error(expression):
    try:
        assert isinstance(parse_check(expression), Requirement)
    except ValueError as exc:
        assert repr(expression) in str(exc)  # noqa: PT017 (either outcome is right)
