"""With all tensors trained, and with layers left out, training is that of plain Keras."""

import numpy as np
import pytest
import tensorflow as tf
from networks import (
    CLASSES,
    IMAGE,
    MORE_OPTIMIZERS,
    SAMPLES,
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


# Networks.


def flat() -> tf.keras.Model:
    return tf.keras.Sequential([L.Input(IMAGE), L.Flatten(), L.Dense(CLASSES)])


def words() -> tf.keras.Model:
    """With sparse gradients, dropout and a regulariser."""
    tokens = L.Input((5,), dtype="int64")
    x = L.GRU(4, dropout=0.5)(L.Embedding(9, 3)(tokens))
    return tf.keras.Model(tokens, L.Dense(CLASSES, kernel_regularizer="l2")(L.Dropout(0.5)(x)))


def built_by_call() -> tf.keras.Model:
    model = tf.keras.Sequential([L.Conv2D(3, 3), L.BatchNormalization(), L.Flatten(), L.Dense(3)])
    model(images()[0])
    return model


def nested() -> tf.keras.Model:
    inputs = L.Input(IMAGE)
    return tf.keras.Model(inputs, L.Dense(CLASSES)(block()(inputs)))


def subclassed_graph() -> tf.keras.Model:
    """A class of functional models whose `call` does more than its graph."""

    class Doubled(tf.keras.Model):
        def call(self, inputs, training=None, mask=None):
            return 2 * super().call(inputs, training=training, mask=mask)

    source = block()
    return Doubled(source.inputs[0], source.outputs[0])


def add_loss() -> tf.keras.Model:
    """Losses of the graph, beside its output, and of the weights, anew in each step."""
    inputs = L.Input(IMAGE)
    hidden = L.Dense(4)(L.Flatten()(inputs))
    model = tf.keras.Model(inputs, L.Dense(CLASSES)(hidden))
    kernel = model.trainable_variables[0]
    model.add_loss(tf.reduce_mean(hidden**2))
    model.add_loss(lambda: 0.1 * tf.reduce_sum(kernel**2))
    return model


def several() -> tf.keras.Model:
    """Inputs and outputs."""
    ins = {name: L.Input((4,), name=name) for name in ("a", "b")}
    joined = L.Dense(5, name="joined")(L.Concatenate()(list(ins.values())))
    outs = {
        name: L.Dense(size, name=name)(joined) for name, size in (("kind", CLASSES), ("size", 1))
    }
    return tf.keras.Model(ins, outs)


def unused() -> tf.keras.Model:
    """A layer that the loss does not use, as BERT's pooler."""
    inputs = L.Input((4,))
    hidden = L.Dense(3, name="hidden")(inputs)
    pooled = L.Dense(2, name="pooler")(hidden)
    return tf.keras.Model(inputs, {"out": L.Dense(CLASSES, name="out")(hidden), "pooled": pooled})


CLASS_WEIGHTS, OF_SAMPLES = {0: 1.0, 1: 3.0, 2: 0.5}, np.linspace(0, 2, SAMPLES, dtype=np.float32)
WEIGHTED = {"source": block, "weighted_metrics": ["accuracy"]}
NORMALISED = ("adam", "scaled_sgdw")  # the others need no more than a dense layer
TOKENS = np.random.default_rng(0).integers(0, 9, (SAMPLES, 5))
INS = {name: np.random.default_rng(k).normal(size=(SAMPLES, 4)) for k, name in enumerate("ab")}
OUTS = {"kind": images()[1], "size": INS["a"][:, :1]}
SEVERAL = {
    "source": several,
    "loss": lambda: {"kind": crossentropy(), "size": "mse"},
    "loss_weights": {"kind": 1.0, "size": 0.3},
    "metrics": {"kind": "accuracy", "size": ["mae"]},
}
CASES = {  # options of fit, and of the model
    **{
        kind: ({}, {"kind": kind, "source": block if kind in NORMALISED else flat})
        for kind in MORE_OPTIMIZERS
    },
    "class weights": ({"class_weight": CLASS_WEIGHTS, "validation_data": images(seed=1)}, WEIGHTED),
    "shuffled": ({"sample_weight": OF_SAMPLES, "shuffle": True, "validation_split": 0.2}, WEIGHTED),
    "executions": ({}, {"source": block, "steps_per_execution": 2}),
    "eager": ({}, {"source": block, "run_eagerly": True}),
    "words": ({"x": TOKENS}, {"source": words}),
    "several": ({"x": INS, "y": OUTS}, SEVERAL),
    **{one.__name__: ({}, {"source": one}) for one in (built_by_call, nested, subclassed_graph)},
}
if stack.IS_KERAS2:  # Keras 3 has no XLA where ops are deterministic
    CASES["xla"] = {}, {"source": block, "jit_compile": True}
if stack.KERAS_VERSION.startswith("2."):  # Keras 3 has no add_loss of a graph
    CASES["add_loss"] = {}, {"source": add_loss}


@pytest.mark.parametrize("case", CASES)
def test_fit_is_bit_identical(case, deterministic):
    fitted, options = CASES[case]
    assert_trained_alike(fitted, **options)


def test_callbacks_work_as_with_keras(tmp_path, deterministic):
    C = tf.keras.callbacks
    histories, models = [], [elastic(source=block), plain(source=block)]
    for number, model in enumerate(models):
        (folder := tmp_path / str(number)).mkdir()
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
    by_name = [{v.name: v.numpy().tobytes() for v in stack.weights(m)} for m in (ours, theirs)]
    assert by_name[0] == by_name[1]
