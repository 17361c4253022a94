"""Image classifiers to adapt: a backbone with its preprocessing inside, and a new head.

Every model takes images of values 0 to 255 and returns logits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.zoo import pretrained

L = tf.keras.layers

# Weights trained in Caffe expect BGR images with the mean of ImageNet's pixels taken off.
_CAFFE_MEAN_BGR = (103.939, 116.779, 123.68)
_DIGITS_WIDTHS = (24, 48, 72)
_DIGITS_BLOCKS = 3
_MOST_CLASSES = 1_000_000
_MOST_SIZE = 8192  # pixels
_MOST_ALPHA = 4.0


class Architecture(NamedTuple):
    """What `build` has to know of a model.

    Attributes:
        backbone: function (inputs, weights, alpha, bn_training) -> features; a backbone that comes
            whole from Keras has its normalisation layers set afterwards, see `rebuilt`.
        pool: features -> one vector per image.
        smallest: least input size.
        multiple: what the input size must be a multiple of.
        channels: 3 (RGB) or 1 (grey).
        takes_alpha: whether the width can be scaled.
        rebuilt: whether the normalisation layers are set after `backbone` has run.
    """

    backbone: Callable[[Any, str | None, float, bool], Any]
    pool: Callable[[], Any] = L.GlobalAveragePooling2D
    smallest: int = 32
    multiple: int = 1
    channels: int = 3
    takes_alpha: bool = False
    rebuilt: bool = True


def build(
    name: str,
    *,
    classes: int,
    input_size: int,
    alpha: float = 1.0,
    weights: str | Path | None = None,
    bn_training: bool = False,
    dropout: float = 0.0,
) -> tf.keras.Model:
    """A classifier of images, as one flat graph of layers.

    The images are float or integer, 0 to 255, shape (batch, input_size, input_size, channels);
    channels is 3, or 1 for 'digits_resnet' (see `model.input_shape`). The preprocessing of the
    architecture is part of the model. The output are **logits**: use losses with
    `from_logits=True`. The head is new: global average pooling (VGG16 is flattened, a vision
    transformer gives its class token), dropout, and a dense layer 'head'.

    Args:
        name: one of `elastic_tf.zoo.NAMES`.
        classes: number of classes, at least 2.
        input_size: height and width of the images in pixels.
        alpha: width of 'mobilenet' and 'mobilenet_v2'.
        weights: None (random), "imagenet" (downloaded by Keras), or a file of weights. A file that
            fits the whole model, head included, is loaded whole; one that fits the backbone, with
            or without a head of other classes, goes into the backbone.
        bn_training: False runs batch normalisation on its stored statistics while gamma and beta
            stay trainable, as in the paper; True normalises by the batch during training.
        dropout: rate before the dense layer.

    Raises:
        ValueError: an unknown name, a setting out of range, or weights that do not fit.
        FileNotFoundError: there is no file of weights.
        OSError: the ImageNet weights cannot be downloaded.
    """
    architecture = _check(name, classes, input_size, alpha, dropout)
    arguments.flag("bn_training", bn_training)
    if weights is not None:
        weights = arguments.path("weights", weights)
    imagenet = weights == "imagenet"
    if imagenet and not architecture.rebuilt:
        raise ValueError(
            f"There are no ImageNet weights for '{name}'. Received: weights='imagenet'. Use a file "
            "or None, on a command line --weights none."
        )
    inputs = L.Input((input_size, input_size, architecture.channels), name="image")
    try:
        features = architecture.backbone(
            inputs, "imagenet" if imagenet else None, alpha, bn_training
        )
    except Exception as error:
        # Keras 2.15 raises a bare Exception when a download fails.
        if imagenet and "URL fetch failure" in str(error):
            raise OSError(
                f"The ImageNet weights of '{name}' could not be downloaded: {error}. Put the file "
                "named there into ~/.keras/models, or give a file as `weights`."
            ) from error
        raise
    backbone = tf.keras.Model(inputs, features, name=name)
    if architecture.rebuilt and not bn_training:
        backbone = _with_stored_statistics(backbone, keep_weights=imagenet)

    x = architecture.pool()(backbone.output)
    if dropout:
        x = L.Dropout(dropout, name="head_dropout")(x)
    # Logits in float32 also where the policy is mixed precision.
    logits = L.Dense(classes, dtype="float32", name="head")(x)
    model = tf.keras.Model(backbone.input, logits, name=name)
    if weights is not None and not imagenet:
        pretrained.load(model, backbone, os.fspath(weights))
    return model


def head_tensors(model: tf.keras.Model) -> np.ndarray:
    """True for the tensors of the head: those of the layer that holds the last tensor.

    Args:
        model: an elastic model whose last tensor, in forward order, belongs to its output layer.

    Returns:
        bool, shape (N,), forward order.
    """
    tensors = arguments.elastic(model).tensors
    own = {id(tensors[-1])}
    for layer in model._flatten_layers(include_self=False):
        variables = {id(variable) for variable in layer._trainable_weights}
        if id(tensors[-1]) in variables:
            own = variables
    return np.array([id(tensor) in own for tensor in tensors])


def _check(name: str, classes: int, input_size: int, alpha: float, dropout: float) -> Architecture:
    """The architecture of that name, if the settings are right for it."""
    architecture = ARCHITECTURES[arguments.choice("name", name, NAMES)]
    arguments.count("classes", classes, least=2, most=_MOST_CLASSES)
    smallest, multiple, hint = architecture.smallest, architecture.multiple, f"It is for '{name}'."
    arguments.count("input_size", input_size, least=smallest, most=_MOST_SIZE, hint=hint)
    if input_size % multiple:
        raise ValueError(
            f"`input_size` must be a multiple of {multiple} for '{name}'. Received: {input_size}."
        )
    arguments.number("alpha", alpha, low=0.0, high=_MOST_ALPHA, above=True)
    if alpha != 1.0 and not architecture.takes_alpha:
        scalable = [key for key, value in ARCHITECTURES.items() if value.takes_alpha]
        raise ValueError(
            f"`alpha` scales {' and '.join(scalable)} only. Received: alpha={alpha} for '{name}'. "
            "Leave it out."
        )
    arguments.number("dropout", dropout, low=0.0, high=1.0, below=True)
    return architecture


def _with_stored_statistics(model: tf.keras.Model, *, keep_weights: bool) -> tf.keras.Model:
    """The same graph with every batch normalisation called with `training=False`."""
    config = model.get_config()
    for layer in config["layers"]:
        if isinstance(model.get_layer(layer["name"]), L.BatchNormalization):
            for node in layer["inbound_nodes"]:
                for call in node:
                    call[3]["training"] = False
    same = tf.keras.Model.from_config(config)
    if keep_weights:
        same.set_weights(model.get_weights())
    return same


def _to_unit_range(x: Any) -> Any:
    """0..255 to -1..1."""
    return L.Rescaling(1 / 127.5, offset=-1.0, name="to_unit_range")(x)


def _to_caffe(x: Any) -> Any:
    """RGB to BGR with ImageNet's mean taken off."""
    return L.Rescaling(1.0, offset=[-mean for mean in _CAFFE_MEAN_BGR], name="to_caffe")(
        x[..., ::-1]
    )


