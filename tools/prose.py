"""Count habits of style in the package's docstrings, comments and messages, and in the docs.

``python tools/prose.py`` prints how often each habit occurs per 1,000 sentences, once for
``mellea_like`` and once for ``README.md`` and ``docs/*.md``. Paths after the options restrict the
count to these files and folders. ``--list HABIT`` prints each hit with its file and line, and
``--check`` fails if a rate is above 5.

The script reads docstrings (those of attributes too), comments, the texts of ``raise`` statements,
of messages (``msg = ...``) and of log calls, and Markdown without its code blocks. An entry under
``Args:``, a table's cell, a list item and a heading count as sentences.

A regular expression can't tell all. These are left to the reader: "where" that introduces a
condition in the middle of a sentence, unless its neighbours give it away; abstract nouns beyond the
list below, and those with an adjective; sentences with two ideas; passives without an actor; and
words that are right but not in the order in which people say them.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parent.parent
PLACES = {"package": ("mellea_like",), "docs": ("README.md", "docs")}
LIMIT = 5.0

ABSTRACT = (
    "absence|answer|cancellation|choice|crash|death|decision|delay|draw|end|error|exception|"
    "failure|growth|lack|limit|loss|outage|pass|pause|presence|restart|retry|rule|silence|success|"
    "time|timeout|verdict|vote|wait|win"
)
PERSONAL = (
    "asks|brings|decides|draws|finds|hears|keeps|knows|learns|leaves|lets|likes|looks|meets|pays|"
    "reads|remembers|says|sees|sends|speaks|spends|tells|tries|waits|wakes|wants|writes"
)

HABITS = {
    "what": r"^what\b(?!.*\?\W*$)",
    "say": r"^say (?:what|why|how|whether|which|who|when|where|if)\b",
    "where": (
        r"(?:^|[;:] )(?:only |even |but |and )?where (?!(?:to|it came|they came)\b)(?!.*\?\W*$)"
        r"|\b(?:none|true|false|nothing|empty|zero|only|even|except|but|or|error)\b[`*]* where\b"
        r"|\bwhere (?:nothing|nobody|no one|none|no|there (?:is|are|was|were))\b"
    ),
    "stands": r"\b(?:stands?|stood|standing)\b(?!-in)(?! (?:for|in for|still|alone|up|out)\b)",
    "idioms": (
        r"\b(?:go|goes|going|went|gone) (?:by|on)\b|\b(?:is|are|was|were) to be\b|\banew\b"
        r"|\bbesides\b|\bof (?:its|their) own\b"
        r"(?! (?!(?:and|as|at|but|for|in|on|or|so|that|to|which|with)\b)\w)"
    ),
    "abstract": rf"\b(?:a|an|the|each|every|one|no) (?:{ABSTRACT}) (?:{PERSONAL})\b",
}
PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in HABITS.items()}

LOGGED = {"debug", "info", "warning", "error", "exception", "critical", "log", "warn", "inform"}
MESSAGES = {"msg", "message", "what", "why", "words"}
"""The names of variables that hold messages to people."""

HEADER = re.compile(r"^(?:Args|Attributes|Raises|Returns|Yields|Example|Examples|Note):$")
ENTRY = re.compile(r"^(?:\*{0,2}\w[\w.]*|`[^`]+`)(?: \([^)]*\))?: (?=\S)")
BREAK = re.compile(r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)[)\"'*]*\s+(?=[A-Z`*\"'(\d])")
FENCE = re.compile(r"^\s*(`{3,}|~{3,}|:{3,})")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)]) +")


class Sentence(NamedTuple):
    """A sentence and where it begins."""

    path: Path
    line: int
    text: str


def sentences(path: Path) -> list[Sentence]:
    """Read the sentences of a Python module or a Markdown page.

    Args:
        path: a file that ends in ``.py`` or ``.md``.

    Returns:
        The sentences in no particular order, each on one line.
    """
    text = path.read_text(encoding="utf-8")
    blocks = markdown_blocks(text) if path.suffix == ".md" else python_blocks(text)
    return [
        Sentence(path, line, part)
        for line, block in blocks
        for part in BREAK.split(" ".join(block.split()))
        if re.search(r"[A-Za-z]{2}", part)
    ]


def python_blocks(source: str) -> Iterator[tuple[int, str]]:
    """Read a module's docstrings, comments and messages.

    Args:
        source: the module's text.

    Yields:
        The line where a paragraph begins, and the paragraph.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield from _docstring_blocks(node.lineno, node.value.value)
        elif isinstance(node, ast.Raise) or _logs(node) or _is_message(node):
            yield from _messages(node)
    yield from _comments(source)


