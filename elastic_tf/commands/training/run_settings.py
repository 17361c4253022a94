"""The settings of one training, and which of them each method takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from elastic_tf.commands import names
from elastic_tf.commands.commandline import option
from elastic_tf.commands.training import history, sources, strategies
from elastic_tf.selection.selector import check_rho

# Of the methods that choose within a share of the step time, unless they are given.
CHOOSING: dict[str, Any] = {"rho": 0.5, "interval": 3, "probe_size": 64}


@dataclasses.dataclass(frozen=True)
class Settings:
    """One run."""

    data: str = option(help=sources.HELP)
    out: Path = option(help="directory of the run")
    method: str = option("elastic", help="how to choose what to train", choices=names.METHODS)
    model: str = option("mobilenet", help="model of the zoo", choices=names.MODELS)
    alpha: float = option(1.0, help="width multiplier, for models that have one")
    weights: str = option("imagenet", help="'imagenet', 'none', or a file of weights")
    input_size: int = option(224, help="height and width of the images in pixels")
    batch_size: int = option(4, help="images in a training step of each replica")
    epochs: int = option(12, help="passes over the training images")
    optimizer: str = option("adam", help="optimizer", choices=names.OPTIMIZERS)
    learning_rate: float = option(1e-4, help="learning rate at the start")
    schedule: str = option("cosine", help="of the learning rate", choices=("cosine", "constant"))
    warm_up: float = option(0.0, help="share of the steps in which the learning rate rises to it")
    rho: Optional[float] = option(  # noqa: UP045 (read at run time, by 3.9 too)
        None,
        help="allowed step time / full step time, for methods that keep to one: 0.5 if left out",
    )
    interval: Optional[int] = option(  # noqa: UP045
        None, help="epochs between two selections, for methods that select: 3 if left out"
    )
    probe_size: Optional[int] = option(  # noqa: UP045
        None, help="images on which these evaluate importance: 64 if left out"
    )
    profile: Optional[Path] = option(  # noqa: UP045
        None, help="timing profile that these use; measured first if left out"
    )
    warm_head: int = option(0, help="epochs that train the new head alone first")
    warm_head_rate: float = option(1e-3, help="learning rate of Adam meanwhile")
    validation: float = option(
        0.1,
        help="share of the training images to evaluate on after each epoch; the test images "
        "are then used once, at the end. 0: they are used after each epoch",
    )
    flip: bool = option(False, help="flip training images at random")
    augment: str = option("none", help="randaugment, cutmix, mixup, or several with commas")
    bn_training: bool = option(False, help="let batch normalisation use the batch's statistics")
    skip_bad_images: bool = option(False, help="train on the rest where a file is no image")
    targets: str = option("", help="accuracies to tell the time to, with commas: 0.7,0.8")
    strategy: str = option(
        "none",
        help="where to train: here, on all devices, or on all of TF_CONFIG's workers",
        choices=strategies.NAMES,
    )
    seed: int = option(0, help="of weights, order and draws")
    quiet: bool = option(False, help="show no progress")


def completed(settings: Settings) -> Settings:
    """The settings with the defaults of the method.

    Raises:
        ValueError: a value out of range, or an option that the method does not take.
    """
    history.targets_of(settings.targets)
    sources.augmentations(settings.augment)
    taken = taken_by(settings.method)
    for name, default in CHOOSING.items():
        given = getattr(settings, name)
        if given is None and name in taken:
            settings = dataclasses.replace(settings, **{name: default})
        if given is not None and name not in taken:
            takers = [method for method in names.METHODS if name in taken_by(method)]
            raise ValueError(
                f"--{name.replace('_', '-')} is for the methods {', '.join(takers)}. Received: "
                f"{given} for {settings.method}. Leave it out."
            )
    if settings.rho is not None:
        check_rho(settings.rho)
    check_warm_up(settings.warm_up)
    if settings.warm_up and settings.schedule == "constant":
        raise ValueError(
            "Only the cosine has a warm-up. Received: "
            f"warm_up={settings.warm_up}, schedule='constant'. Leave one of them out."
        )
    return settings


def check_warm_up(share: float) -> None:
    """Raises a ValueError unless `share` of the steps can be a warm-up."""
    if not 0 <= share < 1:
        raise ValueError(
            "`warm_up` must be a share of the training's steps in [0, 1). Received: "
            f"warm_up={share}."
        )


def taken_by(method: str) -> Sequence[str]:
    """Which of the options in `CHOOSING` a method takes."""
    if names.NEEDS_PROFILE[method]:
        return tuple(CHOOSING)
    return ("interval",) if method == "prunetrain" else ()
