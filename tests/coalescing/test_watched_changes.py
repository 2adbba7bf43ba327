"""Which changes of files count, and which of them have not been handled yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from mellea_like.coalescing import IGNORED, Changes, FileChange
from mellea_like.coalescing.rerun.watch import PendingChanges, is_ignored


@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        ("/w/a.txt", False),
        ("/w/deep/er/a.py", False),
        ("/w", False),
        ("/w/.git", True),
        ("/w/.git/objects/ab/cdef", True),
        ("/w/pkg/__pycache__/a.cpython-311.pyc", True),
        ("/w/a.pyc", True),
        ("/w/a.txt~", True),
        ("/w/.a.txt.swp", True),
        ("/w/.#a.txt", True),
        ("/w/#a.txt#", True),
        ("/w/4913", True),
        ("/w/.goutputstream-X1Y2", True),
        ("/w/a.txt___jb_tmp___", True),
        ("/w/.DS_Store", True),
        ("/w/github/a.txt", False),
        ("/w/.gitignore", False),
        ("/w/out.log", True),
        ("/w/build/a.txt", True),
        # A path that the user names is never ignored.
        ("/x/.git/a", False),
        ("/x/.git", False),
        ("/x/.git/.git", True),
    ],
)
def test_what_is_ignored(path, ignored):
    root = "/x/.git" if path.startswith("/x") else "/w"
    assert is_ignored(path, root, (*IGNORED, "*.log", "build")) == ignored


def change(name: str, kind: str = "modified") -> FileChange:
    return FileChange(kind, Path("/w") / name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (Changes((), rescan=True), "start"),
        (Changes((change("a"),), rescan=False), "a modified"),
        (Changes((change("a", "deleted"), change("b")), rescan=False), "a deleted, and 1 more"),
        (Changes((change("a"), change("b")), rescan=True), "a modified, and 1 more"),
    ],
)
def test_changes_say_their_reason(changes, reason):
    assert changes.reason == reason


def test_changes_are_kept_once_for_each_path_and_up_to_a_limit():
    pending = PendingChanges(2)
    pending.add(Changes((change("a", "added"), change("b")), rescan=False))
    pending.add(Changes((change("a", "deleted"),), rescan=False))
    assert pending.take() == Changes((change("a", "deleted"), change("b")), rescan=False)
    assert pending.take() == Changes((), rescan=False)
    pending.add(Changes((change("a"), change("b"), change("c")), rescan=False))
    assert pending.take() == Changes((change("a"), change("b")), rescan=True)
    assert pending.take() == Changes((), rescan=False)


def test_what_is_put_back_is_older_than_what_came_since():
    pending = PendingChanges(9)
    pending.add(Changes((change("a"), change("b")), rescan=True))
    taken = pending.take()
    pending.add(Changes((change("b", "deleted"), change("c")), rescan=False))
    pending.put_back(taken)
    assert pending.take() == Changes(
        (change("a"), change("b", "deleted"), change("c")), rescan=True
    )
