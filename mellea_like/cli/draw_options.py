"""What the user asked for on the command line, read and checked before anything runs."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from mellea_like.cli.exits import Exit, Problem
from mellea_like.cli.limits import LimitArguments
from mellea_like.cli.terminal import warn
from mellea_like.core.requirement import Requirement
from mellea_like.requirements import checks
from mellea_like.requirements.expressions import EARLY, parse_check

__all__ = [
    "MOST_ITERATIONS",
    "BackendName",
    "SampleArguments",
    "StrategyName",
    "as_text",
    "check_file",
    "read_instruction",
    "read_requirements",
    "read_schema",
]


MOST_ITERATIONS = 1000
"""A guard against expensive mistakes."""

LONGEST_INSTRUCTION = 16 * 2**20
"""Bytes of standard input; no model takes as much, and some sources never end."""


class StrategyName(StrEnum):
    """How a failed draw leads to the next one."""

    REJECTION = "rejection"
    REPAIR = "repair"
    MULTI_TURN = "multi-turn"


class BackendName(StrEnum):
    """What generates."""

    MARKOV = "markov"
    OPENAI = "openai"
    LLAMA = "llama"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleArguments:
    """The arguments of ``mellea-like sample``, as typed."""

    instruction: str
    require: list[str] = field(default_factory=list[str])
    check: list[str] = field(default_factory=list[str])
    strategy: StrategyName = StrategyName.REJECTION
    loop: int
    concurrency: int
    backend: BackendName | None = None
    model: str | None = None
    base_url: str | None = None
    gguf: Path | None = None
    corpus: list[Path] = field(default_factory=list[Path])
    judge_model: str | None = None
    judge_base_url: str | None = None
    schema: Path | None = None
    seed: int | None = None
    timeout: float | None = None
    early: bool = False
    accept_incomplete: bool = False
    limits: LimitArguments = field(default_factory=LimitArguments)
    as_json: bool = False
    trace: Path | None = None
    explain: bool = False
    ledger: bool = False
    quiet: bool = False
    debug: bool = False

    def __post_init__(self) -> None:
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            hint = "; leave it out for no limit" if self.timeout > 0 else ""
            msg = f"--timeout takes seconds above 0, not {self.timeout:g}{hint}"
            raise Problem(msg, Exit.USAGE)
        if self.loop * self.concurrency > MOST_ITERATIONS:
            msg = (
                f"--loop {self.loop} times --concurrency {self.concurrency} is more than"
                f" {MOST_ITERATIONS} iterations, the most that one call may run"
            )
            raise Problem(msg, Exit.USAGE)


def as_text(given: str, what: str) -> str:
    """Read an argument's bytes as UTF-8, whatever the locale makes of them."""
    try:
        return os.fsencode(given).decode("utf-8")
    except UnicodeError as exc:
        msg = f"{what} is no UTF-8 text"
        raise Problem(msg, Exit.USAGE) from exc


def check_file(option: str, path: Path) -> None:
    """Make sure that a file can be read, and comes to an end."""
    try:
        if path.is_fifo():
            return  # What is read from a pipe is gone.
        if path.is_char_device() or path.is_block_device():
            msg = f"{option}: {path} is a device: name a file"
            raise Problem(msg)
        with path.open("rb") as file:
            file.read(1)
    except OSError as exc:
        msg = f"{option}: can't read {path}: {exc.strerror or exc}"
        raise Problem(msg) from exc


def read_instruction(given: str) -> str:
    """Take the instruction from the command line, or from standard input."""
    if given != "-":
        text, source = given, "the instruction"
    else:
        source = "standard input"
        if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
            msg = f"{source} can't be read: it is closed; give the instruction in quotes"
            raise Problem(msg, Exit.USAGE)
        try:
            if sys.stdin.isatty():
                warn("Reading the instruction from the terminal: end it with Ctrl-D.")
            data = sys.stdin.buffer.read(LONGEST_INSTRUCTION + 1)
            if len(data) > LONGEST_INSTRUCTION:
                msg = (
                    f"{source} has over {LONGEST_INSTRUCTION // 2**20} MB: too long to ask a model"
                )
                raise Problem(msg, Exit.USAGE)
            text = data.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as exc:
            msg = f"{source} is no UTF-8 text: byte {exc.start} makes no sense"
            raise Problem(msg, Exit.USAGE) from exc
        except (AttributeError, OSError, ValueError) as exc:
            msg = f"{source} can't be read: {exc}"
            raise Problem(msg, Exit.USAGE) from exc
    if not text.strip():
        msg = f"{source} is empty: say what to generate, in quotes"
        raise Problem(msg, Exit.USAGE)
    return text


def read_requirements(
    arguments: SampleArguments, schema: dict[str, Any] | None
) -> list[Requirement]:
    """Make the requirements of a call, the checks first."""
    try:
        found = [parse_check(expression, early=arguments.early) for expression in arguments.check]
    except ValueError as exc:
        raise Problem(str(exc), Exit.USAGE) from exc
    except ImportError as exc:
        raise Problem(str(exc)) from exc
    if arguments.schema is not None and schema is not None:
        found.append(_schema_check(arguments.schema, schema, early=arguments.early))
    if arguments.early and not any(requirement.stream for requirement in found):
        msg = (
            "--early has nothing to do: none of the checks can tell before the end of a reply; what"
            f" can is --schema and --check as in: {'  '.join(EARLY)}"
        )
        raise Problem(msg, Exit.USAGE)
    for text in arguments.require:
        if not text.strip():
            msg = "--require takes a text that says what must hold, not an empty one"
            raise Problem(msg, Exit.USAGE)
        found.append(Requirement(text.strip()))
    return found


def read_schema(path: Path) -> dict[str, Any]:
    """Read a JSON Schema from a file."""
    check_file("--schema", path)
    try:
        schema = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as exc:
        msg = f"--schema: {path} is no JSON: {exc}"
        raise Problem(msg) from exc
    if not isinstance(schema, dict):
        msg = f"--schema: {path} is no JSON Schema: it holds no JSON object"
        raise Problem(msg)
    return cast("dict[str, Any]", schema)


def _schema_check(path: Path, schema: dict[str, Any], *, early: bool) -> Requirement:
    try:
        return checks.json_schema(schema, name=f"schema:{path.name}", early=early)
    except (ValueError, TypeError) as exc:
        msg = f"--schema: {path}: {str(exc).partition(': ')[2] or exc}"
        raise Problem(msg) from exc
    except ImportError as exc:
        raise Problem(str(exc)) from exc
