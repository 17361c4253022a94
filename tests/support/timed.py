"""A training of some epochs by the clock of a simulated device."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from clocks import ClockedModel, Device, clocked, data, table

from elastic_tf.callback import ElasticCallback

STEPS, EPOCHS = 40, 6


class Passing(tf.keras.callbacks.Callback):
    """Lets time pass at validation, and changes the device's speed at one epoch."""

    def __init__(self, device: Device, validation: float = 0.0, **speeds: float) -> None:
        super().__init__()
        self.device = device
        self.validation = validation
        self.speeds = speeds

    def on_epoch_begin(self, epoch, logs=None) -> None:
        self.device.speed = self.speeds.get(f"from_{epoch}", self.device.speed)

    def on_test_begin(self, logs=None) -> None:
        self.device.clock.passes(self.validation)


def worth(device: Device, seconds: float = 0.0):
    """An importance function that takes a while; output-side tensors matter more."""

    def evaluate(model, x, y):
        device.clock.passes(seconds)
        return np.linspace(0.5, 1.0, len(model.tensors))

    return evaluate


def run(
    device: Device,
    *callbacks,
    importance_seconds: float = 0.0,
    after=(),
    epochs: int = EPOCHS,
    steps: int = STEPS,
    **options,
) -> ElasticCallback:
    """A training by the device's clock, with callbacks before the elastic one and after it."""
    chosen = {"rho": 0.7, "interval": 3, "probe": data(2), "clock": device.clock}
    if "deadline" in options:
        del chosen["rho"]
    chosen["importance"] = worth(device, importance_seconds)
    elastic = ElasticCallback(table(), **{**chosen, **options})
    model: ClockedModel = clocked(device)
    model.fit(
        data(steps),
        epochs=epochs,
        verbose=0,
        validation_data=data(1),
        callbacks=[*callbacks, elastic, *after],
    )
    return elastic
