import pytest
import tensorflow as tf
from networks import L
from related.tinytl import blocks


def found(inputs, outputs) -> list[tuple[str, str]]:
    """The layers that make the input and the output of each block."""
    return [
        (block.input._keras_history[0].name, block.layer.name)
        for block in blocks.find(tf.keras.Model(inputs, outputs))
    ]


def conv(x, filters, name, kernel=3, **options):
    return L.Conv2D(filters, kernel, padding="same", name=name, **options)(x)


def image(channels=4):
    return L.Input((8, 8, channels), name="image")


def test_a_residual_block_starts_where_its_branches_part():
    inputs = image()
    x = start = L.ReLU(name="start")(conv(inputs, 4, "stem"))
    x = conv(L.ReLU()(conv(x, 2, "a", 1)), 2, "b", strides=2)
    x = L.Add(name="add")([conv(x, 8, "c", 1), conv(start, 8, "shortcut", 1, strides=2)])
    assert found(inputs, L.ReLU()(x)) == [("start", "add")]
    (block,) = blocks.find(tf.keras.Model(inputs, x))
    assert block.width == 2
    # 1x1: 64 pixels of 4 * 2; 3x3 of stride 2: 16 of 9 * 2 * 2; 1x1: 16 of 2 * 8; shortcut: 4 * 8
    assert block.operations == 64 * 8 + 16 * 36 + 16 * 16 + 16 * 32


@pytest.mark.parametrize(
    "outputs",
    [
        lambda x: L.Add()([x, L.Lambda(lambda x: 2 * x)(x)]),  # no convolution
        lambda x: L.Add()([L.Conv2DTranspose(4, 3, 2, padding="same")(x) for _ in range(2)]),
    ],
)
def test_an_addition_that_is_no_block(outputs):
    inputs = image()
    assert found(inputs, outputs(inputs)) == []


def test_a_depthwise_convolution_and_the_pointwise_one_after_it_are_a_block():
    inputs = image()
    x = L.ReLU(name="stem_relu")(conv(inputs, 4, "stem"))
    for index in range(2):
        x = L.ZeroPadding2D()(x)
        x = L.DepthwiseConv2D(3, 2, name=f"depthwise{index}")(x)
        x = conv(L.ReLU()(L.BatchNormalization()(x)), 6, f"pointwise{index}", 1)
        x = L.ReLU(name=f"relu{index}")(L.BatchNormalization(name=f"bn{index}")(x))
    assert found(inputs, x) == [("stem_relu", "bn0"), ("relu0", "bn1")]


def test_a_pointwise_convolution_before_the_depthwise_one_belongs_to_it():
    inputs = x = image()
    for index in range(2):
        x = L.ReLU()(conv(x, 8, f"expand{index}", 1))
        x = L.DepthwiseConv2D(3, padding="same")(x)
        x = conv(x, 4 + index, f"project{index}", 1)
    assert found(inputs, x) == [("image", "project0"), ("project0", "project1")]
    widths = [block.width for block in blocks.find(tf.keras.Model(inputs, x))]
    assert widths == [4, 5]
