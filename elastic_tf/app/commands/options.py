"""Options that several commands share, and what is wrong with them before TensorFlow is loaded.

The names of registries stand here again, for these load TensorFlow; a test compares them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from elastic_tf.app import class_folders
from elastic_tf.app.commands.commandline import option
from elastic_tf.arguments import choice, count, file, part, width

TFDS = "tfds:"  # before the name of one of TensorFlow Datasets
DIGITS = ("digits", "digits:shifted", "digits:turned", "digits:inverted")
DATA = (
    "folder with train/CLASS/*.jpg and test/CLASS/*.jpg, or with CLASS/*.jpg, FILE.npz with "
    f"x_train, y_train, x_test, y_test, {TFDS}NAME, or {', '.join(DIGITS)}"
)
MODELS = (
    *("mobilenet", "mobilenet_v2", "resnet50", "vgg16", "efficientnet_v2b0"),
    *("vit_b16", "vit_ti16", "digits_resnet"),
)
AUGMENTATIONS = ("flip", "crop", "rotate", "brightness", "contrast")
OPTIMIZERS = ("sgd", "sgdw", "adam", "shampoo")
# Methods that keep to a share of the step time.
WITHIN_RHO = (
    *("elastic", "elastic_loss", "elastic_weight", "elastic_grad", "elastictrainer", "random"),
    "offline_optimal",
)
METHODS = (
    *("full", "traditional_tl", "bn_bias", "gradient_filtering", *WITHIN_RHO),
    *("velocity", "random_neurons"),
)


def network(name: str, value: str) -> None:
    """Refuse what is neither a model of the zoo nor a file of one."""
    if value.endswith(".keras"):
        file(name, value, "a file of a Keras model")
    else:
        choice(name, value, (*MODELS, "FILE.keras"))


def no_budget(method: str, **given: Any) -> None:
    """Refuse `rho` and `memory` for a method that keeps to no share of the step time."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"`{name}` is for methods that keep to a share of the step time. Received: "
                f"{name}={value!r} for {method}. Leave it out."
            )


def images(name: str, value: str) -> None:
    """Refuse a name of images that cannot be there; TensorFlow Datasets knows its own."""
    path = Path(value)
    if path.is_dir():
        class_folders.class_names(path)
    elif value.startswith("digits") and not path.exists():
        choice(name, value, DIGITS)
    elif not value.startswith(TFDS):
        file(name, value, f"a {DATA}")


def weights(name: str, value: str) -> None:
    """Refuse weights that are no file."""
    if value not in ("imagenet", "none"):
        file(name, value, "'imagenet', 'none' or a file")


@dataclasses.dataclass(frozen=True)
class Step:
    """A network and its training step."""

    model: str = option(
        "mobilenet",
        help=f"{', '.join(MODELS)}; or FILE.keras, a network of images of 0 to 255",
        check=network,
    )
    alpha: float = option(1.0, help="width of mobilenet and mobilenet_v2", check=width)
    input_size: int = option(128, help="height and width of the images in pixels", check=count)
    batch_size: int = option(16, help="images in a training step", check=count)
    optimizer: str = option("shampoo", help="what updates the weights", choices=OPTIMIZERS)
    bn_training: bool = option(False, help="let batch normalisation use the batch's statistics")


@dataclasses.dataclass(frozen=True)
class Adaptation(Step):
    """The adaptation of a network to images."""

    data: str = option(help=DATA, check=images)
    out: Path = option(help="directory of all that is written")
    weights: str = option("imagenet", help="'imagenet', 'none' or a file of weights", check=weights)
    epochs: int = option(5, help="passes over the training images", check=count)
    warm_up: float = option(
        0.15, help="share of the steps in which a cosine rises first", check=part
    )
    interval: int = option(
        3, help="epochs between two selections, for methods that select", check=count
    )
    probe_size: int = option(64, help="images on which these evaluate importance", check=count)
    profile: Path | None = option(
        None, help="timing profile that these use; foretold, or measured first, if left out"
    )
    validation: float = option(
        0.1,
        help="share of the training images to evaluate on after each epoch; the test images are "
        "then used once, at the end. 0: they are used after each epoch",
        check=part,
    )
    augment: tuple[str, ...] = option(
        (), help="change training images at random, in two views of each", choices=AUGMENTATIONS
    )
