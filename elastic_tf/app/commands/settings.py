"""The options of whatever trains.

What is wrong with the words is said before TensorFlow is loaded. The names of registries stand here
again, for these load it; a test compares them.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

from elastic_tf.app import class_folders
from elastic_tf.app.commands.commandline import option
from elastic_tf.arguments import choice, count, file, memory, number, part, rate, rho, width

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
_MOST_SEED = 2**32 - 1  # of NumPy


def _network(name: str, value: str) -> None:
    """Refuse what is neither a model of the zoo nor a file of one."""
    if value.endswith(".keras"):
        file(name, value, "a file of a Keras model")
    else:
        choice(name, value, (*MODELS, "FILE.keras"))


def images(name: str, value: str) -> None:
    """Refuse a name of images that cannot be there; TensorFlow Datasets knows its own."""
    path = Path(value)
    if path.is_dir():
        class_folders.class_names(path)
    elif value.startswith("digits") and not path.exists():
        choice(name, value, DIGITS)
    elif not value.startswith(TFDS):
        file(name, value, f"a {DATA}")


def _weights(name: str, value: str) -> None:
    """Refuse weights that are no file."""
    if value not in ("imagenet", "none"):
        file(name, value, "'imagenet', 'none' or a file")


def _method(name: str, value: str) -> None:
    """Refuse a method that there is not; one of a file is found when the file is loaded."""
    if ":" not in value:
        choice(name, value, METHODS)


@dataclasses.dataclass(frozen=True)
class Step:
    """A network and its training step."""

    model: str = option(
        "mobilenet",
        help=f"{', '.join(MODELS)}; or FILE.keras, a network of images of 0 to 255",
        check=_network,
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
    weights: str = option(
        "imagenet", help="'imagenet', 'none' or a file of weights", check=_weights
    )
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


@dataclasses.dataclass(frozen=True)
class Train(Adaptation):
    """One run."""

    method: str = option(
        "elastic",
        help=f"how to choose what to train: {', '.join(METHODS)}; "
        "or FILE.py:NAME, a method of your own",
        check=_method,
    )
    rho: float | None = option(
        None,
        help="allowed step time / full step time, for methods that keep to one: 0.5 if left out",
        check=rho,
    )
    seconds: float | None = option(
        None,
        help="in place of rho: until the trained weights are there, from the start of the program",
        check=partial(number, low=0.0, above=True),
    )
    memory: str | None = option(
        None,
        help="what a step may take, for those of them without a probe: '256 MiB' or bytes",
        check=memory,
    )
    learning_rate: float | None = option(
        None, help="learning rate at its highest; 3.5e-4 if left out", check=rate
    )
    schedule: str = option("cosine", help="of the learning rate", choices=("cosine", "constant"))
    patience: int | None = option(
        None,
        help="end after so many epochs without better validation accuracy; best with a constant "
        "schedule, for a cosine is made for all epochs",
        check=count,
    )
    balanced: bool = option(False, help="weigh each class alike, however many images it has")
    skip_bad_images: bool = option(False, help="train on the rest where a file is no image")
    seed: int = option(
        0, help="of weights, order and draws", check=partial(count, least=0, most=_MOST_SEED)
    )
    quiet: bool = option(False, help="show no progress")

    def no_budget(self) -> None:
        """Refuse what only methods that keep to a share of the step time can keep to."""
        for name in ("rho", "seconds", "memory"):
            if (value := getattr(self, name)) is not None:
                raise ValueError(
                    f"`{name}` is for methods that keep to a share of the step time. Received: "
                    f"{name}={value!r} for {self.method}. Leave it out."
                )
