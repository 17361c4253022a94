"""Ridge regression from sums over samples, which add up over devices.

Everything that the solution needs of the samples is a sum over them: their weight, features x and
targets y, x x^T, x y^T and y^2. So does the squared error of any solution on them. Sums of several
devices added are the sums of all their samples, and the solution is that of all samples together.

Source: Fani et al., Accelerating Heterogeneous Federated Learning with Closed-form Classifiers,
ICML 2024.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord

from elastic_tf.lite.ridge import LEAST, MOST

HELD = 5  # of so many samples, one is held out
LOG_SCALES = np.linspace(-3.0, 6.0, 37)  # of logits, that are looked at
_PENALTIES = 24  # between the least and the most that are looked at


class Sums(NamedTuple):
    """Sums over weighted samples of `width` features x and `outputs` targets y; float64."""

    weight: np.ndarray  #: of all samples
    x: np.ndarray  #: (width,)
    y: np.ndarray  #: (outputs,)
    gram: np.ndarray  #: (width, width), of x x^T
    cross: np.ndarray  #: (width, outputs), of x y^T
    square: np.ndarray  #: of y^2

    @classmethod
    def of(cls, features: np.ndarray, wanted: np.ndarray, weight: np.ndarray) -> Sums:
        """Of features (n, width), targets (n, outputs) and weights (n,)."""
        x, y = np.asarray(features, np.float64), np.asarray(wanted, np.float64)
        weighted = weight[:, None] * x
        return cls(
            np.asarray(weight.sum()),
            weighted.sum(axis=0),
            weight @ y,
            x.T @ weighted,
            weighted.T @ y,
            np.asarray(weight @ (y**2).sum(axis=1)),
        )

    def plus(self, other: Sums) -> Sums:
        """The sums over the samples of both."""
        return Sums(*(np.asarray(one + two) for one, two in zip(self, other)))

    def error(self, kernel: np.ndarray, bias: np.ndarray) -> float:
        """Sum of squared errors of a linear head on these samples."""
        explained = (kernel * self.cross).sum() + bias @ self.y
        said = (kernel * (self.gram @ kernel)).sum() + 2.0 * (self.x @ kernel) @ bias
        return float(self.square - 2.0 * explained + said + self.weight * (bias @ bias))


class Heads:
    """The ridge regression of these samples for every penalty.

    With G the Gram matrix of centred features and C their products with centred targets,
    G = V diag(v) V^T, a penalty p has the kernel V diag(1 / (v + p)) V^T C. The intercept is free;
    without one nothing is centred.
    """

    def __init__(self, sums: Sums, *, intercept: bool = True) -> None:
        share = intercept / max(float(sums.weight), np.finfo(np.float64).tiny)
        self.mean, self.mean_wanted = share * sums.x, share * sums.y
        self.values, self.vectors = np.linalg.eigh(sums.gram - np.outer(self.mean, sums.x))
        self.along = self.vectors.T @ (sums.cross - np.outer(self.mean, sums.y))

    @property
    def penalties(self) -> np.ndarray:
        """From nothing to everything shrunk, evenly in their logarithm."""
        largest = max(float(self.values[-1]), np.finfo(np.float64).tiny)
        return largest * np.logspace(np.log10(LEAST), np.log10(MOST), _PENALTIES)

    def weights(self, penalty: float) -> tuple[np.ndarray, np.ndarray]:
        """Kernel (width, outputs) and bias (outputs,)."""
        shrunk = np.maximum(self.values, 0.0)[:, None] + penalty
        kernel = self.vectors @ (self.along / shrunk)
        return kernel, self.mean_wanted - self.mean @ kernel

    def best_penalty(self, held: Sums) -> float:
        """The penalty of the least squared error on samples that were held out."""
        errors = [held.error(*self.weights(penalty)) for penalty in self.penalties]
        return float(self.penalties[int(np.argmin(errors))])


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
