"""Ridge regression from sums over samples, which add up over devices.

Everything that the solution needs of the samples is a sum over them: their weight, features x and
targets y, x x^T, x y^T and y^2. So does the squared error of any solution on them. Sums of several
devices added are the sums of all their samples, and the solution is that of all samples together.

Source: Fani et al., Accelerating Heterogeneous Federated Learning with Closed-form Classifiers,
ICML 2024.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING or __package__:
    from .ridge import LEAST, MOST
else:  # in the exported folder
    from ridge import LEAST, MOST

_PENALTIES = 24  # between the least and the most that are looked at


class Sums(NamedTuple):
    """Sums over weighted samples of `width` features x and `outputs` targets y; float64.

    Attributes:
        weight: of all samples.
        x: (width,).
        y: (outputs,).
        gram: (width, width), of x x^T.
        cross: (width, outputs), of x y^T.
        square: of y^2.
    """

    weight: np.ndarray
    x: np.ndarray
    y: np.ndarray
    gram: np.ndarray
    cross: np.ndarray
    square: np.ndarray

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


def best_penalty(trained: Sequence[Sums], held: Sequence[Sums], *, intercept: bool = True) -> float:
    """The penalty of the least squared error on held-out samples, summed over devices.

    Args:
        trained: sums of each device but for its held-out samples.
        held: those of its held-out samples.
        intercept: as of `Heads`.
    """
    heads = Heads(functools.reduce(Sums.plus, trained), intercept=intercept)
    left = functools.reduce(Sums.plus, held)
    errors = [left.error(*heads.weights(penalty)) for penalty in heads.penalties]
    return float(heads.penalties[int(np.argmin(errors))])
