"""The requirements: code parses, runs, passes tests."""

from __future__ import annotations

import ast
import hashlib
import importlib
import logging
import re
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Unpack

from mellea_like.core.display import plural
from mellea_like.core.requirement import Requirement
from mellea_like.core.validation import ValidationResult
from mellea_like.requirements.checks_common import Settings, check, clipped, quoted, ready_made
from mellea_like.requirements.code.extract import fenced
from mellea_like.requirements.code.sandbox import CLIPPED, CodeJob, CodeReport, Sandbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mellea_like.core.validation import Candidate
    from mellea_like.requirements.code.extract import Fence
    from mellea_like.requirements.code.sandbox import CodeRunner

__all__ = ["asynchronous", "parses", "passes_tests", "runs", "shared_sandbox"]

SHOWN = 3
"""The most failed tests that a reason tells the model of."""

BLOCKS = (ast.For, ast.While, ast.With, ast.Try)
"""Statements that are a test if they have one in them."""

QUICK = 2**14
"""Characters; to compile more would hold the event loop, so the program's process finds out."""


@ready_made
def parses(
    language: Literal["python", "sql"],
    *,
    dialect: str | None = None,
    fence: Fence = "longest",
    **settings: Unpack[Settings],
) -> Requirement:
    """Require code that parses: Python by this Python's own compiler, SQL by ``sqlglot``.

    Nothing is run. SQL may be several statements; expressions alone are none.

    Args:
        language: ``"python"`` or ``"sql"``.
        dialect: for SQL, one that ``sqlglot`` knows: ``"sqlite"``, ``"postgres"``, ``"tsql"``, ...;
            None is its own, which takes most of what any of them does.
        fence: which of several fences it is; see `mellea_like.requirements.code`.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement; its reason names the line, and what is wrong there.

    Raises:
        ImportError: SQL, and the ``sqlglot`` package is not installed.
        ValueError: the language or the dialect is unknown.
    """
    if language not in ("python", "sql"):
        msg = f"parses: the language is 'python' or 'sql', not {language!r}"
        raise ValueError(msg)
    if dialect is not None and language != "sql":
        msg = "parses: a dialect is one of SQL"
        raise ValueError(msg)
    problem = _python_problem if language == "python" else _sql_parser(dialect)

    def validate(candidate: Candidate) -> ValidationResult:
        code = fenced(candidate.text, language, fence)
        wrong = problem(candidate.text if code is None else code)
        if not wrong:
            return ValidationResult(True, "it parses", 1.0)
        none = " (it has no fenced code)" if code is None else ""
        return ValidationResult(False, f"it does not parse{none}: {wrong}", 0.0)

    words = "Python" if language == "python" else f"{dialect or ''} SQL".strip()
    return check(f"parses_{language}", f"is {words} that parses", validate, settings)


@ready_made
def runs(
    *,
    stdin: str = "",
    stdout: str | None = None,
    seconds: float | None = None,
    fence: Fence = "longest",
    sandbox: CodeRunner | None = None,
    **settings: Unpack[Settings],
) -> Requirement:
    """Require a Python program that runs to exit status 0, and perhaps prints something.

    With ``stdout=`` the program has to compute what it prints; without it, a program that does
    nothing at all passes.

    Args:
        stdin: what the program reads from its standard input.
        stdout: what it has to print: compared line by line, without the white space at the ends
            of lines and of the whole. None is anything.
        seconds: the longest that it may run; None is the sandbox's limit.
        fence: which of several fences it is; see `mellea_like.requirements.code`.
        sandbox: what runs it; by default one `Sandbox` for all such checks of this process.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement; its reason has the exception and the last frames of the program's own
        code, or the first line that differs, or says that the time was up.

    Raises:
        NotImplementedError: no ``sandbox`` is given, and there can be none on this system.
    """
    runner = sandbox or shared_sandbox()

    async def validate(candidate: Candidate) -> ValidationResult:
        program, wrong = _program(candidate.text, fence)
        if wrong:
            return ValidationResult(False, wrong, 0.0)
        report = await runner.run(CodeJob(program=program, stdin=stdin, seconds=seconds))
        if report.failure:
            return ValidationResult(False, report.failure, 0.0)
        if stdout is not None and (differs := _difference(report.stdout, stdout)):
            return ValidationResult(False, differs, 0.0)
        return ValidationResult(True, "it runs", 1.0)

    words = "is a Python program that runs without an error"
    if stdout is not None:
        words += f" and prints {quoted(stdout.strip())}"
        if stdin:
            words += f" when given {quoted(stdin.strip())}"
    return asynchronous("runs", words, validate, settings, (stdin, stdout, seconds, fence))


