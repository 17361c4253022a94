from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from related.nntrainer.planner import offsets

from elastic_tf.memory.executor import live_bytes

ORDERS = st.integers(0, 30)
BUFFERS = st.lists(st.tuples(st.integers(0, 1000), ORDERS, ORDERS), min_size=1, max_size=40)


def lives_of(buffers):
    return [(min(one[1:]), max(one[1:])) for one in buffers]


@given(BUFFERS)
def test_nothing_overlaps_in_space_and_time(buffers):
    sizes, lives = [one[0] for one in buffers], lives_of(buffers)
    found = offsets(sizes, lives)
    for order in range(31):
        live = sorted(
            (found[k], found[k] + sizes[k])
            for k, (first, last) in enumerate(lives)
            if first <= order <= last and sizes[k]
        )
        assert all(end <= begin for (_, end), (begin, _) in zip(live, live[1:]))


@given(BUFFERS)
def test_the_peak_lies_between_the_lower_bound_and_the_sum(buffers):
    sizes, lives = [one[0] for one in buffers], lives_of(buffers)
    peak = max(place + size for place, size in zip(offsets(sizes, lives), sizes))
    assert live_bytes(sizes, lives).max() <= peak <= sum(sizes)


@given(BUFFERS)
def test_live_bytes_are_those_of_each_order(buffers):
    sizes, lives = [one[0] for one in buffers], lives_of(buffers)
    for order, found in enumerate(live_bytes(sizes, lives)):
        assert found == sum(s for s, (first, last) in zip(sizes, lives) if first <= order <= last)


def test_a_gap_is_used_only_if_it_is_large_enough():
    # a dead buffer of 4 below one that lives on
    sizes, lives = [4, 8, 5, 4], [(0, 0), (0, 3), (1, 1), (2, 3)]
    assert offsets(sizes, lives) == [8, 0, 8, 8]
    sizes, lives = [4, 8, 5, 4], [(0, 1), (0, 0), (1, 2), (2, 3)]
    found = offsets(sizes, lives)
    assert found[2] == 4 and found[3] == 0
