"""Step times foretold from a forward pass: against the ops of steps that are traced, not run."""

import contextlib
import random

import numpy as np
import pytest
import small_networks
import tensorflow as tf
from networks import L, mask_of, values
from small_networks import elastic

import elastic_tf as et
from elastic_tf.choose.budget import prior
from elastic_tf.graph import needed_by
from elastic_tf.memory.ops import inlined, nodes
from elastic_tf.timing.step import StepFunction
from elastic_tf.train import optimizers
from elastic_tf.train.engine.prefix import NotCacheable
from elastic_tf.train.engine.rows import RowTraining
from elastic_tf.train.samples import Rows

BATCH, MASKS = 4, 2
COUNTED = set("Conv2D Conv2DBackpropInput Conv2DBackpropFilter MatMul BatchMatMulV2 Einsum".split())


class RowStep(StepFunction):
    """A step on `Rows`: what lies before the first trained tensor is computed now.

    Of samples with `memory=0` it is computed in each step.
    """

    def __init__(self, model, mask, samples):
        super().__init__(model, mask)
        self._rows = RowTraining(model, samples)
        with model._elastic.planned(self.plan):
            self._rows.cache(model._trained(self.plan), epochs=2 * samples.views)
        with contextlib.suppress(NotCacheable):  # traced whole when it is called
            rows = Rows(tf.TensorSpec((samples.batch_size,), tf.int64))
            self._function.get_concrete_function(rows)

    def _step(self, data):
        return self._rows.step(super()._step, data, self.model._trained(self.plan))


def branches():
    """A layer that is called twice, a skip, a normalisation in a branch, an upward convolution."""
    inputs = L.Input((6, 6, 2))
    shared = L.Conv2D(3, 3, padding="same", name="shared")
    x = L.Conv2D(3, 1, name="first")(inputs)
    x = L.Add()([x, shared(L.ReLU()(shared(x)))])
    y = L.BatchNormalization(name="norm")(L.Conv2D(2, 3, strides=2, name="down")(x))
    y = L.Conv2DTranspose(2, 4, strides=2, name="up")(y)
    x = L.Concatenate()([L.Flatten()(x), L.Flatten()(y)])
    return tf.keras.Model(inputs, L.Dense(3, name="head")(x))


def nested():
    inner = tf.keras.Sequential([L.Conv2D(3, 3, activation="relu"), L.BatchNormalization()])
    inputs = L.Input((6, 6, 2))
    x = tf.keras.Sequential([inner, L.Conv2D(4, 2, use_bias=False)])(inputs)
    return tf.keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling2D()(x)))


def attention():
    inputs = L.Input((5, 4))
    x = L.Dense(4, "gelu")(inputs)  # of each position
    x = L.LayerNormalization()(L.Add()([x, L.MultiHeadAttention(2, 3)(x, x)]))
    x = L.Dot(axes=(1, 1))([x, x])  # of two results, no weight among them
    return tf.keras.Model(inputs, L.Dense(3)(L.Flatten()(x)))


def dropped():
    inputs = L.Input((6,))
    x = L.Dense(4)(L.Dropout(0.5)(L.Dense(5, "relu")(inputs)))
    return tf.keras.Model(inputs, L.Dense(3)(L.Dense(4)(x)))


def stopped():
    inputs = L.Input((6,))
    x = L.Dense(5)(L.Dense(4)(inputs))
    x = L.Add()([x, L.Dense(5)(L.Lambda(tf.stop_gradient)(x))])
    return tf.keras.Model(inputs, L.Dense(3)(x))


NETWORKS = [branches, nested, attention, dropped, stopped]


def batch_of(model, count=BATCH):
    rng = np.random.default_rng(0)
    shape = (count, *model.input_shape[1:])
    return rng.normal(size=shape).astype(np.float32), rng.integers(0, 3, count)


def masks_of(model, count=MASKS):
    """Each of random share, the first with a single tensor, for which most is kept."""
    rng = np.random.default_rng(1)
    size = len(model.tensors)
    draws = [rng.random(size) < rng.uniform(0.1, 0.9) for _ in range(count)]
    return [np.arange(size) == size - 2, *(draw | (draw.sum() == 0) for draw in draws)]


