"""A clock that tests move, and a device whose steps take as long by it as a profile says."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from networks import crossentropy, images, network

from elastic_tf.model import ElasticModel
from elastic_tf.timing.profile import TimingProfile


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


class Device:
    """What steps cost: by the profile, but it delivers only a share of the savings.

    Attributes:
        clock: moved by every call of a train function.
        speed: seconds of a full step.
        delivered: share of the predicted savings that there are.
        tracing: seconds of the first call under a new mask.
    """

    def __init__(self, profile: TimingProfile, **options: float) -> None:
        self.clock = Clock()
        self.profile = profile
        self.speed = options.get("speed", 1.0)
        self.delivered = options.get("delivered", 1.0)
        self.tracing = options.get("tracing", 0.0)
        self.calls: list[np.ndarray] = []  # the mask of each call

    def step(self, mask: np.ndarray) -> float:
        """Seconds of a step under that mask."""
        predicted = self.profile.step_time(mask) / self.profile.t_full
        return self.speed * (1.0 - self.delivered * (1.0 - predicted))


class ClockedModel(ElasticModel):
    """A model whose train functions move the device's clock."""

    device: Device

    def make_train_function(self, force: bool = False) -> Any:
        function = super().make_train_function(force)
        traceable, device, mask = self.train_tf_function, self.device, self.mask

        def moving(iterator: Any) -> Any:
            traces = traceable.experimental_get_tracing_count()
            logs = function(iterator)
            device.calls.append(mask)
            device.clock.passes(device.step(mask))
            if traceable.experimental_get_tracing_count() > traces:
                device.clock.passes(device.tracing)
            return logs

        self.train_function = moving
        return moving


def table(count: int = 10) -> TimingProfile:
    """A full step of a second: a third is the forward pass, tensors cost the same."""
    unit = np.full(count, 1e6 / 30)
    return TimingProfile.from_chain(t_dw=unit, t_dy=unit, t_forward=1e7 / 30)


def data(batches: int) -> tf.data.Dataset:
    """Batches of four."""
    x, y = images()
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().take(4 * batches).batch(4)


def clocked(device: Device) -> ClockedModel:
    model = ClockedModel.from_model(network())
    object.__setattr__(model, "device", device)
    model.compile(tf.keras.optimizers.SGD(0.01, momentum=0.9), crossentropy())
    return model
