"""`relaxed_gc` raises the collector's first threshold for a while, and only that."""

from __future__ import annotations

import gc
import threading

import pytest

from mellea_like.runtime.garbage_collector import OBJECTS, relaxed_gc


@pytest.fixture(autouse=True)
def threshold():
    before = gc.get_threshold()
    gc.set_threshold(700, 11, 12)
    yield
    gc.set_threshold(*before)


def first() -> int:
    return gc.get_threshold()[0]


def test_the_first_threshold_is_higher_inside_and_as_before_afterwards():
    with relaxed_gc():
        assert gc.get_threshold() == (OBJECTS, 11, 12)
        assert gc.isenabled()
    assert gc.get_threshold() == (700, 11, 12)


def test_it_is_as_before_after_an_exception_too():
    with pytest.raises(ZeroDivisionError), relaxed_gc(9000):
        raise ZeroDivisionError
    assert first() == 700


def test_blocks_nest_and_the_highest_number_counts():
    with relaxed_gc(5000):
        with relaxed_gc(9000):
            assert first() == 9000
            with relaxed_gc(6000):
                assert first() == 9000
            assert first() == 9000
        assert first() == 5000
    assert first() == 700


def test_a_collector_that_is_turned_off_stays_off():
    with relaxed_gc():
        pass
    gc.set_threshold(0)
    with relaxed_gc():
        assert first() == 0
    assert first() == 0
    gc.disable()
    try:
        with relaxed_gc():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("theirs", [0, 1500, OBJECTS + 1])
def test_what_other_code_sets_meanwhile_is_not_overwritten_in_the_end(theirs):
    with relaxed_gc():
        gc.set_threshold(theirs, 13, 14)
    assert gc.get_threshold() == (theirs, 13, 14)


def test_many_threads_leave_the_threshold_as_it_was():
    def work() -> None:
        for number in range(200):
            with relaxed_gc(1000 + number):
                assert first() >= 1000 + number

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert first() == 700


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_number_below_one_is_refused(wrong):
    with pytest.raises(ValueError, match="objects must be at least 1"), relaxed_gc(wrong):
        pass
