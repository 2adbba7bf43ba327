"""The requirements: code parses, runs, passes tests, gives the right answers."""

from __future__ import annotations

import ast
import hashlib
import inspect
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

from mellea_like.core.display import plural
from mellea_like.core.requirement import Requirement
from mellea_like.core.validation import ValidationResult
from mellea_like.errors import RequirementError
from mellea_like.requirements.checks_common import Settings, clipped, quoted, ready_made
from mellea_like.requirements.code.extract import fenced
from mellea_like.requirements.code.plain import decode, encode, same
from mellea_like.requirements.code.report import CLIPPED, ENDED, CodeJob, CodeReport
from mellea_like.requirements.code.sandbox import Sandbox
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mellea_like.core.validation import Candidate
    from mellea_like.requirements.code.extract import Fence
    from mellea_like.requirements.code.report import CodeAnswer, CodeRunner

    Run = Callable[..., Awaitable[CodeReport]]

from mellea_like.requirements.code.syntax import python_problem

__all__ = [
    "CodeSettings",
    "agrees_with",
    "passes_tests",
    "prints",
    "returns",
    "running",
    "runs",
]

SHOWN = 3
"""The most failed tests that a reason tells the model of."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

QUICK = 2**14
"""Characters; to compile more would hold the event loop, so the program's process finds out."""


class CodeSettings(Settings, total=False):
    """Arguments of each check that runs code, besides ``name``, ``weight`` and so on.

    Attributes:
        seconds: the processor time that a run may take; by default the sandbox's limit.
        fence: the fence to take of several in a reply: ``"longest"``, the default, ``"first"`` or
            ``"last"``; see `mellea_like.requirements.code`.
        sandbox: what runs it; by default one `Sandbox` for all such checks of this process. A check
            raises ``NotImplementedError`` if there can be none on this system.
    """

    seconds: float | None
    fence: Fence
    sandbox: CodeRunner | None


@ready_made
def runs(
    *, stdin: str = "", stdout: str | None = None, **settings: Unpack[CodeSettings]
) -> Requirement:
    """Require a Python program that runs to exit status 0, and perhaps prints something.

    With ``stdout=`` the program has to compute what it prints; without it, a program that does
    nothing at all passes.

    Args:
        stdin: what the program reads from its standard input.
        stdout: what it has to print: compared line by line, without the white space at the ends
            of lines and of the whole. None is anything.
        **settings: see `CodeSettings`, and `Requirement` for ``name``, ``weight`` and so on.

    Returns:
        The requirement; its reason has the exception and the last frames of the program's own
        code, or the first line that differs, or says that the time was up.
    """

    async def judge(run: Run, program: str) -> ValidationResult:
        report = await run(program=program, stdin=stdin)
        differs = "" if stdout is None else _difference(report.stdout, stdout)
        return _verdict(report.failure or differs, "it runs")

    words = "is a Python program that runs without an error"
    if stdout is not None:
        words += f" and prints {quoted(stdout.strip())}"
        if stdin:
            words += f" when given {quoted(stdin.strip())}"
    return running("runs", words, judge, settings, (stdin, stdout))


@ready_made
def passes_tests(
    tests: str | Sequence[str],
    *,
    names: Sequence[str] | None = None,
    **settings: Unpack[CodeSettings],
) -> Requirement:
    """Require Python code that passes tests.

    Tests are Python source: assertions, calls (``check(add)``), functions named ``test...``,
    classes named ``Test...``, and classes of ``unittest``. The code's names are there, and so is
    the module ``solution``, which is the code. Every assertion and call at the top level, every
    loop or other block there that has one, every function and every method is one test, and the
    share of those that pass is the score. A test that is ``async`` is run to its end. Of pytest
    there are ``raises``, ``approx``, ``param``, ``mark.parametrize``, the marks that skip,
    ``skip``, ``fail``, simple fixtures, and ``tmp_path``.

    **Program and tests share one process**, as in HumanEval and other benchmarks, so that all of
    Python works: identity, exceptions, threads, patches. Only what the harness reports after the
    last test is a pass: a program that exits, prints what a test would, replaces builtins or the
    methods of ``unittest``, or has objects that are equal to anything passes no test. A program
    that is written to dig into the harness can forge a pass: for training and reinforcement
    learning, use `returns`, `agrees_with` or `prints`.

    Names of the program that hide builtins are not seen by tests that use other names of it. Tests
    that can't be run, for want of a module or of something else of pytest, raise
    `RequirementError`: the slice has errored.

    Args:
        tests: one source, or several that share nothing but the code.
        names: what the code has to define, and all of it that the tests see; None is all of it.
        **settings: see `CodeSettings`, and `Requirement` for ``name``, ``weight`` and so on.

    Returns:
        The requirement; its reason has the first failed assertions, with the values that they
        found, or the exception and the last frames of the code's own, or says that the time was up.

    Raises:
        TypeError: the tests are no texts, or ``names`` is one text.
        ValueError: the tests don't parse, or there is no test in them.
    """
    sources = (tests,) if isinstance(tests, str) else tuple(tests)
    if isinstance(names, str) or not all(isinstance(source, str) for source in sources):
        msg = "passes_tests takes the source of tests, one text or several, and a sequence of names"
        raise TypeError(msg)
    for source in sources:
        if source.strip() and (wrong := python_problem(source)):
            msg = f"passes_tests: the tests don't parse: {wrong}"
            raise ValueError(msg)
    if not sources or not all(map(_has_test, sources)):
        msg = (
            "passes_tests: there is no test in them: no assertion, no call, no function named"
            " test..., no class"
        )
        raise ValueError(msg)
    needed = None if names is None else tuple(names)

    async def judge(run: Run, program: str) -> ValidationResult:
        return _read(await run(program=program, tests=sources, names=needed))

    words = "is Python code that passes its tests"
    words += f" of {' and '.join(needed)}" if needed else ""
    return running("passes_tests", words, judge, settings, (sources, needed))


