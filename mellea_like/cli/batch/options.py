"""The options of ``mellea-like batch``."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from mellea_like.batch.journal.records import KeptText  # noqa: TC001 (typer reads the annotations)
from mellea_like.cli.draw_options import (
    CHECK_HELP,
    CHECKS,
    DRAWS,
    PANELS,
    BatchAPIName,
    DrawOptions,
    TemplatedChecks,
)
from mellea_like.cli.exit_codes import Exit, Problem, misuse
from mellea_like.cli.option_fields import REQUIRED, argument, option, option_names
from mellea_like.cli.standard_streams import STANDARD, is_special
from mellea_like.export.example_selection import Drop, ExampleRules, Reasoning

if TYPE_CHECKING:
    from mellea_like.cli.signals import SignalHandler

ROWS = "Rows and prompts"
RESULTS = "Results"
RUN = "Running"
JOBS = "Batch APIs, at half the price"

HELP = """\
INPUT has one JSON object per line, or is a CSV, TSV or Parquet file. A Jinja template makes each\
 row's prompt from its fields; checks can be templates as well. Each result is written to OUT as\
 soon as it is ready.

With --journal, a run that was interrupted or killed can be continued with --resume, without\
 repeating finished rows.

[bold]Examples[/bold]

\b
mellea-like batch reviews.jsonl --prompt "In one word: {{ text }}" \\
    --model gpt-4.1-mini --check "choice:good|bad" -o out.jsonl --journal run.db
mellea-like batch tasks.jsonl --prompt "{{ task }}" --model gpt-4.1-mini \\
    --check "passes_tests:{{ tests }}" -o out.jsonl --journal run.db
mellea-like batch letters.csv --prompt @letter.txt --schema invoice.json \\
    --model gpt-4.1-mini --workers 32 --budget cost=5 --price 0.40,1.60 \\
    --max-tokens 400 -o out.csv --failed failed.csv --journal run.db --resume
