"""``mellea-like judge-agreement``: measure a judge against people's labels."""

from __future__ import annotations

import json
import math
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mellea_like import judge_score
from mellea_like.agreement import (
    AgreementReport,
    Decisions,
    Labelled,
    LabelledPair,
    ScoreReport,
    agreement,
    comparison_agreement,
    score_agreement,
)
from mellea_like.cli.console import live_view
from mellea_like.cli.draw_options import COSTS, DEBUG, OUTPUT
from mellea_like.cli.errors import in_options
from mellea_like.cli.exit_codes import Exit, Problem, fail, misuse
from mellea_like.cli.judge_options import (
    JUDGE,
    MAX_TOKENS,
    JudgeOptions,
    field_of,
    opened,
    rows_of,
)
from mellea_like.cli.option_fields import REQUIRED, argument, option
from mellea_like.cli.standard_streams import write_output
from mellea_like.core.display import one_line, plural, printable
from mellea_like.errors import LimitExceeded
from mellea_like.specification.upstream import open_upstream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mellea_like.agreement import ComparisonReport, Estimate, JudgeReport
    from mellea_like.cli.signals import SignalHandler

    Report = AgreementReport | ScoreReport | ComparisonReport

HELP = """\
FILE has one JSON object per line, or is a CSV, TSV or Parquet file. One field of each row is the\
 reply, and another is a person's label: true or false, pass or fail, yes or no, 1 or 0. With\
 --compare, a row has two replies, and the label is "first", "second" or "neither".

[bold]Examples[/bold]

\b
mellea-like judge-agreement labels.jsonl --require "It apologises." --judge gpt-4.1-mini
mellea-like judge-agreement labels.jsonl --require "It apologises." --repeats 3 \\
    --judge small --judge big --judge other --judge-base-url http://localhost:8000/v1
mellea-like judge-agreement labels.jsonl --score "How polite is it?" --judge gpt-4.1-mini
mellea-like judge-agreement pairs.jsonl --compare "is more polite" --judge gpt-4.1-mini
"""

EPILOG = (
    "Exit codes: 0 measured, 2 bad usage, 3 a judge, configuration or file error,"
    " 130 interrupted, 143 terminated (SIGTERM)."
)

QUESTION = "Question"
YES = {"true", "pass", "passed", "yes", "1"}
NO = {"false", "fail", "failed", "no", "0"}
BETTER: dict[str, Literal["first", "second", "neither"]] = {
    "first": "first",
    "a": "first",
    "second": "second",
    "b": "second",
    "neither": "neither",
    "tie": "neither",
}
SHOWN = 20
"""The maximum number of rows to list as disagreements between a judge and the labels."""


@dataclass(frozen=True, kw_only=True)
class JudgeAgreementOptions(JudgeOptions):
    """The options of ``mellea-like judge-agreement``."""

    panels: ClassVar = (QUESTION, JUDGE, COSTS, OUTPUT)

    source: str = argument("FILE", "The labelled rows: a file, or - for JSONL on standard input.")
    require: str | None = option(
        None, "--require TEXT", "A requirement in words, for the judge to decide.", QUESTION
    )
    score: str | None = option(
        None, "--score RUBRIC", "Ask for a score instead, and find the best threshold.", QUESTION
    )
    scale: str = option("1..10", "--scale LOW..HIGH", "The scale of --score.", QUESTION)
    compare: str | None = option(
        None,
        "--compare CRITERION",
        "Compare two replies instead, in both orders: which one CRITERION?",
        QUESTION,
    )
    judge: list[str] = option(
        REQUIRED, "--judge MODEL", "The model that judges. Repeat it for a panel.", JUDGE
    )
    repeats: int = option(
        1,
        "--repeats N",
        "Ask each judge this many times, to see whether it agrees with itself.",
        JUDGE,
        min=1,
    )
    workers: int = option(
        16, "--workers N", "How many rows to judge at the same time.", JUDGE, min=1
    )
    label: str = option("label", "--label FIELD", "The field that holds the label.")
    first: str = option(
        "first", "--first FIELD", "The field that holds the first reply, for --compare."
    )
    second: str = option(
        "second", "--second FIELD", "The field that holds the second reply, for --compare."
    )
    confidence: float = option(
        0.95, "--confidence C", "The probability that an interval contains the true value.", OUTPUT
    )
    as_json: bool = option(False, "--json", "Print the numbers as JSON.", OUTPUT)
    quiet: bool = option(False, "--quiet -q", "Don't show progress.", OUTPUT)
    debug: bool = option(*DEBUG)