@ready_made
def returns(
    function: str,
    cases: Sequence[tuple[Any, Any]],
    *,
    tolerance: float = 1e-9,
    show_case: bool = False,
    **settings: Unpack[CodeSettings],
) -> Requirement:
    """Require Python code with a function that returns the right values.

    **The program never sees the values**: it gets the inputs, plain data comes back, and the
    comparison is made outside the sandbox. So it can't forge a pass, whatever it does. Plain data
    are None, numbers, texts, bytes, lists, tuples, sets, dicts, dates, and NumPy arrays, which are
    equal to the lists of their values. Anything else raises `RequirementError`: the slice has
    errored, unless another case is wrong.

    Args:
        function: an expression for the function, such as ``"add"`` or ``"Solution().two_sum"``.
        cases: pairs of an input and the value that it should return. An input that is a tuple has
            the positional arguments; any other is the only one. A value that is a type of
            exceptions has to be raised.
        tolerance: how far floats may be off, relatively or absolutely.
        show_case: tell the model of one failing case, with the right value; the requirement is in
            the prompt then, too. Otherwise the reason has counts and exceptions, and the
            requirement is ``check_only``, unless that is given.
        **settings: see `CodeSettings`, and `Requirement` for ``name``, ``weight`` and so on.

    Returns:
        The requirement; its score is the share of the cases that are right.

    Raises:
        TypeError: an input or a value is no plain data, or a case is no pair.
        ValueError: there are no cases.
    """
    pairs = tuple(cases)
    if not all(isinstance(case, tuple | list) and len(case) == 2 for case in pairs):  # noqa: PLR2004
        msg = "returns: each case is a pair of an input and the value for it"
        raise TypeError(msg)
    inputs = _inputs("returns", [given for given, _ in pairs])
    wanted = [value if _raises(value) else _plain("returns", value) for _, value in pairs]

    async def judge(run: Run, program: str) -> ValidationResult:
        report = await run(program=program, function=function, inputs=inputs)
        return await run_in_thread(
            _compared, report, function, inputs, wanted, tolerance, show_case
        )

    ast.parse(function, mode="eval")
    settings.setdefault("check_only", not show_case)
    words = f"is Python code in which {function} returns right values"
    return running("returns", words, judge, settings, (function, inputs, wanted, tolerance))


@ready_made
def agrees_with(
    reference: str | Callable[..., object],
    inputs: Sequence[Any],
    *,
    function: str | None = None,
    tolerance: float = 1e-9,
    show_case: bool = False,
    **settings: Unpack[CodeSettings],
) -> Requirement:
    """Require Python code with a function that returns what a reference does; see `returns`.

    The reference is asked once, when the first reply is checked. A function of yours runs in this
    process, in a thread; source code runs in the sandbox, in a process that no reply sees. If it
    raises an exception, so has the reply's function to, of the same type.

    Args:
        reference: a function, or source code that defines it.
        inputs: what to call both with; one that is a tuple has the positional arguments, any other
            is the only one.
        function: the function's name in both; by default the reference's, or that of the last
            function that its source defines.
        tolerance: how far floats may be off, relatively or absolutely.
        show_case: tell the model of one failing case; see `returns`.
        **settings: see `CodeSettings`, and `Requirement` for ``name``, ``weight`` and so on.

    Returns:
        The requirement; its score is the share of the inputs on which both agree.

    Raises:
        TypeError: an input is no plain data.
        ValueError: there are no inputs, or the reference's source doesn't parse or has no function.
    """
    given = _inputs("agrees_with", inputs)
    name = function or _function_name(reference)
    found: list[Any] = []

    async def judge(run: Run, program: str) -> ValidationResult:
        if not found and isinstance(reference, str):
            report = await run(program=reference, function=name, inputs=given)
            wrong = report.failure or "".join(answer.problem for answer in report.answers)
            if wrong:
                msg = f"agrees_with: the reference failed: {wrong}"
                raise RequirementError(msg)
            found[:] = [
                type(one.raised[0], (Exception,), {}) if one.raised else one.value
                for one in report.answers
            ]
        elif not found and not isinstance(reference, str):
            found[:] = [await run_in_thread(partial(_asked, reference, one)) for one in given]
        report = await run(program=program, function=name, inputs=given)
        return await run_in_thread(_compared, report, name, given, found, tolerance, show_case)

    ast.parse(name, mode="eval")
    settings.setdefault("check_only", not show_case)
    words = f"is Python code in which {name} returns what a reference returns"
    source = reference if isinstance(reference, str) else _source(reference)
    return running("agrees_with", words, judge, settings, (source, name, given, tolerance))


