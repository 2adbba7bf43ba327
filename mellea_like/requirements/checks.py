"""Ready-made requirements, which run inline and explain what is wrong with a reply.

```python
from mellea_like.requirements.checks import contains, word_count

requirements = [word_count(at_most=20), contains("autumn", ignore_case=True)]
```

Reasons are written for the model (``it has 23 words; at most 20 are allowed``), so that a strategy
can put them into the next prompt. If a reply can fail by degrees, the check gives a score, which
helps to choose the best failed reply. Wrong arguments raise an error when the check is made.

With ``early=True``, some checks also read a reply while it streams in, and close its request as
soon as the reply can no longer pass. ``word_count(at_most=20, early=True)`` does so at the 21st
word. An early check saves the time and the tokens of the rest of the reply, and never affects a
reply that would pass. ``early`` is off by default because a rejected reply is incomplete. If no
reply passes, the best failed reply may be only a beginning that the other requirements haven't
checked. You can use an early check in your own requirement, as in ``Requirement("is short and
polite", stream=word_count(at_most=20, early=True).stream)``.
"""

from __future__ import annotations

from mellea_like.core.requirement import at_least
from mellea_like.requirements.checks_counts import (
    char_count,
    line_count,
    sentence_count,
    word_count,
)
from mellea_like.requirements.checks_each import each
from mellea_like.requirements.checks_json import ForeignSchema, is_json, json_schema, parses_as
from mellea_like.requirements.checks_patterns import matches, occurrences
from mellea_like.requirements.checks_text import (
    casing,
    contains,
    ends_with,
    excludes,
    number_between,
    one_of,
    starts_with,
)
from mellea_like.requirements.checks_tools import calls_tool, no_tool_calls, unless_it_calls

__all__ = [
    "ForeignSchema",
    "at_least",
    "calls_tool",
    "casing",
    "char_count",
    "contains",
    "each",
    "ends_with",
    "excludes",
    "is_json",
    "json_schema",
    "line_count",
    "matches",
    "no_tool_calls",
    "number_between",
    "occurrences",
    "one_of",
    "parses_as",
    "sentence_count",
    "starts_with",
    "unless_it_calls",
    "word_count",
]
