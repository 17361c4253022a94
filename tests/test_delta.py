"""Delta files: what differs comes back, whatever else is in the file is refused."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf
from networks import L, crossentropy, fit, network, values
from safetensors import safe_open

import elastic_tf as et

TRAINED = np.arange(10) >= 5  # from conv2's bias on


@pytest.fixture(scope="module")
def trained():
    """A model of which the last tensors were trained."""
    model = et.ElasticModel.from_model(network())
    model.compile("adam", crossentropy())
    model.set_mask(TRAINED)
    fit(model)
    return model


def stored(path):
    """The header's part that names tensors, and the tensors by their keys."""
    with safe_open(path, framework="np") as file:
        (text,) = file.metadata().values()
        return json.loads(text), {key: file.get_tensor(key) for key in file.keys()}


def test_what_was_trained_comes_back_bit_for_bit_and_nothing_else_is_stored(trained, tmp_path):
    path = tmp_path / "new" / "a.safetensors"
    et.save_delta(trained, network(), path)
    other = network()
    et.load_delta(other, path)
    assert values(other.weights) == values(trained.weights)
    names = set(stored(path)[0]["names"].values())
    head = {"head/kernel:0", "head/bias:0"}
    statistics = {"bn2/moving_mean:0", "bn2/moving_variance:0"}
    assert names == {"conv2/bias:0", "bn2/gamma:0", "bn2/beta:0"} | head | statistics
    assert os.listdir(path.parent) == [path.name]


def embedding(vocabulary=50):
    tf.keras.utils.set_random_seed(0)
    return tf.keras.Sequential([L.Input((2,)), L.Embedding(vocabulary, 4), L.Dense(6)])


def test_only_changed_channels_and_rows_are_stored(tmp_path):
    model = embedding()
    table, kernel, bias = model.get_weights()
    table[[3, 7]] += 1.0
    kernel[:, 2] = np.nan
    bias[1] = -0.0  # the same number as 0.0, but other bits
    model.set_weights([table, kernel, bias])
    et.save_delta(model, embedding().get_weights(), tmp_path / "a")
    tensors = stored(tmp_path / "a")[1]
    assert {name: part.shape for name, part in tensors.items() if "values" in name} == {
        "0.values": (2, 4),
        "1.values": (4, 1),
        "2.values": (1,),
    }
    assert tensors["0.slices"].tolist() == [3, 7] and tensors["1.slices"].tolist() == [2]
    other = embedding()
    et.load_delta(other, tmp_path / "a")
    assert values(other.weights) == values(model.weights)


@pytest.mark.parametrize(("dtype", "error"), [("float16", 2.0**-11), ("int8", 0.5 / 127)])
def test_shorter_types_keep_differences_within_half_a_unit_of_their_channel(tmp_path, dtype, error):
    rng = np.random.default_rng(0)
    model, base = network(), network()
    for layer, sizes in (("conv1", [1.0, 1e-3, 1e-6]), ("conv2", [1e-3, 1.0, 1e-6, 1e-3])):
        kernel = model.get_layer(layer).kernel
        kernel.assign_add(rng.normal(0.0, 0.1, kernel.shape) * sizes)
    et.save_delta(model, base, tmp_path / "a", dtype)
    other = network()
    et.load_delta(other, tmp_path / "a")
    for layer in ("conv1", "conv2"):
        got, new, old = (one.get_layer(layer).kernel.numpy() for one in (other, model, base))
        largest = np.abs(new - old).max(axis=(0, 1, 2))
        rounding = np.abs(new).max() * 2.0**-23
        assert (np.abs(got - new) <= 1.01 * error * largest + rounding).all()
        assert (got != old).any(axis=(0, 1, 2)).all()
    tensors = stored(tmp_path / "a")[1]
    assert tensors["0.values"].dtype == dtype and tensors["0.scales"].shape == (1, 1, 1, 3)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_new_head_comes_onto_any_head(tmp_path, dtype):
    """One of the base's classes, and one of others, which is stored whole."""
    path, same = tmp_path / "a", network()
    larger = tf.keras.Model(same.input, L.Dense(5)(same.get_layer("flat").output))
    model, other = network(), network()
    model.get_layer("head").set_weights([np.full((16, 3), 0.01), np.full(3, 0.02)])
    other.get_layer("head").set_weights([np.full((16, 3), 7.0), np.full(3, 14.0)])
    for one, onto, head in ((model, other, "head"), (larger, larger, larger.layers[-1].name)):
        et.save_delta(one, network(), path, dtype)
        new = one.get_layer(head).kernel.numpy()
        onto.get_layer(head).kernel.assign(7.0 + 0.0 * new)
        et.load_delta(onto, path)
        np.testing.assert_allclose(
            onto.get_layer(head).kernel, new, atol=0.0 if dtype == "float32" else 0.01
        )
        assert len(stored(path)[0]["names"]) == 2


