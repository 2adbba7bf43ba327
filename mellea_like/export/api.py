"""`export`: make a training file or a table from a run's journals."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, cast

from mellea_like.batch.rows.files import row_writer
from mellea_like.batch.rows.formats import HALVES, RowFormat, whole
from mellea_like.core.argument_checks import check_one_of
from mellea_like.core.display import plural
from mellea_like.errors import JournalError
from mellea_like.export.data_card import Card
from mellea_like.export.example_selection import (
    Drop,
    ExampleRules,
    ItemExamples,
    Pairs,
    Prompt,
    Reasoning,
    Select,
)
from mellea_like.export.formats import (
    KINDS,
    WORDS,
    Format,
    columns_of,
    rows_of,
)
from mellea_like.export.journaled_run import Run
from mellea_like.report.views import ItemView, RunView
from mellea_like.runtime.atomic_files import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from mellea_like.batch.journal.journal import Journal

__all__ = ["Exported", "export"]

Source: TypeAlias = "Run | str | os.PathLike[str] | Journal"


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export. Its ``str`` is a sentence.

    Args:
        output: the path of the file; None if the rows were written to an open file.
        card: the path of the file's data card; None if there is no card.
        rows: the number of rows that were written.
        items: the number of items in the run.
        left_out: the number of items without rows, by reason.
        notes: the numbers of replies or rows that were left out or changed for other reasons, by
            reason: equal replies to one prompt that both passed and failed, reasoning for which the
            format has no field, and rows with lone surrogates.
    """

    output: Path | None
    card: Path | None
    rows: int
    items: int
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])
    notes: Mapping[str, int] = field(default_factory=dict[str, int])

    def __str__(self) -> str:
        said = f"{plural(self.rows, 'row')} from {plural(self.items, 'item')}"
        if self.left_out:
            reasons = ", ".join(f"{why} ({count:,})" for why, count in self.left_out.items())
            said += f", none from {sum(self.left_out.values()):,}: {reasons}"
        return "; ".join([said, *(f"{what} ({count:,})" for what, count in self.notes.items())])


