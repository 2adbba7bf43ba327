"""Checks of code: whether it parses, runs, and passes tests; in a sandbox.

```python
from mellea_like.requirements.code import passes_tests

requirement = passes_tests("assert add(2, 2) == 4", names=["add"])
```

Each takes the code out of a reply as models write it. A Markdown fence that names the language goes
before one that names none, and that before one that names another language; of several, the longest
is taken, or with ``fence="first"`` or ``"last"`` that one. A fence that is never closed goes to the
end. A reply without a fence is code if the whole of it parses.
"""

from mellea_like.requirements.code.checks import (
    CodeSettings,
    agrees_with,
    passes_tests,
    prints,
    returns,
    runs,
)
from mellea_like.requirements.code.extract import fenced
from mellea_like.requirements.code.report import CodeAnswer, CodeJob, CodeReport, CodeRunner
from mellea_like.requirements.code.sandbox import Sandbox
from mellea_like.requirements.code.sqlite import runs_sql
from mellea_like.requirements.code.syntax import parses

__all__ = [
    "CodeAnswer",
    "CodeJob",
    "CodeReport",
    "CodeRunner",
    "CodeSettings",
    "Sandbox",
    "agrees_with",
    "fenced",
    "parses",
    "passes_tests",
    "prints",
    "returns",
    "runs",
    "runs_sql",
]
