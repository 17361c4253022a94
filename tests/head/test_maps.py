"""Outputs at each position of maps or sequences: the head that is solved, and `finetune`."""

import numpy as np
import pytest
import tensorflow as tf
from networks import L

import elastic_tf as et
from elastic_tf.lite.ridge import Ridge
from elastic_tf.train.head import targets
from elastic_tf.train.head.solve import solve_head
from elastic_tf.train.head.targets import map_axes

SCE = tf.keras.losses.SparseCategoricalCrossentropy


def network(*ends, sizes=(None, None)) -> tf.keras.Model:
    """Two convolutions that keep the size of the images, and these layers."""
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input((*sizes, 2))
    x = L.Conv2D(12, 3, padding="same", activation="relu", name="one")(inputs)
    x = L.Conv2D(8, 3, padding="same", activation="relu", name="two")(x)
    for end in ends:
        x = end(x)
    return tf.keras.Model(inputs, x)


def dense(*shape, loss=None) -> tf.keras.Model:
    model = tf.keras.Sequential([L.Input(shape), L.Dense(3)])
    model.compile("sgd", loss or SCE(True), metrics=["accuracy"] if loss is None else None)
    return model


def pixels(count=40, size=8, seed=0) -> tuple[np.ndarray, np.ndarray]:
    """Noise, and of each pixel which of its channels is larger, or that both are negative."""
    x = np.random.default_rng(seed).normal(size=(count, size, size, 2)).astype(np.float32)
    return x, np.pad(x, [(0, 0)] * 3 + [(0, 1)]).argmax(axis=-1)


