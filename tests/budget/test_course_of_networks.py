"""The course of a training in so many seconds, of real networks: what it is judged by and keeps."""

import numpy as np
import pytest
import tensorflow as tf
from networks import L, values
from test_fine_tuning import CLASSES, COUNT, images

import elastic_tf as et
from elastic_tf import fine_tuning
from elastic_tf.choose.budget import course
from elastic_tf.train.head import features


def classifier():
    tf.keras.utils.set_random_seed(0)
    layers = [L.Input((6, 6, CLASSES)), L.Conv2D(8, 3, strides=2, activation="tanh")]
    return tf.keras.Sequential([*layers, L.Flatten()])  # and a new head


@pytest.fixture
def courses(monkeypatch):
    """Those of `finetune`."""
    found = []

    class Seen(course.Course):
        def __init__(self, *given, **told):
            super().__init__(*given, **told)
            found.append(self)

    monkeypatch.setattr(fine_tuning, "Course", Seen)
    return found


def finetuned(train=None, validation=None, **options):
    told = {"seconds": 300, "epochs": 2, "verbose": 0, **options}
    return et.finetune(classifier(), train or images(), validation, **told)


def test_training_that_ends_in_no_number_leaves_the_solved_head():
    (x, y), solved = images(seed=1), values(finetuned(learning_rate=0.0).weights)
    for held in (None, (x, np.zeros_like(y))):  # of a class that NaN is taken for
        broken = finetuned(validation=held, learning_rate=1e38)
        assert not np.isfinite(broken.history.history["loss"][-1])
        assert values(broken.weights) == solved


def test_validation_of_unknown_length_is_used(courses):
    x, y = images(seed=1)
    held = tf.data.Dataset.from_tensor_slices((x, y)).batch(7).filter(lambda *_: True)
    model = finetuned(validation=held)
    assert len(model.history.history["val_loss"]) == 2
    assert courses[-1].seconds["validated"] > 0.0


def weighted():
    x, y = images(seed=1)
    weight = np.linspace(0.0, 2.0, COUNT, dtype=np.float32)
    return tf.data.Dataset.from_tensor_slices((x, y, weight)).batch(COUNT)


def with_everything():
    """What inference does otherwise than training, and a regulariser."""
    tf.keras.utils.set_random_seed(0)
    layers = [L.Conv2D(8, 3, use_bias=False), L.BatchNormalization(), L.ReLU(), L.Dropout(0.5)]
    layers += [L.Conv2D(8, 3, kernel_regularizer="l2"), L.BatchNormalization(), L.Flatten()]
    return tf.keras.Sequential([L.Input((6, 6, CLASSES)), *layers, L.Dense(CLASSES)])


@pytest.mark.parametrize(
    ("network", "held"), [(classifier, lambda: images(seed=1)), (with_everything, weighted)]
)
def test_what_is_judged_by_is_what_keras_evaluates(monkeypatch, held, network):
    """At each validation, whatever was kept of the samples."""
    seen, evaluated = [], course.Course._evaluated

    def judged(self):
        data, history = held(), self.model.history
        given = data if isinstance(data, tuple) else (data,)
        expected = self.model.evaluate(*given, batch_size=COUNT, verbose=0, return_dict=True)
        self.model.history = history
        seen.append((evaluated(self), expected))
        return seen[-1][0]

    monkeypatch.setattr(course.Course, "_evaluated", judged)
    et.finetune(network(), images(), held(), seconds=300, epochs=2, verbose=0)
    assert len(seen) == 6 + (network is with_everything)  # whose own head is judged first
    for found, expected in seen:
        assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("trained", "judged", "scale"),
    [
        (np.uint8, np.float32, 1.37),  # as images of files come, which are no bytes
        (np.uint8, np.int64, 1.0),
        (np.float32, np.uint8, 1.0),
    ],
)
def test_validation_of_another_type_is_judged_as_keras_does(monkeypatch, trained, judged, scale):
    """Where activations are kept: the last layer alone is trained."""
    x, y = images()
    train = np.clip(40.0 * (x + 3.0), 0.0, 255.0).astype(trained), y
    x, y = images(seed=1)
    x = (scale * np.clip(40.0 * (x + 3.0), 0.0, 180.0).astype(np.uint8)).astype(judged)
    seen = []

    def chosen(self):
        self.model.set_plan(et.Plan.from_mask([False, False, True, True]))
        self.share = 0.5
        return 2

    def judge(self, name, found):
        seen.append((found["loss"], self.model.predict(x, verbose=0)))

    monkeypatch.setattr(course.Course, "_choose", chosen)
    monkeypatch.setattr(course.Course, "_judge", judge)
    finetuned(train, (x, y))
    assert len(seen) == 3  # the head, the last weights, and these with a new one
    for loss, logits in seen:
        expected = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, logits)
        assert loss == pytest.approx(float(expected), rel=1e-4)


def test_where_nothing_is_kept_validation_is_traced_once(monkeypatch):
    passes, read = [], features._before

    def counted(model, dense):
        inner = read(model, dense)
        return lambda inputs: (passes.append(None), inner(inputs))[1]

    monkeypatch.setattr(features, "_before", counted)
    samples = et.Samples(*images(), batch_size=16, memory=0)
    held = images(seed=1)
    finetuned(samples, held, epochs=2)
    once = len(passes)
    passes.clear()
    finetuned(samples, held, epochs=4)
    assert len(passes) == once <= 2  # for batches of one size, or of any


def test_views_are_trained_on(courses):
    def moved(x, key):
        return x + 0.1 * tf.random.stateless_normal(x.shape, key)

    train = et.Samples(*images(), batch_size=16, augment=moved, views=2)
    model = finetuned(train, images(seed=1), epochs=2)
    assert courses[-1].head.samples == 2 * COUNT
    assert model.evaluate(*images(seed=2), verbose=0)[1] > 0.8
