"""Which changes of files count, and what has changed since the last look."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mellea_like.coalescing.rerun.files import (
    IGNORED,
    Changes,
    FileChange,
    Todo,
    differences,
    identities,
    is_ignored,
    scan,
)


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
    ],
)
def test_what_is_ignored(path, ignored):
    assert is_ignored(path, "/w", (*IGNORED, "*.log", "build")) == ignored


def test_what_the_user_names_is_never_ignored():
    assert not is_ignored("/w/.git/a", "/w/.git", IGNORED)
    assert not is_ignored("/w/.git", "/w/.git", IGNORED)
    assert is_ignored("/w/.git/.git", "/w/.git", IGNORED)


def test_a_scan_sees_all_files_that_count(tmp_path):
    for name in ("a.txt", "sub/b.txt", ".git/c", "sub/__pycache__/d.py", "sub/e.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x", encoding="utf-8")
    (tmp_path / "broken").symlink_to("nowhere")
    alone = tmp_path / "sub" / "e.pyc"
    assert set(scan([str(tmp_path)], IGNORED)) == {
        str(tmp_path / "a.txt"),
        str(tmp_path / "sub" / "b.txt"),
    }
    assert set(scan([str(alone), str(tmp_path / "missing")], IGNORED)) == {str(alone)}


def test_differences_tell_what_happened(tmp_path):
    for name in ("kept", "touched", "grown", "replaced", "gone"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    before = scan([str(tmp_path)], ())
    os.utime(tmp_path / "touched", ns=(1, 1))
    (tmp_path / "grown").write_text("xx", encoding="utf-8")
    (tmp_path / "other").write_text("x", encoding="utf-8")
    (tmp_path / "other").replace(tmp_path / "replaced")
    (tmp_path / "gone").unlink()
    (tmp_path / "new").write_text("x", encoding="utf-8")
    changes = differences(before, scan([str(tmp_path)], ()))
    assert {change.path.name: change.kind for change in changes} == {
        "touched": "modified",
        "grown": "modified",
        "replaced": "modified",
        "gone": "deleted",
        "new": "added",
    }


def test_an_identity_changes_when_another_file_takes_the_name(tmp_path):
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_text("x", encoding="utf-8")
    other.write_text("x", encoding="utf-8")
    names = [str(file), str(tmp_path / "missing")]
    before = identities(names)
    assert set(before) == {str(file)}
    file.write_text("longer", encoding="utf-8")
    assert identities(names) == before
    other.replace(file)
    assert identities(names) != before


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
    todo = Todo(2)
    todo.add(Changes((change("a", "added"), change("b")), rescan=False))
    todo.add(Changes((change("a", "deleted"),), rescan=False))
    assert todo.take() == Changes((change("a", "deleted"), change("b")), rescan=False)
    assert todo.take() == Changes((), rescan=False)
    todo.add(Changes((change("a"), change("b"), change("c")), rescan=False))
    assert todo.take() == Changes((change("a"), change("b")), rescan=True)
    assert todo.take() == Changes((), rescan=False)


def test_what_is_put_back_is_older_than_what_came_since():
    todo = Todo(9)
    todo.add(Changes((change("a"), change("b")), rescan=True))
    taken = todo.take()
    todo.add(Changes((change("b", "deleted"), change("c")), rescan=False))
    todo.put_back(taken)
    assert todo.take() == Changes((change("a"), change("b", "deleted"), change("c")), rescan=True)
