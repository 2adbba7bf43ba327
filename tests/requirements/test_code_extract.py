"""Finding the code in a reply."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mellea_like.requirements.code import fenced

TWO = "```python\nx = 1\n```\nor better:\n```python\nx = 1 + 1\n```\n"


@pytest.mark.parametrize(
    ("text", "which", "code"),
    [
        ("x = 1", "longest", None),
        ("```python\nx = 1\n```", "longest", "x = 1\n"),
        ("So:\n~~~~ py\nx = '''\n~~~\n'''\n~~~~\nDone.", "longest", "x = '''\n~~~\n'''\n"),
        ("```Python title=a.py\nx = 1\n```", "longest", "x = 1\n"),
        ("```\nx = 1\n```", "longest", "x = 1\n"),
        # First a fence with the language, then one without a label, then any other.
        ("```\na = 1000\n```\n```python\nb = 1\n```", "longest", "b = 1\n"),
        ("```bash\npip install a b c\n```\n```\nb = 1\n```", "longest", "b = 1\n"),
        ("```js\nb = 1\n```", "longest", "b = 1\n"),
        (TWO, "longest", "x = 1 + 1\n"),
        (TWO, "first", "x = 1\n"),
        (TWO, "last", "x = 1 + 1\n"),
        ("```py\na = 1\n```\n```py\nb = 1\n```", "longest", "b = 1\n"),
        # In a list, or cut off.
        ("1. So:\n   ```python\n   if x:\n       y\n   ```", "longest", "if x:\n    y\n"),
        ("```python\nx = 1\ny = 2", "longest", "x = 1\ny = 2\n"),
        ("`x = 1`, not ```x = 2```", "longest", None),
    ],
)
def test_code_is_what_the_right_fence_holds(text, which, code):
    assert fenced(text, "python", which) == code
    text = "```python\nrun('select 1 from a, b, c')\n```\n```sqlite\nSELECT 1\n```"
    assert fenced(text, "sql", which) == "SELECT 1\n"


@given(st.text(st.characters(exclude_characters="`~", exclude_categories=["Cc", "Cs", "Zl", "Zp"])))
def test_what_was_fenced_comes_back(line):
    assert fenced(f"Text.\n```python\n{line}\n```\nMore.", "python") == f"{line}\n"
