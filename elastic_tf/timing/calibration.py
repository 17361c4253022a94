"""Corrects the times of tensors by whole steps.

Op times do not add up: ops that run side by side hide each other, so that leaving out the cheaper
of two saves nothing. And where XLA makes one kernel of a step, or a device gives the profiler
nothing, there are no op times at all. So a few chosen masks are timed by the clock, and the
expected times are corrected, part by part of the model, until they explain these steps.

Sets of tensors stand here as `members`, bool of shape (S, N), with the `expected` time of the work
of each in any unit, shape (S,); `parts` are the `segments` of the tensors, shape (N,); `folded` is
True for the tensors of normalisations that cost nothing when they are frozen, shape (N,).
"""

from __future__ import annotations

import numpy as np

from elastic_tf.timing.cost_items import last_of

SEGMENTS = 4  # parts of the model, of equal expected time: as many masks to time at most
CELLS = SEGMENTS + 2
_OF_FOLDED, _OF_ONE = SEGMENTS, SEGMENTS + 1  # cells

# How far a measured ratio is off, and how far the expected time of a cell may be (relative): what
# the clock says of a cell counts by its size against the first of these.
RATIO_ERROR = 0.02
_EXPECTATION_ERROR = 0.7
_LEAST_FACTOR = 0.1  # noise must not make work free


def segments(members: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The part of the model that each tensor belongs to, input first: from 0, below SEGMENTS."""
    own = np.bincount(last_of(members), expected, members.shape[1])
    middle = np.cumsum(own) - own / 2
    parts = np.minimum((SEGMENTS * middle / own.sum()).astype(int), SEGMENTS - 1)
    return np.unique(parts, return_inverse=True)[1]


def chosen_masks(parts: np.ndarray, folded: np.ndarray) -> np.ndarray:
    """The masks to time, bool (masks, N): from each segment on, all but the folded or a third.

    Full and empty masks are left out. The rule was chosen among some sixty on 24 random plans of
    five networks. On 16 other plans of each predictions were off by 0.008 to 0.032; by 0.006 to
    0.053 with all of each segment alone.
    """
    onward = parts >= np.arange(parts.max() + 1)[:, None]
    masks = onward & ~folded
    for segment in range(len(masks)):
        if segment % 2 or masks[segment].all():
            third = np.random.default_rng(segment).random(len(parts)) < 1 / 3
            third[np.argmax(onward[segment])] = True
            masks[segment] = onward[segment] & third
    masks = np.unique(masks, axis=0)
    return masks[masks.any(axis=1) & ~masks.all(axis=1)]


def fit(
    members: np.ndarray,
    expected: np.ndarray,
    parts: np.ndarray,
    folded: np.ndarray,
    masks: np.ndarray,
    ratios: np.ndarray,
    forward_ratio: float,
) -> tuple[tuple[float, ...], float]:
    """The positive factors with which the expected times explain the measured steps best.

    The sets are gathered in cells (see `cells_of`). Within a cell times keep the expected
    proportions; the factor of each cell is fitted, by least squares with a bound that also hold it
    near 1 where the steps say nothing of it.

    Args:
        masks: True where a tensor was trained; bool, shape (masks, N).
        ratios: step time / full step time under each mask; shape (masks,).
        forward_ratio: step time with nothing trained / full step time.

    Returns:
        CELLS factors, 1 where a cell is empty; and the root mean square of the part of the
        measured ratios that they leave unexplained.
    """
    from scipy.optimize import lsq_linear  # takes long to load

    weights = expected * (1.0 - forward_ratio) / expected.sum()
    every = np.vstack([masks, np.ones((1, len(parts)), bool)])
    runs = (every[:, None, :] & members[None]).any(axis=2)  # (masks + 1, S)
    design = np.zeros((len(every), CELLS))
    np.add.at(design.T, cells_of(members, parts, folded), (runs * weights).T)
    measured = np.append(ratios, 1.0) - forward_ratio

    near_one = np.eye(CELLS) / _EXPECTATION_ERROR
    rows = np.vstack([design / RATIO_ERROR, near_one])
    wanted = np.append(measured / RATIO_ERROR, near_one.sum(axis=1))
    factors = lsq_linear(rows, wanted, bounds=(_LEAST_FACTOR, np.inf), method="bvls").x
    residual = float(np.sqrt(np.mean((design @ factors - measured) ** 2)))
    return tuple(factors.tolist()), residual


def cells_of(members: np.ndarray, parts: np.ndarray, folded: np.ndarray) -> np.ndarray:
    """The cell of each set: the factor of the fit that its time is multiplied with; shape (S,).

    Work for one tensor, weight gradient and update, is one cell; what folded normalisations need is
    one; the rest, input gradients above all, has a cell for the segment of its last tensor.
    """
    cells = parts[last_of(members)]
    cells[~members[:, ~folded].any(axis=1)] = _OF_FOLDED
    cells[members.sum(axis=1) == 1] = _OF_ONE
    return cells
