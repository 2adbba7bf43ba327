"""A torn write, simulated by cutting the log of a journal at every 97th byte."""

from __future__ import annotations

import pytest
from torn_kit import ITEMS, tear, write

pytestmark = [pytest.mark.kill, pytest.mark.timeout(600)]


@pytest.mark.parametrize("first", [0, 97])  # Each half on its own core.
def test_a_journal_torn_at_every_97th_byte_has_all_that_was_committed_before(
    tmp_path, figures, first
):
    written = write(tmp_path)
    seen = tear(written, tmp_path, 2 * 97, first)
    figures(
        f"a log of {len(written.log):,} bytes, torn at {sum(seen.values()):,} places:",
        *(f"  {n} of {ITEMS} results were committed before, {seen[n]} times" for n in sorted(seen)),
    )
    assert sum(seen.values()) > 250
    assert set(seen) >= set(range(ITEMS))
