"""The options of ``mellea-like batch``."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args

from mellea_like.batch.batch_run import Order  # noqa: TC001 (typer reads the annotations)
from mellea_like.batch.journal.records import KeptText  # noqa: TC001 (typer reads the annotations)
from mellea_like.cli.draw_options import CHECKS, DRAWS, LOOP, PANELS, DrawOptions
from mellea_like.cli.exit_codes import Exit, Problem
from mellea_like.cli.option_fields import REQUIRED, argument, option
from mellea_like.export.example_selection import Drop, Reasoning
from mellea_like.requirements.expressions import ALLOWED, CODE_FORMS

__all__ = ["EPILOG", "HELP", "STANDARD", "BatchOptions", "OnBadLine"]

STANDARD = "-"
"""Standard input, or standard output."""

ROWS = "What to ask"
RESULTS = "Where results go"
RUN = "How to run"

HELP = """Ask a model about every row of a file: many at a time, and each until its reply is good.

INPUT has a JSON object a line, or is a CSV, TSV or Parquet file. Each row's prompt is made of its\
 fields, by a Jinja template, and so may checks be. A result for each row goes to OUT, as it comes.

With --journal, a run that was interrupted or killed goes on with --resume: what was done is not\
 asked again.

[bold]Examples[/bold]

\b
mellea-like batch reviews.jsonl --prompt "In one word: {{ text }}" \\
    --model gpt-4.1-mini --check "choice:good|bad" -o out.jsonl --journal run.db
mellea-like batch tasks.jsonl --prompt "{{ task }}" --model gpt-4.1-mini \\
    --check "passes_tests:{{ tests }}" -o out.jsonl --journal run.db
mellea-like batch letters.csv --prompt @letter.txt --schema invoice.json \\
    --model gpt-4.1-mini --parallel 32 --budget cost=5 --price 0.40,1.60 \\
    --max-tokens 400 -o out.csv --failed failed.csv --journal run.db --resume
