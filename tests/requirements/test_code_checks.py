"""Checks of code: their verdicts on right and wrong code, and their reasons."""

from __future__ import annotations

import collections
import json
import math
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
from code_kit import decided, python, sandbox
from engine_kit import verdict
from hypothesis import given
from hypothesis import strategies as st

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import ScriptedBackend
from mellea_like.errors import RequirementError
from mellea_like.requirements import parse_check
from mellea_like.requirements.code import (
    CodeReport,
    Sandbox,
    agrees_with,
    fenced,
    parses,
    passes_tests,
    prints,
    returns,
    runs,
    runs_sql,
)
from mellea_like.requirements.code.plain import decode, encode, same

pytestmark = pytest.mark.anyio

ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""Programs don't depend on the event loop. The last tests here and the sandbox's run on both."""

box = pytest.fixture(scope="module", name="box")(sandbox)


# --- parses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1", ""),
        (python("def f(x):\n    return x"), ""),
        (python('import re\nre.compile("\\d")'), ""),
        (python("x = (1"), "it does not parse: line 1: '(' was never closed: x = (1"),
        (python("return 1"), "it does not parse: line 1: 'return' outside function"),
        ("I can't.", "it does not parse (it has no fenced code): line 1: unterminated string"),
        ("```python\n```", "it does not parse: there is no code"),
        ("", "it does not parse (it has no fenced code): there is no code"),
        (python("(" * 5000), "it does not parse: "),
        (python("x = '\0'"), "it does not parse: "),
    ],
)
def test_python_is_parsed_and_not_run(text, reason):
    result = verdict(parses("python"), text)
    assert result.passed is not bool(reason)
    assert result.reason.startswith(reason)


@pytest.mark.parametrize(
    ("dialect", "text", "reason"),
    [
        ("sqlite", "```sql\nSELECT name FROM users WHERE id = 1;\n```", ""),
        ("sqlite", "CREATE TABLE a (b INT); INSERT INTO a VALUES (1);", ""),
        ("sqlite", "PRAGMA table_info(a)", ""),
        ("postgres", "SELECT a::int FROM b", ""),
        (None, "WITH a AS (SELECT 1) SELECT * FROM a", ""),
        ("sqlite", "```sql\nSELECT name\nFROM users WHERE (id = 1\n```", "line 2: Expecting )"),
        ("sqlite", "SELECT * FORM users", "line 1: Invalid expression"),
        ("sqlite", "SELECT a FROM WHERE b", 'line 1: Expected table name but got "WHERE": "WHERE"'),
        ("sqlite", "I can't do that.", "Error tokenizing"),
        ("sqlite", "hello world", "no statement begins so"),
        ("sqlite", "-- nothing", "there is no statement"),
    ],
)
def test_sql_is_parsed_in_its_dialect(dialect, text, reason, caplog):
    result = verdict(parses("sql", dialect=dialect), text)
    assert result.passed is not bool(reason), result.reason
    assert reason in result.reason
    assert not caplog.records


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"language": "cobol"}, ValueError, "'python' or 'sql'"),
        ({"language": "python", "dialect": "sqlite"}, ValueError, "only with language='sql'"),
        ({"language": "sql", "dialect": "nosuch"}, ValueError, "nosuch"),
    ],
)
def test_what_can_t_be_parsed_is_refused_at_once(arguments, error, says):
    with pytest.raises(error, match=says):
        parses(**arguments)


# --- runs -----------------------------------------------------------------------------------------


@ON_ASYNCIO
@pytest.mark.parametrize(
    ("code", "settings", "reason"),
    [
        ("print('hello')", {}, ""),
        ("import sys\nif __name__ == '__main__':\n    sys.exit(0)", {}, ""),
        ("print(int(input()) * 2)", {"stdin": "21\n", "stdout": "42"}, ""),
        ("print('a  \\nb')\nprint()", {"stdout": "a\nb\n"}, ""),
        (
            "print(int(input()) * 3)",
            {"stdin": "21\n", "stdout": "42"},
            'line 1 of its output is "63"; it should be "42"',
        ),
        ("pass", {"stdout": "42"}, "it prints 0 lines; it should print 1"),
        # Threads and exit handlers of a program run to their end.
        (
            (
                "import atexit, threading, time\natexit.register(print, 'three')\n"
                "threading.Thread(target=lambda: (time.sleep(.05), print('two'))).start()\n"
                "print('one')"
            ),
            {"stdout": "one\ntwo\nthree"},
            "",
        ),
        (
            "def f(x):\n    return 1 / x\n\n\nimport json\nprint(f(0))",
            {},
            (
                "it ended with exit status 1:\nZeroDivisionError: division by zero\n"
                "  program.py, line 6, in <module>: print(f(0))\n"
                "  program.py, line 2, in f: return 1 / x"
            ),
        ),
        (
            "def f(x):\n    return f(x + 1)\n\nf(0)",
            {},
            (
                "RecursionError: maximum recursion depth exceeded\n"
                "  program.py, line 4, in <module>: f(0)\n"
                "  program.py, line 2, in f: return f(x + 1)\n"
                "  [Previous line repeated "
            ),
        ),
        ("import json\njson.loads('{')", {}, "  program.py, line 2, in <module>: json.loads('{')"),
        ("raise SystemExit('no input')", {}, "it ended with exit status 1:\nno input"),
        (
            (
                "import unittest\nclass T(unittest.TestCase):\n"
                "    def test(self): self.assertEqual(1, 2)\nunittest.main()"
            ),
            {},
            "FAILED (failures=1)",
        ),
        ("import sys\nsys.exit(3)", {}, "it ended with exit status 3"),
        ("x = (1", {}, "it does not parse: line 1"),
        (f"{'#' * 20_000}\nx = (1", {}, "SyntaxError: '(' was never closed"),
        (
            "while True: pass",
            {"seconds": 0.2},
            "it took more than 0.2 s of processor time, and was ended",
        ),
        (
            "x = 'a' * 10**10",
            {},
            "MemoryError\n  program.py, line 1, in <module>: x = 'a' * 10**10",
        ),
        ("print('x' * 10**7)", {}, "it printed more than 1 MiB"),
        ("import os\nos.kill(os.getpid(), 11)\nimport ctypes\nctypes.string_at(0)", {}, "SIGSEGV"),
    ],
)
async def test_a_program_runs_or_the_reason_tells_the_model_why_not(box, code, settings, reason):
    result = await decided(runs(sandbox=box, **settings), python(code))
    assert result.passed is not bool(reason), result.reason
    assert reason in result.reason


# --- passes_tests ---------------------------------------------------------------------------------

ADD = "def add(a, b):\n    return a + b"
STACK = """
class Empty(LookupError):
    pass

