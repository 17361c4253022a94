"""Say what a training will take on this device, before it runs: seconds and memory.

Example::

    python -m elastic_tf forecast --model mobilenet --alpha 0.75 --input-size 128 \\
        --batch-size 16 --classes 40 --images 1200 --epochs 5 --rho 0.35

Forward passes are timed, no step is run. The head alone, an elastic training and a full one are
compared; reading images and evaluation are not counted.
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

    images: int = option(help="training images", check=checks.count)
    classes: int = option(2, help="classes of the head")
    rho: float = option(0.5, help="allowed step time / full step time", check=checks.rho)
    epochs: int = option(5, help="passes over the images", check=checks.count)


def main(arguments: Sequence[str] | None = None) -> None:
    """Trace, time a forward pass, print."""
    settings = parse(Settings, __doc__ or "", arguments)
    size = checks.count("batch_size", settings.batch_size, most=settings.images)
    import tensorflow as tf

    from elastic_tf.app.commands.training import harness
    from elastic_tf.choose.budget.forecast import forecast

    network = harness.network(settings, settings.classes)
    model = harness.compiled(network, settings.optimizer, 1e-4)
    batch = np.zeros((size, *network.input_shape[1:]), np.float32), np.zeros(size, np.int64)
    batches = tf.data.Dataset.from_tensors(batch).repeat(settings.images // size)
    print(forecast(model, batches, rho=settings.rho, epochs=settings.epochs, keeps=True))
