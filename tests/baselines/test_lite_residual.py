import numpy as np
import pytest
import tensorflow as tf
from networks import L
from related.tinytl import with_lite_residuals
from related.tinytl.lite_residual import LiteResidual
from test_tinytl import modules

pytestmark = pytest.mark.hours  # a reproduction, apart from the package


@pytest.mark.parametrize(
    ("block_input", "block_output", "kernel"),
    [
        ((8, 8, 4), (8, 8, 6), 3),  # pooled to 4: the largest odd kernel inside is 3
        ((16, 16, 4), (8, 8, 6), 5),
        ((5, 9, 3), (5, 9, 3), 1),
        ((3, 3, 4), (3, 3, 4), 1),  # pooled to a point
    ],
)
def test_a_module_fits_blocks_of_any_size_and_adds_nothing_at_first(
    block_input, block_output, kernel
):
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(2, *shape)).astype("float32") for shape in (block_input, block_output))
    module = LiteResidual(block_input[-1])
    np.testing.assert_array_equal(module([x, y]), y)
    assert module.grouped[0].kernel_size == (kernel, kernel)
    assert len(module.grouped) == (1 if block_input[-1] % 2 else 2)
    module.last_norm.gamma.assign(tf.ones_like(module.last_norm.gamma))
    assert module([x, y]).shape == y.shape
    assert module.last_norm.beta is None


def test_the_groups_do_not_see_each_other():
    module = LiteResidual(4, kernel_size=3)
    x = np.random.default_rng(0).normal(size=(1, 8, 8, 4)).astype("float32")
    module([x, x])
    first, second = (layer(part) for layer, part in zip(module.grouped, np.split(x, 2, axis=-1)))
    kernel = np.zeros((3, 3, 4, 4), np.float32)
    kernel[:, :, :2, :2] = module.grouped[0].kernel
    kernel[:, :, 2:, 2:] = module.grouped[1].kernel
    whole = tf.nn.conv2d(x, kernel, 1, "SAME")
    np.testing.assert_allclose(tf.concat([first, second], -1), whole, rtol=1e-4, atol=1e-5)


def test_a_module_must_know_the_size():
    with pytest.raises(ValueError, match=r"size.*Received: shapes \(None, None, None, 4\)"):
        LiteResidual(4).build([tf.TensorShape([None, None, None, 4])] * 2)


def test_inverted_residuals_get_the_modules_of_the_source():
    inputs = L.Input((32, 32, 24))
    x = L.DepthwiseConv2D(3, padding="same")(L.Conv2D(144, 1)(inputs))
    x = L.GlobalAveragePooling2D()(L.Add()([inputs, L.Conv2D(24, 1)(x)]))
    (module,) = modules(with_lite_residuals(tf.keras.Model(inputs, L.Dense(2)(x))))
    assert [layer.kernel.shape for layer in module.grouped] == [(5, 5, 12, 12)] * 2
    assert module.pointwise.kernel.shape == (1, 1, 24, 24)