def export(
    run: Source | Iterable[Source],
    output: str | os.PathLike[str] | BinaryIO,
    *,
    format: Format,
    pairs: Pairs = "best-worst",
    min_margin: float = 0.0,
    max_per_item: int | None = None,
    select: Select = "best",
    seed: int = 0,
    keep_repairs: bool = False,
    reasoning: Reasoning | None = None,
    drop: Collection[Drop] = (),
    min_chars: int | None = None,
    max_chars: int | None = None,
    prompt: Prompt = "sent",
    details: bool = False,
    card: bool = True,
    on_progress: Callable[[int, int], object] | None = None,
) -> Exported:
    """Make a training file or a table from a run's journals.

    Items are read one by one, so a run with a million items takes no more memory than a short one.
    An existing file is replaced only when the new one is complete. If the run is still running, its
    finished items are exported.

    All replies to an item are written with the item's prompt, as preference training requires. By
    default, this includes repairs, although their real prompts were different. Replies that a check
    stopped while they were arriving are never used, because they are incomplete. Equal replies to
    one item count once. If equal replies to the same prompt both passed and failed, because a check
    isn't deterministic, formats with labels or pairs leave them out. Lone surrogates, which make
    many readers reject a whole file, are replaced by U+FFFD.

    The **margin** of a pair measures how much better the chosen reply is. If the run's selection
    scored both replies, the margin is the difference of their scores (in a vote, of the weights of
    their answers). Otherwise, it is the difference of the weighted shares of requirements that
    they met, each from 0 to 1.

    Args:
        run: a `Run`, or the journals of one: the path of a journal, a `Journal`, a directory of
            journals, or several of these.
        output: the path of a file, which is replaced if it exists, or an open binary file. If the
            path ends in ``.parquet``, a Parquet file is written, in any format except OpenAI's.
        format: the contents of a row. TRL's: ``"sft"`` (``messages``), ``"prompt-completion"``,
            ``"dpo"`` (``prompt``, ``chosen``, ``rejected``), ``"kto"`` (``prompt``,
            ``completion``, ``label``) and ``"reward"`` (``chosen``, ``rejected``, each the whole
            conversation). OpenAI's: ``"openai"`` (``messages``) and ``"openai-dpo"`` (``input``,
            ``preferred_output``, ``non_preferred_output``). Plain tables: ``"jsonl"``, ``"csv"``
            and ``"parquet"`` have a row with all details for each draw, whether it passed or not.
        pairs: how to pair an item's replies. ``"best-worst"`` pairs the best reply that passed
            with the worst that failed or, if none failed, with the passing reply that has the
            lowest score. ``"one"`` pairs the best reply with a random worse one. ``"all"`` pairs
            every reply that passed with every one that failed or has a lower score, widest margins
            first.
        min_margin: leave out pairs with a smaller margin.
        max_per_item: the most rows per item; for ``"kto"``, per item and label. By default,
            ``"sft"``, ``"prompt-completion"`` and ``"openai"`` take an item's winners (one, or all
            that `Collect` kept), and other formats have no limit.
        select: which of the replies that passed come first: the ``"best"`` (winners, then by
            score), the ``"shortest"``, or ``"random"`` ones. With ``pairs="all"``, which pairs come
            first.
        seed: the seed of random choices. An item's choices depend only on the seed and the item,
            so they can be repeated.
        keep_repairs: write a repair with its real prompt, the conversation that was sent, instead
            of the item's prompt. Only replies to the same prompt are paired, so repairs then have
            few pairs.
        reasoning: where to write a reply's reasoning. ``"field"`` is the message's
            ``reasoning_content``, as the chat templates of Qwen, DeepSeek and others read it.
            ``"inline"`` is in ``<think>`` tags before the text. ``"drop"`` leaves the reasoning
            out. The default is ``"drop"`` for OpenAI's formats, which have no such field, and
            ``"field"`` for the others. Plain tables always have a column ``reasoning``.
        drop: the replies to leave out: ``"incomplete"`` ones, which were cut off, filtered or
            refused, and ``"empty"`` ones, which have neither text nor tool calls.
        min_chars: leave out replies with fewer characters than this, not counting reasoning.
        max_chars: leave out replies with more characters than this, not counting reasoning.
        prompt: whether to write the item's prompt as it was ``"sent"``, or ``"bare"``, without the
            list of requirements at its end.
        details: add columns for human readers: the item, the draws, their models, scores and
            margins, and the reasons why the rejected reply failed (``reasons``). OpenAI's formats
            allow no such columns.
        card: write a data card beside the file, ``FILE.card.md``. It has the numbers of draws, of
            rows and of rejections by requirement, and the models, prompts, seeds and versions.
        on_progress: called after each item with the number of items done and the total.

    Returns:
        The paths, the number of rows, and the number of items left out for each reason.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range, or the name of ``output`` or another argument
            doesn't fit ``format``.
        JournalError: a journal can't be read, or doesn't keep the texts that this format needs.
        ImportError: Parquet needs pyarrow, which is missing; install the extra ``arrow``.
        OSError: the file can't be written.
    """
    how = ExampleRules(
        pairs=pairs,
        min_margin=min_margin,
        max_per_item=max_per_item,
        select=select,
        seed=seed,
        keep_repairs=keep_repairs,
        reasoning=reasoning,
        drop=(cast("Drop", drop),) if isinstance(drop, str) else tuple(drop),
        min_chars=min_chars,
        max_chars=max_chars,
        prompt=prompt,
    )
    stream = cast("BinaryIO", output) if hasattr(output, "write") else None
    path = None if stream is not None else Path(cast("str", output))
    check_arguments(format, how, path, details=details)
    source = run if isinstance(run, Run) else _run_of(run)
    _check_words(source, format)
    if path is not None and any(_same(path, journal) for journal in source.journals):
        msg = f"{path} is a journal of the run: an export would replace it"
        raise ValueError(msg)
    settings = {"format": format, **_settings(format, how), "details": details}
    made = Card(source, settings) if card and path is not None else None
    counts: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    total = RunView(source.facts).items
    rows = done = 0
    with ExitStack() as stack:
        file = stream
        if file is None:
            assert path is not None  # noqa: S101 (there is one or the other)
            file = stack.enter_context(replaced(path))
        columns = columns_of(format, how, details=details)
        writer = row_writer(file, _kind_of_file(format, path), columns)
        disputed: AbstractSet[int] = frozenset()
        if KINDS[format].replies in {"labelled", "paired"}:
            disputed = _disputed_replies(source, how)
        for item in map(ItemView, source.items()):
            found = rows_of(item, format, how, details=details, disputed=disputed, notes=notes)
            if isinstance(found, str):
                counts[found] += 1
                found = []
            for row in found:
                written = whole(row)
                notes[HALVES] += written != row
                writer.write(written)
            rows += len(found)
            done += 1
            if made is not None:
                made.add(item, found)
            if on_progress is not None:
                on_progress(done, max(total, done))
        writer.close()
    told = {what: count for what, count in notes.most_common() if count}
    exported = Exported(path, None, rows, done, dict(counts.most_common()), told)
    if made is None or path is None or not path.is_file():  # For example, a device.
        return exported
    return replace(exported, card=_write_card(made, path, exported))


