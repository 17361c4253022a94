"""ResNet18 and ResNet34, which Keras does not have: architectures for counts."""

import tensorflow as tf

L = tf.keras.layers
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


def resnet(depth: int, size: int = 224, classes: int = 1000) -> tf.keras.Model:
    """He et al., CVPR 2016, Table 1; the ends of strided convolutions are padded as in Keras."""

    def convolved(x, filters, kernel, strides, name):
        options = {"padding": "same", "use_bias": False, "name": name}
        x = L.Conv2D(filters, kernel, strides, **options)(x)
        return L.BatchNormalization(name=f"{name}_bn")(x, training=False)

    inputs = L.Input((size, size, 3))
    x = L.ReLU()(convolved(inputs, 64, 7, 2, "stem"))
    x = L.MaxPooling2D(3, 2, padding="same")(x)
    for stage, blocks in enumerate(BLOCKS[depth]):
        filters = 64 * 2**stage
        for block in range(blocks):
            name, strides = f"layer{stage + 1}_{block}", 2 if stage and not block else 1
            start = x
            if strides > 1:
                start = convolved(x, filters, 1, strides, f"{name}_shortcut")
            x = L.ReLU()(convolved(x, filters, 3, strides, f"{name}_conv1"))
            x = convolved(x, filters, 3, 1, f"{name}_conv2")
            x = L.ReLU()(L.Add()([start, x]))
    return tf.keras.Model(inputs, L.Dense(classes, name="head")(L.GlobalAveragePooling2D()(x)))
