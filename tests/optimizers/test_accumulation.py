import numpy as np
import pytest
import tensorflow as tf
from networks import CLASSES, IMAGE, MORE_OPTIMIZERS, K, L, crossentropy, images, mask_of, values

from elastic_tf.model import ElasticModel

CLIPPED = {"global_clipnorm": lambda: K.Adam(0.1, global_clipnorm=0.1)}
# The mean of means sums in another order than the mean over the joint batch.
CLOSE = {"rtol": 2e-4, "atol": 1e-6}


def elastic(*, optimizer=lambda: K.SGD(0.1), accumulate: int = 1, **options) -> ElasticModel:
    """Without batch normalisation, which sees the statistics of micro-batches."""
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input(IMAGE)
    x = L.Conv2D(3, 3, activation="tanh", name="conv1")(inputs)
    x = L.Conv2D(4, 3, name="conv2")(x)
    x = L.Dense(CLASSES, name="head", dtype="float32")(L.Flatten()(x))
    model = ElasticModel.from_model(tf.keras.Model(inputs, x))
    model.compile(optimizer(), crossentropy(), accumulate=accumulate, **options)
    return model


def fit(model, *, batch_size: int, samples: int = 16, epochs: int = 3, **options):
    x, y = (part[:samples] for part in images())
    data = {"batch_size": batch_size, "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(x, y, **data, **options)


def assert_close(one, two) -> None:
    for a, b in zip(one.get_weights(), two.get_weights()):
        np.testing.assert_allclose(a, b, **CLOSE)


@pytest.mark.parametrize("kind", ["sgdw", "scaled", *CLIPPED])
def test_micro_batches_update_as_the_joint_batch(kind):
    optimizer = {**MORE_OPTIMIZERS, **CLIPPED}[kind]
    joint, micro = elastic(optimizer=optimizer), elastic(optimizer=optimizer, accumulate=4)
    for model in (joint, micro):
        model.set_mask(mask_of(model, "conv2", "head"))
    fit(joint, batch_size=8), fit(micro, batch_size=2)
    assert_close(joint, micro)


def test_sums_are_held_for_trained_tensors_alone_and_the_others_keep_every_bit():
    model = elastic(accumulate=2)
    sums = model._elastic.accumulation
    sizes = []
    for names in (("conv1", "conv2", "head"), ("head",), ("conv2",), ("head",)):
        model.set_mask(mask_of(model, *names))
        left = [v for v in model.tensors if not v.name.startswith(names)]
        before = values(left)
        fit(model, batch_size=4, epochs=1)
        assert values(left) == before
        tensors = [v for v in model.tensors if v.name.startswith(names)]
        sizes.append(
            [sum(int(tf.size(v)) for v in part) for part in (sums._sums.values(), tensors)]
        )
    assert all(held == needed for held, needed in sizes)


def test_a_mask_that_changes_in_between_applies_what_was_collected():
    micro, joint = elastic(accumulate=4), elastic()
    x, y = images()
    for model, size in ((micro, 2), (joint, 4)):
        model.set_mask(mask_of(model, "head"))
        for k in range(0, 4, size):  # two of four micro-batches
            model.train_on_batch(x[k : k + size], y[k : k + size])
        model.set_mask(mask_of(model, "conv2"))
    assert_close(micro, joint)
    assert int(micro.optimizer.iterations) == 1


def test_what_is_left_at_the_end_of_fit_makes_an_update():
    micro, joint = elastic(accumulate=4), elastic()
    fit(micro, batch_size=2, samples=12, epochs=1)
    for k in range(0, 12, 8):
        joint.train_on_batch(*(part[k : min(k + 8, 12)] for part in images()))
    assert_close(micro, joint)


def test_a_fit_that_fails_leaves_nothing_collected():
    class Stop(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise InterruptedError

    model = elastic(accumulate=4)
    with pytest.raises(InterruptedError):
        fit(model, batch_size=2, callbacks=[Stop()])
    before = values(model.weights)
    model.set_mask(mask_of(model, "head"))
    assert values(model.weights) == before


def test_a_gradient_that_does_not_exist_is_left_to_keras():
    tf.keras.utils.set_random_seed(0)

    class Idle(tf.keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(name="idle", shape=(2,), initializer="ones")

        def call(self, inputs):
            return inputs

    inputs = L.Input((4,))
    model = ElasticModel.from_model(tf.keras.Model(inputs, L.Dense(2)(Idle()(inputs))))
    model.compile(K.AdamW(0.1, weight_decay=0.1), "mse", accumulate=2)
    model.fit(np.ones((4, 4)), np.ones((4, 2)), batch_size=1, verbose=0)
    assert model.layers[-2].kernel.numpy().tolist() == [1.0, 1.0]
