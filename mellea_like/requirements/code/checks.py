"""Requirements that run the code in a reply."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from mellea_like.core.argument_checks import check_one_of, check_text, real_number
from mellea_like.core.display import clipped, plural, quoted
from mellea_like.core.requirement import Requirement, ready_made
from mellea_like.core.validation import ValidationResult
from mellea_like.errors import RequirementError
from mellea_like.requirements.checks_common import CheckSettings
from mellea_like.requirements.code.extract import Fence, fenced
from mellea_like.requirements.code.plain import decode, encode, same
from mellea_like.requirements.code.report import CLIPPED, ENDED, CodeJob, CodeReport
from mellea_like.requirements.code.sandbox import Sandbox
from mellea_like.requirements.code.syntax import python_problem
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mellea_like.core.validation import Candidate
    from mellea_like.requirements.code.report import CodeAnswer, CodeRunner

    Run = Callable[..., Awaitable[CodeReport]]

SHOWN = 3
"""The most failed tests to show in a reason."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

QUICK = 2**14
"""The most characters to compile in this process; more would block the event loop."""


class CodeSettings(CheckSettings, total=False):
    """Arguments of each check that runs code, in addition to those of `Requirement`.

    Attributes:
        seconds: the time limit of a run, in seconds of processor time, over 0 and at most 86,400;
            by default the sandbox's.
        fence: which fence to use if a reply has several: ``"longest"`` (the default), ``"first"``
            or ``"last"``; see `mellea_like.requirements.code`.
        sandbox: the runner of the code. By default, all checks of the process share one `Sandbox`.
            On systems without sandboxes, making a check without ``sandbox=`` raises
            ``NotImplementedError``.
    """

    seconds: float | None
    fence: Fence
    sandbox: CodeRunner | None


