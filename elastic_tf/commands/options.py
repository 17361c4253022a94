"""Options that several commands share. Names that have a registry are checked where it is read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from elastic_tf.commands.commandline import option

DATA = (
    "folder with train/CLASS/*.jpg and test/CLASS/*.jpg, FILE.npz with x_train, y_train, x_test, "
    "y_test, tfds:NAME, or digits, digits:shifted, digits:turned, digits:inverted"
)
MODELS = (
    "model of the zoo: mobilenet, mobilenet_v2, resnet50, vgg16, efficientnet_v2b0, vit_b16, "
    "vit_ti16, digits_resnet"
)
METHODS = (
    "how to choose what to train: full, traditional_tl, bn_bias, gradient_filtering, "
    "elastic, elastic_loss, elastic_weight, elastic_grad, elastictrainer, random, offline_optimal; "
    "or FILE.py:NAME, a method of your own"
)


@dataclasses.dataclass(frozen=True)
class Network:
    """A network and its training step."""

    model: str = option("mobilenet", help=MODELS)
    alpha: float = option(1.0, help="width multiplier, for models that have one")
    input_size: int = option(224, help="height and width of the images in pixels")
    batch_size: int = option(4, help="images in a training step of each replica")
    optimizer: str = option("adam", help="optimizer: sgd, sgdw, adam")
    bn_training: bool = option(False, help="let batch normalisation use the batch's statistics")


@dataclasses.dataclass(frozen=True)
class Adaptation(Network):
    """The adaptation of a network to images."""

    data: str = option(help=DATA)
    out: Path = option(help="directory of all that is written")
    weights: str = option("imagenet", help="'imagenet', 'none', or a file of weights")
    epochs: int = option(12, help="passes over the training images")
    warm_up: float = option(
        0.0,
        help="share of the steps in which the learning rate rises to it",
        alias="--warmup-ratio",
    )
    head: str = option(
        "solve",
        help="where the new head starts: the best linear one in closed form, trained alone, or as "
        "the weights have it",
        choices=("solve", "train", "none"),
    )
    head_epochs: int = option(2, help="epochs that train it alone, with --head train")
    head_rate: float = option(1e-3, help="learning rate of Adam meanwhile")
    interval: int = option(3, help="epochs between two selections, for methods that select")
    probe_size: int = option(64, help="images on which these evaluate importance")
    profile: Path | None = option(
        None, help="timing profile that these use; measured first if left out"
    )
    validation: float = option(
        0.1,
        help="share of the training images to evaluate on after each epoch; the test images are "
        "then used once, at the end. 0: they are used after each epoch",
        alias="--validation-split",
    )
    flip: bool = option(False, help="flip training images at random")
