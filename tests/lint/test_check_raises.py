"""The lint script for ``Raises:`` sections notices what is missing, and nothing else."""

from __future__ import annotations

import check_raises
import pytest

FUNCTION = '''
def work(x):
    """Work.

    Args:
        x: it.

    Raises:
        {documented}: it is wrong.
    """
    if x:
        raise {raised}
'''

ARGS = '"""Do it.\\n\\nArgs:\\n    x: it.\\n"""'

METHOD = '''
class Worker:
    """It works.

    Raises:
        {documented}: it is wrong.
    """

    def {method}(self):
        """Do it.

        Returns:
            Nothing.
        """
        for _ in ():
            raise {raised}("no")
'''


@pytest.mark.parametrize(
    ("documented", "raised", "missing"),
    [
        ("ValueError", 'ValueError("no")', None),
        ("ValueError", "ValueError", None),
        ("ValueError", 'TypeError("no")', "TypeError"),
        ("LookupError", 'KeyError("no")', None),
        ("BackendError", 'RateLimited("no")', None),
        ("RateLimited", 'BackendError("no")', "BackendError"),
        ("Exception", "json.JSONDecodeError", "JSONDecodeError"),
        ("Exception", 'ValueError("no")', "ValueError"),
        ("Exception", 'Exception("no")', None),
        ("ValueError", "", None),
        ("ValueError", "error", None),
        ("ValueError", 'AssertionError("no")', None),
    ],
)
def test_function_names_what_it_raises_or_a_base_of_it(documented, raised, missing):
    found = check_raises.problems(FUNCTION.format(documented=documented, raised=raised), "m.py")
    expected = f"m.py:12: work does not say that it raises {missing}"
    assert found == ([expected] if missing else [])


@pytest.mark.parametrize(
    ("method", "documented", "problems"),
    [
        ("__init__", "ValueError", 0),
        ("__init__", "TypeError", 1),
        ("__post_init__", "TypeError", 1),
        ("run", "ValueError", 1),
        ("_run", "TypeError", 0),
        ("__getattr__", "TypeError", 0),
    ],
)
def test_constructor_is_documented_in_its_class_and_a_method_in_itself(
    method, documented, problems
):
    source = METHOD.format(method=method, documented=documented, raised="ValueError")
    assert len(check_raises.problems(source, "m.py")) == problems


@pytest.mark.parametrize(
    "source",
    [
        "def _private():\n    '''Do.'''\n    raise ValueError\n",
        "class _Private:\n    def run(self):\n        raise ValueError\n",
        "def one_line():\n    '''Do it.'''\n    raise ValueError\n",
        "def outer():\n    def inner():\n        raise ValueError\n    return inner\n",
    ],
)
def test_private_and_inner_functions_and_docstrings_without_sections_are_left_alone(source):
    assert check_raises.problems(source, "m.py") == []


def test_functions_below_conditions_are_seen():
    source = f"if x:\n    def run():\n        {ARGS}\n        raise ValueError\n"
    assert len(check_raises.problems(source, "m.py")) == 1


def test_exit_code_says_whether_something_is_wrong(tmp_path, capsys):
    (tmp_path / "fine.py").write_text("x = 1\n", encoding="utf-8")
    assert check_raises.main(str(tmp_path)) == 0
    (tmp_path / "wrong.py").write_text(
        f"def f():\n    {ARGS}\n    raise ValueError\n", encoding="utf-8"
    )
    assert check_raises.main(str(tmp_path)) == 1
    assert "f does not say that it raises ValueError" in capsys.readouterr().out