@ready_made
def runs(
    *, stdin: str = "", stdout: str | None = None, **settings: Unpack[CodeSettings]
) -> Requirement:
    """Require a Python program that ends with exit status 0 and, optionally, prints a given text.

    Without ``stdout=``, even a program that does nothing passes.

    Args:
        stdin: the program's standard input.
        stdout: the output that the program must print, compared line by line, ignoring white space
            at the ends of lines and of the whole text. By default, any output is accepted.
        **settings: see `CodeSettings`, and `Requirement` for ``name``, ``weight`` and others.

    Returns:
        The requirement. Its reason is the exception with the last frames of the program's own
        code, the first line that differs, or a message that the time was up.

    Raises:
        TypeError: ``stdin`` or ``stdout`` isn't a str.
    """
    check_text("runs: stdin", stdin)
    if stdout is not None:
        check_text("runs: stdout", stdout)

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

    Tests are Python source with assertions, calls (``check(add)``), functions named ``test...``,
    classes named ``Test...``, and classes of ``unittest``. They can use the code's names directly
    or import the code as the module ``solution``. Each test function and test method is a test. At
    the top level, so is each assertion, each call, and each block that contains one of these. The
    score is the share of tests that pass. Tests may be ``async``. From pytest, they can use
    ``raises``, ``approx``, ``param``, ``mark.parametrize``, the marks that skip, ``skip``,
    ``fail``, simple fixtures and ``tmp_path``.

    **The program and its tests share one process**, as in HumanEval and other benchmarks, so tests
    can check identity, exceptions, threads and patches. Only the report after the last test
    counts, so a program can't pass by exiting, by printing, by replacing builtins or methods of
    ``unittest``, or with objects that equal everything. But a program that is written to attack
    the test harness can forge a pass. For training and reinforcement learning, use `returns`,
    `agrees_with` or `prints`.

    If the program defines a name that hides a builtin, such as ``sum``, tests see the builtin. They
    see the program's ``sum`` if ``names`` lists it, or if they use no other name of the program. If
    the tests can't run, because they need a module or a part of pytest that is missing, the check
    raises `RequirementError`, and the draw counts as errored.

    Args:
        tests: one source, or several that are independent of each other.
        names: the names that the code must define. Tests see only these. With None, no name is
            required, and tests usually see all names that don't hide builtins.
        **settings: see `CodeSettings`, and `Requirement` for ``name``, ``weight`` and others.

    Returns:
        The requirement. Its reason is the first failed assertions with their values, the exception
        with the last frames of the code, or a message that the time was up.

    Raises:
        TypeError: a test or a name isn't a text, or ``names`` is a text.
        ValueError: the tests don't parse or contain no test.
    """
    sources = (tests,) if isinstance(tests, str) else tuple(tests)
    needed = None if names is None else tuple(names)
    texts = (*sources, *(needed or ()))
    if isinstance(names, str) or not all(isinstance(text, str) for text in texts):
        msg = (
            "passes_tests needs the source of tests, as one or more texts, and a sequence of names"
        )
        raise TypeError(msg)
    for source in sources:
        if source.strip() and (wrong := python_problem(source)):
            msg = f"passes_tests: the tests don't parse: {wrong}"
            raise ValueError(msg)
    if not sources or not all(map(_has_test, sources)):
        msg = (
            "passes_tests: each source must have a test: an assertion, a call, a function named"
            " test... or a class"
        )
        raise ValueError(msg)

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

    **The program can't forge a pass**, because it gets only the inputs, and the values that it
    returns are compared outside the sandbox. Inputs and values must be plain data: None, numbers,
    texts, bytes, lists, tuples, sets, dicts, dates, and NumPy arrays (which equal the lists of
    their values). If a returned value is anything else, and no other case is wrong, the check
    raises `RequirementError`, and the draw counts as errored.

    Args:
        function: an expression for the function, such as ``"add"`` or ``"Solution().two_sum"``.
        cases: pairs of an input and the value to return. If the input is a tuple, its items are
            the positional arguments; any other input is the only argument. If the value is an
            exception class, the function must raise that exception.
        tolerance: the largest relative or absolute error allowed for floats.
        show_case: whether the reason shows one failing case with the right value, and the prompt
            includes the requirement. By default, the reason has only counts and exceptions, and
            ``check_only`` is true.
        **settings: see `CodeSettings`, and `Requirement` for ``name``, ``weight`` and others.

    Returns:
        The requirement. Its score is the share of the cases that are right.

    Raises:
        TypeError: an input or a value isn't plain data, a case isn't a pair, or another argument is
            of the wrong type.
        ValueError: there are no cases, ``function`` isn't an expression, or a number is out of
            range.
    """
    pairs = tuple(cases)
    if not all(isinstance(case, tuple | list) and len(case) == 2 for case in pairs):  # noqa: PLR2004
        msg = "returns: each case must be a pair of an input and its expected value"
        raise TypeError(msg)
    inputs = _inputs("returns", [given for given, _ in pairs])
    wanted = [value if _raises(value) else _plain("returns", value) for _, value in pairs]

    async def judge(run: Run, program: str) -> ValidationResult:
        report = await run(program=program, function=function, inputs=inputs)
        return await run_in_thread(
            _compared, report, function, inputs, wanted, tolerance, show_case
        )

    _check_comparison("returns", function, tolerance)
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
    """Require Python code with a function that returns the same as a reference; see `returns`.

    The reference runs once, when the first reply is checked. If it is a function, it runs in this
    process, in a thread; if it is source code, it runs in the sandbox, in a process that no reply
    can reach. If the reference raises an exception, the reply's function must raise one of the same
    type.

    Args:
        reference: a function, or source code that defines it.
        inputs: the inputs of both functions. If an input is a tuple, its items are the positional
            arguments; any other input is the only argument.
        function: the function's name in the reference and in the reply; by default, the name of
            the reference, or of the last function in its source. A lambda has no name.
        tolerance: the largest relative or absolute error allowed for floats.
        show_case: whether the reason shows one failing case; see `returns`.
        **settings: see `CodeSettings`, and `Requirement` for ``name``, ``weight`` and others.

    Returns:
        The requirement. Its score is the share of the inputs on which both agree.

    Raises:
        TypeError: an input isn't plain data, or another argument is of the wrong type.
        ValueError: there are no inputs, the reference's source doesn't parse or has no function,
            the reference has no name and ``function`` is missing, or a number is out of range.
    """
    given = _inputs("agrees_with", inputs)
    name = function or _function_name(reference)
    found: list[Any] = []  # The reference's answers, once it has run.

    async def judge(run: Run, program: str) -> ValidationResult:
        if not found and isinstance(reference, str):
            report = await run(program=reference, function=name, inputs=given)
            problems = (report.failure, *(answer.problem for answer in report.answers))
            if wrong := next(filter(None, problems), ""):
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

    _check_comparison("agrees_with", name, tolerance)
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

    The output is compared outside the sandbox, so the program can't forge a pass. The comparison
    is line by line, ignoring white space at the ends of lines and of the whole text.

    Args:
        stdin: the program's standard input, or a sequence of inputs, one for each run.
        stdout: the outputs that the program must print, one for each input.
        show_case: whether the reason shows one failing case; see `returns`.
        **settings: see `CodeSettings`, and `Requirement` for ``name``, ``weight`` and others.

    Returns:
        The requirement. Its score is the share of the inputs with the right output. After a run
        that uses up its time, no more inputs are tried.

    Raises:
        TypeError: an input or an output isn't a str.
        ValueError: there are no inputs, or not as many outputs as inputs.
    """
    inputs, wanted = _texts("prints: stdin", stdin), _texts("prints: stdout", stdout)
    if not inputs or len(inputs) != len(wanted):
        counts = f"{plural(len(inputs), 'input')} and {plural(len(wanted), 'output')}"
        msg = f"prints: {counts}: pass an output for each input"
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
    """Return a requirement that runs the code in a reply; its version is a hash of ``decides``."""
    seconds, fence = settings.pop("seconds", None), settings.pop("fence", "longest")
    if seconds is not None:
        real_number(f"{name}: seconds", seconds, over=0, most=86400, unit="seconds")
    check_one_of(f"{name}: fence", fence, get_args(Fence))
    runner = settings.pop("sandbox", None) or _shared_sandbox()
    if isinstance(runner, type) or not callable(getattr(runner, "run", None)):
        msg = f"{name}: sandbox must be a Sandbox or another CodeRunner, not {runner!r}"
        raise TypeError(msg)

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


_shared_sandbox = lru_cache(maxsize=1)(Sandbox)


def _texts(name: str, given: Any) -> tuple[str, ...]:
    try:
        texts: tuple[Any, ...] = (given,) if isinstance(given, str) else tuple(given)
    except TypeError:
        texts = (given,)
    if not all(isinstance(text, str) for text in texts):
        msg = f"{name} must be a text or a sequence of texts, not {clipped(repr(given))}"
        raise TypeError(msg)
    return texts


def _check_comparison(name: str, function: str, tolerance: float) -> None:
    check_text(f"{name}: function", function)
    real_number(f"{name}: tolerance", tolerance, least=0)
    try:
        ast.parse(function, mode="eval")
    except SyntaxError as exc:
        shown = quoted(function)
        msg = f"{name}: function must be an expression, such as 'add', not {shown}: {exc.msg}"
        raise ValueError(msg) from exc


def _verdict(wrong: str, right: str = "") -> ValidationResult:
    return ValidationResult(not wrong, wrong or right, float(not wrong))


def _compared(
    report: CodeReport,
    function: str,
    inputs: Sequence[tuple[Any, ...]],
    wanted: Sequence[Any],
    tolerance: float,
    show_case: bool,  # noqa: FBT001
) -> ValidationResult:
    """Judge a run's answers; raise an error if one can't be compared and nothing else is wrong."""
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
        msg = f"{problem}; this can't be compared, so use passes_tests, or ask for plain data"
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
        msg = f"{name}: {shown} isn't plain data, because it contains an object of the type {exc}"
        raise TypeError(msg) from exc


def _inputs(name: str, given: Sequence[Any]) -> tuple[tuple[Any, ...], ...]:
    if not given:
        msg = f"{name}: there are no inputs, so any program would pass"
        raise ValueError(msg)
    listed: list[Any] = [one if isinstance(one, tuple) else (one,) for one in given]
    return tuple(_plain(name, one) for one in listed)


def _asked(reference: Callable[..., object], given: tuple[Any, ...]) -> Any:
    """Call the user's reference with a copy of an input; return the value or exception class."""
    try:
        value = reference(*decode(encode(given)))
    except Exception as exc:  # noqa: BLE001 (the reply's function has to raise it, too)
        return type(exc)
    return _plain("agrees_with", value)


