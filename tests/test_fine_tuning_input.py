"""What users do and give by mistake in the one call."""

import itertools
import os
import signal

import numpy as np
import pytest
import tensorflow as tf
from networks import L
from test_fine_tuning import CLASSES, COUNT, features, images

import elastic_tf as et
from elastic_tf.choose.budget import course
from elastic_tf.train import samples


@pytest.fixture
def pressed(monkeypatch):
    """Ctrl-C, so many times, after a step of this number; the course that it is pressed in."""
    courses, original = [], course.Course.on_train_batch_end
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def press(times, step):
        def ended(self, batch, logs=None):
            if not self._steps:
                courses.append(self)
            original(self, batch, logs)
            for _ in range(times if self._steps == step else 0):
                os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(course.Course, "on_train_batch_end", ended)
        return courses

    yield press
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("step", [1, 4])
@pytest.mark.parametrize("held_out", [None, images(seed=1)])
def test_ctrl_c_ends_the_steps_and_the_head_is_solved_again(held_out, step, pressed, capsys):
    (courses, network) = pressed(1, step), features("3 linear")
    before = network.get_weights()
    model = et.finetune(network, images(), held_out, seconds=300, verbose=0)
    assert courses[0]._steps == step and courses[0].seconds["head again"] > 0.0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert "Ending after this step. Ctrl-C once more" in capsys.readouterr().out
    assert any((one != other).any() for one, other in zip(before[:-2], model.get_weights()[:-2]))
    again = et.ElasticModel.from_model(model)
    again.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    trained = model.get_weights()
    et.solve_head(again, et.Samples(*images(), batch_size=16), scale=courses[0].head.scale)
    np.testing.assert_allclose(trained[-2], again.get_weights()[-2], rtol=1e-3, atol=1e-4)


def test_a_second_ctrl_c_ends_at_once(pressed, capsys):
    courses = pressed(2, 2)
    model = et.finetune(features("3 linear"), images(), images(seed=1), seconds=300, verbose=0)
    assert "head again" not in courses[0].seconds and courses[0]._steps == 2
    assert "Interrupted; the weights of the solved head are kept." in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert all(map(np.array_equal, model.get_weights(), courses[0]._weights))