def run(options: JudgeAgreementOptions, signals: SignalHandler) -> int:
    """Run ``mellea-like judge-agreement``."""
    try:
        return _Measurement(options).run(signals)
    except LimitExceeded as error:
        shorter = None if options.score else MAX_TOKENS
        msg = f"stopped early: {in_options(str(error), shorter)}"
        raise Problem(msg) from error


class _Measurement:
    """Runs ``judge-agreement`` once. Creating it checks the options, but reads nothing."""

    def __init__(self, options: JudgeAgreementOptions) -> None:
        self._options = options
        asked = [one for one in (options.require, options.score, options.compare) if one]
        if len(asked) != 1:
            misuse("add exactly one of --require TEXT, --score RUBRIC and --compare CRITERION")
        if len(set(options.judge)) < len(options.judge):
            misuse("--judge: name each model only once; to ask it several times, use --repeats N")
        if not options.require:
            if len(options.judge) > 1 or options.repeats > 1:
                misuse("a panel of judges and --repeats are only for --require")
            if options.score and options.judge_option:
                misuse("--judge-option is only for --require and --compare")
        for name, needed, what in (
            ("scale", options.score, "--score"),
            ("first", options.compare, "--compare"),
            ("second", options.compare, "--compare"),
            ("reply", not options.compare, "--require and --score"),
        ):
            if not needed and getattr(options, name) != getattr(type(options), name):
                misuse(f"--{name} is only for {what}")
        if not 0 < options.confidence < 1:
            misuse(f"--confidence must be between 0 and 1, not {options.confidence:g}")
        self._scale = _scale(options.scale)
        self._upstreams = {model: options.upstream(model) for model in options.judge}
        self._budget = options.make_budget(options.judge)
        self._done = 0

    def run(self, signals: SignalHandler) -> int:
        signals.last_words = lambda: f"Interrupted after {plural(self._done, 'row')}."
        options = self._options
        with opened(options.source) as file:
            rows = list(rows_of(options.source, file))
        if not rows:
            fail(f"{options.source} has no rows")
        named = options.label != "label"  # Pairs need no label, so any row may lack it.
        if options.compare and named and not any(options.label in row for row in rows):
            fail(f"{options.source}: no row has the field {options.label!r}: name one with --label")
        labelled = [self._read(number, row) for number, row in enumerate(rows, 1)]
        found = signals.run(self._measure, labelled)
        if options.as_json:
            write_output(json.dumps(found, indent=2, default=_as_dict) + "\n")
        else:
            lines = [*_lines(found)]
            if (cost := options.cost_of(found.usage)) is not None:
                lines.append(cost)
            write_output("".join(f"{printable(line)}\n" for line in lines))
        reasons = _without_any(found)
        if reasons:
            fail(f"nothing was decided: {one_line(reasons)}")
        return Exit.PASSED

    def _read(self, number: int, row: dict[str, Any]) -> Any:
        options = self._options
        try:
            task = options.task_of(row)
            if options.compare:
                one = field_of(row, options.first, "--first")
                other = field_of(row, options.second, "--second")
                if None in (one, other):
                    fail("a reply is null")
                return LabelledPair(str(one), str(other), _better(row.get(options.label)), task)
            label = _label(field_of(row, options.label, "--label"))
            return Labelled(options.reply_of(row), label, task)
        except (Problem, ValueError) as exc:
            msg = f"{options.source}, row {number}: {exc}"
            raise Problem(msg) from exc

    async def _measure(self, labelled: list[Any]) -> Report:
        options = self._options
        async with AsyncExitStack() as stack:
            judges = {
                model: await stack.enter_async_context(open_upstream(one, follow_redirects=True))
                for model, one in self._upstreams.items()
            }
            judge = judges[options.judge[0]]
            total = len(labelled) * options.repeats
            if not options.quiet and (
                view := live_view(lambda _: f"{self._done:,} of {total:,} rows judged")
            ):
                stack.enter_context(view)
            shared: dict[str, Any] = {
                "confidence": options.confidence,
                "concurrency": options.workers,
                "on_row": self._count,
                "budget": self._budget,
            }
            if options.compare:
                return await comparison_agreement(
                    labelled,
                    options.compare,
                    judge=judge,
                    judge_options=options.request_options,
                    **shared,
                )
            if options.score:
                scorer: Callable[..., Any] = judge_score(
                    options.score, judge=judge, scale=self._scale
                )
                return await score_agreement(labelled, scorer, **shared)
            return await agreement(
                labelled,
                str(options.require),
                judges=judges,
                repeats=options.repeats,
                judge_options=options.request_options,
                **shared,
            )

    def _count(self) -> None:
        self._done += 1


