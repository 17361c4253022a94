"""Ridge regression with the exact leave-one-out error of every penalty.

Source: Golub, Heath, Wahba, Generalized cross-validation as a method for choosing a good ridge
parameter, Technometrics 1979.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.optimize import minimize_scalar

from elastic_tf.files.arrays import array

_ROWS = 4096  # samples in a block of float64 arithmetic
# Penalties to look at, by the largest eigenvalue; beyond, nothing or everything is shrunk.
_LEAST, _MOST = 1e-9, 1e2


class Ridge:
    """Weighted ridge regression with a free intercept, ready for every penalty.

    With X the centred features, each row times the root of its weight, and X X^T = U diag(v) U^T,
    a penalty p predicts U diag(v / (v + p)) U^T of the centred targets, and its diagonal gives the
    leave-one-out residuals.
    """

    def __init__(
        self,
        features: np.ndarray,
        wanted: np.ndarray,
        weight: np.ndarray,
        *,
        memory: int,
    ) -> None:
        self.features, self.wanted, self.weight = features, wanted, weight
        self.share = weight / weight.sum()
        self.root = np.sqrt(weight)[:, None]
        self.mean = sum(self.share[rows] @ features[rows] for rows in self._blocks())
        self.mean_wanted = self.share @ wanted
        count, width = features.shape
        least = max(count, width) * np.finfo(np.float32).eps
        if count <= width:
            rows = self._rows(slice(None))
            values, vectors = np.linalg.eigh(rows @ rows.T)
            self.values = values[values > least * values[-1]]
            self.vectors = vectors[:, values > least * values[-1]]
        else:
            gram = np.zeros((width, width))
            for block in self._blocks():
                gram += self._rows(block).T @ self._rows(block)
            values, basis = np.linalg.eigh(gram)
            basis = basis[:, values > least * values[-1]]
            self.values = values[values > least * values[-1]]
            self.vectors = array((count, len(self.values)), np.float64, memory=memory)
            for block in self._blocks():
                self.vectors[block] = self._rows(block) @ basis / np.sqrt(self.values)
        self.along = sum(
            self.vectors[rows].T @ (self.root[rows] * (wanted[rows] - self.mean_wanted))
            for rows in self._blocks()
        )

    def best_penalty(self) -> float:
        """The penalty of the least leave-one-out error."""
        if not len(self.values):
            return 1.0  # constant features: any penalty gives the mean

        def error(exponent: float) -> float:
            errors = (self.left_out(10.0**exponent) - self.wanted) ** 2
            return float(self.share @ errors.sum(axis=1))

        low, high = np.log10(_LEAST * self.values[-1]), np.log10(_MOST * self.values[-1])
        grid = np.linspace(low, high, 12)
        best = int(np.argmin([error(exponent) for exponent in grid]))
        bounds = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
        found = minimize_scalar(error, bounds=bounds, method="bounded", options={"xatol": 0.05})
        return float(10.0**found.x)

    def left_out(self, penalty: float) -> np.ndarray:
        """(n, outputs) what the solution without a sample says of it."""
        shrink = self.values / (self.values + penalty)
        said = np.empty_like(self.wanted)
        for rows in self._blocks():
            vectors = self.vectors[rows]
            residual = self.root[rows] * (self.wanted[rows] - self.mean_wanted)
            residual -= vectors @ (shrink[:, None] * self.along)
            free = 1.0 - self.share[rows] - vectors**2 @ shrink
            # a sample that alone decides its own value tells nothing: as if it were not there
            free = np.where(free > np.sqrt(np.finfo(np.float64).eps), free, np.inf)
            root = np.where(self.root[rows] > 0.0, self.root[rows], np.inf)
            said[rows] = self.wanted[rows] - residual / free[:, None] / root
            alone = np.isinf(free)
            said[rows][alone] = self.mean_wanted
        return said

    def weights(self, penalty: float) -> tuple[np.ndarray, np.ndarray]:
        """Kernel (width, outputs) and bias (outputs,)."""
        pull = self.along / (self.values + penalty)[:, None]
        kernel = sum(self._rows(rows).T @ (self.vectors[rows] @ pull) for rows in self._blocks())
        return kernel, self.mean_wanted - self.mean @ kernel

    def _rows(self, rows: slice) -> np.ndarray:
        return self.root[rows] * (self.features[rows] - self.mean)

    def _blocks(self) -> Iterator[slice]:
        for start in range(0, len(self.weight), _ROWS):
            yield slice(start, min(start + _ROWS, len(self.weight)))
