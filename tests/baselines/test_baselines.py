"""Every method through the same checks."""

import functools
import sys
from types import SimpleNamespace

import numpy as np
import pages
import pytest
import related
import tensorflow as tf
from networks import L, crossentropy, values

from elastic_tf import stack
from elastic_tf.app import zoo
from elastic_tf.choose.selection import select_tensors
from elastic_tf.methods import baselines
from elastic_tf.model import ElasticModel
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.train import optimizers

CLASSES = 3
RHO = 0.6
# reproductions, apart from the package
RELATED = [
    pytest.param(f"related:{method.name}", marks=pytest.mark.hours) for method in related.METHODS
]
NAMES = [*baselines.NAMES, *RELATED]
CHOSEN_ONCE = ("traditional_tl", "bn_bias", "elastic", "offline_optimal", "random")
NEEDS_PROFILE = [name for name in baselines.NAMES if baselines.get(name).needs_profile]


def network() -> tf.keras.Model:
    """A stem, a residual block, a depthwise-separable one, and a head, as in the zoo."""
    tf.keras.utils.set_random_seed(0)

    def normalised(x, name):
        return L.BatchNormalization(name=f"{name}_bn")(x)

    inputs = L.Input((8, 8, 2), name="image")
    x = normalised(L.Conv2D(4, 3, padding="same", use_bias=False, name="stem")(inputs), "stem")
    x = start = L.ReLU(6.0, name="stem_relu")(x)
    x = normalised(L.Conv2D(4, 3, padding="same", name="inner")(x), "inner")
    x = L.ReLU(name="block_relu")(L.Add(name="add")([start, x]))
    x = L.DepthwiseConv2D(3, 2, padding="same", use_bias=False, name="depthwise")(x)
    x = L.ReLU(6.0, name="depthwise_relu")(normalised(x, "depthwise"))
    x = normalised(L.Conv2D(6, 1, use_bias=False, name="pointwise")(x), "pointwise")
    x = L.GlobalAveragePooling2D(name="pool")(L.ReLU(6.0, name="pointwise_relu")(x))
    model = tf.keras.Model(inputs, L.Dense(CLASSES, name="head")(x))
    rng = np.random.default_rng(1)
    for layer in model.layers:  # statistics as after pre-training
        if isinstance(layer, L.BatchNormalization):
            layer.set_weights([rng.uniform(0.5, 1.5, w.shape) for w in layer.get_weights()])
    return stack.on_stored_statistics(model)


def arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(1, 1, (16, 8, 8, 2)).astype(np.float32), rng.integers(0, CLASSES, 16)


def data() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays()).batch(4)


def prepared(name: str) -> tuple[baselines.Method, ElasticModel]:
    """The method, and the compiled model it trains."""
    method = baselines.get(name)
    model = ElasticModel.from_model(method.adapt(network()))
    model.compile(tf.keras.optimizers.SGD(0.1, momentum=0.9), crossentropy(), metrics=["accuracy"])
    return method, model


def table(model: ElasticModel) -> TimingProfile:
    ones = np.ones(len(model.tensors))
    return TimingProfile.from_chain(t_dw=ones, t_dy=ones, t_forward=10.0)


def task(method: baselines.Method, model: ElasticModel) -> baselines.Task:
    profile = table(model) if method.needs_profile else None
    return baselines.Task(model, profile, rho=RHO, interval=1, probe=data(), probe_size=8)


class Masks(tf.keras.callbacks.Callback):
    """Notes the mask of each step."""

    def on_train_begin(self, logs=None):
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(self.model.mask)


def fit(method: baselines.Method, model: ElasticModel, epochs: int) -> list[np.ndarray]:
    """Short epochs; returns the mask of each step."""
    masks = Masks()
    tf.keras.utils.set_random_seed(7)
    chooser = method.callbacks(task(method, model))
    callbacks = [*chooser, masks]
    history = model.fit(data().take(2), epochs=epochs, verbose=0, callbacks=callbacks).history
    assert np.isfinite(history["loss"]).all()
    return masks.seen


def slots(model: ElasticModel) -> list[bytes]:
    """The momentum of each tensor."""
    optimizer = model.optimizer
    order = [stack.index_of(optimizer, tensor) for tensor in model.tensors]
    return values([optimizer.momentums[index] for index in order])