def contractions(model, mask, data, samples=None):
    """Operations of the convolutions and matrix products that a training step executes."""
    step = StepFunction(model, mask) if samples is None else RowStep(model, mask, samples)
    graph = step.graph(data)
    works, results = inlined(graph)
    ends = [name for name, _ in results] + [op.name for op in graph.control_outputs]
    needed = needed_by(nodes(works), ends, follow_controls=True)
    return sum(works[name].flops for name in needed if works[name].type in COUNTED)


@pytest.fixture
def of_contractions(monkeypatch):
    """Only their operations take time."""
    for name in ("_OF_DEPTHWISE", "_BYTE", "_OP", "_BYTE_OF_WEIGHTS"):
        monkeypatch.setattr(prior, name, 0.0)
    monkeypatch.setattr(prior, "_OPERATION", 1.0)


@pytest.mark.parametrize("build", NETWORKS)
def test_contractions_are_those_of_the_traced_step(of_contractions, build):
    """Whatever is trained. Normalisations that are folded into kernels change no count."""
    model = elastic(build)
    x, y = batch_of(model)
    profile = prior.prior_profile(model, x)
    forward = contractions(model, np.zeros(profile.count, bool), (x, y))
    for mask in masks_of(model):
        found = profile.step_time(mask) * forward / profile.t_forward
        assert found == pytest.approx(contractions(model, mask, (x, y)), rel=1e-9)


@pytest.mark.parametrize("build", [branches, attention])
def test_contractions_before_what_is_trained_are_spared_as_in_steps_on_samples(
    of_contractions, build
):
    model = elastic(build)
    samples = et.Samples(*batch_of(model, 2 * BATCH), batch_size=BATCH)
    x, y = batch_of(model)
    profile = prior.prior_profile(model, x)
    forward = contractions(model, np.zeros(profile.count, bool), (x, y))
    cached, rows = profile.with_cached_prefix(), Rows(tf.range(BATCH, dtype=tf.int64))
    for mask in masks_of(model, 1):
        found = cached.step_time(mask) * forward / profile.t_forward
        wanted = contractions(model, mask, rows, samples)
        assert found == pytest.approx(wanted, rel=1e-9, abs=1e-6)


def test_bytes_ops_and_updates_take_what_their_speeds_say(monkeypatch):
    """Two dense layers of 6 x 5 and 5 x 3 numbers, no bias, on 4 samples; all float32."""
    layers = [L.Input((6,)), L.Dense(5, use_bias=False), L.Dense(3, use_bias=False)]
    model = elastic(lambda: tf.keras.Sequential(layers))
    moved = (24 + 30 + 20) * 4, (20 + 15 + 12) * 4  # bytes taken and given
    speeds = {"_OPERATION": 0.0, "_OF_DEPTHWISE": 0.0}
    for name, first, second, updates in (
        ("_BYTE", moved[0], moved[1], (0, 0)),
        ("_OP", 1, 1, (0, 0)),
        ("_BYTE_OF_WEIGHTS", 0, 0, (120, 60)),
    ):
        own = {key: float(key == name) for key in ("_BYTE", "_OP", "_BYTE_OF_WEIGHTS")}
        if name == "_BYTE_OF_WEIGHTS":
            own["_OP"] = 1e-9  # some time of forward work, to measure by
        for key, value in {**speeds, **own}.items():
            monkeypatch.setattr(prior, key, value)
        profile = prior.prior_profile(model, np.zeros((4, 6), np.float32))
        whole = first + second or 2e-9
        scale = profile.t_forward / whole
        assert scale * whole == pytest.approx(profile.step_time(np.array([False, False])))
        for mask, wanted in (
            ([True, False], first + second + updates[0]),
            ([False, True], second + updates[1]),
            ([True, True], first + 2 * second + sum(updates)),
        ):
            found = profile.step_time(np.array(mask)) / scale - whole
            assert found == pytest.approx(wanted, rel=1e-6)


def test_a_depthwise_kernel_alone_takes_its_own_speed(monkeypatch):
    inputs = L.Input((6, 6, 2))
    x = L.Conv2D(2, 1, use_bias=False, name="a")(inputs)
    x = L.DepthwiseConv2D(3, use_bias=False, name="b")(x)
    x = L.Dense(3, name="c")(L.Flatten()(x))
    model = elastic(lambda: tf.keras.Model(inputs, x))
    for name, speed in {"_OF_DEPTHWISE": 1.0, "_OPERATION": 1e-9}.items():
        monkeypatch.setattr(prior, name, speed)
    for name in ("_BYTE", "_OP", "_BYTE_OF_WEIGHTS"):
        monkeypatch.setattr(prior, name, 0.0)
    profile = prior.prior_profile(model, np.zeros((4, 6, 6, 2), np.float32))
    operations = 2 * 4 * 4 * 4 * 2 * 9
    # 4 x 6 x 6 results of 2 products, 2 channels; 4 samples of 32 numbers meet 3 classes
    scale = profile.t_forward / (1e-9 * (2 * 4 * 36 * 2 * 2 + 2 * 4 * 32 * 3))
    paid = [(profile.step_time(mask_of(model, name)) - profile.t_forward) / scale for name in "abc"]
    assert paid == pytest.approx([0.0, operations, 0.0], abs=1e-4)