@ready_made
def passes_tests(
    tests: str | Sequence[str],
    *,
    names: Sequence[str] | None = None,
    seconds: float | None = None,
    fence: Fence = "longest",
    sandbox: CodeRunner | None = None,
    **settings: Unpack[Settings],
) -> Requirement:
    """Require Python code that passes tests.

    Tests are Python source: assertions, calls (``check(add)``), functions named ``test...``, and
    classes of ``unittest``. The code's names are there, and so is the module ``solution``, which is
    the code. Every assertion and call at the top level, every loop or other block there that has
    one, every function and every method is one test, and the share of those that pass is the score.
    A test that is ``async`` is run to its end.

    **The tests run in another process than the code.** They call its functions there, and compare
    what comes back themselves; so code that exits, prints what a test would, patches ``unittest``
    or has objects that equal everything passes no test. What comes back is data of the standard
    library's plain types, or stands for an object that stays where it is, with its attributes,
    methods and operators; such an object equals none but others of its kind. Tests can't
    see what the code prints (use `runs`), nor derive from its classes, nor patch it. A test that
    asks the code itself whether it is right (``assert solution.check()``) believes the answer; and
    tests should import the modules that they use.

    Args:
        tests: one source, or several that share nothing but the code.
        names: what the code has to define, and all of it that the tests see; by default all that
            doesn't hide a builtin or a module of the standard library.
        seconds: the longest that code and tests may run; None is the sandbox's limit.
        fence: which of several fences it is; see `mellea_like.requirements.code`.
        sandbox: what runs it; by default one `Sandbox` for all such checks of this process.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement; its reason has the first failed assertions, with the values that they
        found, or the exception and the last frames of the code's own, or says that the time was up.

    Raises:
        NotImplementedError: no ``sandbox`` is given, and there can be none on this system.
        TypeError: the tests are no texts, or ``names`` is one text.
        ValueError: the tests don't parse, or there is no test in them.
    """
    sources = (tests,) if isinstance(tests, str) else tuple(tests)
    if not all(isinstance(source, str) for source in sources):
        msg = "passes_tests takes the source of tests, as one text or several"
        raise TypeError(msg)
    if isinstance(names, str):
        msg = f"passes_tests: names is a sequence of names, not one text: {names!r}"
        raise TypeError(msg)
    for source in sources:
        if source.strip() and (wrong := _python_problem(source)):
            msg = f"passes_tests: the tests don't parse: {wrong}"
            raise ValueError(msg)
    if not sources or not all(_has_test(source) for source in sources):
        msg = (
            "passes_tests: there is no test in them: no assertion, no call, no function named"
            " test..., no class"
        )
        raise ValueError(msg)
    needed = None if names is None else tuple(names)
    runner = sandbox or shared_sandbox()

    async def validate(candidate: Candidate) -> ValidationResult:
        program, wrong = _program(candidate.text, fence)
        if wrong:
            return ValidationResult(False, wrong, 0.0)
        job = CodeJob(program=program, tests=sources, names=needed, seconds=seconds)
        return _read(await runner.run(job))

    words = "is Python code that passes its tests"
    if needed:
        words += f" of {' and '.join(needed)}"
    return asynchronous(
        "passes_tests", words, validate, settings, (sources, needed, seconds, fence)
    )


def _read(report: CodeReport) -> ValidationResult:
    """Read how tests ended; only all of them, to their end, are a pass."""
    if not report.failure and not report.failures and report.passed == report.total > 0:
        return ValidationResult(True, f"it passes {report.total} tests", 1.0)
    failures = [clipped(failure, CLIPPED) for failure in report.failures]
    more = len(failures) - SHOWN
    lines = failures[:SHOWN]
    if more > 0:
        lines.append(f"and {plural(more, 'more test')} failed")
    if report.failure:
        lines.insert(0, report.failure)
    score = 0.0 if report.failure or not report.total else report.passed / report.total
    counted = f"it passes {report.passed} of {report.total} tests: " if report.passed else ""
    return ValidationResult(False, counted + "\n".join(lines), min(score, 0.99))


def asynchronous(
    name: str,
    words: str,
    validate: Callable[[Candidate], Awaitable[ValidationResult]],
    settings: Settings,
    decides: tuple[object, ...],
) -> Requirement:
    """Make a requirement; what decides it tells a run that is resumed whether it is the same."""
    version = hashlib.sha256(repr(decides).encode("utf-8", "replace")).hexdigest()[:12]
    asked: Any = {"name": name, **settings}
    return Requirement(words, validate, version=version, **asked)