def _from_keras(
    application: Callable[..., tf.keras.Model],
    preprocess: Callable[[Any], Any] | None,
    *,
    takes_alpha: bool = False,
) -> Callable[[Any, str | None, float, bool], Any]:
    """A backbone of keras.applications."""

    def backbone(inputs: Any, weights: str | None, alpha: float, bn_training: bool) -> Any:
        del bn_training
        width = {"alpha": alpha} if takes_alpha else {}
        x = inputs if preprocess is None else preprocess(inputs)
        return application(
            include_top=False,
            weights=weights,
            input_tensor=x,
            input_shape=tuple(inputs.shape[1:]),
            **width,
        ).output

    return backbone


def _vision_transformer(
    width: int, heads: int, blocks: int = 12, patch: int = 16
) -> Callable[[Any, str | None, float, bool], Any]:
    """ViT with patches of 16 pixels; dropout-free, as it is fine-tuned.

    Source: Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021, Table 1; width 192 with
    3 heads: Touvron et al., DeiT, ICML 2021.
    """

    def backbone(inputs: Any, weights: str | None, alpha: float, bn_training: bool) -> Any:
        del weights, alpha, bn_training
        from keras_cv import layers  # seconds to import: only for those who need it

        patches = layers.PatchingAndEmbedding(width, patch, name="patches")
        # its private methods cannot be converted; TensorFlow would say so at every tracing
        patches.call = tf.autograph.experimental.do_not_convert(patches.call)
        x = patches(_to_unit_range(inputs))
        for index in range(blocks):
            x = layers.TransformerEncoder(
                width,
                heads,
                4 * width,
                mlp_dropout=0.0,
                attention_dropout=0.0,
                name=f"block{index + 1}",
            )(x)
        return L.LayerNormalization(epsilon=1e-6, name="norm")(x)

    return backbone


