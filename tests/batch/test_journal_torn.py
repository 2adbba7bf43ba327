"""Wherever the last write of a journal is torn, what was committed before is there."""

from __future__ import annotations

from torn_kit import ITEMS, tear, write


def test_a_journal_torn_at_any_byte_has_all_that_was_committed_before_and_goes_on(tmp_path):
    seen = tear(write(tmp_path), tmp_path, 97 * 80)
    assert set(seen) == set(range(ITEMS))
