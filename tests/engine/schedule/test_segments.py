"""Where a forward pass is cut."""

import itertools

import numpy as np
import pytest

from elastic_tf.train.schedule import Sizes, cuts


def peak(sizes: Sizes, chosen: list[int]) -> float:
    """Bytes held at the fullest moment of a backward pass over these segments."""
    held, most = 0.0, 0.0
    for number, low in enumerate(chosen):
        held += sizes.crossing[low] if number else 0.0
        high = chosen[number + 1] if number + 1 < len(chosen) else len(sizes.taken) - 1
        inside = slice(low + 1, high + 1)
        most = max(most, held + sizes.taken[inside].sum() + sizes.largest[inside].max())
    return most


def random_sizes(seed: int, ops: int = 14) -> Sizes:
    largest = np.random.default_rng(seed).integers(1, 20, ops).astype(float)
    return Sizes(
        largest.copy(), largest * np.random.default_rng(seed + 1).integers(0, 2, ops), largest
    )


def candidates(sizes: Sizes) -> list[int]:
    crossing = sizes.crossing
    inner = range(1, len(crossing) - 1)
    return [k for k in inner if crossing[k] <= min(crossing[k - 1], crossing[k + 1])]


def ways(sizes: Sizes) -> list[list[int]]:
    places = candidates(sizes)
    return [
        [0, *some] for n in range(len(places) + 1) for some in itertools.combinations(places, n)
    ]


@pytest.mark.parametrize("seed", range(8))
def test_as_little_as_possible_is_what_enumeration_finds(seed):
    sizes = random_sizes(seed)
    best = min(peak(sizes, way) for way in ways(sizes))
    assert peak(sizes, cuts(sizes, 0, 0.0)) <= best * (1 + 1e-3)


@pytest.mark.parametrize("seed", range(8))
def test_a_share_is_kept_to_with_the_last_segment_as_long_as_it_can_be(seed):
    sizes = random_sizes(seed)
    limit = 0.6 * (sizes.taken[1:].sum() + sizes.largest[1:].max())
    fitting = [way for way in ways(sizes) if peak(sizes, way) <= limit]
    found = cuts(sizes, 0, 0.6)
    if fitting:
        assert peak(sizes, found) <= limit
        assert found[-1] == min(way[-1] for way in fitting)
    else:
        assert peak(sizes, found) <= min(peak(sizes, way) for way in ways(sizes)) * (1 + 1e-3)
