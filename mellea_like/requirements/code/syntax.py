"""A requirement that code parses."""

from __future__ import annotations

import importlib
import logging
import re
import warnings
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from mellea_like.core.argument_checks import check_one_of
from mellea_like.core.display import clipped, quoted
from mellea_like.core.requirement import Requirement, ready_made
from mellea_like.core.validation import ValidationResult
from mellea_like.lazy import needs_extra
from mellea_like.requirements.code.extract import Fence, fenced

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.core.validation import Candidate
    from mellea_like.requirements.checks_common import CheckSettings


@ready_made
def parses(
    language: Literal["python", "sql"],
    *,
    dialect: str | None = None,
    fence: Fence = "longest",
    **settings: Unpack[CheckSettings],
) -> Requirement:
    """Require code that parses: Python with this Python's compiler, SQL with ``sqlglot``.

    The code isn't run. SQL may be several statements, but not just an expression.

    Args:
        language: ``"python"`` or ``"sql"``.
        dialect: a SQL dialect of ``sqlglot``, such as ``"sqlite"``, ``"postgres"`` or ``"tsql"``.
            The default is sqlglot's own dialect, which accepts most of the others.
        fence: the fence to use if a reply has several; see `mellea_like.requirements.code`.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement. Its reason names the line and the problem.

    Raises:
        ImportError: the language is SQL, and the ``sqlglot`` package isn't installed.
        ValueError: the language, the dialect or the value of ``fence`` is unknown.
    """
    check_one_of("parses: the language", language, ("python", "sql"))
    check_one_of("parses: fence", fence, get_args(Fence))
    if dialect is not None and language != "sql":
        msg = "parses: dialect works only with language='sql'"
        raise ValueError(msg)
    problem = python_problem if language == "python" else _sql_parser(dialect)

    def validate(candidate: Candidate) -> ValidationResult:
        code = fenced(candidate.text, language, fence)
        wrong = problem(candidate.text if code is None else code)
        none = " (it has no fenced code)" if code is None else ""
        said = f"it does not parse{none}: {wrong}" if wrong else "it parses"
        return ValidationResult(not wrong, said, float(not wrong))

    words = "Python" if language == "python" else f"{dialect or ''} SQL".strip()
    settings.setdefault("name", f"parses_{language}")
    return Requirement(f"is {words} that parses", validate, **settings)


def python_problem(code: str) -> str:
    """Return the reason why Python code doesn't compile, or "" if it does."""
    if not code.strip():
        return "there is no code"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, "program.py", "exec", dont_inherit=True)
    except SyntaxError as exc:
        line = (exc.text or "").strip()
        return f"line {exc.lineno}: {exc.msg}{f': {clipped(line)}' if line else ''}"
    except ValueError as exc:
        return str(exc)
    except (MemoryError, RecursionError):
        return "it is nested too deeply"
    return ""


_TOKEN = re.compile(r"<Token token_type: .*?, text: (.*?), line: \d+, col: .*?>", re.DOTALL)
"""Matches a token in ``sqlglot``'s errors; only the text in it is useful."""


def _sql_parser(dialect: str | None) -> Callable[[str], str]:
    with needs_extra("code", "parses('sql') needs sqlglot"):
        sqlglot: Any = importlib.import_module("sqlglot")
    sqlglot.Dialect.get_or_raise(dialect)
    expressions = sqlglot.exp
    logging.getLogger("sqlglot").addFilter(_not_fallen_back)

    def problem(code: str) -> str:
        try:
            found = [tree for tree in sqlglot.parse(code, read=dialect) if tree is not None]
        except sqlglot.errors.SqlglotError as exc:
            errors: Any = getattr(exc, "errors", None) or [{}]
            first: dict[str, Any] = errors[0]
            place = f"line {first['line']}: " if first.get("line") else ""
            near = f": {quoted(str(first['highlight']))}" if first.get("highlight") else ""
            told = clipped(str(first.get("description") or exc), 200)
            return place + _TOKEN.sub(lambda token: quoted(token[1]), told) + near
        except RecursionError:
            return "it is nested too deeply"
        for tree in found:
            loose = expressions.Condition | expressions.Alias | expressions.Tuple
            if isinstance(tree, loose) and not isinstance(tree, expressions.Query):
                return f"no statement begins so: {quoted(tree.sql(dialect))}"
            # sqlglot knows the statement's first word, but has not parsed it.
            unknown = {"", "SELECT", "INSERT", "UPDATE", "DELETE", "WITH"}
            if isinstance(tree, expressions.Command) and str(tree.this).upper() in unknown:
                return f"no statement begins so: {quoted(str(tree.this))}"
        return "" if found else "there is no statement"

    return problem


def _not_fallen_back(record: logging.LogRecord) -> bool:
    return "Falling back to parsing as a 'Command'" not in str(record.msg)
