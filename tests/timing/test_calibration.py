import numpy as np
import pytest

from elastic_tf.timing.profiler import SEGMENTS, cells_of, chosen_masks, fit, segments

FORWARD = 0.3
COUNT = 24
# the sets of a chain: each tensor alone, and each with all before it
MEMBERS = np.vstack([np.eye(COUNT, dtype=bool), np.tri(COUNT, dtype=bool)[1:]])
NONE = np.zeros(COUNT, bool)


def ratios(times: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Step time / full step time."""
    runs = (masks[:, None, :] & MEMBERS).any(axis=2)
    return FORWARD + (1 - FORWARD) * (runs * times).sum(axis=1) / times.sum()


def fitted(expected, times, folded=NONE, noise=0.0) -> tuple[np.ndarray, float]:
    """The factor of each set where steps take these times; what is left unexplained."""
    parts = segments(MEMBERS, expected)
    masks, cells = chosen_masks(parts, folded), cells_of(MEMBERS, parts, folded)
    assert len(masks) <= SEGMENTS
    measured = ratios(times, masks) + np.random.default_rng(0).normal(0, noise, len(masks))
    factors, residual = fit(MEMBERS, expected, cells, masks, measured, FORWARD)
    return factors[cells], residual


def truth(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).exponential(1.0, len(MEMBERS))


def test_fit_changes_nothing_where_the_expectation_is_right():
    times = truth(0)
    factors, residual = fitted(times, times)
    assert residual < 1e-6
    np.testing.assert_allclose(factors, 1.0, rtol=1e-3)


ALONE = MEMBERS.sum(axis=1) == 1
EARLY = ~ALONE & ~MEMBERS[:, 12:].any(axis=1)


@pytest.mark.parametrize("factor", [0.33, 3.0])
@pytest.mark.parametrize("cell", [ALONE, EARLY], ids=["weight gradients", "early input gradients"])
def test_fit_corrects_an_expectation_that_is_wrong_for(cell, factor):
    errors = []
    for seed in range(8):
        times, rng = truth(seed), np.random.default_rng(seed)
        wrong = times * np.where(cell, factor, 1.0)
        factors, _ = fitted(wrong, times, noise=0.002)
        probes = rng.random((40, COUNT)) < rng.random((40, 1))
        probes[:, -1] = True
        found = [ratios(expected, probes) for expected in (wrong, wrong * factors)]
        errors.append(np.abs(found - ratios(times, probes)).mean(axis=1))
    before, after = np.mean(errors, axis=0)
    assert after < 0.6 * before


def test_a_model_of_one_tensor_needs_no_mask():
    members, times, none = np.ones((1, 1), bool), np.array([2.0]), np.zeros(1, bool)
    parts = segments(members, times)
    masks = chosen_masks(parts, none)
    assert masks.shape == (0, 1)
    factors, _ = fit(members, times, cells_of(members, parts, none), masks, np.zeros(0), 0.25)
    np.testing.assert_allclose(factors, 1.0)


def test_normalisations_that_cost_more_than_expected_have_factors_of_their_own():
    folded = np.arange(COUNT) % 3 == 2
    of_folded = folded @ MEMBERS.T.astype(int) == MEMBERS.sum(axis=1)
    wrong = truth(0)
    times = wrong * (1 + of_folded)
    factors, _ = fitted(wrong, times, folded)
    relative = factors[of_folded].mean() / factors[~of_folded].mean()
    np.testing.assert_allclose(relative, 2.0, rtol=0.3)
