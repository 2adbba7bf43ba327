"""Checks of code in the grammar of the command line: a check's name, and its arguments as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Unpack

from mellea_like.core.display import excerpt

if TYPE_CHECKING:
    from mellea_like.core.requirement import Requirement
    from mellea_like.requirements.checks_common import Settings

__all__ = ["CODE_FORMS", "is_code_check", "parse_code_check"]

CODE_FORMS = (
    "parses:python",
    "runs",
    "passes_tests:TESTS",
    'returns:{"function": ..., "cases": ...}',
    'prints:{"stdin": ..., "stdout": ...}',
    'runs_sql:{"schema": ..., "like": ...}',
)
"""An example of each form, for help and error messages."""

_FORMS = {form.partition(":")[0]: form for form in CODE_FORMS}
_ALONE = {"parses": "language", "passes_tests": "tests"}
"""The argument that may stand behind the colon by itself."""


def is_code_check(expression: str) -> bool:
    """Tell whether an expression names a check of code."""
    return expression.partition(":")[0].strip() in _FORMS


def parse_code_check(expression: str, **settings: Unpack[Settings]) -> Requirement:
    """Read one check of code; without a ``name`` among its settings it is named as it is written.

    Behind the colon is a JSON object of the check's arguments. The language of ``parses`` and the
    tests of ``passes_tests`` may stand there alone, several tests as a JSON list. The input of
    each case of ``returns`` is the list of a call's arguments.
    """
    from mellea_like.requirements import code  # noqa: PLC0415 (few programs check code)

    kind, _, text = (part.strip() for part in expression.partition(":"))
    try:
        given = _arguments(kind, text)
        made: Requirement = getattr(code, kind)(
            **{"name": excerpt(expression), **settings, **given}
        )
    except (ImportError, NotImplementedError, OSError, TypeError, ValueError) as exc:
        said = str(exc).removeprefix(f"{kind}: ").removeprefix(f"{kind}() ")
        msg = f"check '{excerpt(expression)}': {said}\nIt is written {_FORMS[kind]}"
        raise ValueError(msg) from exc
    return made


def _arguments(kind: str, text: str) -> dict[str, Any]:
    alone = _ALONE.get(kind)
    if text.startswith("{"):
        given: dict[str, Any] = json.loads(text)
        if kind == "returns":
            given["cases"] = [_case(case) for case in given.get("cases", ())]
        return given
    if alone is not None and text:
        return {alone: json.loads(text) if text.startswith("[") else text}
    if text:
        msg = "its arguments are a JSON object"
        raise ValueError(msg)
    return {}


def _case(case: Any) -> tuple[Any, Any]:
    """JSON has no tuples, which are what a call's arguments are."""
    match case:
        case [[*arguments], value]:
            return tuple(arguments), value
        case _:
            msg = "a case is [[ARGUMENT, ...], VALUE]"
            raise ValueError(msg)
