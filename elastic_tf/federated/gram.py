"""Sums of features on their way: as arrays of Flower's, and with noise."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord

from elastic_tf.lite.sums import Sums

HELD = 5  # of so many samples, one is held out
LOG_SCALES = np.linspace(-3.0, 6.0, 37)  # of logits, that are looked at


def noised(sums: Sums, noise: float, clip: float, wanted: np.ndarray) -> Sums:
    """The sums with symmetric Gaussian noise, for differential privacy of each sample.

    With features no longer than `clip`, a sample changes the matrix of the sums of (x / clip, 1, y)
    by at most 2 + |y|^2. Each entry gets noise of `noise` times that: for (epsilon, delta) it is
    sqrt(2 ln(1.25 / delta)) / epsilon.

    Source: Dwork et al., Analyze Gauss, STOC 2014, Algorithm 1.
    """
    if noise <= 0.0:
        return sums
    if clip <= 0.0:
        raise ValueError(
            f"`clip` must be given with noise: the longest that features may be. Received: {clip}."
        )
    rng = np.random.default_rng()
    bound = noise * (2.0 + float((wanted**2).sum(axis=1).max(initial=1.0)))
    units = [bound * clip**power for power in (0, 1, 0, 2, 1, 0)]  # of each of the sums
    drawn = [unit * rng.normal(size=one.shape) for unit, one in zip(units, sums)]
    drawn[3] = np.triu(drawn[3]) + np.triu(drawn[3], 1).T
    return sums.plus(Sums(*drawn))


def as_record(sums: Sums, name: str) -> dict[str, Array]:
    """Arrays to send; of the Gram matrix the upper triangle."""
    values = sums._asdict()
    values["gram"] = sums.gram[np.triu_indices(len(sums.x))]
    return {f"{name}.{part}": Array(np.asarray(value)) for part, value in values.items()}


def from_record(record: ArrayRecord, name: str, width: int, outputs: int) -> Sums:
    """The sums that were sent.

    Raises:
        ValueError: they are of another network, or not finite.
    """
    values = {part: record[f"{name}.{part}"].numpy() for part in Sums._fields}
    rows = np.triu_indices(width)
    shapes = [(), (width,), (outputs,), rows[0].shape, (width, outputs), ()]
    for (part, value), shape in zip(values.items(), shapes):
        if value.shape != shape or not np.isfinite(value).all():
            raise ValueError(f"{part} of shape {value.shape}, or not finite, instead of {shape}")
    gram = np.zeros((width, width))
    gram[rows] = values["gram"]
    values["gram"] = gram + np.triu(gram, 1).T
    return Sums(**values)
