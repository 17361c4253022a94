"""Ridge regression: against solving the same problem anew without each sample."""

import numpy as np
import pytest
from heads import solved

from elastic_tf.lite.ridge import Ridge


def problem(samples, width, outputs=3, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(samples, width))
    wanted = features[:, :outputs] + rng.normal(size=(samples, outputs))
    return features, wanted, rng.uniform(0.5, 2.0, samples)


@pytest.mark.parametrize("samples, width", [(40, 6), (8, 20)])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("each", [1, 2, 4])
def test_weights_and_left_out_predictions_are_those_of_solving_anew(
    samples, width, intercept, each
):
    """The weights solve the normal equations; a group is left out as if it had not been there."""
    features, wanted, weight = problem(samples, width)
    features, wanted = features + 1.0, wanted - 2.0
    groups = np.random.default_rng(each).permutation(samples) // each
    given = {} if each == 1 else {"groups": groups}
    ridge = Ridge(features, wanted, weight, intercept=intercept, **given)
    kernel, bias = ridge.weights(0.7)
    expected_kernel, expected_bias = solved(features, wanted, weight, 0.7, intercept)
    np.testing.assert_allclose(kernel, expected_kernel, atol=1e-8)
    np.testing.assert_allclose(bias, expected_bias, atol=1e-8)
    assert bias.any() == intercept
    found = ridge.left_out(0.7)
    for k in range(samples):
        rest = groups != groups[k]
        kernel, bias = solved(features[rest], wanted[rest], weight[rest], 0.7, intercept)
        np.testing.assert_allclose(found[k], features[k] @ kernel + bias, atol=1e-8)


def test_penalty_has_the_least_left_out_error():
    features, wanted, weight = problem(30, 25)
    one = Ridge(features, wanted, weight)

    def error(penalty):
        return (weight[:, None] * (one.left_out(penalty) - wanted) ** 2).sum()

    best = one.best_penalty()
    assert all(error(best) <= 1.001 * error(best * factor) for factor in (0.3, 0.8, 1.25, 3.0))


@pytest.mark.parametrize("intercept", [True, False])
def test_the_error_of_few_samples_with_many_features_is_exact_for_every_penalty(intercept):
    """Where the features explain every sample: against solving again without each of them."""
    rng = np.random.default_rng(0)
    features, targets = rng.normal(size=(9, 30)), rng.normal(size=(9, 2))
    weight = rng.uniform(0.5, 2.0, 9)
    ridge = Ridge(features, targets, weight, intercept=intercept)
    for penalty in np.logspace(-8.5, 2.0, 8) * ridge.values[-1]:
        left_out = ridge.left_out(penalty)
        for k in range(9):
            others = np.arange(9) != k
            part = features[others], targets[others], weight[others]
            alone = Ridge(*part, intercept=intercept)
            kernel, bias = alone.weights(penalty)
            np.testing.assert_allclose(left_out[k], features[k] @ kernel + bias, rtol=1e-5)