class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x)
    def pop(self):
        if not self.items: raise Empty("nothing there")
        return self.items.pop()
    def __len__(self): return len(self.items)
    def __eq__(self, other): return self.items == other.items
    def __iter__(self): return iter(self.items)
    def __enter__(self): return self
    def __exit__(self, *_): self.items.clear()
"""
STACK_TESTS = """
def make(*items):
    stack = Stack()
    for item in items:
        stack.push(item)
    return stack

def test_pop():
    stack = make(1, 2)
    assert (stack.pop(), len(stack), list(stack), stack.items) == (2, 1, [1], [1])
    assert isinstance(stack, Stack) and not isinstance(3, Stack)

def test_equal():
    assert make(1) == make(1) and make(1) != make(2) and not make()

def test_empty():
    try:
        Stack().pop()
    except Empty as exc:
        assert str(exc) == "nothing there" and isinstance(exc, LookupError)
    else:
        assert False

def test_context():
    with make(1) as stack:
        stack.items = [4, 5]
        assert stack.pop() == 5
    assert len(stack) == 0
"""


@ON_ASYNCIO
@pytest.mark.parametrize(
    ("code", "tests"),
    [
        (ADD, "assert add(2, 2) == 4"),
        (
            ADD,
            ["assert add(2, 2) == 4", "from solution import add as plus\nassert plus(1, 1) == 2"],
        ),
        (ADD, "def check(candidate):\n    assert candidate(1, 2) == 3\n\ncheck(add)"),
        (STACK, STACK_TESTS),
        (
            ADD,
            (
                "import unittest\nclass TestAdd(unittest.TestCase):\n"
                "    def setUp(self): self.one = 1\n"
                "    def test_ints(self): self.assertEqual(add(self.one, 2), 3)\n"
                "    def test_bad(self):\n        with self.assertRaises(TypeError): add(1, 'a')\n"
            ),
        ),
        ("async def wait(x):\n    return x", "import asyncio\nassert asyncio.run(wait(3)) == 3"),
        (
            "def boom():\n    import sys; sys.exit(2)",
            "try:\n    boom()\nexcept SystemExit as e:\n    code = e.code\nassert code == 2",
        ),
        ("def sum(a, b):\n    return a + b", "import solution\nassert solution.sum(1, 2) == 3"),
        ("if __name__ == '__main__':\n    raise SystemExit(1)\nx = 1", "assert x == 1"),
        (ADD, "for x in range(3):\n    assert add(x, 1) == x + 1"),
        (ADD, "async def test_add():\n    assert add(1, 1) == 2"),
        (f"{ADD}\ndef test_add(): pass", "def test_add(): assert add(1, 1) == 2"),
        (ADD, "\n".join(f"assert add({i}, 1) == {i + 1}" for i in range(1000))),
        (
            ADD,
            (
                "import unittest\nclass TestAdd(unittest.TestCase):\n"
                "    @classmethod\n    def setUpClass(cls): cls.one = 1\n"
                "    def test_add(self): self.assertEqual(add(self.one, 2), 3)\n"
            ),
        ),
        ("def size():\n    return len('a\u2028b')", "assert size() == 3"),
        (
            (
                "import weakref\nclass A: pass\nseen = weakref.WeakSet()\ndef f():\n"
                "    a = A(); seen.add(a); return a"
            ),
            "def test_f():\n    a = f()\n    assert a in seen\n    del a\n    assert not len(seen)",
        ),
        (
            "import time\ndef now(): return time.time()",
            (
                "from unittest.mock import patch\n@patch('time.time', return_value=5)\n"
                "def test_now(clock): assert now() == 5 and clock.called"
            ),
        ),
        (
            ADD,
            (
                "import unittest\nclass T(unittest.IsolatedAsyncioTestCase):\n    made = 0\n"
                "    @classmethod\n    def setUpClass(cls): cls.made += 1\n"
                "    async def asyncSetUp(self): self.two = 2\n"
                "    async def test_add(self):\n"
                "        with self.subTest(two=2): self.assertEqual(add(1, 1), self.two)\n"
                "    def test_made(self): self.assertEqual(self.made, 1)\n"
                "    @unittest.expectedFailure\n    def test_bad(self): self.fail()\n"
                "    def test_later(self): self.skipTest('later')\n"
            ),
        ),
        ("def sum(a, b): return a + b", "assert sum(1, 2) == 3"),
        (
            "runs = 0\ndef f():\n    global runs; runs += 1; return runs",
            "def test_f(): assert f() == 1\ntest_f()",
        ),
        (
            ADD,
            (
                "import unittest\nclass T(unittest.TestCase):\n"
                "    def test(self): assert add(1, 1) == 2\n"
                "if __name__ == '__main__': unittest.main()"
            ),
        ),
    ],
)
async def test_right_code_passes_the_tests_that_people_write(box, code, tests):
    result = await decided(passes_tests(tests, sandbox=box), python(code))
    assert result.passed, result.reason
    assert result.score == 1


PYTEST = {
    "raises": (
        "def f(x):\n    if x < 0: raise ValueError('negative value')\n    return x",
        """