@ready_made
def prints(
    stdin: str | Sequence[str],
    stdout: str | Sequence[str],
    *,
    show_case: bool = False,
    **settings: Unpack[CodeSettings],
) -> Requirement:
    """Require a Python program that prints the right text for each input.

    The comparison is made outside the sandbox, line by line, without the white space at the ends
    of lines and of the whole; so a program can't forge a pass.

    Args:
        stdin: what the program reads from its standard input; several are several runs.
        stdout: what it has to print, as many as there are inputs.
        show_case: tell the model of one failing case; see `returns`.
        **settings: see `CodeSettings`, and `Requirement` for ``name``, ``weight`` and so on.

    Returns:
        The requirement; its score is the share of the inputs for which the text is right. A program
        that uses up its time is run with no further input.

    Raises:
        ValueError: there are no inputs, or not as many as there are outputs.
    """
    inputs = (stdin,) if isinstance(stdin, str) else tuple(stdin)
    wanted = (stdout,) if isinstance(stdout, str) else tuple(stdout)
    if not inputs or len(inputs) != len(wanted):
        msg = f"prints: {len(inputs)} inputs and {len(wanted)} outputs: give one for each"
        raise ValueError(msg)

    async def judge(run: Run, program: str) -> ValidationResult:
        right, first = 0, ""
        for text, want in zip(inputs, wanted, strict=True):
            report = await run(program=program, stdin=text)
            said = report.failure
            if not said and (differs := _difference(report.stdout, want)):
                said = f"given {quoted(text.strip())}, {differs}" if show_case else " "
            right += not said
            first = first or said
            if report.failure.endswith(ENDED):
                break
        return _share(right, len(inputs), first)

    settings.setdefault("check_only", not show_case)
    words = "is a Python program that prints the right text for its inputs"
    return running("prints", words, judge, settings, (inputs, wanted))


def running(
    name: str,
    words: str,
    judge: Callable[[Run, str], Awaitable[ValidationResult]],
    settings: CodeSettings,
    decides: tuple[object, ...],
    language: Literal["python", "sql"] = "python",
) -> Requirement:
    """Make a requirement; `decides` tells a resumed run whether it is the same."""
    seconds, fence = settings.pop("seconds", None), settings.pop("fence", "longest")
    runner = settings.pop("sandbox", None) or shared_sandbox()

    async def run(**job: Any) -> CodeReport:
        return await runner.run(CodeJob(seconds=seconds, **job))

    async def validate(candidate: Candidate) -> ValidationResult:
        code = fenced(candidate.text, language, fence)
        program = candidate.text if code is None else code
        if language == "python" and len(program) <= QUICK and (wrong := python_problem(program)):
            none = "it has no fenced code, and is none itself" if code is None else ""
            return _verdict(f"{none or 'it does not parse'}: {wrong}")
        return await judge(run, program)

    version = repr((*decides, seconds, fence)).encode("utf-8", "replace")
    asked: Any = {"name": name, "version": hashlib.sha256(version).hexdigest()[:12], **settings}
    return Requirement(words, validate, **asked)


@lru_cache(maxsize=1)
def shared_sandbox() -> Sandbox:
    """Return the sandbox of all checks that were given none."""
    return Sandbox()


def _verdict(wrong: str, right: str = "") -> ValidationResult:
    return ValidationResult(not wrong, wrong or right, float(not wrong))


# --- answers --------------------------------------------------------------------------------------


