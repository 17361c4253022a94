import numpy as np
import pytest
import tensorflow as tf
from networks import CLASSES, IMAGE, K, L, crossentropy, fit, images
from related import prunetrain

from elastic_tf import ElasticModel, stack

pytestmark = pytest.mark.hours  # a reproduction, apart from the package


def layers():
    """Two convolutions with a depthwise one between them, and a head."""
    inputs = L.Input(IMAGE)
    x = L.Conv2D(4, 3, padding="same", name="before")(inputs)
    x = L.ReLU()(L.BatchNormalization()(L.DepthwiseConv2D(3, padding="same")(x)))
    x = L.Conv2D(3, 3, padding="same", name="after")(x)
    return tf.keras.Model(inputs, L.Dense(CLASSES, name="head")(L.GlobalMaxPooling2D()(x)))


def compiled(source=layers, rate=0.05):
    model = prunetrain.adapt(source())
    model.compile(K.SGD(rate), crossentropy())
    return model


def test_penalty_equals_the_sum_over_groups():
    model = layers()
    names = ("before", "after", "head")
    before, after, head = (model.get_layer(name).kernel.numpy() for name in names)
    norms = [np.linalg.norm(before[..., c]) for c in range(4)]  # the image's channels have none
    norms += [np.linalg.norm(after[:, :, c]) for c in range(4)]
    norms += [np.linalg.norm(after[..., c]) for c in range(3)]
    norms += [np.linalg.norm(head[c]) for c in range(3)]  # the classes have none
    np.testing.assert_allclose(prunetrain.penalty(model), np.sum(norms), rtol=1e-6)


def test_the_lasso_is_in_the_gradient_by_its_ratio_and_not_in_the_loss_shown():
    x, y = map(tf.constant, images())
    model = compiled()
    variables = stack.trainable(model)
    plain = ElasticModel.from_model(model.network)
    plain.compile(K.SGD(0.05), crossentropy())
    step, of_loss = plain.gradients((x, y), variables)
    with tf.GradientTape() as tape:
        penalty = prunetrain.penalty(model)
    of_penalty = tape.gradient(penalty, variables)
    whole, both = model.gradients((x, y), variables)
    factor = 0.25 * float(step.loss) / float(penalty)
    np.testing.assert_allclose(whole.loss, step.loss + factor * penalty, rtol=1e-5)
    for one, of_data, other in zip(both, of_loss, of_penalty):
        other = 0 if other is None else factor * other
        np.testing.assert_allclose(one, of_data + other, atol=1e-5)
    np.testing.assert_allclose(model.train_step((x, y))["loss"], step.loss, rtol=1e-5)


def test_channels_that_became_sparse_are_counted_and_told():
    model = compiled(rate=1e-9)
    kernel = model.get_layer("before").kernel
    kernel.assign(kernel * np.array([0, 0, 1, 1], np.float32))
    assert prunetrain.sparse_share(model) == pytest.approx(2 / 14)
    with pytest.warns(UserWarning, match="14% of the groups are sparse"):
        history = fit(model, epochs=1, callbacks=[prunetrain.SparseGroups()])
    assert history["sparse_groups"] == [pytest.approx(2 / 14)]


def test_a_model_without_channels_between_kernels_is_refused():
    with pytest.raises(TypeError, match="of class Sequential"):
        prunetrain.adapt(tf.keras.Sequential([L.Dense(3)]))
    inputs = L.Input((4,))
    with pytest.raises(ValueError, match="needs two convolutions .* Received: '"):
        prunetrain.adapt(tf.keras.Model(inputs, L.Dense(3)(inputs)))
