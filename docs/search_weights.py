"""How much each word says about each guide: the search orders the guides by it.

Sphinx's index knows on which pages a word occurs, but not how often. The weights count that (BM25:
Robertson and Zaragoza 2009), and words in a page's name, headings and keywords count more. Keywords
are single words that readers search for and that the page says in other words or only in passing. A
page lists them as ``keywords:`` under ``html_meta`` at its head, and Sphinx finds the page by them.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from math import log
from pathlib import Path
from typing import TYPE_CHECKING

from sphinx.search.en import SearchEnglish

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sphinx.application import Sphinx

HEAD = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
KEYWORDS = re.compile(r"^ *keywords: (.*)$", re.MULTILINE)
FENCED = re.compile(r"^(`{3,}).*?^\1", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
TARGET = re.compile(r"\]\([^)]*\)")

SATURATION = 1.5
"""How soon further occurrences of a word on a page add little: k of BM25."""
LENGTH = 0.3
"""How much less a word counts on a long page, from 0 to 1: b of BM25."""
MOST_PAGES = 15
"""How many pages the table names for a word; the others count as 0."""


def weights(pages: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Weigh the words of pages.

    Args:
        pages: the Markdown of each page, by the page's name.

    Returns:
        For each word's stem, the weights of the pages on which it says most.
    """
    counts, names, headings = {}, {}, {}
    for page, markdown in pages.items():
        keywords = KEYWORDS.findall("".join(HEAD.findall(markdown)))
        text = TARGET.sub("]", HEAD.sub("", markdown))
        titles = HEADING.findall(FENCED.sub("", text))
        names[page] = _stems(page.rpartition("/")[2], *titles[:1], *keywords)
        headings[page] = _stems(*titles)
        counts[page] = _stems(text) | names[page]
    mean = sum(count.total() for count in counts.values()) / len(pages)
    occurs = Counter(stem for count in counts.values() for stem in count)
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for page, count in counts.items():
        few = SATURATION * (1 - LENGTH + LENGTH * count.total() / mean)
        for stem, often in count.items():
            rarity = log(1 + (len(pages) - occurs[stem] + 0.5) / (occurs[stem] + 0.5))
            # All occurrences of a word together weigh at most as much as SATURATION + 1.
            weight = often * (SATURATION + 1) / (often + few)
            weight += 2 * (stem in names[page]) + (stem in headings[page])
            found[stem][page] = rarity * weight
    return {stem: _heaviest(row) for stem, row in found.items() if len(row) > 1}


_LANGUAGE = SearchEnglish({})


def _stems(*texts: str) -> Counter[str]:
    """Count the stems of words, as Sphinx makes them for its index."""
    stems = (_LANGUAGE.stem(word.lower()) for word in _LANGUAGE.split(" ".join(texts)))
    return Counter(stem for stem in stems if _LANGUAGE.word_filter(stem))


def _heaviest(row: dict[str, float]) -> dict[str, int]:
    return {page: round(10 * row[page]) for page in sorted(row, key=row.__getitem__)[-MOST_PAGES:]}


def write_scorer(app: Sphinx) -> None:
    """Give the search a scorer that knows the weights.

    Args:
        app: the application.
    """
    docs = Path(app.srcdir)
    texts = {path.relative_to(docs): path.read_text("utf-8") for path in sorted(docs.rglob("*.md"))}
    guides = {
        path.with_suffix("").as_posix(): text
        for path, text in texts.items()
        if path.parts[0] not in {"_build", "api"}
    }
    pages = {page: number for number, page in enumerate(guides)}
    rows = {
        stem: {pages[page]: weight for page, weight in row.items()}
        for stem, row in weights(guides).items()
    }
    table = json.dumps([list(pages), rows], separators=(",", ":"))
    scorer = Path(app.doctreedir) / "search_scorer.js"
    code = (docs / "search_scorer.js").read_text("utf-8")
    scorer.write_text(f"const [GUIDES, WEIGHTS] = {table};\n{code}", "utf-8")
    app.config.html_search_scorer = str(scorer)


def setup(app: Sphinx) -> None:
    """Register what this file adds.

    Args:
        app: the application.
    """
    app.connect("builder-inited", write_scorer)
