from __future__ import annotations

import numpy as np
import pytest

from elastic_tf.timing.attribution import members
from elastic_tf.timing.calibration import SEGMENTS, chosen_masks, corrected, fit, segments


def chain(t_dw: np.ndarray, t_dy: np.ndarray) -> dict[int, float]:
    """Times by bit set: each tensor alone, and each with all before it."""
    own = {1 << k: float(time) for k, time in enumerate(t_dw)}
    for k, time in enumerate(t_dy):
        bits = (1 << (k + 1)) - 1
        own[bits] = own.get(bits, 0.0) + float(time)
    return own


def ratios(times: dict[int, float], masks: np.ndarray, forward: float) -> np.ndarray:
    """Step time / full step time by the dependency sets."""
    total = sum(times.values())
    return np.array(
        [
            forward
            + (1 - forward)
            * sum(t for b, t in times.items() if mask[list(members(b))].any())
            / total
            for mask in masks
        ]
    )


def truth(seed: int, count: int = 24) -> dict[int, float]:
    rng = np.random.default_rng(seed)
    return chain(rng.exponential(1.0, count), rng.exponential(0.7, count))


def test_fit_changes_nothing_where_the_expectation_is_right():
    times = truth(0)
    parts = segments(times, 24)
    masks = chosen_masks(parts)
    found = fit(times, parts, masks, ratios(times, masks, 0.3), 0.3)
    assert found.residual < 1e-6
    np.testing.assert_allclose(found.factors, 1.0, rtol=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_fit_corrects_an_expectation_that_is_wrong_by_parts(seed):
    times = truth(seed)
    rng = np.random.default_rng(seed)
    wrong = {  # weight gradients twice as dear as expected, early layers too
        bits: time / (1 + (bits & (bits - 1) == 0)) / (2 if bits < 1 << 12 else 1)
        for bits, time in times.items()
    }
    parts = segments(wrong, 24)
    masks = chosen_masks(parts)
    measured = ratios(times, masks, 0.3) + rng.normal(0, 0.002, len(masks))
    found = corrected(wrong, parts, fit(wrong, parts, masks, measured, 0.3).factors)
    probes = rng.random((40, 24)) < rng.random((40, 1))
    probes[:, -1] = True
    right = ratios(times, probes, 0.3)
    before, after = (np.abs(ratios(guess, probes, 0.3) - right).mean() for guess in (wrong, found))
    assert after < 0.6 * before


def test_fit_makes_no_work_free_and_tells_what_it_leaves_unexplained():
    times = truth(1)
    parts = segments(times, 24)
    masks = chosen_masks(parts)
    noise = np.random.default_rng(0).normal(0, 0.1, len(masks))
    found = fit(times, parts, masks, ratios(times, masks, 0.4) + noise, 0.4)
    assert min(found.factors) >= 0.1
    assert found.residual > 1e-3


def test_chosen_masks_are_few_distinct_and_neither_full_nor_empty():
    masks = chosen_masks(segments(truth(2), 24))
    assert len({mask.tobytes() for mask in masks}) == len(masks)
    assert len(masks) <= 2 * SEGMENTS - 1
    assert masks.any(axis=1).all() and not masks.all(axis=1).any()


def test_a_model_of_one_tensor_needs_no_mask():
    parts = segments({1: 2.0}, 1)
    masks = chosen_masks(parts)
    assert masks.shape == (0, 1)
    found = fit({1: 2.0}, parts, masks, np.zeros(0), 0.25)
    np.testing.assert_allclose(found.factors, 1.0)
