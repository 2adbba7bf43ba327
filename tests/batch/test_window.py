"""What of a batch may be under way, and what is handed on next: pure decisions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mellea_like.batch.batch_run import Window


def finished(window: Window[int], *positions: int) -> Window[int]:
    for position in positions:
        window.finish(position, position)
    return window


def all_ready(window: Window[int]) -> list[int]:
    out = []
    while window.ready:
        out.append(window.hand_on())
    return out


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_it_takes_twice_as_many_as_run_at_a_time_and_no_more(ordered, concurrency):
    window: Window[int] = Window(concurrency, ordered=ordered)
    assert [window.take() for _ in range(2 * concurrency) if window.open] == list(
        range(2 * concurrency)
    )
    assert not window.open
    finished(window, 0)
    assert not window.open, "what is finished is in the way until it is handed on"
    assert window.hand_on() == 0
    assert window.open


@pytest.mark.parametrize(
    ("ordered", "finish", "expected"),
    [
        (False, [2, 0, 1], [2, 0, 1]),
        (True, [2, 0, 1], [0, 1, 2]),
        (True, [2, 1], []),
        (True, [2, 0], [0]),
        (False, [2], [2]),
    ],
)
def test_what_is_handed_on(ordered, finish, expected):
    window: Window[int] = Window(3, ordered=ordered)
    for _ in range(4):
        window.take()
    assert all_ready(finished(window, *finish)) == expected


@pytest.mark.parametrize("ordered", [False, True])
def test_after_the_end_what_is_missing_keeps_nothing_back(ordered):
    window: Window[int] = Window(4, ordered=ordered)
    for _ in range(8):
        window.take()
    finished(window, 0, 5, 3)
    window.close()
    assert all_ready(window) == ([0, 3, 5] if ordered else [0, 5, 3])
    assert window.handed_on == 3


@given(st.data(), st.integers(1, 4), st.booleans())
def test_every_item_is_handed_on_once_and_the_window_is_never_exceeded(data, size, ordered):
    window: Window[int] = Window(size, ordered=ordered)
    under_way: list[int] = []
    out: list[int] = []
    for _ in range(data.draw(st.integers(0, 30))):
        step = data.draw(st.sampled_from(["take", "finish", "hand on"]))
        if step == "take" and window.open:
            under_way.append(window.take())
        elif step == "finish" and under_way:
            finished(window, under_way.pop(data.draw(st.integers(0, len(under_way) - 1))))
        elif step == "hand on" and window.ready:
            out.append(window.hand_on())
        assert window.taken - window.handed_on <= 2 * size
    finished(window, *under_way)
    out += all_ready(window)
    assert sorted(out) == list(range(window.taken))
    assert not ordered or out == sorted(out)
