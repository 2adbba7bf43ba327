"""Which turn a chain takes next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mellea_like.kernel.ports import turn_of
from mellea_like.options.scheduled import TurnPool


def test_a_chain_takes_the_turns_of_its_own_subsample_in_order():
    pool = TurnPool(2, 3, pooled=False)
    assert [pool.take(1) for _ in range(4)] == [*(turn_of(1, depth, 3) for depth in range(3)), None]
    assert pool.left == 3
    assert pool.take(0) == turn_of(0, 0, 3)


def test_a_fresh_chain_borrows_from_the_subsample_that_has_most_left():
    pool = TurnPool(3, 2, pooled=True)
    pool.take(0)
    assert pool.take(3) == turn_of(1, 0, 2)
    assert pool.take(3) == turn_of(2, 0, 2)
    assert pool.take(4) == turn_of(0, 1, 2)


@given(st.integers(1, 4), st.integers(1, 4), st.booleans(), st.lists(st.integers(0, 6)))
def test_each_turn_is_taken_once_and_keeps_its_id(subsamples, loop_budget, pooled, chains):
    pool = TurnPool(subsamples, loop_budget, pooled=pooled)
    taken = []
    for chain in chains:
        could = pool.has(chain)
        turn = pool.take(chain)
        assert could == (turn is not None)
        if turn is not None:
            taken.append(turn)
            assert turn == turn_of(turn.subsample, turn.depth, loop_budget)
            assert pooled or turn.subsample == chain
    assert len(set(taken)) == len(taken)
    assert pool.left == subsamples * loop_budget - len(taken)
