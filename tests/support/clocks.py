"""A clock that tests move, and a device whose steps take what no profile says."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf
from networks import chain, crossentropy, images

from elastic_tf import stack
from elastic_tf.callback import ElasticCallback
from elastic_tf.model import ElasticModel
from elastic_tf.timing.profile import TimingProfile

STEPS, EPOCHS = 40, 6


class Device:
    """What steps cost: an overhead that no plan changes, tensors that cost what they cost, noise.

    The profile is another story: it gives equal times to all tensors.
    """

    def __init__(self, **options: float) -> None:
        self.now = 0.0  # seconds; moved by every call of a train function
        self.speed = 1.0  # times which everything takes longer; may be changed in a training
        self.overhead, self.uneven = 0.0, 0.0  # seconds of a step; share of a tensor's time
        self.noise, self.drift = 0.0, 0.0  # of a step; of the speed from step to step; both sigma
        self.tracing, self.validating = 0.0, 0.0  # seconds; the first validation takes three times
        vars(self).update(options)
        self.calls: list[np.ndarray] = []  # the mask of each call
        self.times: list[float] = []
        self._random = np.random.default_rng(0)
        self._costs = 1.0 + self.uneven * np.linspace(-1.0, 1.0, 10)

    def clock(self) -> float:
        return self.now

    def ratio(self, mask: np.ndarray) -> float:
        """Step time / full step time under that mask, as it is on average."""
        return self._seconds(mask) / self._seconds(np.ones(10, bool))

    def call(self, mask: np.ndarray) -> None:
        """A step passes."""
        self.speed *= np.exp(self.drift * self._random.normal())
        stretch = max(1.0 + self.noise * self._random.normal(), 0.3)
        self.calls.append(mask)
        self.times.append(self.speed * stretch * self._seconds(mask))
        self.now += self.times[-1]

    def _seconds(self, mask: np.ndarray) -> float:
        deepest = int(np.argmax(mask))
        backward = self._costs[mask].sum() + self._costs[deepest:].sum()
        return self.overhead + (10.0 + backward) / 30.0


class ClockedModel(ElasticModel):
    """A model that trains nothing: its functions take their batches and move the device's clock."""

    device: Device

    def make_train_function(self, force: bool = False) -> Any:
        state, key = self._elastic, self.mask.tobytes()
        self._build_optimizer()
        if force:
            state.functions.clear()
        kept = state.functions.get(key)
        if kept is None:
            step = tf.function(lambda: self.optimizer.iterations.assign_add(1))
            traced = step.get_concrete_function()
            traceable = SimpleNamespace(get_concrete_function=lambda iterator: traced)
            kept = self.moving(self.mask, traced), traceable
            state.functions.put(key, kept)
        self.train_function, state.traceable = kept
        if state.data is None:
            state.data = stack.running_fit(self)
        if state.lookahead is not None:
            self.train_function = state.lookahead.before(self.train_function)
        return self.train_function

    def moving(self, mask: np.ndarray, step: Any) -> Any:
        """A train function, whose first call takes longer."""
        device, calls = self.device, []

        def function(iterator: Any) -> Any:
            next(iterator)
            device.call(mask)
            device.now += 0.0 if calls else device.tracing
            calls.append(1)
            step()
            return {"loss": 0.0}

        return function

    def make_test_function(self, force: bool = False) -> Any:
        def function(iterator: Any) -> Any:
            next(iterator)
            return {"loss": 0.0}

        self.test_function = function
        return function


class Passing(tf.keras.callbacks.Callback):
    """Lets time pass at validation, and changes the device's speed at one epoch."""

    def __init__(self, device: Device, **speeds: float) -> None:
        super().__init__()
        self.device, self.speeds = device, speeds

    def on_train_begin(self, logs=None) -> None:
        self.first = 3.0

    def on_epoch_begin(self, epoch, logs=None) -> None:
        self.device.speed = self.speeds.get(f"from_{epoch}", self.device.speed)

    def on_test_begin(self, logs=None) -> None:
        self.device.now += self.first * self.device.speed * self.device.validating
        self.first = 1.0


def table(count: int = 10) -> TimingProfile:
    """A full step of a second: a third is the forward pass, tensors cost the same."""
    unit = np.full(count, 1e6 / 30)
    return TimingProfile.from_chain(t_dw=unit, t_dy=unit, t_forward=1e7 / 30)


def data(batches: int) -> tf.data.Dataset:
    """Batches of four."""
    x, y = images()
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().take(4 * batches).batch(4)


def clocked(device: Device) -> ClockedModel:
    model = ClockedModel.from_model(chain())
    object.__setattr__(model, "device", device)
    model.compile(tf.keras.optimizers.SGD(0.01, momentum=0.9), crossentropy())
    assert model.tensors
    model._elastic.tracing = 0.0  # by the real clock
    return model


def worth(device: Device, seconds: float = 0.0):
    """An importance function that takes a while; output-side tensors matter more."""

    def evaluate(model, x, y):
        device.now += seconds
        return np.linspace(0.5, 1.0, len(model.tensors))

    return evaluate


def run(
    device: Device,
    rho: Any = 0.7,
    *callbacks: tf.keras.callbacks.Callback,
    selecting: float = 0.0,
    epochs: int = EPOCHS,
    steps: int = STEPS,
    profile: TimingProfile | None = None,
    validation_data: tf.data.Dataset | None = None,
    **options: Any,
) -> ElasticCallback:
    """A training by the device's clock."""
    chosen = {"interval": 3, "probe": data(2), "importance": worth(device, selecting), **options}
    elastic = ElasticCallback(profile or table(), rho, **chosen)
    elastic.clock = device.clock
    clocked(device).fit(
        data(steps),
        epochs=epochs,
        verbose=0,
        validation_data=validation_data or data(1),
        callbacks=[*(callbacks or [Passing(device)]), elastic],
    )
    return elastic
