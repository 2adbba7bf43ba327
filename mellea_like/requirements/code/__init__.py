"""Checks that code parses, runs and passes tests. The code runs in a sandbox.

```python
from mellea_like.requirements.code import passes_tests

requirement = passes_tests("assert add(2, 2) == 4", names=["add"])
```

Each check finds the code in a model's reply. It prefers a Markdown fence with the language's name
to a fence without a name, and a fence without a name to one with another language's name. If
several are equally good, it uses the longest, or the first or last with ``fence="first"`` or
``fence="last"``. A fence that is never closed extends to the end. A reply without a fence is code
if all of it parses.
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