"""

EPILOG = (
    "Exit codes: 0 all rows passed, 1 some did not, or the budget was spent, 2 bad usage, 3 backend"
    " or configuration error, or a file or the journal is at fault, 130 interrupted,"
    " 143 told to end (SIGTERM)."
)

OnBadLine = Literal["stop", "skip"]
Keep = Literal["all", "passed", "failed"]


@dataclass(frozen=True, kw_only=True)
class BatchOptions(DrawOptions):
    """The options of ``mellea-like batch``."""

    panels: ClassVar = (ROWS, RESULTS, RUN, *PANELS)

    source: str = argument("INPUT", "The rows: a file, or - for JSONL on standard input.")
    checks: list[str] = option(
        list,
        f"One of: {'  '.join(ALLOWED)}. Repeatable.\n\nOf code, in a sandbox:"
        f" {'  '.join(CODE_FORMS)}.\n\nOne with {{{{ }}}} in it is a Jinja template, and the model"
        " isn't told of it: contains:{{ answer }}.",
        "--check",
        metavar="EXPR",
        panel=CHECKS,
    )
    prompt: str | None = option(
        None,
        "What to ask for each row, as a Jinja template: {{ text }} stands for the field"
        ' text, {{ row["the text"] }} for one whose name isn\'t a word. @FILE reads it from a'
        " file. Without it, each row has its messages, as OpenAI's API takes them, in the field"
        " messages.",
        "--prompt",
        "-p",
        metavar="TEMPLATE",
        panel=ROWS,
    )
    system: str | None = option(
        None,
        "A system prompt, for all rows whose messages have none. @FILE reads it from a file.",
        metavar="TEXT",
        panel=ROWS,
    )
    output: str = option(
        REQUIRED,
        "A file that ends in .jsonl, .csv, .tsv or .parquet, or - for JSONL on standard output.",
        "--output",
        "-o",
        metavar="OUT",
        panel=RESULTS,
    )
    on_bad_line: OnBadLine = option(
        "stop",
        "What becomes of a line that can't be read, or lacks a field: stop tells of it"
        " before anything is sent, skip leaves it out.",
        metavar="WHAT",
        panel=ROWS,
    )
    first: int | None = option(
        None, "Only the first N rows, to try it out.", metavar="N", min=1, panel=ROWS
    )
    again: bool = option(
        False,
        "INPUT is a file of results, such as --failed wrote: ask again about those rows in it that"
        " did not pass. They keep their ids and lines.",
        panel=ROWS,
    )
    keep: Keep = option(
        "all",
        "Which rows stand in OUT: all, passed or failed ones.",
        metavar="WHICH",
        panel=RESULTS,
    )
    reasoning: Reasoning | None = option(
        None,
        "Where thoughts go in OUT: field, into a field reasoning; inline, into <think> tags before"
        " the output; drop, nowhere. By default into the field in JSONL, else nowhere.",
        metavar="WHERE",
        panel=RESULTS,
    )
    drop: list[str] = option(
        list,
        "Leave rows out of OUT whose reply is incomplete (cut off, filtered or refused), or empty."
        " Repeatable.",
        metavar="WHICH",
        panel=RESULTS,
    )
    min_chars: int | None = option(
        None, "Leave rows out of OUT whose reply is shorter.", metavar="N", min=0, panel=RESULTS
    )
    max_chars: int | None = option(
        None, "Leave rows out of OUT whose reply is longer.", metavar="N", min=0, panel=RESULTS
    )
    failed: str | None = option(
        None,
        "Where rows go that did not pass; by default to OUT too, with success false.",
        metavar="FILE",
        panel=RESULTS,
    )
    force: bool = option(False, "Replace OUT where it is there.", panel=RESULTS)
    journal: Path | None = option(
        None,
        "Write down what is done, so that the run can be resumed, and looked at with"
        " mellea-like report.",
        metavar="FILE",
        panel=RUN,
    )
    resume: bool = option(False, "Go on with the run of the journal, if there is one.", panel=RUN)
    journal_text: KeptText = option(
        "all",
        "Whose words the journal keeps: all draws', the best draw's, or none but what passed.",
        metavar="WHOSE",
        panel=RUN,
    )
    parallel: int = option(8, "Rows at a time.", metavar="N", min=1, max=10_000, panel=RUN)
    processes: int = option(
        1,
        "Share the rows out to so many processes, for a server that is quicker than one of them."
        " --parallel, the budget and the rates are for all together; the journal is a folder.",
        metavar="N",
        min=1,
        max=256,
        panel=RUN,
    )
    in_order: bool = option(
        False, "Results in the order of the rows; by default as they come.", panel=RUN
    )
    order: Order = option(
        "depth",
        "depth makes all draws of a row before the next row's; breadth makes each row's first draw"
        " before any row's second, so that a budget that is too small for all finds more that"
        " pass.",
        metavar="HOW",
        panel=RUN,
    )
    unique: str | None = option(
        None,
        "No two rows may get replies that are alike: exact compares texts without regard to case"
        " and spaces, a number from 0 to 1 is the similarity from which on they are alike. What is"
        " like another row's reply has failed.",
        metavar="HOW",
        panel=RUN,
    )
    max_errors: int = option(
        10,
        "Stop when so many rows in a row end in an error; 0 for never.",
        metavar="N",
        min=0,
        panel=RUN,
    )
    loop: int | None = option(
        None,
        f"The most draws for one row in each lane, one after another; by default {LOOP}, or as many"
        " as --n needs.",
        "--attempts",
        metavar="N",
        panel=DRAWS,
    )
    concurrency: int = option(
        1,
        "How many draws of one row run at a time; more than 1 is faster and costs more.",
        "--lanes",
        metavar="K",
        panel=DRAWS,
    )
    timeout: float | None = option(
        None, "Stop with a row after this long.", metavar="SECONDS", panel=DRAWS
    )

    def __post_init__(self) -> None:
        if self.resume and self.journal is None:
            msg = "--resume goes on with a journal: name it with --journal FILE"
            raise Problem(msg, Exit.USAGE)
        if self.failed is not None and self.keep != "all":
            msg = f"--keep {self.keep} leaves rows out, which --failed keeps: give one of them"
            raise Problem(msg, Exit.USAGE)
        for one in self.drop:
            if one not in get_args(Drop):
                msg = f"--drop is one of {', '.join(get_args(Drop))}, not {one}"
                raise Problem(msg, Exit.USAGE)
        if self.reasoning == "field" and self.output.lower().endswith((".csv", ".tsv", ".parquet")):
            msg = "--reasoning field is for JSONL: have the thoughts inline, or drop them"
            raise Problem(msg, Exit.USAGE)
        if self.reasoning == "inline" and self.json_schema is not None:
            msg = "--reasoning inline has no place in the JSON of --schema: write it into a field"
            raise Problem(msg, Exit.USAGE)
        if self.order == "breadth":
            self._check_rounds()
        if self.processes > 1:
            self._check_processes()
        _ = self.similarity

    def _check_processes(self) -> None:
        """Make sure that processes need to know nothing of each other's rows."""
        piped = self.source == STANDARD or (
            Path(self.source).exists() and not Path(self.source).is_file()
        )
        for wrong, given, why in (
            (piped, f"INPUT {self.source}", "reads the rows in each process: name a file"),
            (self.unique, "--unique", "compares no rows of two processes"),
            (self.order == "breadth", "--order breadth", "has no rounds over all rows"),
            (self.gguf, "--gguf", "is for a server: start one, and name it by --base-url"),
            (
                self.parallel < self.processes,
                f"--parallel {self.parallel}",
                "takes a row in each process at least",
            ),
        ):
            if wrong:
                msg = f"--processes {self.processes} {why}, and does not go with {given}"
                raise Problem(msg, Exit.USAGE)

    def _check_rounds(self) -> None:
        """Make sure that a row can be left after each draw."""
        for wrong, given, why in (
            (self.concurrency > 1, "--lanes", "makes one draw for a row at a time"),
            (
                self.select.partition(":")[0] not in {"first", "ordered", "collect", "vote"},
                "--select",
                "keeps no scores from round to round",
            ),
            (self.journal_text != "all", "--journal-text", "goes on from all that the journal has"),
            (self.source == STANDARD, "INPUT -", "reads the rows once a round: name a file"),
        ):
            if wrong:
                msg = f"--order breadth {why}, and does not go with {given}"
                raise Problem(msg, Exit.USAGE)

    @property
    def row_checks(self) -> list[str]:
        """The checks that are templates: each row has its own."""
        return [one for one in self.checks if "{{" in one]

    @property
    def _fixed_checks(self) -> list[str]:
        return [one for one in self.checks if "{{" not in one]

    @property
    def similarity(self) -> bool | float:
        """From which similarity on replies are alike, as `sample_many` takes it."""
        if self.unique in {None, "exact"}:
            return self.unique is not None
        with suppress(ValueError):
            if 0 < (similarity := float(str(self.unique))) < 1:
                return similarity
        msg = f"--unique takes exact, or a similarity between 0 and 1, not {self.unique!r}"
        raise Problem(msg, Exit.USAGE)
