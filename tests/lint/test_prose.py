"""The script that counts habits of style finds planted ones, and leaves plain English alone."""

from __future__ import annotations

import prose
import pytest

MODULE = '''
"""What a call shares. Return the rest.

Where nothing races, one task is enough.
"""

import logging

LIMIT = 3
"""Say why it is three."""


def work(path):
    """Work on a file.

    Args:
        path: what to read.

    Returns:
        The text.
    """
    # A comment that goes
    # on in its second line.
    if not path:
        raise ValueError(f"{path} stands empty")
    logging.warning("a win wakes the call anew")
    warn("where none is, it stands")
    msg = f"besides {path}"
    return "where nothing is, and what stands besides"
'''

PAGE = """---
title: what is not text
---

# What a page has

Text that [goes on](where-nothing-is.md)
in its second line. Besides, it ends.

```python
# Where code is, nothing counts.
```

<!-- what a comment says -->

| what | it stands there |
|---|---|
| a | `code` |

- Where there is an item, it counts.
"""


def counts(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    found = prose.sentences(path)
    return {
        habit: [(sentence.line, sentence.text) for sentence in sorted(prose.hits(found, habit))]
        for habit in prose.HABITS
    }


def test_a_module_is_read_by_its_docstrings_comments_and_messages(tmp_path):
    assert counts(tmp_path, "module.py", MODULE) == {
        "what": [(2, "What a call shares."), (17, "what to read.")],
        "say": [(10, "Say why it is three.")],
        "where": [
            (4, "Where nothing races, one task is enough."),
            (27, "where none is, it stands"),
        ],
        "stands": [(25, "{} stands empty"), (27, "where none is, it stands")],
        "idioms": [
            (22, "A comment that goes on in its second line."),
            (26, "a win wakes the call anew"),
            (28, "besides {}"),
        ],
        "abstract": [(26, "a win wakes the call anew")],
    }


def test_a_page_is_read_without_code_comments_and_addresses(tmp_path):
    assert counts(tmp_path, "page.md", PAGE) == {
        "what": [(5, "What a page has"), (16, "what")],
        "say": [],
        "where": [(20, "Where there is an item, it counts.")],
        "stands": [(16, "it stands there")],
        "idioms": [(7, "Besides, it ends."), (7, "Text that goes on in its second line.")],
        "abstract": [],
    }


@pytest.mark.parametrize(
    "plain",
    [
        "What happens if two lanes pass?",
        "Return what is left.",
        "Messages that say why a draw failed.",
        "Where to go",
        "Where does the text come from?",
        "The folder where the journal is kept.",
        "The row stands for several items.",
        "It is the caller's own task, and it can go into a log.",
        "Write a strategy of your own.",
        "The words beside it are to the left.",
        "Each draw takes a second.",
        "It is billed at the price of its own model.",
        "A stand-in draws the replies.",
    ],
)
def test_plain_english_is_left_alone(plain):
    sentence = prose.Sentence(prose.ROOT, 1, plain)
    assert [habit for habit in prose.HABITS if prose.hits([sentence], habit)] == []


@pytest.mark.parametrize(
    ("habit", "text"),
    [
        ("where", "The reply; None where the server sent nothing."),
        ("where", "It waits: where two are free, it takes one."),
        ("stands", "The message stood in the log."),
        ("idioms", "The value is to be read later."),
        ("idioms", "It runs in a thread of its own."),
        ("idioms", "It runs in a thread of its own and ends."),
        ("abstract", "The failure tells the lanes to stop."),
    ],
)
def test_a_habit_inside_a_sentence_is_found(habit, text):
    assert prose.hits([prose.Sentence(prose.ROOT, 1, text)], habit)


def test_the_check_fails_above_the_limit_only(tmp_path, capsys):
    path = tmp_path / "page.md"
    path.write_text("A plain sentence. " * 199 + "It goes on.", encoding="utf-8")
    assert prose.main(["--check", str(path)]) == 0
    path.write_text("A plain sentence. " * 198 + "It goes on. It stood there. It goes by.", "utf-8")
    assert prose.main(["--check", str(path)]) == 1
    assert "idioms      10.0 (    2)" in capsys.readouterr().out


def test_hits_are_listed_with_file_and_line(tmp_path, capsys):
    path = tmp_path / "page.md"
    path.write_text("Fine.\n\nIt goes on.", encoding="utf-8")
    assert prose.main(["--list", "idioms", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}:3: It goes on.\n"
