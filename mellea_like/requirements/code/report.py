"""Programs to run, and reports of their runs."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from mellea_like.errors import RequirementError
from mellea_like.requirements.code.plain import decode

CLIPPED = 2000
"""The most characters of a program's output in a reason."""

ENDED = ", and was ended"
"""The last words of the message about a program that was ended by force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeJob:
    """A program to run once: by itself, with tests, or for calls of one of its functions.

    Attributes:
        program: the program's source, in Python.
        stdin: the program's standard input.
        tests: the sources of the tests, which run in the program's process.
        names: which of the program's names the tests may use; None for all.
        function: an expression for the function to call, such as its name.
        inputs: the positional arguments of each call, as plain data.
        seconds: the time limit, in seconds of processor time; None for the runner's own limit.
    """

    program: str
    stdin: str = ""
    tests: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None
    function: str | None = None
    inputs: tuple[tuple[Any, ...], ...] = ()
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeAnswer:
    """The outcome of one call of a program's function.

    Attributes:
        value: the value that the function returned.
        raised: if the function raised an exception, the names of its class and base classes.
        told: a description of the exception, with the program's last frames.
        problem: the reason why the value can't be compared, such as a type that isn't plain data.
    """

    value: Any = None
    raised: tuple[str, ...] = ()
    told: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeReport:
    """The outcome of a program's run.

    Attributes:
        failure: the problem, in words for the model. Empty if the program ended by itself with
            exit status 0, or if all its tests or calls ran, even if they failed.
        stdout: the program's standard output, up to the runner's limit.
        stderr: the program's standard error, up to the runner's limit.
        passed: the number of tests that passed.
        total: the number of tests.
        failures: the reason for each failed test.
        answers: the outcomes of the calls, in the order of the inputs; some are missing if the run
            was ended early.
        seconds: the duration of the run, in seconds of real time.
    """

    failure: str = ""
    stdout: str = ""
    stderr: str = ""
    passed: int = 0
    total: int = 0
    failures: tuple[str, ...] = ()
    answers: tuple[CodeAnswer, ...] = ()
    seconds: float = 0.0


class CodeRunner(Protocol):
    """Something that runs programs, such as a `Sandbox`, or your own client of a service."""

    async def run(self, job: CodeJob) -> CodeReport:
        """Run a program, and end it if this call is cancelled. Raise only if it could not be run.

        Args:
            job: the program and its tests.

        Returns:
            The outcome of the run.
        """
        ...


def _size(count: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} bytes"


def described(config: dict[str, Any], way: str, holds: dict[str, Any]) -> str:
    """Return a text about the limits in force, and about the things a program can still reach."""
    wall = config["wall_seconds"] or 4 * config["seconds"] + 1
    limits = (
        f"Each program runs in a separate process with an empty environment and a fresh directory,"
        f" limited to {config['seconds']:g} s of processor time, {wall:g} s of wall-clock time,"
        f" {_size(config['memory'])} of memory per process, {config['processes']} more processes,"
        f" {_size(config['output'])} of output and {_size(config['files'])} of files."
    )
    reach = (
        f"Programs are isolated by namespaces (made by {way}): they have no network, and see no"
        " other processes and no files except those of Python and /usr, which are read-only."
        " Everything that a program starts ends with it."
    )
    if way == "limits":
        reach = (
            "There is no further isolation, because of isolation='limits': a program can access the"
            f" network, and all files and processes that user {holds['user']} can access."
        )
    if not holds["seccomp"]:
        reach += " There is no system call filter (seccomp) for this kind of machine."
    return f"{limits} {reach} A container is a boundary; this is a seat belt."


def report(
    job: CodeJob, found: dict[str, Any], asked: dict[str, Any], config: dict[str, Any]
) -> CodeReport:
    """Return a run's report; raise `RequirementError` if a failure isn't the program's fault."""
    said = _said(found["said"])
    ours = [one for one in said if one.get("secret") == asked["secret"]]
    last = ours[-1] if ours else {}
    if trouble := _trouble(found, said, last, config):
        raise RequirementError(trouble)
    return CodeReport(
        failure=_failure(job, found, asked, config, said, last),
        stdout=found["stdout"][: config["output"]],
        stderr=found["stderr"][: config["output"]],
        passed=last.get("passed", 0),
        total=last.get("total", 0),
        failures=tuple(last.get("failures", ())),
        answers=tuple(_answer(one) for one in said if one.keys() & {"value", "raised", "odd"}),
        seconds=found["seconds"],
    )


def _trouble(
    found: dict[str, Any], said: list[dict[str, Any]], last: dict[str, Any], config: dict[str, Any]
) -> str:
    """Return the reason why a run can't be judged, or "" if it can."""
    missing = next((str(one["missing"]) for one in said if one.get("missing")), "").split(".")[0]
    if missing.isidentifier() and find_spec(missing) is not None:
        return (
            f"the program imports {missing}, which is installed here, but not in the sandbox: pass"
            " its directory in Sandbox(path=[...])"
        )
    if len(found["said"]) >= max(config["files"], config["output"] + 1):
        return "what the program returned is too large to compare"
    if found["ended"] == "itself" and found["status"] == -signal.SIGKILL:
        return "the program was killed from outside: this machine may have too little memory"
    return str(last.get("trouble", ""))


def _failure(
    job: CodeJob,
    found: dict[str, Any],
    asked: dict[str, Any],
    config: dict[str, Any],
    said: list[dict[str, Any]],
    last: dict[str, Any],
) -> str:
    """Return why a program did not run to its end as it should, or "" if it did."""
    places = [] if last else [f" in {one['at']}" for one in said if "at" in one]
    during = places[-1] if places else ""
    if found["ended"] == "processor":
        return f"it took more than {asked['seconds']:g} s of processor time{during}{ENDED}"
    if found["ended"] == "time":
        return f"it was not done after {asked['wall']:g} s{during}{ENDED}"
    if last:
        return str(last.get("failed", ""))
    if max(len(found["stdout"]), len(found["stderr"])) > config["output"]:
        return f"it printed more than {_size(config['output'])}{during}"
    how = _status(found["status"])
    if job.tests or job.function is not None:
        failure = f"the program {how} before its tests were done{during}"
    elif found["status"] != 0:
        failure = f"it {how}"
    else:
        return ""
    tail = found["stderr"].strip()[-CLIPPED:]
    return f"{failure}:\n{tail}" if tail else failure


def _said(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects in a text's lines; skip other lines that a program may have added."""
    found: list[Any] = []
    for line in text.splitlines():
        with suppress(ValueError, RecursionError):
            found.append(json.loads(line))
    return [one for one in found if isinstance(one, dict)]


def _answer(said: dict[str, Any]) -> CodeAnswer:
    if "raised" in said:
        return CodeAnswer(raised=tuple(map(str, said["raised"])), told=str(said["told"]))
    if "odd" in said:
        return CodeAnswer(problem=str(said["odd"]))
    try:
        return CodeAnswer(value=decode(said["value"]))
    except (ValueError, RecursionError) as exc:
        return CodeAnswer(problem=f"data that can't be read: {exc}")


def _status(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    names = [one.name for one in signal.Signals if one == -status]
    return f"was ended by {names[0] if names else f'signal {-status}'}"