def _class_token() -> Callable[[Any], Any]:
    """The first of a transformer's output vectors."""
    return lambda x: x[:, 0]


def _digits_resnet(inputs: Any, weights: str | None, alpha: float, bn_training: bool) -> Any:
    """Residual network of nine basic blocks for small grey images, 0.4 million parameters."""
    del weights, alpha
    training = None if bn_training else False

    def normalised(x: Any, filters: int, kernel: int, strides: int, name: str) -> Any:
        x = L.Conv2D(
            filters, kernel, strides=strides, padding="same", use_bias=False, name=f"{name}_conv"
        )(x)
        return L.BatchNormalization(name=f"{name}_bn")(x, training=training)

    x = L.Rescaling(1 / 255, name="to_zero_one")(inputs)
    x = L.ReLU(name="stem_relu")(normalised(x, _DIGITS_WIDTHS[0], 3, 2, "stem"))
    for stage, filters in enumerate(_DIGITS_WIDTHS):
        for block in range(_DIGITS_BLOCKS):
            name = f"stage{stage + 1}_block{block + 1}"
            strides = 2 if stage and not block else 1
            y = L.ReLU(name=f"{name}_relu1")(normalised(x, filters, 3, strides, f"{name}_1"))
            y = normalised(y, filters, 3, 1, f"{name}_2")
            if strides > 1:
                x = normalised(x, filters, 1, strides, f"{name}_shortcut")
            x = L.ReLU(name=f"{name}_relu2")(L.Add(name=f"{name}_add")([x, y]))
    return x


_APPLICATIONS = tf.keras.applications

ARCHITECTURES = {
    "mobilenet": Architecture(
        _from_keras(_APPLICATIONS.MobileNet, _to_unit_range, takes_alpha=True), takes_alpha=True
    ),
    "mobilenet_v2": Architecture(
        _from_keras(_APPLICATIONS.MobileNetV2, _to_unit_range, takes_alpha=True), takes_alpha=True
    ),
    "resnet50": Architecture(_from_keras(_APPLICATIONS.ResNet50, _to_caffe)),
    "vgg16": Architecture(_from_keras(_APPLICATIONS.VGG16, _to_caffe), pool=L.Flatten),
    # EfficientNetV2 of Keras has its preprocessing inside already.
    "efficientnet_v2b0": Architecture(_from_keras(_APPLICATIONS.EfficientNetV2B0, None)),
    "vit_b16": Architecture(
        _vision_transformer(768, 12), pool=_class_token, multiple=16, rebuilt=False
    ),
    "vit_ti16": Architecture(
        _vision_transformer(192, 3), pool=_class_token, multiple=16, rebuilt=False
    ),
    "digits_resnet": Architecture(_digits_resnet, smallest=16, channels=1, rebuilt=False),
}
#: Models that `build` knows.
NAMES = tuple(ARCHITECTURES)
