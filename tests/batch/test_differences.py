"""Differences between two runs of a batch are described in few words."""

from __future__ import annotations

import json

import pytest

from mellea_like.backends import MarkovBackend, ScriptedBackend
from mellea_like.batch.journal.differences import differences
from mellea_like.batch.journal.identity import identity_of
from mellea_like.core.requirement import Requirement
from mellea_like.core.validation import Candidate
from mellea_like.requirements import checks
from mellea_like.sampling.strategies import RejectionSamplingStrategy, RepairTemplateStrategy
from mellea_like.schedules import Hedged, Staggered
from mellea_like.schedules.giving_up import PerRequirement


def short(candidate: Candidate) -> bool:
    return len(candidate.text) < 9


def brief(candidate: Candidate) -> bool:
    return len(candidate.text) < 5


def as_prompt(item: str) -> str:
    return item


def identity(strategy=RejectionSamplingStrategy, *, of=(), backend=None, extra=None, **settings):
    given = {
        name: settings.pop(name) for name in ("action", "format", "options") if name in settings
    }
    made = strategy(backend or MarkovBackend(), **settings)
    return json.loads(json.dumps(identity_of(made, of, extra=extra, **given)))


def told(before, now):
    return list(map(str, differences(before, now)))


WORDS = checks.word_count(at_most=20)


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({}, {}, []),
        ({"loop_budget": 5}, {"loop_budget": 50}, ["loop_budget was 5 and is now 50"]),
        (
            {},
            {"strategy": RepairTemplateStrategy},
            ["strategy was RejectionSamplingStrategy and is now RepairTemplateStrategy"],
        ),
        (
            {},
            {"give_up": PerRequirement(threshold=0.5)},
            ["give_up: PerRequirement(threshold=0.5,"],
        ),
        (
            {"schedule": Staggered(1)},
            {"schedule": Staggered(2)},
            ["schedule.delay was 1 and is now 2"],
        ),
        (
            {"schedule": Staggered(1)},
            {"schedule": Hedged()},
            ["schedule was Staggered(delay=1) and is now Hedged(quantile=0.8, extra=1, latency="],
        ),
        ({"options": {"seed": 1}}, {"options": {}}, ["options.seed: 1 is gone"]),
        (
            {"options": {"model": "small"}},
            {"options": {"model": "large"}},
            ['model was "small" and is now "large"'],
        ),
        ({}, {"backend": ScriptedBackend(["a"])}, ['provider was "markov"', "model was "]),
        ({}, {"judge": ScriptedBackend(["a"])}, ["judge: "]),
        ({}, {"format": int}, ['format: "builtins.int (schema ']),
        ({}, {"action": as_prompt}, ["prompt: "]),
        ({"extra": {"input": "a"}}, {"extra": {"input": "b"}}, ['input was "a" and is now "b"']),
        (
            {"extra": {"schema": {"type": "object", "items": [1]}}},
            {"extra": {"schema": {"type": "array", "items": [1]}}},
            ['schema.type was "object" and is now "array"'],
        ),
        ({"of": ["be kind"]}, {}, ['requirements: "be kind" is gone']),
        (
            {"of": ["be kind", WORDS]},
            {"of": ["be kind", checks.word_count(at_most=9)]},
            [
                'requirements: "has at most 20 words" is gone',
                'requirements: "has at most 9 words" is new',
            ],
        ),
        ({"of": ["a", "b"]}, {"of": ["b", "a"]}, ['requirements was "a", "b" and is now "b", "a"']),
        (
            {},
            {"of": [WORDS & Requirement("kind")]},
            ['requirements: and("has at most 20 words", "ki'],
        ),
    ],
)
def test_only_what_differs_is_named_in_few_words(before, now, words):
    found = told(identity(**before), identity(**now))
    assert len(found) == len(words)
    for part, expected in zip(found, words, strict=True):
        assert part.startswith(expected)
        assert len(part) < 170


def test_requirements_of_the_same_words_that_are_decided_otherwise_are_told_apart():
    before = identity(of=[Requirement("is short", short), "kind"])
    [one] = told(before, identity(of=[Requirement("is short", brief), "kind"]))
    assert one.startswith('the validator of "is short" was ')
    assert '.short" and is now ' in one
    assert one.endswith('.brief"')
    [two] = told(before, identity(of=["is short", "kind"]))
    assert two.endswith('.short" is gone')


def test_judges_that_are_called_alike_are_told_apart_by_what_else_they_are():
    def judged_at(provider):
        judge = ScriptedBackend(["a"])
        judge.provider, judge.model = provider, "m"
        return identity(of=[Requirement("is fine", judge=judge)])

    [one] = told(judged_at("here"), judged_at("there"))
    assert '"here"' in one
    assert '"there"' in one


def test_no_internal_name_is_shown():
    before = identity(of=[WORDS, checks.contains("a")])
    now = identity(RepairTemplateStrategy, of=[checks.line_count(at_most=3)], schedule=Staggered(1))
    assert "mellea_like" not in "".join(told(before, now))
    assert "<locals>" not in "".join(told(before, now))


def test_of_long_values_the_place_is_shown_where_they_begin_to_differ():
    before = {"prompt": "x" * 5000 + "y" + "z" * 5000}
    now = {"prompt": "x" * 5001 + "z" * 5000}
    [only] = differences(before, now)
    assert only.was == "…" + "x" * 15 + "y" + "z" * 44 + "…"
    assert only.now == "…" + "x" * 16 + "z" * 44 + "…"
    [longer] = differences(before, {"prompt": before["prompt"][:-1]})
    assert (longer.was, longer.now) == ("…" + "z" * 15 + 'z"', "…" + "z" * 15 + '"')
    assert told({"prompt": "a" * 59}, {"prompt": "b"}) == [
        f'prompt was "{"a" * 59}… and is now "b"'
    ]
