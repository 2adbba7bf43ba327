"""Programs that try to pass without being right.

No cheap cheat passes tests, and no cheat passes a comparison with answers that it never sees.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from code_kit import decided, python, sandbox

from mellea_like.errors import RequirementError
from mellea_like.requirements.code import CodeJob, passes_tests, returns, runs

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),  # Programs know no event loop.
]

box = pytest.fixture(scope="module", name="box")(sandbox)

TESTS = [
    "def check(candidate):\n    assert candidate(2, 2) == 4\n\ncheck(add)",
    "assert add(2, 2) == 4",
    "assert not add(2, 2) != 4",
    "assert all(add(x, 1) == x + 1 for x in range(3))",
    "assert sorted([add(1, 1)]) == [2]",
    "assert abs(add(1.0, 1.0) - 2) < 1e-9",
    (
        "import unittest\nclass Add(unittest.TestCase):\n"
        "    def test_add(self): self.assertEqual(add(2, 2), 4)"
    ),
]

ANYTHING = """
class Anything:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 4
    def __bool__(self): return False
"""

CHEATS = {
    "wrong": "def add(a, b): return 0",
    "_exit": "import os\nos._exit(0)",
    "_exit in a call": "import os\ndef add(a, b): os._exit(0)",
    "sys.exit": "import sys\nsys.exit(0)",
    "sys.exit in a call": "import sys\ndef add(a, b): sys.exit(0)",
    "skipped": "import unittest\ndef add(a, b): raise unittest.SkipTest",
    "builtins in a call": (
        "import builtins\ndef add(a, b):\n"
        "    builtins.all = builtins.sorted = builtins.abs = lambda *a: a\n    return 0"
    ),
    "modules": (
        "import sys, types\nfake = types.ModuleType('unittest')\nfake.TestCase = object\n"
        "sys.modules['unittest'] = fake\ndef add(a, b): return 0"
    ),
    "names of the harness": (
        "import sys\nfor k in list(vars(sys.modules['__main__'])): globals()['@' + k] = print\n"
        "def add(a, b): return 0"
    ),
    "generator exit": "def add(a, b): raise GeneratorExit",
    "marker": 'print(\'{"passed": 7, "total": 7, "failures": [], "ended": false}\', flush=True)',
    "atexit": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return 0",
    "equals everything": f"{ANYTHING}\ndef add(a, b): return Anything()",
    "equals everything, as a number": (
        f"{ANYTHING}\nclass N(Anything, int): pass\ndef add(a, b): return N(7)"
    ),
    "equals everything, as a list": (
        f"{ANYTHING}\nclass L(Anything, list): pass\ndef add(a, b): return L([7])"
    ),
    "builtins": (
        "import builtins\nbuiltins.AssertionError = type('E', (BaseException,), {})\n"
        "builtins.all = builtins.abs = lambda x: True\ndef all(x): return True\n"
        "def sorted(x): return [2]\ndef add(a, b): return 0"
    ),
    "own assertion error": (
        "class AssertionError(Exception): pass\nclass unittest: TestCase = object\n"
        "def check(candidate): pass\ndef add(a, b): raise AssertionError"
    ),
    "unittest": (
        "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\n"
        "unittest.TestCase.run = lambda *a: None\ndef add(a, b): return 0"
    ),
    "operators": (
        "import operator, ast\noperator.eq = lambda a, b: True\n"
        "ast.parse = lambda *a: None\ndef add(a, b): return 0"
    ),
    "every descriptor": (
        'import os, struct\ndata = b\'{"passed": 7, "total": 7, "ended": false}\\n\'\n'
        "for i in range(64):\n    try: os.write(i, data)\n    except OSError: pass\n"
        "def add(a, b): return 0"
    ),
    "closed descriptors": "import os\nos.closerange(0, 64)\ndef add(a, b): return 0",
    "a thread that kills": (
        "import os, signal\ndef add(a, b):\n"
        "    for pid in (os.getppid(), 0):\n"
        "        try: os.kill(pid, signal.SIGTERM)\n"
        "        except OSError: pass\n"
        "    return 0"
    ),
}


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
async def test_no_cheat_passes(box, cheat):
    check = passes_tests(TESTS, sandbox=box, seconds=3)
    result = await decided(check, python(cheat))
    assert not result.passed
    assert result.reason
    assert result.score == 0, result.reason
    answers = returns("add", [((2, 2), 4), ((1, 1), 2)], sandbox=box, seconds=3)
    with suppress(RequirementError):  # An object that isn't plain data has no verdict.
        assert not (await decided(answers, python(cheat))).passed
    # It has no effect on the next program.
    assert (await decided(check, python("def add(a, b): return a + b"))).passed


SLIPS = {
    "a loop after what passes": (
        "def add(a, b): return 0",
        "assert add(0, 0) == 0\nfor x in range(3):\n    assert add(x, 1) == x + 1",
    ),
    "a statement after what passes": (
        "def add(a, b): return 0",
        "assert add(0, 0) == 0\nif True:\n    assert add(1, 1) == 2",
    ),
    "a test that is awaited": (
        "async def add(a, b): return 0",
        "async def test_add():\n    assert await add(1, 1) == 2",
    ),
    "a call that is awaited": (
        "def add(a, b): return 0",
        "async def check(f):\n    assert f(1, 1) == 2\ncheck(add)",
    ),
    "a test of the program's own by the same name": (
        "def add(a, b): return 0\ndef test_more(): pass",
        "def test_more(): assert add(1, 1) == 2\ndef test_add(): assert add(0, 0) == 0",
    ),
    "tests of one name in two sources": (
        "def add(a, b): return 0",
        ["def test_add(): assert add(0, 0) == 0", "def test_add(): assert add(1, 1) == 2"],
    ),
    "a keyboard interrupt": (
        "def add(a, b): raise KeyboardInterrupt",
        (
            "import unittest\nclass Add(unittest.TestCase):\n"
            "    def test_add(self): self.assertEqual(add(1, 1), 2)"
        ),
    ),
}


@pytest.mark.parametrize(("code", "tests"), SLIPS.values(), ids=SLIPS)
async def test_no_test_goes_unrun(box, code, tests):
    result = await decided(passes_tests(tests, sandbox=box), python(code))
    assert not result.passed
    assert result.reason


async def test_what_a_program_raises_is_a_reason_that_can_be_sent(box):
    code = "def add(a, b): raise ValueError('\\ud800' + 'x' * 10**6)"
    report = await box.run(CodeJob(program=code, tests=("assert add(1, 1) == 2",)))
    (failure,) = report.failures
    assert len(failure) < 10_000
    assert failure.encode()


async def test_a_program_has_no_descriptors_but_its_own(box):
    code = (
        "import os\nfound = []\nfor i in range(256):\n    try: os.fstat(i); found.append(i)\n"
        "    except OSError: pass\n"
    )
    result = await decided(
        runs(stdout="[0, 1, 2, 100]", sandbox=box), python(f"{code}print(found)")
    )
    assert result.passed, result.reason
    assert (await decided(passes_tests("assert len(found) == 4", sandbox=box), python(code))).passed


async def test_programs_share_no_state(box):
    dirty = (
        "import builtins, json, os, sys, random\nbuiltins.x = json.x = 1\nsys.path.clear()\n"
        "os.environ['X'] = '1'\nopen('x', 'w').close()\nprint(random.random())"
    )
    clean = (
        "import json, os, sys\nassert not hasattr(json, 'x') and sys.path\n"
        "assert 'X' not in os.environ and not os.listdir('.')\nx"
    )
    for _ in range(2):
        assert (await decided(runs(sandbox=box), python(dirty))).passed
        reason = (await decided(runs(sandbox=box), python(clean))).reason
        assert "NameError: name 'x' is not defined" in reason
