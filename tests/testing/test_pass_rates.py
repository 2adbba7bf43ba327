"""``@pytest.mark.pass_rate``: tests that know chance."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

QUIET = ("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist")


@pytest.fixture
def run(pytester):
    def run(body, *arguments):
        pytester.makepyfile(f"import pytest, random, itertools\n{body}")
        return pytester.runpytest_subprocess(*QUIET, *arguments)

    return run


def test_a_rate_that_is_too_low_fails_with_the_first_failure(run):
    done = run(
        """
@pytest.mark.pass_rate(at_least=0.9, concurrency=1)
def test_it(draw):
    draw.reply = f"reply {draw.number}"
    assert draw.number % 2, "it is even"
"""
    )
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(
        [
            "* draws passed (the rate is plausibly *), and at least 0.9 is wanted",
            "the first failure: it is even*",
            "its reply: reply 0",
        ]
    )


def test_what_stays_open_fails_and_says_what_it_would_take(run):
    done = run(
        """
@pytest.mark.pass_rate(at_least=0.9, most=10)
def test_it():
    pass
"""
    )
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(
        ["undecided: 10 of 10 draws passed *; it would take some * more: raise most=10"]
    )


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_async_bodies_run_side_by_side(run, loop):
    done = run(
        f"""
import anyio, sniffio
at_once = most = 0

@pytest.fixture
def anyio_backend():
    return "{loop}"

@pytest.mark.anyio
@pytest.mark.pass_rate(at_least=0.5, concurrency=4)
async def test_it(anyio_backend):
    global at_once, most
    assert sniffio.current_async_library() == "{loop}"
    at_once += 1
    most = max(most, at_once)
    await anyio.sleep(0.01)
    at_once -= 1

def test_most():
    assert most == 4
"""
    )
    done.assert_outcomes(passed=2)


def test_other_errors_count_or_are_raised(run):
    body = """
@pytest.mark.pass_rate(at_least=0.5, errors="{errors}")
def test_it(draw):
    raise KeyError("lost")
"""
    done = run(body.format(errors="fail"))
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["the first failure: KeyError: 'lost'"])
    done = run(body.format(errors="raise"))
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["E   *KeyError: 'lost'"])
    done = run(body.format(errors="ignore"))
    done.stdout.fnmatch_lines(["*errors is 'fail' or 'raise', not 'ignore'"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("", "pass_rate missing 1 required positional argument: 'at_least'"),
        ("at_least=90", "pass_rate: at_least is over 0 and under 1, not 90"),
        ("at_least=0.9, most=0", "pass_rate: most is at least 1, not 0"),
        ("0.9, reps=3", "unexpected keyword argument 'reps'"),
    ],
)
def test_a_wrong_mark_is_a_sentence(run, arguments, problem):
    done = run(f"@pytest.mark.pass_rate({arguments})\ndef test_it():\n    pass\n")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines([f"*{problem}*"])
    assert "During handling" not in done.stdout.str()


def test_the_fixture_belongs_to_the_mark(run):
    run("def test_it(draw):\n    pass\n").stdout.fnmatch_lines(["*is for tests marked pass_rate"])


def test_rates_go_into_a_file_and_into_junit_from_all_processes(pytester):
    pytester.makepyfile(
        """
import pytest

@pytest.mark.pass_rate(at_least=0.5)
@pytest.mark.parametrize("passes", [True, False])
def test_it(passes):
    assert passes
"""
    )
    done = pytester.runpytest_subprocess(
        *QUIET[:4], "-n", "2", "--pass-rates", "rates.json", "--junit-xml", "junit.xml"
    )
    done.assert_outcomes(passed=1, failed=1)
    failed, passed = json.loads((pytester.path / "rates.json").read_text())
    assert (passed["verdict"], passed["rate"], passed["at_least"]) == ("passed", 1.0, 0.5)
    assert (failed["verdict"], failed["passes"]) == ("failed", 0)
    assert failed["first_failure"].startswith("assert False")
    properties = ET.parse(pytester.path / "junit.xml").getroot().findall(".//property")
    assert {one.get("name") for one in properties} == {"pass_rate"}
    assert sorted(json.loads(one.get("value"))["verdict"] for one in properties) == [
        "failed",
        "passed",
    ]


def test_the_cost_of_calls_in_the_body_is_shown(run):
    done = run(
        """
from mellea_like import FunctionBackend, RejectionSamplingStrategy

async def answer(request):
    return "yes"

strategy = RejectionSamplingStrategy(FunctionBackend(answer))

@pytest.mark.pass_rate(at_least=0.5, concurrency=1)
async def test_it():
    assert (await strategy.sample("Agree.")).text == "yes"
"""
    )
    done.assert_outcomes(passed=1)
    done.stdout.re_match_lines([r"passed +1\.000 \(.*\), (\d+) draws, \1 requests: .*test_it"])


def test_a_budget_ends_the_draws_of_all_tests(run):
    body = """
@pytest.mark.pass_rate(at_least=0.9, concurrency=1)
@pytest.mark.parametrize("which", [1, 2])
def test_it(draw, which):
    draw.cost = 0.25
"""
    done = run(body, "--draws-budget", "2.00")
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(["undecided: 8 of 8 draws passed *: the draws' budget of 2 is spent"])
    done.stdout.fnmatch_lines(["undecided 1.000 (*), 8 draws, 2 spent: *1[]]"])
    run(body, "--draws-budget", "200").assert_outcomes(passed=2)


CACHED = """
from mellea_like import FunctionBackend, RejectionSamplingStrategy
from mellea_like.core import Usage
from mellea_like import Generation

asked = itertools.count()

async def model(request):
    return Generation(str(next(asked)), usage=Usage(1, 1_000_000, 100_000))

backend = FunctionBackend(model, model="tiny")

@pytest.mark.pass_rate(at_least=0.5, concurrency=4)
async def test_it(draw):
    strategy = RejectionSamplingStrategy(draw.cached(backend), loop_budget=1)
    result = await strategy.sample("Count.")
    with open("seen.txt", "a") as file:
        file.write(f"{draw.number} {result.value}\\n")
"""


def test_tokens_have_a_price(run):
    done = run(CACHED, "--draws-price", "0.15,0.50", "--draws-budget", "0.60")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["undecided 1.000 (*), * draws, * requests, * spent: *test_it"])
    assert "budget of 0.6 is spent" in done.stdout.str()
    wrong = run(CACHED, "--draws-price", "cheap")
    wrong.stderr.fnmatch_lines(["ERROR: --draws-price takes two amounts*"])


def test_replies_are_replayed_and_cost_nothing(run, pytester):
    arguments = ("--cached", "replies.db", "--draws-price", "0.15,0.50", "--pass-rates", "r.json")
    seen = pytester.path / "seen.txt"
    run(CACHED, *arguments).assert_outcomes(passed=1)
    first = set(seen.read_text().splitlines())
    [paid] = json.loads((pytester.path / "r.json").read_text())
    assert paid["cost"] == pytest.approx(0.2 * paid["requests"])
    assert len({line.split()[1] for line in first}) == len(first)  # Each draw had its own reply.

    seen.unlink()
    run(CACHED, *arguments).assert_outcomes(passed=1)
    replayed = set(seen.read_text().splitlines())
    [free] = json.loads((pytester.path / "r.json").read_text())
    assert len(replayed & first) >= paid["draws"] - 4  # Some were cancelled in flight.
    assert free["draws"] == paid["draws"]
    assert free["cost"] <= 4 * 0.2