@functools.cache
def outcome(name: str) -> SimpleNamespace:
    """What one `fit` has done, for several tests to look at."""
    method, model = prepared(name)
    optimizers.build(model.optimizer, model.trainable_variables)
    mask = np.arange(len(model.tensors)) > 2
    model.set_mask(mask)
    tensors = model.tensors
    before = values(tensors), slots(model)
    masks = fit(method, model, epochs=2 if name in CHOSEN_ONCE else 1)
    # in so few steps no method puts another model in the place of this one
    assert [id(tensor) for tensor in model.tensors] == [id(tensor) for tensor in tensors]
    np.testing.assert_array_equal(model.mask, mask)
    return SimpleNamespace(before=before, after=(values(tensors), slots(model)), masks=masks)


@pytest.mark.parametrize("name", RELATED)
def test_adapting_changes_no_output_and_leaves_the_given_model_usable(name):
    model, (x, _) = network(), arrays()
    before, weights = model(x).numpy(), values(model.weights)
    adapted = baselines.get(name).adapt(model)
    np.testing.assert_allclose(adapted(x), before, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(adapted(x, training=True), before, rtol=1e-5, atol=1e-6)
    assert values(model.weights) == weights
    np.testing.assert_array_equal(model(x), before)
    assert model.layers[-1].output.shape == (None, CLASSES)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_never_in_the_mask_keeps_every_bit_and_the_mask_is_put_back(name):
    run = outcome(name)
    frozen = ~np.any(run.masks, axis=0)
    for before, after in zip(run.before, run.after):
        kept = np.array([one == other for one, other in zip(before, after)])
        assert kept[frozen].all()
        assert not kept[-2:].any()  # the head


@pytest.mark.parametrize("name", NEEDS_PROFILE)
def test_the_predicted_step_time_keeps_rho(name):
    _, model = prepared(name)
    profile, masks = table(model), outcome(name).masks
    assert profile.step_time(masks[0]) <= RHO * profile.t_full
    assert masks[0][zoo.head_tensors(model)].all()


def test_fixed_choices_stay():
    changes = {name: len({mask.tobytes() for mask in outcome(name).masks}) for name in CHOSEN_ONCE}
    assert set(changes.values()) == {1}


def test_random_choice_fills_the_budget_by_no_preference_for_what_is_cheap():
    count, rho = 12, 0.5
    costs = np.where(np.arange(count) % 2, 1.0, 4.0)
    profile = TimingProfile.from_chain(t_dw=costs, t_dy=np.zeros(count), t_forward=10.0)
    required, model = np.arange(count) >= 10, SimpleNamespace(tensors=range(count))
    one, other = (baselines.at_random(SimpleNamespace(seed=3)) for _ in range(2))
    drawn = []
    for _ in range(100):
        worth = one(model)
        np.testing.assert_array_equal(worth, other(model))
        chosen = select_tensors(worth, profile, rho, required=required, strategy="order")
        drawn.append(chosen.mask)
        assert chosen.time <= rho * profile.t_full
        left = np.flatnonzero(~chosen.mask)
        assert all(chosen.time + costs[k] > rho * profile.t_full for k in left)
    # 5 of 20 to give: a dear one and a cheap one, or the five cheap ones; were it the most
    # tensors, no dear one would ever be drawn
    assert 0.1 < np.array(drawn)[:, :10:2].mean() < 0.3


def test_unknown_methods_are_answered_by_the_known_ones():
    with pytest.raises(ValueError, match=r"full, traditional_tl, .*elastic.*Received: name='lora'"):
        baselines.get("lora")


def test_methods_of_a_file_are_found_as_they_stand_in_the_guide(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    (text,) = [
        text
        for text in pages.blocks(pages.DOCS / "guides" / "compare.md", "python")
        if "METHODS = " in text
    ]
    (tmp_path / "own_methods.py").write_text(text)
    name = f"{tmp_path / 'own_methods.py'}:size"
    method, model = prepared(name)
    fit(method, model, epochs=1)
    assert baselines.get(name) is method  # the file ran once
    assert baselines.get("own_methods:size") is method
    with pytest.raises(ValueError, match="size.*Received: name='sise'"):
        baselines.get(name.replace(":size", ":sise"))


@pytest.mark.parametrize("name", ["none.py:mine", "no_such_package.methods:mine", "json:mine"])
def test_a_file_without_methods_is_refused(name):
    with pytest.raises(ValueError, match="Received: .*(none.py|no_such_package|json)"):
        baselines.get(name)