"""

EPILOG = (
    "Exit codes: 0 all rows passed, 1 some rows failed or the budget was spent, 2 bad usage,"
    " 3 a backend, configuration, file or journal error, 130 interrupted,"
    " 143 terminated (SIGTERM)."
)

OnBadLine = Literal["stop", "skip"]
Keep = Literal["all", "passed", "failed"]


@dataclass(frozen=True, kw_only=True)
class BatchOptions(TemplatedChecks, DrawOptions):
    """The options of ``mellea-like batch``."""

    panels: ClassVar = (ROWS, RESULTS, RUN, JOBS, *PANELS)

    source: str = argument("INPUT", "The rows: a file, or - for JSONL on standard input.")
    checks: list[str] = option(
        list,
        "--check EXPR",
        f"{CHECK_HELP}\n\nA check that contains {{{{ }}}} is a Jinja template, and isn't shown to"
        " the model: contains:{{ answer }}.",
        CHECKS,
    )
    prompt: str | None = option(
        None,
        "--prompt -p TEMPLATE",
        "The prompt of each row, as a Jinja template: {{ text }} is the field 'text', and"
        ' {{ row["the text"] }} is for a field whose name isn\'t a single word. @FILE reads the'
        " template from a file. Without this option, each row needs a field 'messages' in the"
        " format of OpenAI's API.",
        ROWS,
    )
    system: str | None = option(
        None,
        "--system TEXT",
        "A system prompt for all rows whose messages have none. @FILE reads it from a file.",
        ROWS,
    )
    output: str = option(
        REQUIRED,
        "--output -o OUT",
        "A file that ends in .jsonl, .csv, .tsv or .parquet, or - for JSONL on standard output.",
        RESULTS,
    )
    on_bad_line: OnBadLine = option(
        "stop",
        "--on-bad-line WHAT",
        "What to do with a line that can't be read or lacks a field: stop before anything is sent,"
        " or skip it.",
        ROWS,
    )
    first: int | None = option(
        None, "--first N", "Use only the first N rows, to try things out.", ROWS, min=1
    )
    again: bool = option(
        False,
        "--again",
        "Ask again about the rows of INPUT that did not pass. INPUT is a file of results, such as"
        " one written by --failed; rows keep their ids and line numbers.",
        ROWS,
    )
    keep: Keep = option(
        "all", "--keep WHICH", "Which rows to write to OUT: all, passed or failed.", RESULTS
    )
    reasoning: Reasoning | None = option(
        None,
        "--reasoning WHERE",
        "Where to write the model's reasoning: to a field named reasoning (field), in <think> tags"
        " before the output (inline), or nowhere (drop). Default: field for JSONL, otherwise drop.",
        RESULTS,
    )
    drop: list[str] = option(
        list,
        "--drop WHICH",
        "Leave out rows whose reply is incomplete (cut off, filtered or refused) or empty."
        " Repeatable.",
        RESULTS,
    )
    min_chars: int | None = option(
        None, "--min-chars N", "Leave out rows with a shorter reply.", RESULTS, min=0
    )
    max_chars: int | None = option(
        None, "--max-chars N", "Leave out rows with a longer reply.", RESULTS, min=0
    )
    failed: str | None = option(
        None,
        "--failed FILE",
        "A file for rows that did not pass. Default: OUT, with success false.",
        RESULTS,
    )
    force: bool = option(False, "--force", "Replace OUT if it exists.", RESULTS)
    journal: Path | None = option(
        None,
        "--journal FILE",
        "Record the run in this file, for --resume and for mellea-like report.",
        RUN,
    )
    resume: bool = option(False, "--resume", "Continue the journal's run, if there is one.", RUN)
    journal_text: KeptText = option(
        "all",
        "--journal-text WHOSE",
        "Which texts the journal keeps: those of all draws (all), of each row's best draw (best),"
        " or only of replies that passed (none).",
        RUN,
    )
    workers: int = option(
        8,
        "--workers N",
        "How many rows to work on at the same time. Workers are tasks; for processes, see"
        " --processes.",
        RUN,
        min=1,
        max=10_000,
    )
    processes: int = option(
        1,
        "--processes N",
        "Divide the rows among this many processes, for a server that one process can't keep busy."
        " --workers, the budget and the rates apply to all together; the journal is a folder.",
        RUN,
        min=1,
        max=256,
    )
    in_order: bool = option(
        False,
        "--in-order",
        "Write results in the order of the rows. Default: as soon as they are ready.",
        RUN,
    )
    breadth_first: bool = option(
        False,
        "--breadth-first",
        "Make the first draw of every row before any second one, so that a small budget finds more"
        " rows that pass. Default: make all draws of a row before starting the next one.",
        RUN,
    )
    batch_api: BatchAPIName | None = option(
        None,
        "--batch-api NAME",
        "Use the provider's batch API, which answers within a day at half the price: openai, azure,"
        " anthropic or mistral. Each round of draws becomes one or more jobs. Needs --journal and"
        " --model. The key is read from the provider's environment variable.",
        JOBS,
    )
    direct_below: int = option(
        0,
        "--direct-below N",
        "Send the last requests to the ordinary API if there are fewer than this.",
        JOBS,
        min=0,
    )
    canary: bool = option(
        False,
        "--canary",
        "Send one row to the ordinary API before submitting any job.",
        JOBS,
    )
    job_requests: int | None = option(
        None,
        "--job-requests N",
        "Maximum requests in a job. Default: the provider's limit.",
        JOBS,
        min=1,
    )
    jobs_at_once: int = option(8, "--jobs-at-once N", "Maximum jobs at a time.", JOBS, min=1)
    enqueued_tokens: int | None = option(
        None,
        "--enqueued-tokens N",
        "Maximum prompt tokens in all jobs at a time, which providers limit.",
        JOBS,
        min=1,
    )
    job_hours: float | None = option(
        48.0,
        "--job-hours H",
        "Cancel a job that hasn't ended after this many hours, and send its unanswered requests"
        " again.",
        JOBS,
        min=0.001,
    )
    poll: float = option(
        30.0, "--poll SECONDS", "How often to check whether a job has ended.", JOBS, min=0.05
    )
    unique: str | None = option(
        None,
        "--unique HOW",
        "Reject a reply that resembles another row's: exact compares texts, ignoring case and"
        " spaces; a number between 0 and 1 is the similarity at which replies count as alike.",
        RUN,
    )
    max_errors: int = option(
        10,
        "--max-errors N",
        "Stop after this many consecutive rows end in an error; 0 for never.",
        RUN,
        min=0,
    )
    lanes: int = option(
        1,
        "--lanes K",
        "How many draws of one row run at the same time; more than 1 is faster and costs more.",
        DRAWS,
    )
    timeout: float | None = option(
        None, "--timeout SECONDS", "Stop working on a row after this many seconds.", DRAWS
    )

    def __post_init__(self) -> None:
        if self.resume and self.journal is None:
            misuse("--resume needs the journal of the run: add --journal FILE")
        if self.journal is None and self.journal_text != "all":
            misuse(f"--journal-text {self.journal_text} is for a journal: add --journal FILE")
        self._check_results()
        if self.batch_api is None:
            self._check_no_jobs()
        else:
            self._check_jobs()
        if self.breadth_first:
            self._check_rounds()
        if self.processes > 1:
            self._check_processes()
        _ = self.similarity

    def _check_results(self) -> None:
        """Refuse contradictory options for OUT."""
        try:
            self.filters.check(option_names(type(self)))
        except ValueError as exc:
            raise Problem(str(exc), Exit.USAGE) from exc
        if self.failed is not None and self.keep != "all":
            misuse(
                f"--keep {self.keep} can't be combined with --failed, which keeps the rows that did"
                " not pass: use one of them"
            )
        if self.reasoning == "field" and self.output.lower().endswith((".csv", ".tsv", ".parquet")):
            misuse("--reasoning field is for JSONL: use inline or drop")
        if self.reasoning == "inline" and self.json_schema is not None:
            misuse("--reasoning inline would break the JSON of --schema: use field")

    def _check_no_jobs(self) -> None:
        """Refuse options for jobs, which would change nothing without ``--batch-api``."""
        names = option_names(BatchOptions)
        for one in (f for f in fields(self) if f.metadata["typer"].rich_help_panel == JOBS):
            if getattr(self, one.name) != one.default:
                misuse(f"{names[one.name]} is for a batch API: add --batch-api NAME")

    def _check_jobs(self) -> None:
        """Check the options that ``--batch-api`` needs or excludes; set ``breadth_first``."""
        if self.model is None:
            misuse(f"--batch-api {self.batch_api} needs the name of a model: add --model NAME")
        if self.journal is None:
            misuse("--batch-api needs --journal FILE, so that no paid job is lost")
        _exclude(
            "--batch-api",
            (self.backend, "--backend"),
            (self.gguf, "--gguf"),
            (self.corpus, "--corpus"),
            (self.cache, "--cache"),
            (self.requests_per_minute is not None, "--rpm"),
            (self.tokens_per_minute is not None, "--tpm"),
            (self.timeout is not None, "--timeout"),
        )
        object.__setattr__(self, "breadth_first", True)

    def _check_processes(self) -> None:
        few = self.workers < self.processes
        server = "it needs a running server; start one, and name it with --base-url"
        _exclude(
            f"--processes {self.processes}",
            (self.piped, f"INPUT {self.source}: each process reads the rows; name a file"),
            (self.unique, "--unique: rows of different processes aren't compared"),
            (self.rounds, f"{self.rounds}: there are no rounds over all rows"),
            (self.gguf, f"--gguf: {server}"),
            (few, f"--workers {self.workers}: each process needs at least one row"),
        )

    def _check_rounds(self) -> None:
        from mellea_like.batch.waiting import why_not_in_rounds  # noqa: PLC0415 (few runs have them)

        features = self.spec.features
        if self.journal_text != "all":
            features["fewer_texts"] = f"--journal-text {self.journal_text}"
        marks = self.batch_api is not None
        if why := why_not_in_rounds(features, rounds=self.rounds, marks=marks):
            misuse(why)
        again = f"INPUT {self.source}: it reads the rows in each round; name a file"
        _exclude(self.rounds, (self.piped, again))

    @property
    def rounds(self) -> str:
        """The option with which the run goes in rounds, for errors; empty if it doesn't."""
        if self.batch_api is not None:
            return f"--batch-api {self.batch_api}"
        return "--breadth-first" if self.breadth_first else ""

    @property
    def piped(self) -> bool:
        """Whether the rows come through a pipe, which can be read only once."""
        return self.source == STANDARD or is_special(Path(self.source))

    @property
    def filters(self) -> ExampleRules:
        """The filters of ``--drop``, ``--min-chars`` and ``--max-chars``, as in an export."""
        drop = cast("list[Drop]", self.drop)  # `check` makes sure of it.
        return ExampleRules(drop=drop, min_chars=self.min_chars, max_chars=self.max_chars)

    @property
    def similarity(self) -> bool | float:
        """``--unique`` for `sample_many`: False if not given, True for exact, or the similarity."""
        if self.unique in {None, "exact"}:
            return self.unique is not None
        with suppress(ValueError):
            if 0 < (similarity := float(str(self.unique))) < 1:
                return similarity
        msg = f"--unique must be exact, or a similarity between 0 and 1, not {self.unique!r}"
        raise Problem(msg, Exit.USAGE)


def _exclude(option: str, *others: tuple[object, str]) -> None:
    """Refuse an option if one of the ``others`` is given too.

    Each of the ``others`` is a pair: whether it is given, and its name for the message.
    """
    for given, name in others:
        if given:
            misuse(f"{option} can't be combined with {name}")


def run(options: BatchOptions, signals: SignalHandler) -> int:
    """Run ``mellea-like batch``."""
    from mellea_like.cli.batch.command import run_batch  # noqa: PLC0415 (jinja2, and all of a batch)

    return run_batch(options, signals)
