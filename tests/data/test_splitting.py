from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastic_tf.data.splitting import split_off


@given(
    st.lists(st.integers(0, 4), min_size=20, max_size=60),
    st.floats(0.2, 0.9),
    st.integers(0, 5),
)
def test_every_row_is_in_one_part_and_every_class_stays(labels, share, seed):
    labels = np.array(labels)
    left, taken = split_off(labels, share, seed)
    assert sorted([*left, *taken]) == list(range(len(labels)))
    assert set(labels[left]) == set(labels)
    for label in set(labels):
        count = (labels == label).sum()
        # at most one more or less than the share, and one that stays
        assert abs((labels[taken] == label).sum() - share * count) <= 2


def test_no_share_takes_nothing():
    left, taken = split_off(np.zeros(5, int), 0.0, 0)
    assert len(taken) == 0 and list(left) == [0, 1, 2, 3, 4]
