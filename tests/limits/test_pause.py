"""How long nobody goes after a 429."""

from __future__ import annotations

import math

import pytest

from mellea_like.limits.pause import Pause, pause_after


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [
        (None, 0.2),
        (math.nan, 0.2),
        (-5.0, 0.2),
        (-math.inf, 0.2),
        (0.0, 0.2),
        (0.01, 0.01),
        (1, 1.0),
        (119.5, 119.5),
        (120.0, 120.0),
        (121.0, 120.0),
        (1e308, 120.0),
        (math.inf, 120.0),
    ],
)
def test_it_lasts_as_long_as_the_server_asks_within_reason(retry_after, seconds):
    assert pause_after(retry_after) == seconds


def test_it_only_ever_gets_longer():
    pause = Pause()
    assert pause.left(0.0) == 0.0
    pause.extend(10.0, 5.0)
    assert pause.left(10.0) == 5.0
    pause.extend(11.0, 1.0)
    assert pause.left(11.0) == 4.0
    pause.extend(12.0, 5.0)
    assert pause.left(12.0) == 5.0
    assert pause.left(17.0) == 0.0
    assert pause.left(100.0) == 0.0
