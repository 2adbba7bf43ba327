"""``@pytest.mark.pass_rate``: tests that know chance."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

QUIET = ("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist")


@pytest.fixture
def few_plugins(monkeypatch):
    """Load no plugins but those that are named, which halves the time of a process."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return ("-p", "no:cacheprovider", "-p", "mellea_like.testing.pass_rates")


@pytest.fixture
def run(pytester):
    def run(body, *arguments):
        pytester.makepyfile(f"import pytest, random, itertools\n{body}")
        return pytester.runpytest_inprocess(*QUIET, *arguments)

    return run


# Draws count in the order of their start: a thread that gets no time holds up the verdict.
@pytest.mark.parametrize("body", ["async def", "def"])
def test_a_body_that_always_passes_runs_until_that_is_certain(run, body):
    concurrency = 8 if body == "async def" else 1
    done = run(
        f"""
runs = []

@pytest.mark.pass_rate(at_least=0.9, most=100, concurrency={concurrency})
{body} test_it(draw, tmp_path):
    runs.append(draw.number)
    assert tmp_path.is_dir()

def test_how_often():
    assert 40 < len(runs) < 70
    assert sorted(runs) == list(range(len(runs)))
"""
    )
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(
        ["*pass rates*", "passed    1.000 (0.90* to 1.000), * draws: *test_it"]
    )


@pytest.mark.parametrize(
    ("mark", "body", "says"),
    [
        (
            "at_least=0.9, concurrency=1",
            'draw.reply = f"reply {draw.number}"; assert draw.number % 2, "it is even"',
            [
                "* draws passed (the rate is plausibly *), but at least 0.9 is required",
                "the first failure: it is even*",
                "its reply: reply 0",
            ],
        ),
        (
            "at_least=0.9, most=10",
            "pass",
            ["undecided: 10 of 10 draws passed *; *rate it would take about 33 more: raise *=10"],
        ),
        ("at_least=0.5, errors='fail'", "{}['lost']", ["the first failure: KeyError: 'lost'"]),
        ("at_least=0.5, errors='raise'", "{}['lost']", ["E   *KeyError: 'lost'"]),
        ("at_least=0.5", "draw.cost = '3 $'", ["pass_rate: draw.cost must be a number, not '3 $'"]),
        ("at_least=0.5", "draw.cost = -3", ["pass_rate: draw.cost must be at least 0*, not -3"]),
        ("at_least=0.5", "draw.cost = 1e999", ["pass_rate: draw.cost must be *inf"]),
        ("at_least=0.5, errors='skip'", "pass", ["*errors must be 'fail' or 'raise', not 'skip'*"]),
        ("", "pass", ["*pass_rate missing 1 required positional argument: 'at_least'*"]),
        (
            "at_least=90",
            "pass",
            ["*pass_rate: at_least must be greater than 0 and less than 1, not 90*"],
        ),
        ("at_least=0.9, most=0", "pass", ["*pass_rate: most must be at least 1, not 0*"]),
        ("0.9, reps=3", "pass", ["*unexpected keyword argument 'reps'*"]),
    ],
)
def test_what_fails_says_why(run, mark, body, says):
    done = run(f"@pytest.mark.pass_rate({mark})\ndef test_it(draw):\n    {body}\n")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(says)
    assert "During handling" not in done.stdout.str()


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


def test_skips_and_expected_failures_are_those_of_the_test(run):
    done = run(
        """
import unittest

@pytest.mark.pass_rate(at_least=0.5)
def test_skips():
    pytest.skip("no model here")

@pytest.mark.pass_rate(at_least=0.5)
def test_skips_as_unittest_does():
    raise unittest.SkipTest("no model here")

@pytest.mark.pass_rate(at_least=0.5)
def test_expects_to_fail(draw):
    if draw.number == 2:
        pytest.xfail("known")

@pytest.mark.xfail
@pytest.mark.pass_rate(at_least=0.9)
def test_is_marked():
    assert False
"""
    )
    done.assert_outcomes(skipped=2, xfailed=2)
    assert "::test_skips" not in done.stdout.str()


def test_nothing_passes_that_has_not_run(run):
    """Coroutines are awaited; what can't be run as often as it takes fails."""
    done = run(
        """
import unittest

def surrounded(function):
    def plain(**given):
        return function(**given)
    return plain

@pytest.mark.pass_rate(at_least=0.5)
@surrounded
async def test_async_behind_a_decorator():
    assert False, "it has run"

@pytest.mark.pass_rate(at_least=0.5)
async def test_generator():
    yield

@pytest.mark.pass_rate(at_least=0.5)
def test_returns():
    return False

class TestCase(unittest.IsolatedAsyncioTestCase):
    @pytest.mark.pass_rate(at_least=0.5)
    async def test_async_method(self):
        pass

class TestPlain(unittest.TestCase):
    @pytest.mark.pass_rate(at_least=0.5)
    def test_method(self):
        pass
""",
        *("-W", "default"),
    )
    done.assert_outcomes(failed=3, passed=2, warnings=1)
    done.stdout.fnmatch_lines(
        [
            "the first failure: it has run*",
            "pass_rate: the body is a generator, so its code never runs: remove its yield",
            "pass_rate: something else ran the body, as with async methods of a*",
            "*test_returns returned bool: did you mean assert?",
            "passed * 7 draws: *TestPlain::test_method",
        ],
        consecutive=False,
    )


def test_threads_end_before_their_fixtures(run):
    done = run(
        """
import threading

enough = threading.Event()
seen = []

@pytest.fixture
def connection():
    state = {"open": True}
    yield state
    state["open"] = False

@pytest.mark.pass_rate(at_least=0.5, concurrency=8)
def test_it(connection, draw):
    if draw.number == 7:  # The first seven pass, and are enough.
        enough.wait(0.3)
    seen.append((draw.number, connection["open"]))

def test_all_ended():
    assert (7, True) in seen
    assert all(was_open for _, was_open in seen)
"""
    )
    done.assert_outcomes(passed=2)