@pytest.mark.parametrize("weights", ["none", "samples", "positions"])
@pytest.mark.parametrize("shape", [(4, 4), (3, 2), (1, 1)])
@pytest.mark.parametrize("outputs", ["numbers", "rows", "values"])
def test_a_head_of_maps_is_that_of_all_their_positions(weights, shape, outputs):
    """Sixteen positions at most: here all of them, against the solver itself."""
    rng = np.random.default_rng(len(weights) + shape[1] + len(outputs))
    x = rng.normal(size=(9, *shape, 5)).astype(np.float32)
    number = rng.integers(0, 3, (9, *shape))
    rows = np.eye(3)[number]
    y = {"numbers": number, "rows": rows, "values": rng.normal(size=rows.shape)}[outputs]
    loss = {"numbers": SCE(True), "rows": tf.keras.losses.CategoricalCrossentropy(True)}
    model = dense(*shape, 5, loss=loss.get(outputs, "mse"))
    weight = {"samples": rng.uniform(0.5, 2.0, 9), "positions": rng.uniform(0.5, 2.0, (9, *shape))}
    given, places = weight.get(weights), shape[0] * shape[1]
    found = solve_head(model, x, y, sample_weight=given)
    each = np.ones((9, places)) * (1.0 if given is None else given.reshape(9, -1))
    wanted = (rows if outputs != "values" else y).reshape(-1, 3)
    groups = np.repeat(np.arange(9), places)
    ridge = Ridge(x.reshape(-1, 5).astype(np.float64), wanted, each.reshape(-1), groups=groups)
    expected = ridge.head(targets.LOSSES.get("linear" if outputs == "values" else "softmax"))
    kernel, bias = model.layers[-1].get_weights()
    np.testing.assert_allclose(kernel, expected.kernel, rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose(bias, expected.bias, rtol=2e-3, atol=1e-4)
    assert found.penalty == pytest.approx(expected.penalty, rel=1e-3)
    assert found.samples == 9


def test_positions_of_large_maps_are_drawn_with_their_targets():
    x, y = pixels(size=20)
    x = np.concatenate([x, np.eye(3)[y]], axis=-1)  # the class is among the features
    model = dense(20, 20, 5)
    assert solve_head(model, x, y).accuracy == 1.0
    assert model.evaluate(x, y, verbose=0)[1] == 1.0


def test_views_of_a_sample_are_left_out_with_all_their_positions():
    x, y = pixels(6, 4)
    model = dense(4, 4, 2)
    once = solve_head(model, x, y)
    again = et.Samples(x, y, batch_size=4, augment=lambda image, seed: image, views=3)
    thrice = solve_head(model, again)
    assert thrice.accuracy == pytest.approx(once.accuracy) and thrice.samples == 18


def test_a_head_whose_positions_have_no_targets_is_refused():
    x, _ = pixels()
    model = network(L.Dense(3, name="parts"), L.GlobalAveragePooling2D())
    with pytest.raises(ValueError, match=r"target at each position.*'parts' called on \(8, 8, 8\)"):
        solve_head(model, x, np.zeros(len(x), int))
    with pytest.raises(ValueError, match="one per sample"):
        solve_head(network(L.Dense(3)), *pixels(), sample_weight=np.ones((40, 3)))


@pytest.mark.parametrize(
    ("is_column", "ends"),
    [
        (False, []),
        (True, []),
        (False, [L.Conv2D(3, 1)]),
        (True, [L.Conv2D(3, 3, padding="same", activation="softmax")]),
        (False, [L.Conv2D(7, 1), L.Softmax()]),
        (True, [L.Dense(3)]),
        (False, [L.Dense(3, activation="softmax")]),
    ],
)
def test_classes_of_pixels_are_learned_whatever_the_end(is_column, ends):
    (x, y), (x_held, y_held) = pixels(), pixels(seed=1)
    held = x_held, y_held[..., None] if is_column else y_held
    train = x, y[..., None] if is_column else y
    given = network(*ends, sizes=(8, 8))
    model = et.finetune(given, train, held, seconds=120, epochs=8, learning_rate=3e-3, verbose=0)
    assert model.output_shape == (None, 8, 8, 3)
    common = np.bincount(y_held.reshape(-1)).max() / y_held.size
    assert model.evaluate(*held, verbose=0)[1] > common + 0.2
    is_kept = isinstance(model.layers[-1], L.Dense) and model.layers[-1].name != "new_head"
    assert is_kept == bool(ends and isinstance(ends[0], L.Dense))


@pytest.mark.parametrize("kind", ["labels", "values", "words"])
def test_labels_values_and_sequences_are_learned_too(kind):
    x, y = pixels()
    if kind == "words":
        inputs = L.Input((8, 2))
        given = tf.keras.Model(inputs, L.Conv1D(12, 1, activation="relu", name="one")(inputs))
        x, y = x[:, 0], y[:, 0, :, None]
    else:
        given = network(sizes=(8, 8))
        y = np.stack([y > 0, y > 1], -1).astype(int)
        if kind == "values":
            y = given.predict(x, verbose=0) @ np.array([1.0, -2.0, 3.0, 0.0, 1.0, 0.0, 0.0, 2.0])
    model = et.finetune(given, (x, y), (x, y), seconds=60, epochs=2, verbose=0)
    outputs = {"labels": 2, "values": 1, "words": 3}[kind]
    assert model.output_shape == (*given.output_shape[:-1], outputs)
    found = model.evaluate(x, y, verbose=0, return_dict=True)
    assert found["loss"] < 0.05 * y.var() if kind == "values" else found["accuracy"] > 0.6


def test_targets_of_another_size_are_refused():
    (x, y), given = pixels(), network(sizes=(8, 8))
    with pytest.raises(ValueError, match=r"maps that .* gives, \(8, 8\).*\(4, 8\).*UpSampling2D"):
        et.finetune(given, (x, y[:, ::2]), verbose=0)
    with pytest.raises(ValueError, match="`validation` must be like those of `train`"):
        et.finetune(given, (x, y), (x, y[:, :, :, None]), verbose=0)
    smaller = network(L.Conv2D(3, 3, activation="softmax"), sizes=(8, 8))
    with pytest.raises(ValueError, match="must end in a dense layer of 3 outputs"):
        et.finetune(smaller, (x, y[:, 1:-1, 1:-1]), verbose=0)


def test_weights_of_maps_are_those_of_each_position():
    (x, y), given = pixels(), network(sizes=(8, 8))
    column, weights = y[..., None], {0: 1.0, 1: 9.0, 2: 1.0}
    with pytest.raises(ValueError, match=r"must have a last axis.*\(40, 8, 8\).*y\[..., None\]"):
        et.finetune(given, (x, y), class_weight=weights, verbose=0)
    with pytest.raises(ValueError, match=r"of shape \(40, 8, 8\). Received: \(40,\)"):
        et.finetune(given, (x, y, np.ones(40)), verbose=0)
    options = {"seconds": 60, "epochs": 1, "verbose": 0}
    said = []
    for data, more in [
        ((x, column), {}),
        ((x, column), {"class_weight": weights}),
        ((x, y, np.where(y == 1, 9.0, 1.0)), {}),
    ]:
        found = et.finetune(network(sizes=(8, 8)), data, **options, **more)
        said.append(np.mean(found.predict(x, verbose=0).argmax(axis=-1) == 1))
    assert said[1] > said[0] + 0.1 and said[2] == pytest.approx(said[1], abs=0.02)


def test_axes_are_those_of_maps_with_a_target_at_each_position():
    maps, sequences = network(sizes=(8, 8)), tf.keras.Sequential([L.Input((5, 2)), L.Dense(4)])
    pooled = network(L.GlobalAveragePooling2D())
    shapes = {(9, 8, 8): 2, (9, 8, 8, 3): 2, (9, 8): 0, (9,): 0, (9, 1): 0, (9, 8, 8, 3, 2): 0}
    assert {shape: map_axes(maps, shape) for shape in shapes} == shapes
    assert map_axes(sequences, (9, 5, 1)) == 1 and map_axes(sequences, (9, 5)) == 0
    assert map_axes(pooled, (9, 8, 8)) == 0
