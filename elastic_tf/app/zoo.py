"""Image classifiers to adapt: a backbone with its preprocessing inside, and a new head.

Every model takes images of values 0 to 255 and returns logits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import tensorflow as tf

from elastic_tf import arguments, stack
from elastic_tf.arguments import extra
from elastic_tf.train.head.features import head_tensors

__all__ = ["ARCHITECTURES", "Architecture", "NAMES", "build", "head_tensors"]

L = tf.keras.layers


class Architecture(NamedTuple):
    """What `build` has to know of a model."""

    backbone: Callable[[Any, str | None, float], Any]  # inputs, weights, alpha -> features
    pool: Callable[[Any], Any] = lambda x: L.GlobalAveragePooling2D()(x)  # to a vector per image
    smallest: int = 32  # least input size
    multiple: int = 1  # of which the input size is one
    channels: int = 3  # RGB, or 1: grey
    takes_alpha: bool = False  # whether the width can be scaled
    imagenet: bool = True  # whether there are weights of ImageNet


def build(
    name: str,
    *,
    classes: int,
    input_size: int,
    alpha: float = 1.0,
    weights: str | Path | None = None,
    bn_training: bool = False,
) -> tf.keras.Model:
    """A classifier of images, as one flat graph of layers, its preprocessing inside.

    It takes numbers from 0 to 255 of shape (batch, input_size, input_size, channels), 3 of them or
    1 (`model.input_shape`), and gives **logits**: use losses with `from_logits=True`. The head is
    new: global average pooling (VGG16 is flattened, a vision transformer gives its class token),
    and a dense layer 'head'.

    Args:
        name: one of `elastic_tf.app.zoo.NAMES`.
        classes: number of classes, at least 2.
        input_size: height and width of the images in pixels.
        alpha: width of 'mobilenet' and 'mobilenet_v2'.
        weights: None (random), "imagenet" (downloaded by Keras), or a file that Keras 3 or 2 wrote.
            One that fits the whole model, head included, is loaded whole; one that fits the
            backbone, with or without a head of other classes, goes into the backbone.
        bn_training: False runs batch normalisation on its stored statistics while gamma and beta
            stay trainable, as in the paper; True normalises by the batch during training.

    Raises:
        ValueError: an unknown name, a setting out of range, or weights that do not fit; the first
            layer that differs is named.
        FileNotFoundError: there is no file of weights.
        OSError: the ImageNet weights cannot be downloaded.
    """
    architecture = ARCHITECTURES[arguments.choice("name", name, NAMES)]
    arguments.count("classes", classes, least=2)
    multiple, hint = architecture.multiple, f"It is for '{name}'."
    arguments.count("input_size", input_size, least=architecture.smallest, hint=hint)
    if input_size % multiple:
        raise ValueError(
            f"`input_size` must be a multiple of {multiple} for '{name}'. Received: {input_size}."
        )
    arguments.width("alpha", alpha)
    if alpha != 1.0 and not architecture.takes_alpha:
        raise ValueError(
            f"`alpha` scales mobilenet and mobilenet_v2 only. Received: alpha={alpha} for "
            f"'{name}'. Leave it out."
        )
    file = None if weights is None else arguments.path("weights", weights)
    imagenet = "imagenet" if file == "imagenet" else None
    if imagenet and not architecture.imagenet:
        raise ValueError(
            f"There are no ImageNet weights for '{name}'. Received: weights='imagenet'. Use a file "
            "or None, on a command line --weights none."
        )
    inputs = L.Input((input_size, input_size, architecture.channels), name="image")
    try:
        features = architecture.backbone(inputs, imagenet, alpha)
    except Exception as error:
        # Keras raises a bare Exception when a download fails
        if not imagenet or "URL fetch failure" not in str(error):
            raise
        raise OSError(
            f"The ImageNet weights of '{name}' could not be downloaded: {error}. Put the file "
            "named there into ~/.keras/models, or give a file as `weights`."
        ) from error
    backbone = tf.keras.Model(inputs, features, name=name)
    if not bn_training:
        backbone = stack.on_stored_statistics(backbone)

    # Logits in float32 also where the policy is mixed precision.
    head = L.Dense(classes, dtype="float32", name="head")
    logits = head(architecture.pool(backbone.output))
    model = tf.keras.Model(backbone.input, logits, name=name)
    if file and not imagenet:
        _load(model, backbone, file)
    return model


def _load(model: tf.keras.Model, backbone: tf.keras.Model, path: str | Path) -> None:
    """Load weights in HDF5, of Keras 3 or 2, into the model, or else into the backbone alone."""
    path = Path(arguments.file("weights", path, "None, 'imagenet' or a file"))
    try:
        with h5py.File(path, "r") as file:
            root = file.get("model_weights", file)
            # of each layer that has any, in the older format of Keras 2; none in the newer
            groups = [root[name] for name in root.attrs.get("layer_names", ())]
            layers = [[group[name][()] for name in group.attrs["weight_names"]] for group in groups]
            stored = [weights for weights in layers if weights]
    except OSError as error:
        raise ValueError(
            f"`weights` must be an HDF5 file of weights. Received: '{path}', which cannot be read "
            f"as one: {error}. Write it with model.save_weights('NAME.weights.h5')."
        ) from error
    try:
        _fill(model, stored, path, most_left=0)
    except ValueError:
        try:
            _fill(backbone, stored, path, most_left=1)
        except ValueError as error:
            first = " ".join(str(error).split())[:300]  # it may hold every number
            raise ValueError(
                f"The weights must fit '{model.name}'. Received: '{path}'; first difference: "
                f"{first} ... Build the model as it was when the weights were saved (name, alpha, "
                "input size), or use other weights. Files that are not in HDF5's older format are "
                "named *.weights.h5."
            ) from error


def _fill(model: tf.keras.Model, stored: list[list[Any]], path: Path, *, most_left: int) -> None:
    """Load all layers of `model`, or raise a ValueError that names the first that does not fit."""
    if not stored:
        with warnings.catch_warnings():
            # Keras 3, of files of Keras 2: it looks for some layers a second time
            warnings.filterwarnings("ignore", "Skipping nested container")
            model.load_weights(path)
        return
    layers = [layer for layer in model.layers if layer.weights]
    for layer, weights in zip(layers, stored):
        layer.set_weights(weights)
    if not 0 <= len(stored) - len(layers) <= most_left:
        raise ValueError(f"{len(stored)} layers with weights in the file, {len(layers)} built.")


def _to_unit_range(x: Any) -> Any:
    """0..255 to -1..1."""
    return L.Rescaling(1 / 127.5, offset=-1.0, name="to_unit_range")(x)


def _to_caffe(x: Any) -> Any:
    """RGB to BGR with ImageNet's mean taken off, as weights trained in Caffe expect it."""
    offset = [-103.939, -116.779, -123.68]
    return L.Rescaling(1.0, offset=offset, name="to_caffe")(x[..., ::-1])