def test_async_bodies_share_the_loop_of_their_fixtures(run):
    done = run(
        """
import anyio, anyio.lowlevel

@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param

@pytest.fixture
async def loop(anyio_backend):
    async with anyio.create_task_group() as tasks:
        yield anyio.lowlevel.current_token()
        tasks.cancel_scope.cancel()

@pytest.mark.anyio
@pytest.mark.pass_rate(at_least=0.5)
async def test_it(loop):
    assert anyio.lowlevel.current_token() == loop

@pytest.mark.anyio
@pytest.mark.pass_rate(at_least=0.5, errors="raise")
async def test_assertions_in_a_group_are_failures(loop):
    async with anyio.create_task_group():
        assert False, "in a group"
"""
    )
    done.assert_outcomes(passed=2, failed=2)
    done.stdout.fnmatch_lines(["the first failure: in a group*"])


def test_a_plugin_that_makes_async_tests_plain_runs_all_draws_in_its_loop(run, pytester):
    """As pytest-asyncio does: it puts a plain function in place of the item's."""
    pytester.makeconftest(
        """
import asyncio, inspect, pytest

class Item(pytest.Function):
    def runtest(self):
        function = self.obj
        if inspect.iscoroutinefunction(function):
            with asyncio.Runner() as runner:
                self.obj = lambda **given: runner.run(function(**given))
                super().runtest()

@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector, name, obj):
    if inspect.iscoroutinefunction(obj):
        return Item.from_parent(collector, name=name)
"""
    )
    done = run(
        """
import asyncio
loops, at_once, most = set(), 0, 0

@pytest.mark.pass_rate(at_least=0.5, concurrency=4)
async def test_it(draw):
    global at_once, most
    loops.add(asyncio.get_running_loop())
    at_once += 1
    most = max(most, at_once)
    await asyncio.sleep(0.01)
    at_once -= 1

def test_loops():
    assert (len(loops), most) == (1, 4)
"""
    )
    done.assert_outcomes(passed=2)


def test_a_reply_can_not_steer_the_terminal_and_only_counted_draws_are_shown(run, pytester):
    done = run(
        r"""
class Odd:
    def __str__(self):
        raise ValueError

@pytest.mark.pass_rate(at_least=0.5, concurrency=1)
def test_hostile(draw):
    draw.reply = Odd() if draw.number else "\x1b[2Jgone\ud800" + "x" * 600
    assert False, "\x1b[31mred\x07"

@pytest.mark.pass_rate(at_least=0.5, concurrency=40)
async def test_passes_at_first(draw):
    draw.reply = draw.number
    assert draw.number < 20
""",
        "--pass-rates",
        "new/folder/rates.json",
    )
    done.assert_outcomes(failed=1, passed=1)
    done.stdout.fnmatch_lines(
        ["the first failure: red\\x07", "          the first failing reply:*"]
    )
    assert "\x1b" not in done.stdout.str()
    hostile, passes = json.loads((pytester.path / "new/folder/rates.json").read_text())
    assert hostile["first_failing_reply"].startswith("\\x1b[2Jgone\\ud800xxx")
    assert (passes["first_failing_reply"], passes["first_failure"]) == (None, "")


def test_the_fixture_belongs_to_the_mark(run):
    run("def test_it(draw):\n    pass\n").stdout.fnmatch_lines(
        ["*is only for tests marked pass_rate"]
    )


def test_rates_go_into_a_file_and_into_junit_from_all_processes(pytester, few_plugins):
    pytester.makepyfile(
        """
import pytest

@pytest.mark.pass_rate(at_least=0.5)
@pytest.mark.parametrize("passes", [True, False])
def test_it(passes):
    assert passes
"""
    )
    files = ("--pass-rates", "rates.json", "--junit-xml", "junit.xml")
    done = pytester.runpytest_subprocess(*few_plugins, "-p", "xdist", "-n", "2", *files)
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
    done.stdout.fnmatch_lines(["undecided: no draw was made, *: the draws' budget of 2 is spent"])
    run(body, "--draws-budget", "200").assert_outcomes(passed=2)


def test_draws_side_by_side_keep_to_the_budget(run):
    done = run(
        """
import anyio

@pytest.mark.pass_rate(at_least=0.9, concurrency=8)
async def test_it(draw):
    await anyio.sleep(0.001 * draw.number)
    draw.cost = 0.3

@pytest.mark.pass_rate(at_least=0.5)
def test_without_a_cost():
    pass
""",
        "--draws-budget",
        "2.00",
    )
    done.assert_outcomes(failed=1, passed=1)
    done.stdout.fnmatch_lines(
        [
            "undecided 1.000 (*), 6 draws, 1.8 spent: *test_it",
            "passed *: *test_without_a_cost",
            "--draws-budget did not limit 1 of these tests, which reported no cost: *",
        ]
    )
    wrong = run("", "--draws-budget", "nan")
    wrong.stderr.fnmatch_lines(["ERROR: --draws-budget must be an amount of money over 0*not nan"])


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
    wrong.stderr.fnmatch_lines(["ERROR: --draws-price must be two amounts*"])


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


def test_without_marked_tests_nothing_is_shown_or_imported(pytester, few_plugins):
    pytester.makepyfile(
        """
import sys

def test_it():
    assert "anyio" not in sys.modules or "mellea_like.sequential" not in sys.modules
"""
    )
    done = pytester.runpytest_subprocess(*few_plugins)
    done.assert_outcomes(passed=1)
    assert "pass rates" not in done.stdout.str()