def _scale(text: str) -> tuple[float, float]:
    lowest, _, highest = text.partition("..")
    with suppress(ValueError):
        low, high = float(lowest), float(highest)
        if -math.inf < low < high < math.inf:
            return low, high
    msg = f"--scale must be LOW..HIGH, such as 1..10, not {text!r}"
    raise Problem(msg, Exit.USAGE)


def _label(value: Any) -> bool:
    known = str(value).strip().lower() if isinstance(value, str | bool | int) else ""
    if known in YES | NO:
        return known in YES
    msg = f"the label must be true or false, pass or fail, yes or no, 1 or 0, not {value!r}"
    raise ValueError(msg)


def _better(value: Any) -> Literal["first", "second", "neither"] | None:
    if value is None or value == "":  # A cell of a CSV file can't be null.
        return None
    if isinstance(value, str) and value.strip().lower() in BETTER:
        return BETTER[value.strip().lower()]
    msg = f"the label must be first, second or neither, not {value!r}"
    raise ValueError(msg)


def _without_any(found: Report) -> str | None:
    """Return why no row could be judged; None if at least one row was judged."""
    if isinstance(found, AgreementReport):
        if any(judge.decisions.count for judge in found.judges.values()):
            return None
        return next(str(judge.why_undecided) for judge in found.judges.values())
    if isinstance(found, ScoreReport):
        decided = len(found.scores) - found.undecided
    else:
        decided = 0 if found.consistent is None else found.consistent.count
    return None if decided else str(found.why_undecided)


def _lines(found: Report) -> Iterable[str]:
    if isinstance(found, AgreementReport):
        for name, judge in found.judges.items():
            yield from _lines_of_judge(name, judge)
        if found.panel is not None:
            yield from _lines_of_judge("the majority of the judges", found.panel)
    elif isinstance(found, ScoreReport):
        count = len(found.scores) - found.undecided
        yield f"{plural(count, 'row')} scored, {found.undecided} without a score"
        if found.why_undecided is not None:
            yield f"  the first without a score: {found.why_undecided}"
        yield _line("passed rows rank higher", found.ranking)
        yield _line("best threshold", found.threshold)
        yield "With a threshold chosen on other rows, whose own chance the intervals leave out:"
        yield from _lines_of_decisions(found.decisions)
    else:
        pairs = found.consistent.count if found.consistent else 0
        yield f"{plural(pairs, 'pair')} compared, {found.undecided} undecided"
        if found.why_undecided is not None:
            yield f"  the first undecided: {found.why_undecided}"
        yield _line("agrees with people", found.accuracy)
        yield _line("same answer in both orders", found.consistent)
        yield _line("otherwise prefers the first", found.prefers_first)
    yield str(found.usage)


def _lines_of_judge(name: str, judge: JudgeReport) -> Iterable[str]:
    yield f"{name}: {plural(judge.decisions.count, 'row')} decided, {judge.undecided} undecided"
    if judge.why_undecided is not None:
        yield f"  the first undecided: {judge.why_undecided}"
    yield from _lines_of_decisions(judge.decisions)
    if judge.self_agreement is not None:
        yield _line("agrees with itself", judge.self_agreement)
    if judge.wrong:
        more = f" and {len(judge.wrong) - SHOWN} more" if len(judge.wrong) > SHOWN else ""
        yield f"  differs on rows {', '.join(str(i + 1) for i in judge.wrong[:SHOWN])}{more}"


def _lines_of_decisions(decisions: Decisions) -> Iterable[str]:
    yield _line("agrees with people", decisions.accuracy)
    yield _line("Cohen's kappa", decisions.kappa)
    yield _line("passes what people fail", decisions.wrong_passes)
    yield _line("fails what people pass", decisions.wrong_failures)


def _line(name: str, number: Estimate | float | None) -> str:
    shown = "-" if number is None else f"{number:g}" if isinstance(number, float) else str(number)
    return f"  {name:<27} {shown}"


def _as_dict(part: Any) -> dict[str, Any]:
    """Return a part of a report as a dict, for `json.dumps`. JSON has no infinity: it is None."""
    names = [field.name for field in fields(part)]
    if isinstance(part, Decisions):
        names += ["accuracy", "kappa", "wrong_passes", "wrong_failures"]
    found = {name: getattr(part, name) for name in names}
    return {name: None if value == math.inf else value for name, value in found.items()}
