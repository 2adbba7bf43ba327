"""What the user of ``mellea-like batch`` asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mellea_like.cli.batch.source import OnBadLine
from mellea_like.cli.exits import Exit, Problem

if TYPE_CHECKING:
    from pathlib import Path

    from mellea_like.batch.journal.records import KeptText
    from mellea_like.batch.rows.formats import RowFormat
    from mellea_like.cli.arguments import SampleArguments

__all__ = ["BatchArguments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchArguments:
    """The arguments of ``mellea-like batch``, as typed."""

    sample: SampleArguments
    source: str
    prompt: str
    output: str
    failed: str | None = None
    only_passed: bool = False
    journal: Path | None = None
    journal_text: KeptText = "all"
    resume: bool = False
    force: bool = False
    parallel: int = 8
    ordered: bool = False
    fail_fast: bool = False
    most_errors: int = 10
    on_bad_line: OnBadLine = OnBadLine.STOP
    input_format: RowFormat | None = None
    output_format: RowFormat | None = None
    first: int | None = None
    every: float = 5.0

    def __post_init__(self) -> None:
        if self.resume and self.journal is None:
            msg = "--resume goes on with a journal: name it with --journal FILE"
            raise Problem(msg, Exit.USAGE)
        if not 0 < self.every < float("inf"):
            msg = f"--every takes seconds above 0, not {self.every:g}"
            raise Problem(msg, Exit.USAGE)