def check_arguments(
    format: Format,
    how: ExampleRules,
    path: Path | None,
    *,
    details: bool,
    options: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Refuse arguments of `export` that don't fit; ``options`` are their names for errors."""
    names = {name: options.get(name, name) for name in (*how._fields, "format", "details")}
    check_one_of(names["format"], format, KINDS)
    how.check(options)
    kind, suffix = KINDS[format], _suffix(path)
    of = "single replies"
    unused: Sequence[str] = () if kind.replies == "paired" else ("pairs", "min_margin")
    if kind.replies == "all":
        of, unused = "all draws", how._fields
    for name in unused:
        if getattr(how, name) != getattr(ExampleRules(), name):
            msg = f"{format} has {of}, to which {names[name]} says nothing: leave it out"
            raise ValueError(msg)
    if kind.openai:
        if how.reasoning == "field":
            msg = f"{format} has no field for reasoning: write it inline, or drop it"
            raise ValueError(msg)
        if suffix == ".parquet":
            msg = "OpenAI's fine-tuning takes JSONL, not Parquet"
            raise ValueError(msg)
        if details:
            msg = (
                "OpenAI's fine-tuning takes JSONL without extra columns: leave out"
                f" {names['details']}"
            )
            raise ValueError(msg)
    said = {".csv": "CSV", ".parquet": "Parquet"}.get(suffix, "")
    fits = suffix == f".{format}" or (suffix == ".parquet" and kind.replies != "all")
    if said and not fits:
        msg = f"{path} would be {format}, but its name says {said}"
        raise ValueError(msg)


def _write_card(card: Card, path: Path, exported: Exported) -> Path:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    beside = path.with_name(f"{path.name}.card.md")
    with replaced(beside) as file:
        file.write(card.written(path.name, digest, exported).encode("utf-8", "backslashreplace"))
    return beside


def _suffix(path: Path | None) -> str:
    return "" if path is None else path.suffix.lower()


def _kind_of_file(format: Format, path: Path | None) -> RowFormat:
    if format == "parquet" or _suffix(path) == ".parquet":
        return RowFormat.PARQUET
    return RowFormat.CSV if format == "csv" else RowFormat.JSONL


def _run_of(run: Source | Iterable[Source]) -> Run:
    if isinstance(run, str | os.PathLike) or hasattr(run, "path"):
        return Run(cast("str", run))
    several = list(cast("Iterable[Source]", run))
    paths = [one.journals if isinstance(one, Run) else (one,) for one in several]
    return Run(*(path for some in paths for path in some))


def _check_words(run: Run, format: Format) -> None:
    if run.text not in (needed := WORDS.get(KINDS[format].replies, ("all",))):
        whose = {"best": "only the words of each item's best draw", "none": "no prompts"}[run.text]
        wanted = " or ".join(f'text="{text}"' for text in needed)
        msg = (
            f"{run.journals[0]}: the journal keeps {whose}, but {format} needs more: sample with"
            f" {wanted} (--journal-text)"
        )
        raise JournalError(msg)


def _settings(format: Format, how: ExampleRules) -> dict[str, Any]:
    """Return the arguments that affect the rows, for the data card; none affect plain tables."""
    if KINDS[format].replies == "all":
        return {}
    return {**how._asdict(), "drop": ", ".join(how.drop) or None}


def _disputed_replies(run: Run, how: ExampleRules) -> AbstractSet[int]:
    """Return the keys of replies that passed and also failed with the same prompt, in any items."""
    labelled: tuple[set[int], set[int]] = set(), set()
    for item in map(ItemView, run.items()):
        examples = ItemExamples(item, how)
        for draw in examples.draws:
            labelled[draw.record.passed].add(examples.key_of(draw))
    return labelled[False] & labelled[True]


def _same(path: Path, other: Path) -> bool:
    return path.exists() and other.exists() and path.samefile(other)
