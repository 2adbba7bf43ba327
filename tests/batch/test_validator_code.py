"""A run's identity includes the code of its validators."""

from __future__ import annotations

import json

import anyio
import pytest
from batch_kit import results_of

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.backends import MarkovBackend, ScriptedBackend
from mellea_like.batch.journal.differences import differences
from mellea_like.batch.journal.identity import identity_of
from mellea_like.errors import JournalError

PLAIN = "def check(candidate):\n    return len(candidate.text) < 9\n"
REWRITTEN = """
# A comment.
def check( candidate: object )->bool :  # here
    'Words.'
    return (len(candidate.text)
            < 9)
"""
FACTORY = """
def make(limit):
    def inner(candidate):
        return len(candidate.text) < limit
    return inner
check = make({})
"""
CONSTANTS = "def check(c):\n    return c.text in {{{}}}\n"
CLASS = """
class Check:
    def __call__(self, candidate):
        return {}
check = Check()
"""


@pytest.fixture
def written(tmp_path):
    """Make a requirement from the source of a module that defines ``check``."""

    def make(source, **settings):
        file = tmp_path / "rules.py"
        file.write_text(source, encoding="utf-8")
        namespace = {"__name__": "rules"}
        exec(compile(source, str(file), "exec"), namespace)
        return Requirement("is short", namespace["check"], **settings)

    return make


def identity(requirement):
    made = identity_of(RejectionSamplingStrategy(MarkovBackend()), [requirement])
    return json.loads(json.dumps(made))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (PLAIN, PLAIN.replace("9", "5")),
        (PLAIN, "async " + PLAIN),
        ("check = lambda c: len(c.text) < 9\n", "check = lambda c: len(c.text) < 5\n"),
        ("f, check = (lambda c: 1), (lambda c: 2)\n", "f, check = (lambda c: 1), (lambda c: 3)\n"),
        (FACTORY.format(9), FACTORY.format(5)),
        (CLASS.format("True"), CLASS.format("False")),
        ("LIMIT = 9\n" + PLAIN.replace("9", "LIMIT"), "LIMIT = 5\n" + PLAIN.replace("9", "LIMIT")),
        (
            "def most():\n    return 9\n" + PLAIN.replace("9", "most()"),
            "def most():\n    return 5\n" + PLAIN.replace("9", "most()"),
        ),
        (PLAIN.replace("(c", "(c", 1).replace("candidate)", "candidate, n=1)", 1), PLAIN),
    ],
)
def test_a_validator_that_does_something_else_is_another_run(written, before, now):
    [difference] = list(map(str, differences(identity(written(before)), identity(written(now)))))
    assert 'the code of "is short" was "cpython-' in difference


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (PLAIN, PLAIN),
        (PLAIN, REWRITTEN),
        (FACTORY.format(9), FACTORY.format("4 + 5")),
        ("COUNT = 0\ndef check(c):\n    global COUNT\n    COUNT += 1\n    return True\n",
         "COUNT = 7\ndef check(c):\n    global COUNT\n    COUNT += 1\n    return True\n"),
        (CONSTANTS.format("'a', 'b', 'c', 'd'"), CONSTANTS.format("'d', 'c', 'b', 'a'")),
        ("seen = []\ndef check(c):\n    return not seen.append(c)\n",
         "seen = [1]\ndef check(c):\n    return not seen.append(c)\n"),
    ],
)  # fmt: skip
def test_what_only_reads_otherwise_is_the_same_run(written, before, now):
    assert identity(written(before)) == identity(written(now))


def test_a_version_takes_the_place_of_the_source(written):
    other = PLAIN.replace("9", "5")
    one = identity(written(PLAIN, version="1"))
    assert one == identity(written(other, version="1"))
    assert list(map(str, differences(one, identity(written(other, version="2"))))) == [
        'the version of "is short" was "1" and is now "2"'
    ]


@pytest.mark.parametrize("made_by", ["cpython-399 12345678", "12345678", None])
def test_where_another_python_or_none_compiled_it_the_name_decides(written, made_by):
    known = identity(written(PLAIN))
    unknown = json.loads(json.dumps(known))
    unknown["requirements"][0]["code"] = made_by
    assert differences(known, unknown) == differences(unknown, known) == ()


def test_in_what_is_put_together_the_part_that_changed_is_named(written):
    def either(source):
        return identity(Requirement("is kind") & (written(PLAIN) | ~written(source)))

    assert differences(either(PLAIN), either(REWRITTEN)) == ()
    [difference] = differences(either(PLAIN), either(PLAIN.replace("9", "5")))
    assert difference.name == 'the code of "is short"'
    assert None not in {difference.was, difference.now}


def test_what_is_written_in_c_goes_by_its_name():
    [one] = identity(Requirement("is so", bool))["requirements"]
    assert one.keys() == {"description", "validator"}


@pytest.mark.anyio
async def test_a_journal_is_refused_when_the_body_of_a_validator_has_changed(path, written):
    async def run(source):
        requirement = await anyio.to_thread.run_sync(written, source)
        strategy = RejectionSamplingStrategy(ScriptedBackend(["short"] * 4), loop_budget=1)
        arguments = {"requirements": [requirement], "journal": path}
        items = await results_of(strategy, ["a", "b"], concurrency=1, **arguments)
        return [item.replayed for item in items]

    assert await run(PLAIN) == [False, False]
    assert await run("# Better.\n" + PLAIN) == [True, True]
    with pytest.raises(JournalError, match=r'the code of "is short" was'):
        await run(PLAIN.replace("9", "5"))