def _from_keras(
    application: Callable[..., tf.keras.Model],
    preprocess: Callable[[Any], Any] = lambda x: x,
    *,
    takes_alpha: bool = False,
) -> Architecture:
    """An architecture of keras.applications."""

    def backbone(inputs: Any, weights: str | None, alpha: float) -> Any:
        return application(
            include_top=False,
            weights=weights,
            input_tensor=preprocess(inputs),
            input_shape=tuple(inputs.shape[1:]),
            **({"alpha": alpha} if takes_alpha else {}),
        ).output

    return Architecture(backbone, takes_alpha=takes_alpha)


def _vision_transformer(width: int, heads: int) -> Architecture:
    """ViT of 12 blocks with patches of 16 pixels, without dropout.

    Source: Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021, Table 1; width 192 with
    3 heads: Touvron et al., DeiT, ICML 2021.
    """

    def backbone(inputs: Any, *_: Any) -> Any:
        with extra("zoo"):  # seconds to import: only for those who need it
            from keras_cv import layers

        patches = layers.PatchingAndEmbedding(width, 16, name="patches")
        # its private methods cannot be converted; TensorFlow would say so at every tracing
        patches.call = tf.autograph.experimental.do_not_convert(patches.call)
        x = patches(_to_unit_range(inputs))
        for index in range(12):
            options = {"mlp_dropout": 0.0, "attention_dropout": 0.0, "name": f"block{index + 1}"}
            x = layers.TransformerEncoder(width, heads, 4 * width, **options)(x)
        return L.LayerNormalization(epsilon=1e-6, name="norm")(x)

    # the class token is the first of the output vectors
    return Architecture(backbone, pool=lambda x: x[:, 0], multiple=16, imagenet=False)


def _digits_resnet(inputs: Any, *_: Any) -> Any:
    """Residual network of nine basic blocks for small grey images, 0.4 million parameters."""

    def normalised(x: Any, filters: int, kernel: int, strides: int, name: str) -> Any:
        options = {"padding": "same", "use_bias": False, "name": f"{name}_conv"}
        x = L.Conv2D(filters, kernel, strides, **options)(x)
        return L.BatchNormalization(name=f"{name}_bn")(x)

    x = L.Rescaling(1 / 255, name="to_zero_one")(inputs)
    x = L.ReLU(name="stem_relu")(normalised(x, 24, 3, 2, "stem"))
    for stage, filters in enumerate((24, 48, 72)):
        for block in range(3):
            name = f"stage{stage + 1}_block{block + 1}"
            strides = 2 if stage and not block else 1
            y = L.ReLU(name=f"{name}_relu1")(normalised(x, filters, 3, strides, f"{name}_1"))
            y = normalised(y, filters, 3, 1, f"{name}_2")
            if strides > 1:
                x = normalised(x, filters, 1, strides, f"{name}_shortcut")
            x = L.ReLU(name=f"{name}_relu2")(L.Add(name=f"{name}_add")([x, y]))
    return x


_KERAS = tf.keras.applications

ARCHITECTURES = {
    "mobilenet": _from_keras(_KERAS.MobileNet, _to_unit_range, takes_alpha=True),
    "mobilenet_v2": _from_keras(_KERAS.MobileNetV2, _to_unit_range, takes_alpha=True),
    "resnet50": _from_keras(_KERAS.ResNet50, _to_caffe),
    "vgg16": _from_keras(_KERAS.VGG16, _to_caffe)._replace(pool=lambda x: L.Flatten()(x)),
    # EfficientNetV2 of Keras has its preprocessing inside already.
    "efficientnet_v2b0": _from_keras(_KERAS.EfficientNetV2B0),
    "vit_b16": _vision_transformer(768, 12),
    "vit_ti16": _vision_transformer(192, 3),
    "digits_resnet": Architecture(_digits_resnet, smallest=16, channels=1, imagenet=False),
}
#: Models that `build` knows.
NAMES = tuple(ARCHITECTURES)