def subclassed():
    return small_networks.subclassed(), np.ones((BATCH, 8), np.float32)


def recurrent():
    layers = [L.Input((5, 3)), L.LSTM(4), L.Dense(3)]
    return tf.keras.Sequential(layers), np.ones((BATCH, 5, 3), np.float32)


def of_words():
    layers = [L.Input((5,), dtype=tf.int32), L.Embedding(9, 4), L.Flatten(), L.Dense(3)]
    return tf.keras.Sequential(layers), np.ones((BATCH, 5), np.int32)


def of_two():
    inputs = {"a": L.Input((4,), name="a"), "b": L.Input((6, 6, 2), name="b")}
    x = L.Concatenate()([L.Dense(3)(inputs["a"]), L.Flatten()(L.Conv2D(2, 3)(inputs["b"]))])
    batch = {"a": np.ones((BATCH, 4), np.float32), "b": np.ones((BATCH, 6, 6, 2), np.float32)}
    return tf.keras.Model(inputs, L.Dense(3)(x)), batch


def drawing():
    """Dropout, noise and augmentation by generators of their own, and moving statistics."""
    inputs = L.Input((6, 6, 2))
    x = L.GaussianNoise(1.0)(L.RandomFlip(seed=3)(inputs))
    x = L.Dropout(0.5)(L.BatchNormalization()(L.Conv2D(3, 3)(x)))
    model = tf.keras.Model(inputs, L.Dense(3)(L.Flatten()(x)))
    return model, np.random.default_rng(0).normal(size=(BATCH, 6, 6, 2)).astype(np.float32)


@pytest.mark.parametrize("build", [subclassed, recurrent, of_words, of_two, drawing])
def test_any_model_has_a_valid_profile_and_is_left_as_it_was(build):
    (network, x), y = build(), np.arange(BATCH) % 3
    model = elastic(lambda: network)
    model.fit(x, y, batch_size=BATCH, verbose=0)  # slots, counts, seeds

    def state():
        seeds = [
            getattr(getattr(layer, "_random_generator", None), "_seed", None)
            for layer in model._flatten_layers()
        ]
        everything = [*model.variables, *optimizers.state(model.optimizer)]
        held = values(everything + [metric for m in model.metrics for metric in m.variables])
        return held, seeds, random.getstate(), [*map(str, np.random.get_state())]

    tf.random.set_seed(5)
    before, drawn = state(), tf.random.uniform((3,)).numpy()
    tf.random.set_seed(5)
    profile = prior.prior_profile(model, x)
    np.testing.assert_array_equal(tf.random.uniform((3,)), drawn)
    assert state() == before

    assert (profile.method, profile.batch_size) == ("prior", BATCH)
    profile.check(model, batch_size=BATCH)
    trained = {k for item in profile.items for k in item.tensors}
    assert trained == set(range(len(model.tensors)))
    cached, nothing = profile.with_cached_prefix(), np.zeros(profile.count, bool)
    assert 0.0 <= cached.t_forward <= profile.t_forward
    for mask in masks_of(model):
        assert cached.step_time(mask) <= profile.step_time(mask) * (1.0 + 1e-9)
        assert profile.step_time(nothing) < profile.step_time(mask) <= profile.t_full * (1 + 1e-9)


@pytest.mark.parametrize("place", [0, 1])
def test_what_lies_behind_a_random_op_runs_in_each_step(place):
    layers = [L.Dense(5), L.Dense(4)]
    layers.insert(place, L.Dropout(0.5))
    model = elastic(lambda: tf.keras.Sequential([L.Input((6,)), *layers, L.Dense(3)]))
    profile = prior.prior_profile(model, np.ones((BATCH, 6), np.float32))
    spared = {k for item in profile.prefix for k in item.tensors}
    assert spared == ({0, 1} if place else set())  # of the first layer
