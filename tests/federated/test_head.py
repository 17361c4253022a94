"""The head solved from sums of many devices is that of all samples in one place."""

import numpy as np
import pytest

from elastic_tf.lite.ridge import Ridge

pytest.importorskip("flwr", reason='needs pip install "elastic_tf[fleet]"')

from fleets import DEVICES, fleet, network, pictures
from flwr.app import Array, ArrayRecord, ConfigRecord

from elastic_tf import federated
from elastic_tf.federated.solved import Heads, Sums, noised
from elastic_tf.train.head.solve import solve_head


def problem(samples, seed=0, width=6, outputs=3):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(samples, width)) + 1.0
    wanted = features[:, :outputs] + rng.normal(size=(samples, outputs)) - 2.0
    return features, wanted, rng.uniform(0.5, 2.0, samples)


@pytest.mark.parametrize("samples, width", [(40, 6), (8, 20)])
@pytest.mark.parametrize("intercept", [True, False])
def test_sums_of_parts_give_the_solution_of_all_samples(samples, width, intercept):
    features, wanted, weight = problem(samples, width=width)
    parts = [slice(0, 3), slice(3, samples // 2), slice(samples // 2, samples)]
    sums = [Sums.of(features[one], wanted[one], weight[one]) for one in parts]
    kernel, bias = Heads(sums[0].plus(sums[1]).plus(sums[2]), intercept=intercept).weights(0.7)
    expected = Ridge(features, wanted, weight, intercept=intercept).weights(0.7)
    np.testing.assert_allclose(kernel, expected[0], atol=1e-8)
    np.testing.assert_allclose(bias, expected[1], atol=1e-8)


def test_the_error_on_held_out_samples_follows_from_their_sums():
    features, wanted, weight = problem(20)
    kernel, bias = np.random.default_rng(1).normal(size=(6, 3)), np.array([1.0, 0.0, -2.0])
    errors = ((features @ kernel + bias - wanted) ** 2).sum(axis=1)
    found = Sums.of(features, wanted, weight).error(kernel, bias)
    assert found == pytest.approx(weight @ errors)


def test_the_penalty_is_the_best_one_on_held_out_samples():
    train, held = (problem(12, seed=k, width=10) for k in (1, 2))
    heads = Heads(Sums.of(*train))
    left = Sums.of(*held)
    errors = {p: left.error(*heads.weights(p)) for p in heads.penalties}
    assert heads.best_penalty(left) == min(errors, key=errors.get)


def of_all_devices():
    return map(np.concatenate, zip(*(pictures(k) for k in range(1, DEVICES + 1))))


def solved(
    model=None, altered=lambda node, answer: answer, grid=None, config=None, scale=None, **options
):
    """By the devices of a grid, of which some answer otherwise."""
    model = network() if model is None else model
    grid, arrays = grid or fleet(model, altered), ArrayRecord(model.get_weights())
    strategy = federated.FedElastic()
    strategy.scale = scale
    found = federated.solve_head(strategy, grid, arrays, config, **options)
    # what it is kept for: the head that is solved again after a training
    assert strategy.scale == (scale if found.scale == 1.0 else found.scale)
    return found


def test_the_head_of_all_devices_is_the_central_one():
    model = network()
    found = solved(penalty=0.3)
    x, y = of_all_devices()
    kernel, bias = found.arrays.to_numpy_ndarrays()[-2:]
    hidden = model.get_layer("second")(model.get_layer("first")(x)).numpy()
    expected = Ridge(hidden, np.eye(3)[y], np.ones(len(y))).weights(0.3)
    np.testing.assert_allclose(kernel / found.scale, expected[0], atol=1e-6)
    np.testing.assert_allclose(bias / found.scale, expected[1], atol=1e-6)
    assert found.samples == len(y) and found.clients == DEVICES


def test_penalty_and_scale_are_near_those_of_leave_one_out():
    model, found = network(), solved()
    x, y = of_all_devices()
    before = model.get_weights()
    central = solve_head(model, x, y)
    model.set_weights(before)
    assert found.scale == pytest.approx(central.scale, rel=1.0)
    assert found.error == pytest.approx(central.error, rel=0.5)


def test_the_first_round_sends_devices_nothing_that_they_have():
    grid = fleet(network())
    solved(grid=grid, config=ConfigRecord({"down": "float16"}))
    assert max(down for _, down in grid.down[:DEVICES]) < 200


def test_a_scale_that_is_given_asks_devices_nothing_more():
    grid = fleet(network())
    one, other = (solved(grid=grid, penalty=0.3, scale=scale) for scale in (3.0, 1.0))
    assert (one.scale, other.scale, len(grid.down)) == (3.0, 1.0, 2 * DEVICES)
    for scaled, plain in zip(*(found.arrays.to_numpy_ndarrays()[-2:] for found in (one, other))):
        np.testing.assert_allclose(scaled, 3.0 * plain, atol=1e-5)


def test_a_head_of_values_is_not_scaled():
    assert solved(network("mse", units=1)).scale == 1.0


def test_noise_is_as_large_as_it_says_and_symmetric():
    features, wanted, weight = problem(30)
    sums = Sums.of(features, wanted, weight)
    one_hot = np.eye(3)[np.zeros(30, int)]
    noise = np.stack([noised(sums, 0.5, 2.0, one_hot).gram - sums.gram for _ in range(200)])
    np.testing.assert_allclose(noise, noise.swapaxes(1, 2), atol=1e-9)
    assert noise.std() == pytest.approx(0.5 * 3.0 * 2.0**2, rel=0.05)
    with pytest.raises(ValueError, match=r"Received: 0\.0"):
        noised(sums, 0.5, 0.0, one_hot)


def test_noise_is_added_before_anything_leaves_the_device():
    exact, noisy = solved(penalty=1.0), solved(config=ConfigRecord({"noise": 0.1, "clip": 3.0}))
    assert np.abs(exact.arrays["4"].numpy() - noisy.arrays["4"].numpy()).max() > 1e-3


WRONG = {
    "train.gram": lambda content: content["arrays"].pop("train.gram"),
    "not finite": lambda content: content["arrays"].update(NAN),
    "instead of (8,)": lambda content: content["config"].update({"kernel": 0}),
    "their head is": lambda content: content["config"].update({"kind": "linear"}),
}
NAN = {"held.cross": Array(np.full((12, 3), np.nan))}


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_answer_is_left_out_and_the_log_says_why(said, caplog):
    def altered(node, answer):
        if node == 1 and "train.gram" in answer.content["arrays"]:
            WRONG[said](answer.content)
        return answer

    assert solved(altered=altered).clients == DEVICES - 1
    assert "Left out node" in caplog.text and said in caplog.text


def test_without_an_answer_the_error_says_so():
    with pytest.raises(ValueError, match="Received: no good answer"):
        solved(altered=lambda node, answer: None)
