"""Ready-made requirements: each function returns a check that runs inline and says what is wrong.

```python
from mellea_like.requirements.checks import contains, word_count

requirements = [word_count(at_most=20), contains("autumn", ignore_case=True)]
```

Their reasons are written for the model (``it has 23 words; at most 20 are allowed``), so that a
strategy that repairs can pass them on; their scores, where a reply can be more or less wrong,
choose the best failure. A wrong argument raises at once, when the check is made.
"""

from __future__ import annotations

from mellea_like.requirements.checks_counts import (
    char_count,
    line_count,
    sentence_count,
    word_count,
)
from mellea_like.requirements.checks_data import (
    is_json,
    json_schema,
    number_between,
    one_of,
    parses_as,
)
from mellea_like.requirements.checks_text import (
    casing,
    contains,
    ends_with,
    excludes,
    matches,
    starts_with,
)

__all__ = [
    "casing",
    "char_count",
    "contains",
    "ends_with",
    "excludes",
    "is_json",
    "json_schema",
    "line_count",
    "matches",
    "number_between",
    "one_of",
    "parses_as",
    "sentence_count",
    "starts_with",
    "word_count",
]