@lru_cache(maxsize=1)
def shared_sandbox() -> Sandbox:
    """Return the sandbox of all checks that were given none."""
    return Sandbox()


def _program(text: str, fence: Fence) -> tuple[str, str]:
    """Return a reply's program, or what is wrong with it."""
    code = fenced(text, "python", fence)
    program = text if code is None else code
    wrong = _python_problem(program) if len(program) <= QUICK else ""
    if not wrong:
        return program, ""
    none = "it has no fenced code, and is none itself" if code is None else "it does not parse"
    return "", f"{none}: {wrong}"


def _python_problem(code: str) -> str:
    """Return what is wrong with Python code; nothing if it compiles."""
    if not code.strip():
        return "there is no code"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, "program.py", "exec", dont_inherit=True)
    except SyntaxError as exc:
        line = (exc.text or "").strip()
        shown = f": {clipped(line)}" if line else ""
        return f"line {exc.lineno}: {exc.msg}{shown}"
    except ValueError as exc:
        return str(exc)
    except (MemoryError, RecursionError):
        return "it is nested too deeply"
    return ""


_TOKEN = re.compile(r"<Token token_type: .*?, text: (.*?), line: \d+, col: .*?>", re.DOTALL)
"""How ``sqlglot`` shows a token in an error, which is of no use to who wrote it: its text is."""


def _sql_parser(dialect: str | None) -> Callable[[str], str]:
    try:
        sqlglot: Any = importlib.import_module("sqlglot")
    except ImportError as exc:
        msg = "parses('sql') needs sqlglot: pip install 'mellea-like[code]'"
        raise ImportError(msg) from exc
    sqlglot.Dialect.get_or_raise(dialect)
    expressions = sqlglot.exp
    parse_error: type[Exception] = sqlglot.errors.ParseError
    logging.getLogger("sqlglot").addFilter(_not_fallen_back)

    def problem(code: str) -> str:
        try:
            found = [tree for tree in sqlglot.parse(code, read=dialect) if tree is not None]
        except parse_error as exc:
            errors: Any = getattr(exc, "errors", [])
            first: dict[str, Any] = errors[0] if errors else {}
            place = f"line {first['line']}: " if first.get("line") else ""
            near = f": {quoted(str(first['highlight']))}" if first.get("highlight") else ""
            said = _TOKEN.sub(lambda token: quoted(token[1]), str(first.get("description") or exc))
            return f"{place}{said}{near}"
        except sqlglot.errors.SqlglotError as exc:
            return clipped(str(exc), 200)
        except RecursionError:
            return "it is nested too deeply"
        if not found:
            return "there is no statement"
        for tree in found:
            if isinstance(tree, expressions.Condition | expressions.Alias | expressions.Tuple) and (
                not isinstance(tree, expressions.Query)
            ):
                return f"no statement begins so: {quoted(tree.sql(dialect))}"
            if isinstance(tree, expressions.Command) and not _known(str(tree.this)):
                return f"no statement begins so: {quoted(str(tree.this))}"
        return ""

    return problem


def _not_fallen_back(record: logging.LogRecord) -> bool:
    return "Falling back to parsing as a 'Command'" not in str(record.msg)


def _known(word: str) -> bool:
    """Whether a statement that ``sqlglot`` only carries along begins with a word of SQL."""
    return word.upper() not in {"", "SELECT", "INSERT", "UPDATE", "DELETE", "WITH"}


def _difference(printed: str, wanted: str) -> str:
    """Say where what was printed isn't what was wanted."""
    ours = [line.rstrip() for line in printed.strip().splitlines()]
    theirs = [line.rstrip() for line in wanted.strip().splitlines()]
    for number, (line, other) in enumerate(zip(ours, theirs, strict=False), 1):
        if line != other:
            return f"line {number} of its output is {quoted(line)}; it should be {quoted(other)}"
    if len(ours) != len(theirs):
        said = f": it prints {quoted(printed.strip())}" if printed.strip() else ""
        return f"it prints {len(ours)} lines; it should print {len(theirs)}{said}"
    return ""


def _has_test(source: str) -> bool:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(
        isinstance(part, ast.Assert | ast.ClassDef)
        or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Call))
        or (isinstance(part, functions) and part.name.startswith("test"))
        for statement in ast.parse(source).body
        for part in (ast.walk(statement) if isinstance(statement, BLOCKS) else (statement,))
    )