def _logs(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in LOGGED


def _is_message(node: ast.AST) -> bool:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name in MESSAGES
        case _:
            return False


def _messages(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Read the texts in a statement; the values in an f-string become ``{}``."""
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        yield node.lineno, "".join(map(str, parts))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if " " in node.value:
            yield node.lineno, node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _messages(child)


def _docstring_blocks(first: int, docstring: str) -> Iterator[tuple[int, str]]:
    fenced = False
    kept = []
    for number, line in enumerate(docstring.splitlines()):
        stripped = line.strip()
        fenced ^= stripped.startswith("```")
        silent = fenced or stripped.startswith(("```", ">>>", "|")) or HEADER.match(stripped)
        text = "" if silent else stripped
        if number and (entry := ENTRY.match(text)):
            kept += [(first + number, ""), (first + number, text[entry.end() :])]
        else:
            kept.append((first + number, text))
    yield from _paragraphs(kept)


def _comments(source: str) -> Iterator[tuple[int, str]]:
    kept: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = re.sub(r"^#+:? ?|\b(?:noqa|type: ignore|pragma).*", "", token.string)
            if kept and kept[-1][0] != token.start[0] - 1:
                kept.append((token.start[0], ""))
            kept.append((token.start[0], text.strip()))
    yield from _paragraphs(kept)


def markdown_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Read a page's paragraphs, headings, list items and cells, without code blocks and comments.

    Args:
        text: the page.

    Yields:
        The line where the block begins, and the block with its links as plain text.
    """
    text = re.sub(r"\A---\n.*?\n---\n", _only_lines, text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", _only_lines, text, flags=re.DOTALL)
    fence = ""
    kept: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        if mark and not mark[1].startswith(":"):
            if not fence:
                fence = mark[1]
            elif line.strip() == fence:
                fence = ""
        if fence or mark:
            kept.append((number, ""))
        elif line.lstrip().startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")):
                kept += [(number, ""), (number, _plain(cell))]
            kept.append((number, ""))
        elif line.startswith("#"):
            kept += [(number, ""), (number, _plain(line.lstrip("# "))), (number, "")]
        elif item := ITEM.match(line):
            kept += [(number, ""), (number, _plain(line[item.end() :]))]
        else:
            kept.append((number, _plain(line)))
    yield from _paragraphs(kept)


def _only_lines(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def _plain(line: str) -> str:
    return re.sub(r"\*\*|\]\([^)]*\)|!?\[", "", line).strip()


def _paragraphs(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    first, words = 0, ""
    for number, text in lines:
        if not text and words:
            yield first, words
            words = ""
        elif text:
            first, words = (first, f"{words} {text}") if words else (number, text)
    if words:
        yield first, words


def hits(found: Iterable[Sentence], habit: str) -> list[Sentence]:
    """Find the sentences with a habit.

    Args:
        found: the sentences to search.
        habit: a name from ``HABITS``.

    Returns:
        The sentences in which it occurs, in the order given.
    """
    return [sentence for sentence in found if PATTERNS[habit].search(sentence.text)]


def read(paths: Iterable[Path]) -> list[Sentence]:
    """Read the sentences of files and of all modules and pages below folders.

    Args:
        paths: files and folders.

    Returns:
        Their sentences, in the order of files and lines.
    """
    files = [
        file
        for path in paths
        for file in (sorted(path.rglob("*")) if path.is_dir() else [path])
        if file.suffix in {".py", ".md"} and "_build" not in file.parts
    ]
    if any(path.is_dir() and path.name == "docs" for path in paths):
        files = [file for file in files if file.suffix == ".md"]
    return sorted(sentence for file in files for sentence in sentences(file))


def main(arguments: list[str] | None = None) -> int:
    """Count the habits and print a table, or the sentences with one of them.

    Args:
        arguments: the command line; by default, the process's own.

    Returns:
        The exit code: 1 if ``--check`` found a rate above the limit.
    """
    parser = argparse.ArgumentParser(description="Count habits of style per 1,000 sentences.")
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders instead of all")
    parser.add_argument("--list", choices=HABITS, help="print the sentences with this habit")
    parser.add_argument("--check", action="store_true", help=f"fail above {LIMIT:g}")
    options = parser.parse_args(arguments)
    if options.paths:
        places = {"these": read(options.paths)}
    else:
        places = {name: read([ROOT / path for path in paths]) for name, paths in PLACES.items()}
    if options.list:
        for found in places.values():
            for sentence in hits(found, options.list):
                path = sentence.path.resolve()
                path = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
                print(f"{path}:{sentence.line}: {sentence.text}")
        return 0
    counts = {
        name: {habit: len(hits(found, habit)) for habit in HABITS} for name, found in places.items()
    }
    print("per 1,000", *(f"{name:>14}" for name in places))
    above = False
    for habit in HABITS:
        cells = []
        for name, found in places.items():
            rate = 1000 * counts[name][habit] / max(1, len(found))
            above |= rate > LIMIT
            cells.append(f"{rate:6.1f} ({counts[name][habit]:>5})")
        print(f"{habit:<9}", *cells)
    print(f"{'sentences':<9}", *(f"{len(found):>14,}" for found in places.values()))
    if options.check and above:
        print(f"A habit occurs more than {LIMIT:g} times in 1,000 sentences; see --list HABIT.")
    return int(options.check and above)


if __name__ == "__main__":
    sys.exit(main())
