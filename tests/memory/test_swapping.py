from __future__ import annotations

import contextlib
import gc
import resource
import weakref

import numpy as np
import pytest
import tensorflow as tf

import elastic_tf as et
from elastic_tf.memory import swapping
from elastic_tf.memory.swapping import SwapFile
from elastic_tf.timing.trace import StepFunction

L = tf.keras.layers
SIZE, BATCH = 8, 8


@pytest.fixture(autouse=True)
def _small_tensors_too(monkeypatch):
    monkeypatch.setattr(swapping, "_AT_LEAST", 1 << 10)


def network():
    inputs = L.Input((SIZE, SIZE, 3))
    x = L.Conv2D(16, 3, padding="same", use_bias=False)(inputs)
    x = L.ReLU()(L.BatchNormalization()(x))
    y = L.Conv2D(16, 3, padding="same", activation="relu")(x)
    y = L.Dropout(0.2, seed=0)(y)
    x = L.MaxPooling2D()(L.Add()([x, y]))
    x = L.Conv2D(16, 3, padding="same", activation="relu")(x)
    x = L.Flatten()(x)
    return tf.keras.Model(inputs, L.Dense(3)(x))


def unrolled():
    """A recurrent layer, unrolled: each step is another use of its weights."""
    inputs = L.Input((SIZE, SIZE, 3))
    x = L.Reshape((6, SIZE * SIZE // 2))(inputs)
    return tf.keras.Model(inputs, L.Dense(3)(L.LSTM(32, unroll=True)(x)))


def compiled(make=network, **kwargs):
    tf.keras.utils.set_random_seed(0)
    model = et.ElasticModel.from_model(make())
    model.compile(tf.keras.optimizers.Adam(0.01), "mse", **kwargs)
    return model


def data(rows=20):
    rng = np.random.default_rng(0)
    shapes = (rows, SIZE, SIZE, 3), (rows, 3)
    return tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)


def trained(model, swap, *, samples=False, mask=None, folder=None):
    """All numbers of the model after a short `fit`, and how large the file was."""
    if mask is not None:
        model.set_mask(mask)
    given = {"x": et.Samples(*data(), batch_size=BATCH)}
    if not samples:
        given = {**dict(zip("xy", data())), "batch_size": BATCH, "shuffle": False}
    tf.keras.utils.set_random_seed(1)
    with et.memory.swapped(model, folder) if swap else contextlib.nullcontext() as file:
        model.fit(**given, epochs=2, verbose=0)
        size = file.nbytes if swap else 0
    numbers = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
    return numbers, size


def same(found, expected):
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def middle():
    return np.arange(len(network().trainable_weights)) > 4


CASES = {
    "accumulated": (network, {"accumulate": 2}, {}),
    "several steps in one call": (network, {"steps_per_execution": 2}, {"mask": middle()}),
    "samples": (network, {}, {"samples": True, "mask": middle()}),
    "unrolled": (unrolled, {}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_swapped_training_gives_the_same_weights_bit_for_bit(case, deterministic):
    make, how, options = CASES[case]
    expected, _ = trained(compiled(make, **how), False, **options)
    found, size = trained(compiled(make, **how), True, **options)
    assert same(found, expected)
    assert size


def images_taken(model):
    """Activations with an image's shape that backward ops take, and how often Python is called."""
    x, y = data(BATCH)
    run = StepFunction(model, model.plan)
    ops = run.graph((tf.constant(x), tf.constant(y))).get_operations()
    backward = [op for op in ops if "Backprop" in op.type or op.type.endswith("Grad")]
    inputs = [t for op in backward for t in op.inputs if t.op.name.startswith(model.name)]
    images = {t.name for t in inputs if t.shape.rank == 4 and t.op.type != "ReadVariableOp"}
    return len(images), sum(op.type == "PyFuncStateless" for op in ops)


def test_the_backward_pass_takes_no_large_tensor_from_the_forward_pass():
    model = compiled()
    kept, calls = images_taken(model)
    assert kept >= 4 and not calls
    with et.memory.swapped(model):
        kept, calls = images_taken(model)
        model.set_mask(middle())
        fewer = images_taken(model)[1]
    assert not kept and calls >= 15 and 0 < fewer < calls / 2  # what is frozen is not swapped


def test_a_full_disk_ends_fit_after_a_whole_step(tmp_path, deterministic):
    model = compiled()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, hard))  # a longer file cannot be written
    try:
        with pytest.raises(OSError, match="Received: .* in '.*' after .*finished in memory"):
            trained(model, True, folder=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert int(model.optimizer.iterations) == 1
    assert not same([v.numpy() for v in model.variables], [v.numpy() for v in compiled().variables])
    one = compiled()
    x, y = data()
    tf.keras.utils.set_random_seed(1)
    one.fit(x[:BATCH], y[:BATCH], batch_size=BATCH, shuffle=False, verbose=0)
    for found, expected in zip(model.variables, one.variables):
        np.testing.assert_array_equal(found, expected)


def test_the_file_has_no_name_and_nothing_holds_it_afterwards(tmp_path):
    model = compiled()
    x, y = data(BATCH)
    with et.memory.swapped(model, tmp_path) as file:
        model.train_on_batch(x, y)
        assert file.nbytes and not [*tmp_path.iterdir()]
    known = weakref.ref(file)
    del file
    model.train_on_batch(x, y)  # in memory again
    gc.collect()
    assert known() is None


def test_a_model_that_cannot_be_swapped_is_refused():
    def refuse(error, match, model, *args, **kwargs):
        with pytest.raises(error, match=match), et.memory.swapped(model, *args, **kwargs):
            pass

    refuse(ValueError, "run_eagerly=True", compiled(run_eagerly=True))
    refuse(ValueError, r"not both.*keep=0\.5", compiled(keep=0.5))
    refuse(FileNotFoundError, "no_such", compiled(), "no_such_folder")


def test_arrays_come_back_and_their_place_is_used_again(tmp_path):
    file = SwapFile(tmp_path)
    arrays = [np.arange(1000.0) + k for k in range(3)]
    for _ in range(3):
        tickets = [file.put(array) for array in arrays]
        for ticket, array in zip(tickets, arrays):
            np.testing.assert_array_equal(file.take(file.ask(ticket)), array)
    assert file.nbytes == 3 * 8000
    file.close()
    ticket = file.put(arrays[0])  # stays in memory
    np.testing.assert_array_equal(file.take(file.ask(ticket)), arrays[0])
    assert file.failure is None