def test_with():
    with pytest.raises(ValueError, match="negat") as caught:
        f(-1)
    assert "value" in str(caught.value) and caught.type is ValueError
def test_call():
    pytest.raises((TypeError, ValueError), f, -1)
""",
    ),
    "approx": (
        "def f(): return 0.1 + 0.2",
        """
def test_f():
    assert f() == pytest.approx(0.3) and [f()] == pytest.approx([0.3])
    assert {"a": f()} == pytest.approx({"a": 0.3}) and f() != pytest.approx(0.31)
    assert 1e6 != pytest.approx(1e6 + 0.5, abs=0.1) and f() == pytest.approx(0.31, rel=0.1)
""",
    ),
    "parameters": (
        ADD,
        """
@pytest.mark.parametrize("a, b, c", [(1, 2, 3), pytest.param(0, 0, 0, id="zero")])
def test_add(a, b, c): assert add(a, b) == c
@pytest.mark.parametrize("a", [1, 2])
class TestAdd:
    @pytest.mark.parametrize(["b"], [(3,), (4,)])
    def test_more(self, a, b): assert add(a, b) == a + b
""",
    ),
    "fixtures": (
        STACK,
        """
@pytest.fixture
def stack():
    made = Stack()
    yield made
    made.items.clear()
@pytest.fixture(scope="function")
def full(stack):
    stack.push(1)
    return stack
