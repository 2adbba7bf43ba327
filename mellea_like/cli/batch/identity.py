"""What makes two runs of the command the same run, and how they differ, in options."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from mellea_like.batch.differences import Difference
from mellea_like.cli.exits import Exit, Problem
from mellea_like.cli.terminal import one_line, warn
from mellea_like.specification.strategy import STRATEGIES

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path

    from mellea_like.cli.draw_options import DrawOptions
    from mellea_like.errors import JournalError

__all__ = ["another_run", "digest_of", "model_files"]

LARGE = 200 * 2**20
"""Bytes of a model's file whose digest takes some time."""

_OPTIONS = {
    "accept_incomplete": "--accept-incomplete",
    "concurrency_budget": "--concurrency",
    "corpus": "--corpus",
    "format": "--schema",
    "gguf": "--gguf",
    "give_up": "--give-up",
    "input": "INPUT",
    "judge": "--judge-model",
    "loop_budget": "--loop",
    "model": "--model",
    "options.max_tokens": "--max-tokens",
    "options.seed": "--seed",
    "prompt": "--prompt",
    "provider": "--backend",
    "requirements": "--check, --require",
    "schedule": "--schedule",
    "schema": "--schema",
    "strategy": "--strategy",
}
"""The options by the names that the library has for what they say."""

_STRATEGIES = {made.__name__: name for name, made in STRATEGIES.items()}


def digest_of(file: BufferedReader) -> str:
    """Say what stands in a file, so that another run can tell whether it is the same."""
    digest = hashlib.file_digest(file, "sha256")
    return f"{file.tell()} bytes, sha256 {digest.hexdigest()[:24]}"


def model_files(options: DrawOptions) -> dict[str, Any]:
    """Say what stands in the files that the model is made of."""
    quiet = options.quiet
    found: dict[str, Any] = {}
    if options.corpus:
        found["corpus"] = [_digest("--corpus", path, quiet=quiet) for path in options.corpus]
    if options.gguf is not None:
        found["gguf"] = _digest("--gguf", options.gguf, quiet=quiet)
    return found


def _digest(option: str, path: Path, *, quiet: bool) -> str:
    if not path.is_file():
        msg = f"{option}: {path} is a pipe, and a journal needs a file that can be read again"
        raise Problem(msg, Exit.USAGE)
    try:
        with path.open("rb") as file:
            if not quiet and os.fstat(file.fileno()).st_size > LARGE:
                warn(f"Looking through {path} ...")
            return digest_of(file)
    except OSError as exc:
        msg = f"{option}: can't read {path}: {exc.strerror or exc}"
        raise Problem(msg) from exc


def another_run(error: JournalError, path: Path) -> Problem:
    """Say in options how the run differs from that of the journal."""
    found = tuple(_in_options(Difference(*one)) for one in error.differences)
    lines = [
        f"the journal {path} belongs to another run:",
        *(f"  {one_line(str(difference))}" for difference in found),
        "Resume it by the command that it was begun with, or name another journal.",
    ]
    problem = Problem("\n".join(lines))
    problem.__cause__ = error
    return problem


def _in_options(difference: Difference) -> Difference:
    name, was, now = difference
    known = next((n for n in (name, name.partition(".")[0]) if n in _OPTIONS), None)
    if known is not None:
        inside = name[len(known) + 1 :]
        name = f"{_OPTIONS[known]} ({inside})" if inside else _OPTIONS[known]
    if known == "give_up":
        was, now = (value and "given" for value in (was, now))
    was, now = (value and _STRATEGIES.get(value, value) for value in (was, now))
    return Difference(name, was, now)
