"""Say what a training will take on this device, before it runs: seconds and memory.

Example::

    python -m elastic_tf forecast --model mobilenet --alpha 0.75 --input-size 128 \\
        --data birds --epochs 5 --rho 0.35

Without the images at hand: --classes 40 --images 1200. Forward passes are timed, no step is run.
The head alone, an elastic training and a full one are compared; reading images and evaluation are
not counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from elastic_tf import arguments as checks
from elastic_tf.app.commands import options
from elastic_tf.app.commands.commandline import option, parse


@dataclasses.dataclass(frozen=True)
class Settings(options.Step):
    """What to foretell."""

    data: str | None = option(None, help=options.DATA, check=options.images)
    images: int | None = option(None, help="training images; those of --data", check=checks.count)
    classes: int | None = option(None, help="classes of the head; those of --data, else 2")
    rho: float = option(0.5, help="allowed step time / full step time", check=checks.rho)
    epochs: int = option(5, help="passes over the images", check=checks.count)


def main(arguments: Sequence[str] | None = None) -> None:
    """Trace, time a forward pass, print."""
    settings = parse(Settings, __doc__ or "", arguments)
    if settings.images is None and settings.data is None:
        raise ValueError(
            "One of `data` and `images` must be given. Received: none. Use --data, with the images "
            "that will be trained on."
        )
    import tensorflow as tf

    from elastic_tf.app.commands.training import harness, sources
    from elastic_tf.choose.budget.forecast import forecast

    is_told = settings.data is None or (settings.classes and settings.images)
    found = (2, 0) if is_told else sources.counts(settings, images=settings.images is None)
    classes, images = settings.classes or found[0], settings.images or found[1]
    size = checks.count("batch_size", settings.batch_size, most=images)
    model = harness.compiled(harness.network(settings, classes), settings.optimizer, 1e-4)
    side, channels = harness.input_shape(settings)
    batch = np.zeros((size, side, side, channels), np.float32), np.zeros(size, np.int64)
    batches = tf.data.Dataset.from_tensors(batch).repeat(images // size)
    print(forecast(model, batches, rho=settings.rho, epochs=settings.epochs, keeps=True))