def test_full(full, stack): assert full is stack and stack.items == [1]
class TestStack:
    def setup_method(self, method): self.name = method.__name__
    @pytest.fixture
    def three(self): return 3
    def test_push(self, stack, three, tmp_path):
        stack.push(three)
        (tmp_path / "a").write_text(self.name)
        assert stack.items == [3] and (tmp_path / "a").read_text() == "test_push"
""",
    ),
    "skipped": (
        ADD,
        """
@pytest.mark.skip(reason="later")
def test_one(): assert False
@pytest.mark.skipif(True, reason="later")
def test_two(): assert False
def test_three(): pytest.skip("later")
@pytest.mark.asyncio
async def test_four(): assert add(1, 1) == 2
pytest.main([__file__])
""",
    ),
}


@ON_ASYNCIO
@pytest.mark.parametrize(("code", "tests"), PYTEST.values(), ids=PYTEST)
async def test_right_code_passes_tests_that_use_pytest(box, code, tests):
    result = await decided(passes_tests(f"import pytest\n{tests}", sandbox=box), python(code))
    assert result.passed, result.reason


@ON_ASYNCIO
@pytest.mark.parametrize(
    ("code", "tests", "reason", "score"),
    [
        (
            ADD.replace("+", "-"),
            "assert add(2, 2) == 4\nassert add(3, 0) == 3, 'nothing added'\nassert add(1, 0) == 1",
            "it passes 2 of 3 tests: `assert add(2, 2) == 4` failed: add(2, 2) is 0",
            2 / 3,
        ),
        (
            ADD.replace("+", "-"),
            "def test_one():\n    x = 1\n    assert add(x, x) in (2, 3), 'a sum'",
            (
                "`assert add(x, x) in (2, 3), 'a sum'` failed: add(x, x) is 0 and (2, 3) is (2, 3)"
                " (a sum)"
            ),
            0,
        ),
        (ADD.replace("a + b", "None"), "assert add(1, 1)", "failed: add(1, 1) is None", 0),
        (ADD, "assert not add(1, 1)", "`assert not add(1, 1)` failed: add(1, 1) is 2", 0),
        (
            ADD.replace("a + b", "a / b"),
            "assert add(1, 0) == 1",
            (
                "`assert add(1, 0) == 1` raised ZeroDivisionError: division by zero\n"
                "  program.py, line 2, in add: return a / b"
            ),
            0,
        ),
        (ADD, "assert sub(1, 1) == 0", "raised NameError: name 'sub' is not defined", 0),
        ("x = 1 / 0", "assert x", "the program raised ZeroDivisionError", 0),
        (
            "def add(a, b):\n    while True: pass",
            "assert 1 == 1\nassert add(1, 2) == 3",
            "it took more than 0.3 s of processor time in `assert add(1, 2) == 3`, and was ended",
            0,
        ),
        (
            ADD,
            (
                "import unittest\nclass T(unittest.TestCase):\n"
                "    def test_a(self): self.assertEqual(add(1, 1), 3)\n"
            ),
            "`T.test_a`: 2 != 3",
            0,
        ),
        (
            ADD.replace("+", "*"),
            (
                "import pytest\n@pytest.mark.parametrize('a', [2, 3])\n"
                "def test_a(a):\n    if add(a, 2) != a + 2: pytest.fail('no sum')\n"
            ),
            "it passes 1 of 2 tests: `test_a` with a=3: no sum",
            1 / 2,
        ),
        (
            ADD,
            "import pytest\ndef test_a():\n    with pytest.raises(TypeError): add(1, 1)",
            "`test_a`: did not raise <class 'TypeError'>",
            0,
        ),
        (
            ADD,
            "import unittest\nclass T(unittest.TestCase):\n    def setUpClass(): add()",
            "`T.setUpClass` raised TypeError: add() missing 2",
            0,
        ),
        (ADD, "assert add(1, 1) == 3\n" * 5, "\nand 2 more tests failed", 0),
        (ADD, "assert add(1, 1) == 3\n" * 4, "\nand 1 more test failed", 0),
        (ADD, "x = add(1, None)\nassert x", "`x = add(1, None)` raised TypeError", 0),
        ("def add(a, b):\n    return object()", "assert add(1, 2) == 3", "is <object object at", 0),
        (
            "def add(a, b):\n    import os; os.abort()",
            "assert add(1, 2) == 3",
            "the program was ended by SIG",
            0,
        ),
    ],
)
async def test_wrong_code_fails_and_the_reason_has_what_was_found(box, code, tests, reason, score):
    check = passes_tests(tests, sandbox=box, seconds=0.3 if "while" in code else None)
    result = await decided(check, python(code))
    assert not result.passed
    assert reason in result.reason
    assert result.score == pytest.approx(score)


@pytest.mark.parametrize(
    ("tests", "settings", "error", "says"),
    [
        ("assert (", {}, ValueError, "the tests don't parse: line 1: '\\(' was never closed"),
        ("x = 1", {}, ValueError, "must have a test"),
        ([], {}, ValueError, "must have a test"),
        (["assert x", "import a"], {}, ValueError, "must have a test"),
        ([1], {}, TypeError, "source of tests"),
        ("assert x", {"names": "add"}, TypeError, "sequence of names"),
    ],
)
def test_tests_that_test_nothing_are_refused(tests, settings, error, says):
    with pytest.raises(error, match=says):
        passes_tests(tests, **settings)


PLAIN = st.one_of(
    st.none() | st.booleans() | st.text() | st.binary() | st.integers(),
    st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False),
    st.fractions() | st.decimals(allow_nan=False) | st.datetimes() | st.dates(),
)
DATA = st.recursive(
    PLAIN | st.sets(st.fractions()) | st.frozensets(PLAIN),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(DATA)
def test_plain_data_comes_back_as_it_is(value):
    found = decode(json.loads(json.dumps(encode(value))))
    assert (type(found), found) == (type(value), value)
    assert same(found, value, 0, 0)


@pytest.mark.parametrize(
    ("found", "wanted", "equal"),
    [
        (0.1 + 0.2, 0.3, True),
        ([1, {"a": 0.1 + 0.2}], [1, {"a": 0.3}], True),
        (1, 1.0, True),
        (1, True, True),
        (math.nan, math.nan, True),
        (complex(0, math.inf), complex(0, math.inf), True),
        (1 + 1e-12j, 1, True),
        (math.inf, -math.inf, False),
        (1.0, 1.001, False),
        ((1, 2), [1, 2], False),
        ("1", 1.0, False),
        (b"1", 1.0, False),
        ({1, 2}, {2, 1}, True),
        (np.array([1.0, 2.0]), [1.0, 2.0], True),
        (np.array([[1, 2]]), np.array([[1, 3]]), False),
        (np.float32(0.5), 0.5, True),
        (collections.Counter("a"), {"a": 1}, True),
        ([10**5000], [10**5000 + 1], False),
    ],
)
def test_answers_are_equal_as_in_python_and_floats_nearly(found, wanted, equal):
    assert same(decode(encode(found)), decode(encode(wanted)), 1e-9, 1e-9) is equal


@pytest.mark.parametrize(
    "data",
    [{}, ["list"], ["os.system", "true"], ["set", [["list", []]]], ["int", 3], ["fraction", "1/0"]],
)
def test_what_is_no_plain_data_is_refused_whoever_wrote_it(data):
    with pytest.raises(ValueError):
        decode(data)


DOUBLE = "def double(x):\n    return x * 2"


@ON_ASYNCIO
@pytest.mark.parametrize(
    ("check", "code", "reason"),
    [
        (returns("double", [(2, 4), ("a", "aa"), ((1.5,), 3)]), DOUBLE, ""),
        (returns("double", [(None, TypeError)]), DOUBLE, ""),
        (returns("S().f", [(1, 2)]), "class S:\n    async def f(self, x): return x + 1", ""),
        (returns("double", [(2, 4), (3, 7)]), DOUBLE, "it is right for 1 of 2 inputs"),
        (
            returns("double", [(3, 7)], show_case=True),
            DOUBLE,
            "it is right for 0 of 1 input: double(3) is 6; it should be 7",
        ),
        (
            returns("double", [({}, 1)]),
            DOUBLE,
            (
                "double({}) raised TypeError: unsupported operand type(s) for *: 'dict' and 'int'\n"
                "  program.py, line 2, in double: return x * 2"
            ),
        ),
        (returns("halve", [(2, 1)]), DOUBLE, "NameError: name 'halve' is not defined"),
        (agrees_with(DOUBLE, [1, "a", None]), DOUBLE, ""),
        (agrees_with(DOUBLE, [1, "a"]), "def double(x): return x - 1", "it is right for 0 of 2"),
        (agrees_with(partial(int.__mul__, 2), [1, 3], function="double"), DOUBLE, ""),
        (agrees_with(abs, [-1, 2.5]), "def abs(x): return x if x > 0 else -x", ""),
        (prints("21", "42"), "print(int(input()) * 2)", ""),
        (prints(["1", "2"], ["2", "4"]), "print(2)", "it is right for 1 of 2 inputs"),
        (
            prints("1", "2", show_case=True),
            "print(3)",
            'given "1", line 1 of its output is "3"; it should be "2"',
        ),
    ],
)
async def test_answers_are_compared_outside_the_sandbox(check, code, reason):
    result = await decided(check, python(code))
    assert result.passed is not bool(reason), result.reason
    assert reason in result.reason
    assert check.check_only is ("should be" not in reason)


@ON_ASYNCIO
@pytest.mark.parametrize(
    ("check", "code", "says"),
    [
        (returns("f", [(1, 1)]), "def f(x): return object()", "of the type object"),
        (
            agrees_with("def f(x): return object()", [1, 2]),
            "f = 1",
            "object, which isn't plain data$",
        ),
        (returns("f", [(1, 1)]), "def f(x): a = []; a.append(a); return a", "contains itself"),
        (passes_tests("import no_such_module\nassert f"), "def f(): pass", "no_such_module"),
        (passes_tests("def test_f(capsys): assert f"), "def f(): pass", "doesn't exist here"),
        (passes_tests("import pytest\nwith pytest.warns(): f()"), "f = 1", r"pytest\.warns"),
        (
            passes_tests("import pytest\n@pytest.fixture(autouse=True)\ndef g(): f()"),
            "def f(): pass",
            "autouse",
        ),
        (
            passes_tests("import pytest\n@pytest.mark.skip\ndef test_f(): assert f"),
            "f = 1",
            "no test that isn't skipped",
        ),
        (passes_tests("assert f"), "import anyio\ndef f(): pass", r"Sandbox\(path="),
    ],
)
async def test_code_that_can_t_be_tested_has_errored_and_not_failed(check, code, says):
    with pytest.raises(RequirementError, match=says):
        await decided(check, python(code))


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: returns("f", []), ValueError, "no inputs"),
        (lambda: returns("f", [1]), TypeError, "a pair"),
        (lambda: returns("f", [(1, object())]), TypeError, "of the type object"),
        (lambda: returns("a b", [(1, 2)]), ValueError, "function must be an expression"),
        (lambda: returns(3, [(1, 2)]), TypeError, "function must be a str"),
        (lambda: returns("f", [(1, 2)], tolerance="1"), TypeError, "tolerance must be a number"),
        (lambda: prints(["1"], []), ValueError, "1 input and 0 outputs"),
        (lambda: prints([1], ["1"]), TypeError, "prints: stdin must be a text"),
        (lambda: prints("1", 1), TypeError, "prints: stdout must be a text .* not 1"),
        (lambda: agrees_with("x = 1", [1]), ValueError, "no function"),
        (lambda: agrees_with(lambda x: x, [1]), ValueError, "pass function="),
        (lambda: agrees_with(partial(max, 1), [1]), ValueError, "pass function="),
        (lambda: runs(stdin=5), TypeError, "runs: stdin must be a str, not int"),
        (lambda: runs(stdout=5), TypeError, "runs: stdout must be a str, not int"),
        (lambda: runs(seconds="1"), TypeError, "runs: seconds must be a number"),
        (lambda: runs(fence="longst"), ValueError, "runs: fence must be 'longest', 'first' or"),
        (lambda: runs(sandbox="docker"), TypeError, "sandbox must be a Sandbox or another"),
        (lambda: runs(sandbox=Sandbox), TypeError, "sandbox must be a Sandbox or another"),
        (lambda: passes_tests("assert f", names=[1]), TypeError, "a sequence of names"),
        (lambda: parse_check('runs:{"stdout": 5}', code=True), ValueError, "stdout must be a str"),
        (lambda: runs_sql(5), TypeError, "runs_sql: schema must be a str"),
        (lambda: runs_sql(like=5), TypeError, "runs_sql: like must be a str"),
        (lambda: parses("python", fence="longst"), ValueError, "parses: fence must be 'longest'"),
        (lambda: fenced("", "rust"), ValueError, "language must be 'python' or 'sql', not 'rust'"),
        (lambda: fenced("", "sql", "any"), ValueError, "which must be 'longest', 'first' or"),
    ],
)
def test_checks_of_code_that_can_t_be_made_are_refused_at_once(make, error, says):
    with pytest.raises(error, match=says):
        make()


# --- in calls -------------------------------------------------------------------------------------


class Elsewhere:
    """A runner that isn't a sandbox."""

    def __init__(self, report):
        self.report = report
        self.jobs = []

    async def run(self, job):
        self.jobs.append(job)
        return self.report


