from __future__ import annotations

import numpy as np
import pytest

from elastic_tf.files.ranges import from_ranges, to_ranges


@pytest.mark.parametrize(
    ("mask", "ranges"),
    [
        ([0, 0, 0], []),
        ([1, 1, 1], [[0, 2]]),
        ([1, 0, 1, 1], [[0, 0], [2, 3]]),
    ],
)
def test_masks_come_back_from_their_ranges(mask, ranges):
    mask = np.array(mask, bool)
    assert to_ranges(mask) == ranges
    np.testing.assert_array_equal(from_ranges(ranges, len(mask)), mask)


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ([[0, 4]], 4),
        ([[2, 1]], 4),
        ([[0, 2], [1, 3]], 4),
        ([[0]], 4),
        ([["0", 1]], 4),
        ([], 10**12),
    ],
)
def test_ranges_that_are_no_mask_are_refused(given, count):
    with pytest.raises(ValueError, match="`ranges` must be|`count` must be"):
        from_ranges(given, count)
