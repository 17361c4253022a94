r"""Adapt a network to a few pictures of each class, on the memory of a small device.

Example::

    python -m elastic_tf fewshot --data birds --support 5 --memory "4 MiB"

It draws so many pictures of each class in train/, and reports the accuracy on the images in test/
before and after.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from elastic_tf import arguments as checks
from elastic_tf.app.commands import options
from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.files import class_folders

_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Settings(options.Network):
    """Which pictures, and what adapting may take."""

    data: Path = option(help="folder with train/CLASS/*.jpg and test/CLASS/*.jpg")
    support: int = option(5, help="pictures of each class to learn from", check=checks.count)
    weights: str = option(
        "imagenet", help="'imagenet', 'none', or a file of weights", check=options.weights
    )
    memory: str | None = option(
        None, help="most memory for one image at a time: '1 MiB' or bytes", check=checks.memory
    )
    compute: float = option(0.15, help="most of a whole backward pass's multiply-adds")
    steps: int = option(40, help="of adapting")
    rate: float = option(1e-3, help="learning rate of Adam", check=checks.rate)
    flip: bool = option(False, help="a mirrored thing is the same thing")
    seed: int = option(0, help="of the drawing of pictures and their changes")


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, adapt, and say what is reached."""
    settings = parse(Settings, __doc__ or "", arguments)
    names = class_folders.class_names(settings.data)
    drawn = pictures(settings, names)
    import tensorflow as tf

    from elastic_tf.app.commands.training import harness
    from elastic_tf.app.data import folder
    from elastic_tf.methods.fewshot import ProtoNet, adapt

    net = ProtoNet.of(harness.network(settings, len(names), settings.weights))

    def read(paths: Sequence[str]) -> np.ndarray:
        images = np.stack([folder.read(path, settings.input_size) for path in paths])
        is_grey = net.model.input_shape[-1] == 1
        return tf.image.rgb_to_grayscale(images).numpy() if is_grey else images

    (x, y), (x_test, y_test) = ((read(paths), np.array(names)[k]) for paths, k in drawn)
    given = {name: getattr(settings, name) for name in ("memory", "compute", "flip", "seed")}
    for steps in (0, settings.steps):
        found = adapt(net, x, y, steps=steps, learning_rate=settings.rate, **given)
        right, when = np.mean(found.predict(x_test) == y_test), "after" if steps else "before"
        print(f"{when}: {right:.1%} of {len(y_test)} test images", flush=True)
    if found.plan is not None:
        print(
            f"Trained {found.plan.mask.sum()} of {len(found.plan)} tensors in {found.seconds:.1f} "
            f"s, of them {found.selection_seconds:.1f} s to choose these; an image at a time takes "
            f"{found.memory / _MIB:.2f} MiB (inference {net.costs.peak / _MIB:.2f}) and "
            f"{found.macs / net.costs.full_macs:.0%} of a whole backward pass"
        )


def pictures(settings: Settings, names: Sequence[str]) -> list[tuple[list[str], np.ndarray]]:
    """Paths and classes of what is drawn from train/, and of all in test/."""
    train, test = (
        class_folders.listed(settings.data / part, names) for part in class_folders.PARTS
    )
    rng, chosen = np.random.default_rng(settings.seed), []
    for k, name in enumerate(names):
        rows = np.flatnonzero(train[1] == k)
        if len(rows) < settings.support:
            raise ValueError(
                f"Every class must have {settings.support} pictures in train/. Received: "
                f"{len(rows)} of '{name}' in '{settings.data}'. Lower --support."
            )
        chosen += rng.choice(rows, settings.support, replace=False).tolist()
    if not test[0]:
        raise ValueError(f"There must be images in test/. Received: none in '{settings.data}'.")
    return [([train[0][row] for row in chosen], train[1][chosen]), test]