def test_another_base_is_refused_and_nothing_changes(trained, tmp_path):
    et.save_delta(trained, network(), tmp_path / "a")
    other = network()
    other.get_layer("conv1").kernel.assign_add(1e-6 * tf.ones((3, 3, 2, 3)))
    before = values(other.weights)
    with pytest.raises(ValueError, match=r"weight 0, 'conv1/kernel:0' of shape \(3, 3, 2, 3\)"):
        et.load_delta(other, tmp_path / "a")
    assert values(other.weights) == before
    longer = tf.keras.Sequential([network(), L.Dense(2)])
    with pytest.raises(ValueError, match="16 weights instead of 14"):
        et.load_delta(longer, tmp_path / "a")


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_damaged_file_is_refused_and_nothing_changes(trained, tmp_path, dtype):
    path = tmp_path / "a"
    et.save_delta(trained, network(), path, dtype)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    model = network()
    before = values(model.weights)
    names = whole.index(b"names"), whole.index(b"axes")
    for _ in range(50):
        data = bytearray(whole)
        at = int(rng.integers(len(data)))
        if names[0] <= at < names[1]:
            continue  # what is there for readers
        data[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        with pytest.raises(ValueError, match="Received: '"):
            et.load_delta(model, path)
    for length in (0, 7, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=f"whole file of save_delta. Received: '{path}'"):
            et.load_delta(model, path)
    assert values(model.weights) == before


def test_what_is_no_base_is_refused(tmp_path):
    model = network()
    path = tmp_path / "a"
    with pytest.raises(ValueError, match=r"shares 14 with `model`.*model.get_weights\(\)"):
        et.save_delta(et.ElasticModel.from_model(model), model, path)
    with pytest.raises(ValueError, match=r"Received: 3 arrays, the first of shape \(50, 4\)"):
        et.save_delta(model, embedding(), path)
    with pytest.raises(TypeError, match="base=7"):
        et.save_delta(model, 7, path)
    with pytest.raises(ValueError, match="dtype='int4'"):
        et.save_delta(model, network(), path, "int4")
    with pytest.raises(TypeError, match="`model` must be a Keras model. Received: 7"):
        et.load_delta(7, path)
    assert not path.exists()
    with pytest.raises(FileNotFoundError, match="a"):
        et.load_delta(model, path)


def test_half_precision_numbers_counts_and_vocabularies_are_no_obstacle(tmp_path):
    class Counting(L.Layer):
        def build(self, _):
            self.count = self.add_weight(name="count", dtype="int64", trainable=False)

        def call(self, inputs):
            return inputs

    def made(total):
        words = L.TextVectorization(vocabulary=["a", "b"])
        inputs = L.Input((1,), dtype=tf.string)
        x = L.Embedding(5, 3, dtype="bfloat16")(words(inputs))
        counting = Counting()
        model = tf.keras.Model(inputs, counting(x))
        counting.count.assign(total)
        return model

    model = made(7)
    base = made(0)
    model.layers[2].embeddings.assign(base.layers[2].embeddings + 1)
    et.save_delta(model, base, tmp_path / "a", "int8")
    et.load_delta(base, tmp_path / "a")
    assert base.layers[-1].count.numpy() == 7
    assert values([base.layers[2].embeddings]) == values([model.layers[2].embeddings])