async def test_a_runner_of_the_user_s_own_takes_the_sandbox_s_place():
    runner = Elsewhere(CodeReport(passed=1, total=2, failures=("`assert x` failed",)))
    names: Any = iter(["x"])
    result = await decided(passes_tests("assert x", names=names, sandbox=runner), python("x = 0"))
    assert (result.passed, result.reason) == (False, "it passes 1 of 2 tests: `assert x` failed")
    (job,) = runner.jobs
    assert (job.program, job.tests, job.names) == ("x = 0\n", ("assert x",), ("x",))
    assert not (
        await decided(passes_tests("assert x", sandbox=Elsewhere(CodeReport())), "x")
    ).passed
    assert (await decided(runs(stdout="a", sandbox=Elsewhere(CodeReport(stdout="a"))), "x")).passed


def test_checks_of_code_pickle_with_their_sandbox():
    check = passes_tests("assert x", sandbox=Sandbox(seconds=3), name="right")
    again = pickle.loads(pickle.dumps(check))
    assert (again.name, again.description) == ("right", check.description)


def test_other_tests_make_it_another_check_for_a_run_that_is_resumed():
    box = Sandbox(seconds=3)
    versions = [
        passes_tests("assert x").version,
        passes_tests(["assert x"], sandbox=box).version,
        passes_tests("assert y").version,
        passes_tests("assert x", names=["x"]).version,
        agrees_with(partial(max, 1), [1], function="f").version,
        agrees_with(partial(min, 1), [1], function="f").version,
        agrees_with(partial(max, 2), [1], function="f").version,
        runs().version,
        runs(stdout="").version,
    ]
    assert versions[0] == versions[1]
    assert len(set(versions)) == len(versions) - 1


async def test_a_server_that_can_t_be_started_is_no_verdict_on_the_code():
    nowhere = Sandbox(python=["/nonexistent/python"])
    with pytest.raises(RequirementError, match="could not start"):
        await decided(runs(sandbox=nowhere), "x = 1")
    strategy = RejectionSamplingStrategy(ScriptedBackend(["x = 1"]), loop_budget=1)
    with pytest.raises(RequirementError, match="could not start"):
        await strategy.sample("Write.", [runs(sandbox=Sandbox(preload=["no_such_module"]))])
