"""Strict JSON, which all programs read in the same way."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""An escaped half of a surrogate pair. If its other half is missing, UTF-8 can't encode it."""

_LONGEST_NAME = 60
"""The maximum number of characters to quote of a name that appears twice."""


class _Twice(ValueError):
    """A name appears twice in an object."""


def read_strict(data: bytes) -> Any:
    """Parse JSON, and refuse all that other programs may read differently.

    Refused are Python's extensions (NaN, Infinity, UTF-16), a name that appears twice in an object,
    a number too large for a float, and half of a surrogate pair. The ``ValueError`` has the reason,
    without the text.
    """
    try:
        value: Any = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_without_duplicates,
            parse_constant=_finite,
            parse_float=_finite,
        )
        if _SURROGATE.search(data) is not None:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as exc:
        why = f"the byte at position {exc.start} isn't UTF-8"
    except UnicodeEncodeError:
        why = "a string has half of a surrogate pair"
    except json.JSONDecodeError as exc:
        why = f"{exc.msg} at position {exc.pos}"
    except _Twice as exc:
        why = str(exc)
    except RecursionError:
        why = "it is nested too deeply"
    except ValueError:
        why = "a number is too large or not valid in JSON"
    else:
        return value
    raise ValueError(why)  # This is outside the handlers, whose exceptions hold all of the data.


def _finite(written: str) -> float:
    number = float(written)
    if not math.isfinite(number):
        raise ValueError
    return number


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        msg = f"an object has the name {twice[:_LONGEST_NAME]!r} twice"
        raise _Twice(msg)
    return members
