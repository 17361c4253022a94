"""Steps are timed without waiting for data, and neither that nor a full step changes anything."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf
from clocks import Clock, Device, clocked, data, table
from networks import MORE_OPTIMIZERS, crossentropy, images, mask_of, network, values

from elastic_tf import optimizers
from elastic_tf.budget.step_timer import FullStep, StepTimer, of_batches
from elastic_tf.model import ElasticModel

L = tf.keras.layers


def noisy(optimizer: str = "adam", **options) -> ElasticModel:
    """A network with dropout, so that every draw counts."""
    tf.keras.utils.set_random_seed(3)
    inputs = L.Input((6, 6, 2))
    x = L.BatchNormalization()(L.Conv2D(4, 3)(inputs))
    model = ElasticModel(inputs, L.Dense(3)(L.Dropout(0.5)(L.Flatten()(x))))
    model.compile(MORE_OPTIMIZERS[optimizer](), crossentropy(), metrics=["accuracy"], **options)
    return model


class Timed(tf.keras.callbacks.Callback):
    """Times every step, and a full step after some of them."""

    def __init__(self, clock: Clock, full_after: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.clock = clock
        self.full_after = full_after
        self.seconds: list[float | None] = []
        self.waited: list[float | None] = []
        self.traced: list[bool] = []
        self.full: list[float] = []

    def on_train_begin(self, logs=None) -> None:
        self.timer = StepTimer(self.model, self.clock)
        self.step = FullStep(self.model, self.clock)
        self.timer.attach()

    def on_train_batch_end(self, batch, logs=None) -> None:
        self.seconds.append(self.timer.seconds)
        self.waited.append(self.timer.waited)
        self.traced.append(self.timer.traced)
        if len(self.seconds) in self.full_after:
            self.full.append(self.step.seconds(*self.timer.batch))

    def on_train_end(self, logs=None) -> None:
        self.timer.detach()


def trained(model: ElasticModel, *callbacks, **options) -> list[bytes]:
    tf.keras.utils.set_random_seed(5)
    model.fit(data(6), epochs=2, verbose=0, callbacks=list(callbacks), **options)
    return values([*model.variables, *optimizers.state(model.optimizer)])


@pytest.mark.parametrize("optimizer", ["sgdw", "adam", "average", "scaled", "legacy_adam"])
def test_timed_training_is_bit_for_bit_the_same(optimizer: str) -> None:
    def result(*callbacks):
        model = noisy(optimizer)
        model.set_mask(mask_of(model, "dense"))
        return trained(model, *callbacks)

    assert result() == result(Timed(Clock(), full_after=(3, 5, 9)))


def test_timed_training_traces_nothing_more() -> None:
    def traces(*callbacks):
        model = noisy()
        trained(model, *callbacks)
        return model.train_tf_function.experimental_get_tracing_count()

    assert traces() == traces(Timed(Clock()))


def test_first_calls_of_a_function_are_not_timed() -> None:
    device = Device(table(), tracing=9.0)
    timed = Timed(device.clock)
    trained(clocked(device), timed)
    assert timed.seconds == [None, None, *[1.0] * 10]
    assert timed.traced == [True, *[False] * 11]


def test_waiting_for_data_is_known_and_left_out() -> None:
    device = Device(table())
    x, y = images()

    def slow() -> Iterator[tuple[np.ndarray, int]]:
        for _ in range(6):
            device.clock.passes(3.0)
            yield x[:4], y[:4]

    spec = (tf.TensorSpec((None, 6, 6, 2)), tf.TensorSpec((None,), tf.int64))
    dataset = tf.data.Dataset.from_generator(slow, output_signature=spec)
    options = tf.data.Options()
    options.autotune.enabled = False  # nothing is drawn ahead
    timed = Timed(device.clock)
    clocked(device).fit(
        dataset.with_options(options), steps_per_epoch=6, verbose=0, callbacks=[timed]
    )
    assert timed.seconds[2:] == [1.0] * 4
    assert timed.waited[2:] == [3.0] * 4


def test_several_steps_in_a_call_share_its_time() -> None:
    device = Device(table())
    model = clocked(device)
    model.compile("sgd", crossentropy(), steps_per_execution=2)
    timed = Timed(device.clock)
    model.fit(data(9), verbose=0, callbacks=[timed])
    assert timed.seconds == [None, None, 0.5, 0.5, 1.0]  # the last call makes one step


def test_model_has_its_train_function_back() -> None:
    model = noisy()
    timed = Timed(Clock())
    trained(model, timed)
    assert model.train_function is not timed.timer._timed
    assert model.train_function is model.make_train_function()


def test_full_step_trains_all_tensors_and_leaves_the_mask() -> None:
    device = Device(table())
    model = clocked(device)
    mask = mask_of(model, "head")
    model.set_mask(mask)
    timed = Timed(device.clock, full_after=(4,))
    trained(model, timed)
    assert timed.full == pytest.approx([1.0])
    assert [int(m.sum()) for m in device.calls[3:8]] == [2, 10, 10, 10, 2]  # two to warm up
    np.testing.assert_array_equal(model.mask, mask)


def test_full_step_is_traced_once() -> None:
    model = noisy()
    model.set_mask(mask_of(model, "dense"))
    timed = Timed(Clock(), full_after=(3, 6, 9))
    trained(model, timed)
    functions = timed.step._functions._entries.values()
    assert [f.experimental_get_tracing_count() for _, f in functions] == [1]


def test_batches_keep_the_type_of_their_iterator() -> None:
    iterator = iter(data(3))
    batches = [next(iterator), next(iterator)]
    again = of_batches(batches, iterator.element_spec)
    assert again.element_spec == iterator.element_spec
    for one, two in zip(batches, again):
        np.testing.assert_array_equal(one[0], two[0])


def test_data_that_run_out_end_the_epoch_as_before() -> None:
    timed = Timed(Clock())
    model = ElasticModel.from_model(network())
    model.compile("sgd", crossentropy())
    unknown = data(5).filter(lambda x, y: True)
    history = model.fit(unknown, epochs=2, verbose=0, callbacks=[timed])
    assert len(timed.seconds) == 10
    assert len(history.history["loss"]) == 2