def test_an_interruption_leaves_what_was_before_the_steps(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    network, held_out = features("3 linear"), images(seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(course, "solve_head", interrupted)
        with pytest.raises(KeyboardInterrupt):
            et.finetune(features("vector"), images(), held_out, seconds=300, verbose=0)
    monkeypatch.setattr(course.Course, "on_epoch_end", interrupted)
    model = et.finetune(network, images(), held_out, seconds=300, verbose=0)
    head = et.ElasticModel.from_model(features("3 linear"))
    head.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    et.solve_head(head, et.Samples(*images(), batch_size=16))
    for one, other in zip(model.get_weights(), head.get_weights()):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert "Interrupted; the weights of the solved head are kept." in capsys.readouterr().out


def test_classes_without_samples_are_told_of():
    x, y = images()
    y[3] = 9
    with pytest.warns(
        UserWarning, match=r"none of \[3, 4, 5, 6, 7, 8\], and 1 of class 9, so .* 10 "
    ):
        assert (
            et.finetune(features(), (x, y), seconds=300, epochs=1, verbose=0).output_shape[1] == 10
        )


def test_few_samples_make_one_small_batch():
    x, y = images()
    with pytest.warns(UserWarning, match="Load pre-trained weights, or train everything"):
        model = et.finetune(features(), (x[:12], y[:12]), seconds=300, epochs=1, verbose=0)
    assert model.output_shape == (None, CLASSES)


def ending_in(*ends):
    """A network of two features, of which these are made."""
    inputs = L.Input((6, 6, CLASSES))
    x = L.Flatten()(L.Conv2D(2, 6)(inputs))
    return tf.keras.Model(inputs, [end(x) for end in ends] if ends[1:] else ends[0](x))


X, Y = images()
ROWS = np.eye(CLASSES)[Y]
HOLED = np.where(np.isin(np.arange(COUNT), (3, 5))[:, None, None, None], np.nan, X)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": tf.keras.Sequential([L.Dense(3)], name="mine")}, "'mine', which has no weig"),
        ({"model": ending_in(L.Softmax())}, r"dense layer of 3.* a softmax end.*Dense\(3\)"),
        (
            {"model": ending_in(L.Dense(3), L.Dense(2))},
            r"must end in a dense layer.*\(None, 3\), \(None, 2\)",
        ),
        ({"train": 3}, r"must be given as \(x, y\).*Received: 3"),
        ({"train": (X, np.zeros(COUNT, int))}, "two classes or more.*Received"),
        ({"train": (X, Y + 1)}, "from 1 to 3. Subtract 1, or"),
        ({"train": (X, np.array([-1, 1] * 24))}, "np.unique"),
        ({"train": (X, np.array(["a", "b"] * 24, object))}, "names, y = np.unique"),
        ({"train": (X, np.array(["cat", "dog"] * 24))}, r"names, y = np.unique\(y, return_in"),
        ({"train": (X, np.zeros((COUNT, 2, 2)))}, "Compile and fit an et.ElasticModel"),
        ({"train": (X, (Y, Y))}, "one output. Received: 2 outputs"),
        ({"train": (X, None)}, "`y` must be arrays with samples first. Received: none"),
        ({"train": (HOLED, Y)}, r"in 2 of 48 samples, the first of them x\[3\]"),
        ({"train": (np.array(["a.jpg"] * COUNT), Y)}, "takes them. Received: texts, as b'a.jpg'"),
        ({"train": (X[..., :1], Y)}, r"\(6, 6, 1\). Grey images: np.repeat\(x, 3, axis=-1"),
        ({"train": (X[..., 0], Y)}, r"\(6, 6\). Grey images: np.repeat\(x\[..., None\], 3"),
        ({"validation": X}, r"`validation` cannot.*given as \(x, y\)"),
        ({"validation": tf.data.Dataset.from_tensors((X, Y)).repeat()}, "`validation` .* end"),
        ({"validation": (X, Y[:9])}, "`validation` cannot.*equally many"),
        ({"validation": (X[:, :5], Y)}, r"\(5, 6, 3\)\], and \[\(6, 6, 3\)\]"),
        ({"validation": (HOLED, Y)}, "of `validation` must be finite"),
        ({"validation": (X, np.zeros((COUNT, 2)))}, r"shape \(48, 2\), and \(48,\)"),
        ({"validation": (X, Y + 1)}, r"0 to 2. Received: array\(\[3\]\) in \d+"),
        (
            {"train": (X, ROWS), "validation": (X, np.minimum(ROWS + ROWS[::-1], 1.0))},
            "Rows of `validation` must be like those of `train`",
        ),
        ({"seconds": 0}, "`seconds`.*Received: seconds=0"),
        ({"epochs": 0}, "`epochs`.*Received: 0"),
        ({"profile": "none.json"}, "no timing profile 'none.json'"),
        ({"profile": 3}, "`profile` must be a TimingProfile. Received: 3"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    given = {"model": None, "train": (X, Y), "seconds": 300, "verbose": 0, **change}
    given["model"] = given["model"] or features("vector")
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        et.finetune(**given)


class Subclassed(tf.keras.Model):
    def __init__(self):
        super().__init__(name="mine")
        self.one, self.two = L.Dense(8, "relu"), L.Dense(CLASSES)

    def call(self, x):
        return self.two(self.one(tf.reshape(x, (-1, 108))))


def test_a_subclassed_network_is_named_and_the_way_that_is_told_works():
    network, (x, y) = Subclassed(), images()
    network(x[:2])
    with pytest.raises(ValueError, match="functional or sequential.*'mine' of type Subclassed"):
        et.finetune(network, (x, y), verbose=0)
    inputs = tf.keras.Input(x.shape[1:])
    network = tf.keras.Model(inputs, network(inputs))
    model = et.finetune(network, (x, y), seconds=300, epochs=1, verbose=0)
    assert model.output_shape == (None, CLASSES)


def test_an_augmentation_that_does_not_fit_is_named():
    for augment in ("flip", lambda x: x, lambda x, seed: x[:3]):
        with pytest.raises(ValueError, match=r"`augment` must be a function \(x, seed\) -> x"):
            samples = et.Samples(*images(), batch_size=16, augment=augment, views=2)
            et.finetune(features("vector"), samples, seconds=300, verbose=0)


def squares(y, outputs):
    wanted = tf.one_hot(tf.cast(tf.reshape(y, (-1,)), tf.int32), CLASSES)
    return tf.reduce_mean((wanted - tf.nn.softmax(outputs)) ** 2, axis=-1)


@pytest.mark.parametrize("network", ["vector", "3 linear"])
def test_targets_say_what_a_loss_of_ones_own_learns(network):
    x, y = images()
    model = et.finetune(features(network), (x, y), seconds=300, loss=squares, verbose=0)
    assert model.output_shape == (None, CLASSES)
    assert (model.predict(x, verbose=0).argmax(axis=1) == y).mean() > 0.8


def quadrants(count, seed):
    """Points, and whether they are in the first or third quadrant."""
    x = np.random.default_rng(seed).normal(size=(count, 2)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] > 0).astype(int)


def test_a_network_that_fits_is_not_made_worse_by_few_samples(capsys):
    network = tf.keras.Sequential(
        [L.Input((2,)), *(L.Dense(32, "relu") for _ in range(3)), L.Dense(2, name="new_head")]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(tf.keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    network.fit(*quadrants(2000, 0), epochs=10, verbose=0)
    held_out = quadrants(500, 1)
    before = network.evaluate(*held_out, verbose=0)[1]
    x, y = quadrants(24, 2)
    model = et.finetune(network, (x, 1 - y), held_out, seconds=300, verbose=0)  # all wrong
    after = model.evaluate(*held_out, verbose=0)[1]
    assert before > 0.95 and after > before - 0.03
    assert "As given" not in capsys.readouterr().out
    et.finetune(network, (x, y), held_out, seconds=300, epochs=1, verbose=2)
    assert f"As given {after:.1%}, now " in capsys.readouterr().out


def test_data_without_an_end_are_refused_at_half_of_the_memory(monkeypatch):
    monkeypatch.setattr(samples, "quarter_of_memory", lambda: 1 << 20)
    x, y = images()
    signature = tf.TensorSpec(x.shape), tf.TensorSpec(y.shape, tf.int64)
    endless = tf.data.Dataset.from_generator(
        lambda: itertools.repeat((x, y)), output_signature=signature
    )
    with pytest.raises(ValueError, match="must end, and fit into half of the memory. Received: 0"):
        et.finetune(features("vector"), endless, seconds=300)


def test_sequences_of_features_are_averaged():
    rng = np.random.default_rng(0)
    network = tf.keras.Sequential([L.Input((8, 4)), L.Conv1D(6, 3, activation="relu")])
    data = rng.normal(size=(24, 8, 4)).astype(np.float32), rng.integers(0, 3, 24)
    model = et.finetune(network, data, seconds=300, epochs=1, verbose=0)
    assert model.output_shape == (None, 3)


def test_a_class_of_more_weight_is_found_more_often(monkeypatch):
    x, y = images()
    x[:, :, :, :] = np.random.default_rng(1).normal(size=x.shape)  # there is nothing to learn
    found = [
        et.finetune(
            features("vector"), (x, y), seconds=300, epochs=1, verbose=0, class_weight=weights
        )
        for weights in ({0: 50.0, 1: 1.0, 2: 1.0}, {0: 1.0, 1: 1.0, 2: 50.0})
    ]
    first, last = (model.predict(x, verbose=0).argmax(axis=1) for model in found)
    assert (first == 0).mean() > 0.8 and (last == 2).mean() > 0.8
    with pytest.raises(TypeError, match="`class_weight` must be a dict"):
        et.finetune(features("vector"), (x, y), seconds=300, class_weight=[1.0, 2.0])


def test_a_network_that_is_frozen_is_named():
    network = features("vector")
    network.trainable = False
    with pytest.warns(UserWarning, match="all of which is frozen, 2 layers. Set its `trainable"):
        model = et.finetune(network, images(), seconds=300, epochs=1, verbose=0)
    assert len(model.tensors) == 2
    network.trainable = True
    network.layers[1].trainable = False  # some of it may be
    assert len(et.finetune(network, images(), seconds=300, epochs=1, verbose=0).tensors) == 4


@pytest.mark.parametrize(("wrong", "place"), [(50, "train"), (-1, "train"), (50, "validation")])
def test_token_ids_without_a_row_are_refused(wrong, place):
    words, width = L.Input((6,), dtype="int32"), 20
    x = L.GlobalAveragePooling1D()(L.Embedding(width, 4)(words))
    model = tf.keras.Model(words, L.Dense(2)(x))
    ids = {name: np.arange(48).reshape(8, 6) % width for name in ("train", "validation")}
    ids[place][3, 2] = wrong
    given = [(one, np.arange(8) % 2) for one in ids.values()]
    low, high = min(wrong, 0), max(wrong, width - 1)
    with pytest.raises(ValueError, match=f"from 0 to 19, .* 20 rows. Received: {low} to {high}"):
        et.finetune(model, *given, seconds=9)