def _function_name(reference: str | Callable[..., object]) -> str:
    if not isinstance(reference, str):
        name: str = getattr(reference, "__name__", "<lambda>")
        if name == "<lambda>":
            msg = "agrees_with: the reference has no name: pass function='...', as it is in replies"
            raise ValueError(msg)
        return name
    wrong = python_problem(reference)
    tree = ast.parse("" if wrong else reference)
    defined = [part.name for part in tree.body if isinstance(part, FUNCTIONS)]
    if not defined:
        msg = f"agrees_with: the reference {wrong or 'defines no function'}"
        raise ValueError(msg)
    return defined[-1]


def _source(function: Callable[..., object]) -> str:
    """Return a function's source or else its name, for the ``version`` of a requirement."""
    if isinstance(function, partial):
        given = re.sub(" at 0x[0-9a-fA-F]+", "", repr((function.args, function.keywords)))
        return f"{_source(function.func)} with {given}"
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        named = function if hasattr(function, "__qualname__") else type(function)
        return f"{getattr(named, '__module__', '')}.{named.__qualname__}"


def _difference(printed: str, wanted: str) -> str:
    """Return a description of the first difference between two texts, or "" if there is none."""
    ours = [line.rstrip() for line in printed.strip().splitlines()]
    theirs = [line.rstrip() for line in wanted.strip().splitlines()]
    for number, (line, other) in enumerate(zip(ours, theirs, strict=False), 1):
        if line != other:
            return f"line {number} of its output is {quoted(line)}; it should be {quoted(other)}"
    if len(ours) != len(theirs):
        said = f": it prints {quoted(printed.strip())}" if printed.strip() else ""
        return f"it prints {plural(len(ours), 'line')}; it should print {len(theirs)}{said}"
    return ""


def _read(report: CodeReport) -> ValidationResult:
    """Return the verdict on a run of tests: passed only if all tests ran to the end and passed."""
    if not report.failure and not report.failures and report.passed == report.total > 0:
        return _verdict("", f"it passes {plural(report.total, 'test')}")
    lines = [report.failure] if report.failure else []
    lines += [clipped(failure, CLIPPED) for failure in report.failures[:SHOWN]]
    if (more := len(report.failures) - SHOWN) > 0:
        lines.append(f"and {plural(more, 'more test')} failed")
    score = 0.0 if report.failure or not report.total else report.passed / report.total
    counted = (
        f"it passes {report.passed} of {plural(report.total, 'test')}: " if report.passed else ""
    )
    return ValidationResult(False, counted + "\n".join(lines), min(score, 0.99))


def _has_test(source: str) -> bool:
    return any(
        isinstance(part, ast.Assert | ast.ClassDef)
        or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Call))
        or (isinstance(part, FUNCTIONS) and part.name.startswith("test"))
        for part in ast.walk(ast.parse(source))
    )
