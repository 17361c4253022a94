"""Whether a head is the ridge regression that it is said to be, by solving it again n times."""

from __future__ import annotations

import numpy as np
from fuzzing.case import Case, Solved

NEAR = 1e-2  # of what is predicted
WORSE = 1.2  # than another penalty; there may be several valleys


def check_solution(
    case: Case, solved: Solved, features: np.ndarray, targets: np.ndarray, weight: np.ndarray
) -> None:
    """Compare a head with a ridge regression of the same penalty, without each sample in turn.

    Raises:
        AssertionError: weights, accuracy or error are not of this data.
    """
    solution, wanted = solved.solution, np.asarray(targets, np.float64)
    if case.loss == "sparse":
        wanted = np.eye(3)[targets]
    features = features.astype(np.float64)
    assert solution.samples == len(features), (
        f"the head was solved on {solution.samples} rows, there are {len(features)}"
    )
    features = _told(features, weight, case.bias)
    kernel, bias = _ridge(features, wanted, weight, solution.penalty, case.bias)
    theirs = solution.scale * (features @ kernel + bias)
    ours = features @ solved.weights[0] + (solved.weights[1] if case.bias else 0.0)
    off = np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-3)
    assert off < NEAR, f"the head predicts {off:.2g} off the ridge of its penalty"

    samples = np.arange(len(wanted)) % (len(wanted) // case.views)

    def without_each(penalty: float) -> np.ndarray:
        said = np.empty_like(wanted)
        for k in range(len(wanted)):
            others = samples != samples[k]
            part = features[others], wanted[others], weight[others]
            kernel, bias = _ridge(*part, penalty, case.bias)
            said[k] = features[k] @ kernel + bias
        return said

    def error_of(said: np.ndarray) -> float:
        return float(np.average(((said - wanted) ** 2).mean(axis=1), weights=weight))

    left_out = without_each(solution.penalty)
    error = error_of(left_out)
    assert abs(error - solution.error) < NEAR * error, (
        f"the leave-one-out error is {error:.4g}, the solution says {solution.error:.4g}"
    )
    for factor in (1e-2, 1e2, 1e4):
        other = error_of(without_each(factor * solution.penalty))
        assert error < WORSE * other, (
            f"the leave-one-out error is {error:.4g}, with {factor:g} times the penalty {other:.4g}"
        )
    if case.loss != "mse":
        right = left_out.argmax(axis=1) == wanted.argmax(axis=1)
        accuracy = np.average(right, weights=weight)
        assert abs(accuracy - solution.accuracy) < 1e-6 + 1.5 * _least_gap(left_out, weight), (
            f"the leave-one-out accuracy is {accuracy:.4g}, it says {solution.accuracy:.4g}"
        )


def _least_gap(left_out: np.ndarray, weight: np.ndarray) -> float:
    """Share of the samples whose class rounding decides."""
    first, second = np.sort(left_out, axis=1)[:, -1], np.sort(left_out, axis=1)[:, -2]
    return float(np.average(first - second < 1e-3, weights=weight))


def _told(features: np.ndarray, weight: np.ndarray, bias: bool) -> np.ndarray:
    """Features without the directions that are rounding."""
    mean = np.average(features, axis=0, weights=weight) if bias else 0.0
    root = np.sqrt(weight)[:, None]
    _, values, rows = np.linalg.svd(root * (features - mean), full_matrices=False)
    least = np.sqrt(max(features.shape) * np.finfo(np.float32).eps) * values[0]
    rows = rows[values > least]
    return mean + (features - mean) @ rows.T @ rows


def _ridge(
    features: np.ndarray, wanted: np.ndarray, weight: np.ndarray, penalty: float, bias: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Kernel and intercept; normal equations."""
    mean = np.average(features, axis=0, weights=weight) if bias else np.zeros(features.shape[1])
    middle = np.average(wanted, axis=0, weights=weight) if bias else np.zeros(wanted.shape[1])
    x, y = features - mean, wanted - middle
    gram = (weight[:, None] * x).T @ x + penalty * np.eye(x.shape[1])
    kernel = np.linalg.solve(gram, (weight[:, None] * x).T @ y)
    return kernel, middle - mean @ kernel