def _compared(
    report: CodeReport,
    function: str,
    inputs: Sequence[tuple[Any, ...]],
    wanted: Sequence[Any],
    tolerance: float,
    show_case: bool,  # noqa: FBT001
) -> ValidationResult:
    """Compare the answers; one that can't be compared matters only if no other is wrong."""
    right, first, problem = 0, report.failure, ""
    for given, want, answer in zip(inputs, wanted, report.answers, strict=False):
        call = f"{function}({', '.join(clipped(repr(one)) for one in given)})"
        if answer.problem:
            problem = problem or f"{call} returned {answer.problem}"
        elif _is_right(answer, want, tolerance):
            right += 1
        elif answer.raised and not (_raises(want) and show_case):
            first = first or f"{call} raised {answer.told}"
        elif show_case:
            got = answer.raised[0] if answer.raised else clipped(repr(answer.value), 200)
            need = f"raise {want.__name__}" if _raises(want) else clipped(repr(want), 200)
            first = first or f"{call} is {got}; it should be {need}"
        else:
            first = first or " "
    if problem and not first:
        msg = f"{problem}: it can't be compared, so use passes_tests, or ask for plain data"
        raise RequirementError(msg)
    return _share(right, len(inputs), first)


def _share(right: int, total: int, first: str) -> ValidationResult:
    if right == total and not first:
        return _verdict("", f"it is right for {plural(total, 'input')}")
    said = f"it is right for {right} of {plural(total, 'input')}"
    more = f": {clipped(first, CLIPPED)}" if first.strip() else ""
    return ValidationResult(False, said + more, min(right / total, 0.99))


def _is_right(answer: CodeAnswer, want: Any, tolerance: float) -> bool:
    if _raises(want):
        return want.__name__ in answer.raised
    try:
        return not answer.raised and same(answer.value, want, tolerance, tolerance)
    except (ArithmeticError, RecursionError, TypeError, ValueError):
        return False


def _raises(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _plain(name: str, value: object) -> Any:
    try:
        return decode(encode(value))
    except TypeError as exc:
        shown = clipped(repr(value))
        msg = f"{name}: {shown} is no plain data, it has an object of the type {exc}"
        raise TypeError(msg) from exc


def _inputs(name: str, given: Sequence[Any]) -> tuple[tuple[Any, ...], ...]:
    if not given:
        msg = f"{name}: there are no inputs, so any program would pass"
        raise ValueError(msg)
    listed: list[Any] = [one if isinstance(one, tuple) else (one,) for one in given]
    return tuple(_plain(name, one) for one in listed)


def _asked(reference: Callable[..., object], given: tuple[Any, ...]) -> Any:
    """Call the user's own function, with a copy of an input."""
    try:
        value = reference(*decode(encode(given)))
    except Exception as exc:  # noqa: BLE001 (the reply's function has to raise it, too)
        return type(exc)
    return _plain("agrees_with", value)


def _function_name(reference: str | Callable[..., object]) -> str:
    if not isinstance(reference, str):
        return reference.__name__
    wrong = python_problem(reference)
    tree = ast.parse("" if wrong else reference)
    defined = [part.name for part in tree.body if isinstance(part, FUNCTIONS)]
    if not defined:
        msg = f"agrees_with: the reference {wrong or 'is source that defines no function'}"
        raise ValueError(msg)
    return defined[-1]


def _source(function: Callable[..., object]) -> str:
    """Return what tells a resumed run whether it is the same function."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return f"{function.__module__}.{function.__qualname__}"


def _difference(printed: str, wanted: str) -> str:
    """Return in words where what was printed isn't what was wanted."""
    ours = [line.rstrip() for line in printed.strip().splitlines()]
    theirs = [line.rstrip() for line in wanted.strip().splitlines()]
    for number, (line, other) in enumerate(zip(ours, theirs, strict=False), 1):
        if line != other:
            return f"line {number} of its output is {quoted(line)}; it should be {quoted(other)}"
    if len(ours) != len(theirs):
        said = f": it prints {quoted(printed.strip())}" if printed.strip() else ""
        return f"it prints {len(ours)} lines; it should print {len(theirs)}{said}"
    return ""


def _read(report: CodeReport) -> ValidationResult:
    """Read how tests ended; only all of them, to their end, are a pass."""
    if not report.failure and not report.failures and report.passed == report.total > 0:
        return _verdict("", f"it passes {report.total} tests")
    lines = [report.failure] if report.failure else []
    lines += [clipped(failure, CLIPPED) for failure in report.failures[:SHOWN]]
    if (more := len(report.failures) - SHOWN) > 0:
        lines.append(f"and {plural(more, 'more test')} failed")
    score = 0.0 if report.failure or not report.total else report.passed / report.total
    counted = f"it passes {report.passed} of {report.total} tests: " if report.passed else ""
    return ValidationResult(False, counted + "\n".join(lines), min(score, 0.99))


def _has_test(source: str) -> bool:
    return any(
        isinstance(part, ast.Assert | ast.ClassDef)
        or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Call))
        or (isinstance(part, FUNCTIONS) and part.name.startswith("test"))
        for part in ast.walk(ast.parse(source))
    )
