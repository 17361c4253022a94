"""With all tensors trained, and with layers left out, training is that of plain Keras."""

import numpy as np
import pytest
import tensorflow as tf
from networks import (
    CLASSES,
    IMAGE,
    MORE_OPTIMIZERS,
    SAMPLES,
    K,
    L,
    block,
    crossentropy,
    fit,
    half_precision,
    images,
    mask_of,
    network,
    values,
)
from training import UPPER, assert_trained_alike, elastic, everything, loss_scale, plain

from elastic_tf import stack
from elastic_tf.train import optimizers

pytestmark = pytest.mark.usefixtures("as_keras_writes_them")


WEIGHTED = {"source": block, "weighted_metrics": ["accuracy"]}
CLASS_WEIGHTS, OF_SAMPLES = {0: 1.0, 1: 3.0, 2: 0.5}, np.linspace(0, 2, SAMPLES, dtype=np.float32)
NORMALISED = ("adam", "scaled_sgdw")  # the others need no more than a dense layer


def flat() -> tf.keras.Model:
    return tf.keras.Sequential([L.Input(IMAGE), L.Flatten(), L.Dense(CLASSES)])


CASES = {  # options of fit, and of the model
    **{
        kind: ({}, {"kind": kind, "source": block if kind in NORMALISED else flat})
        for kind in MORE_OPTIMIZERS
    },
    "class weights": ({"class_weight": CLASS_WEIGHTS, "validation_data": images(seed=1)}, WEIGHTED),
    "shuffled": ({"sample_weight": OF_SAMPLES, "shuffle": True, "validation_split": 0.2}, WEIGHTED),
    "executions": ({}, {"source": block, "steps_per_execution": 2}),
    "eager": ({}, {"source": block, "run_eagerly": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_fit_is_bit_identical(case, deterministic):
    fitted, options = CASES[case]
    assert_trained_alike(fitted, **options)


@pytest.mark.slow
@pytest.mark.skipif(not stack.IS_KERAS2, reason="Keras 3 has no XLA where ops are deterministic")
def test_xla_is_that_of_keras(deterministic):
    assert_trained_alike(source=block, jit_compile=True)


def test_sparse_gradients_dropout_and_regularizers_are_those_of_keras(deterministic):
    def source():
        tokens = L.Input((5,), dtype="int64")
        x = L.GRU(4, dropout=0.5)(L.Embedding(9, 3)(tokens))
        head = L.Dense(CLASSES, kernel_regularizer="l2")
        return tf.keras.Model(tokens, head(L.Dropout(0.5)(x)))

    x = np.random.default_rng(0).integers(0, 9, (SAMPLES, 5))
    assert_trained_alike({"x": x}, source=source)


def test_train_on_batch_is_that_of_keras(deterministic):
    ours, theirs = elastic(source=block), plain(source=block)
    assert ours.train_on_batch(*images()) == theirs.train_on_batch(*images())


@pytest.mark.parametrize("norm", ["global_clipnorm", "clipnorm"])
def test_clipping_is_that_of_keras(norm, deterministic):
    ours, theirs = (
        make(source=block, optimizer=K.SGD(0.1, **{norm: 0.01})) for make in (elastic, plain)
    )
    assert fit(ours) == fit(theirs)
    assert everything(ours) == everything(theirs)


def test_left_out_layers_are_like_untrainable_ones(deterministic):
    left_out = ("conv1", "bn1", "bn2")
    ours, theirs = elastic(), network()
    for name in left_out:
        theirs.get_layer(name).trainable = False
    theirs.compile(MORE_OPTIMIZERS["sgd"](), crossentropy())
    ours.set_mask(mask_of(ours, *UPPER))
    np.testing.assert_allclose(fit(ours)["loss"], fit(theirs)["loss"], rtol=1e-5)
    for one, other in zip(stack.weights(ours), stack.weights(theirs)):
        assert one.name == other.name
        rounding = 0.0 if one.name.startswith(left_out) else 1e-4
        np.testing.assert_allclose(one, other, rtol=rounding, atol=rounding)


def test_callbacks_work_as_with_keras(tmp_path, deterministic):
    C = tf.keras.callbacks
    histories, models = [], [elastic(source=block), plain(source=block)]
    for name, model in zip(("ours", "theirs"), models):
        folder = tmp_path / name
        folder.mkdir()
        callbacks = [
            C.ReduceLROnPlateau("loss", patience=0, min_delta=1e9),
            C.EarlyStopping("loss", min_delta=1e9, patience=2),
            C.TensorBoard(str(folder)),
            C.ModelCheckpoint(str(folder / "best.keras"), "loss", save_best_only=True),
            C.BackupAndRestore(str(folder / "backup")),
            C.TerminateOnNaN(),
        ]
        histories.append(fit(model, epochs=5, callbacks=callbacks))
    assert histories[0] == histories[1]
    assert 1 < len(histories[0]["loss"]) < 5
    assert everything(models[0]) == everything(models[1])


def unused() -> tf.keras.Model:
    """A layer that the loss does not use, as BERT's pooler."""
    inputs = L.Input((4,))
    hidden = L.Dense(3, name="hidden")(inputs)
    pooled = L.Dense(2, name="pooler")(hidden)
    return tf.keras.Model(inputs, {"out": L.Dense(CLASSES, name="out")(hidden), "pooled": pooled})


@pytest.mark.filterwarnings("ignore:[\\s\\S]*Gradients do not exist")  # of Keras 3's own fit
@pytest.mark.parametrize("kind", ["adamw", "scaled_sgdw"])
def test_tensors_that_the_loss_does_not_use_stay_as_with_keras(kind, deterministic):
    data = {"x": np.ones((SAMPLES, 4), np.float32), "y": {"out": images()[1]}}
    options = {"source": unused, "loss": lambda: {"out": crossentropy()}}
    ours, theirs = elastic(kind=kind, **options), plain(kind=kind, **options)
    assert fit(ours, **data) == fit(theirs, **data)
    assert values(ours.weights) == values(theirs.weights)
    before = ours.get_layer("hidden").kernel.numpy().tobytes()
    ours.set_mask(mask_of(ours, "pooler", "out"))
    fit(ours, **data)
    assert ours.get_layer("hidden").kernel.numpy().tobytes() == before


@pytest.mark.parametrize(("kind", "left_out"), [("adam", ("conv1", "bn1", "bn2")), ("sgdw", ())])
def test_an_overflow_lowers_the_loss_scale_as_keras_does(kind, left_out, deterministic):
    def source():
        model = network()
        for name in left_out:
            model.get_layer(name).trainable = False
        return model

    with half_precision():
        ours, theirs = elastic(kind=kind), plain(kind=kind, source=source)
        if left_out:
            ours.set_mask(mask_of(ours, *UPPER))
        for model in (ours, theirs):
            optimizers.build(model.optimizer, model.trainable_variables)
            loss_scale(model.optimizer).assign(2.0**30)
        assert fit(ours, epochs=4) == fit(theirs, epochs=4)
    assert 0 < float(loss_scale(ours.optimizer)) == float(loss_scale(theirs.optimizer)) < 2.0**30
    by_name = [
        {v.name: v.numpy().tobytes() for v in stack.weights(model)} for model in (ours, theirs)
    ]
    assert by_name[0] == by_name[1]
