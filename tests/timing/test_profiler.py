import numpy as np
import pytest
import tensorflow as tf
from networks import OPTIMIZERS, L, crossentropy, images, network, values
from training import Subclassed

from elastic_tf.callback import ElasticCallback
from elastic_tf.model import ElasticModel
from elastic_tf.timing import profiler, step
from elastic_tf.timing import trace as trace_module
from elastic_tf.timing.profiler import CELLS, profile_model
from elastic_tf.timing.trace import StepTrace
from elastic_tf.train.optimizers import state


def elastic(optimizer="sgd", kind=ElasticModel, **options) -> ElasticModel:
    source = network()
    model = kind(source.inputs, source.outputs)
    model.compile(OPTIMIZERS[optimizer](), crossentropy(), metrics=["accuracy"], **options)
    return model


def batch() -> tuple[np.ndarray, np.ndarray]:
    x, y = images()
    return x[:8], y[:8]


@pytest.fixture
def undisturbed(monkeypatch):
    """Steps by a clock that no other program slows down, so that no round is measured again."""
    monkeypatch.setattr(step, "seconds", lambda run, data: 1e-3 * (1 + 2 * run.mask.mean()))


def test_profile_model_splits_the_full_step():
    model = elastic()
    profile = profile_model(model, *batch(), repeats=3)
    profile.check(model, batch_size=8, input_shape=[(6, 6, 2)])
    assert (profile.count, profile.optimizer) == (10, "SGD")
    assert 0 < profile.t_forward < profile.t_full
    assert profile.t_full == pytest.approx(profile.step_time(np.ones(10, bool)))
    assert profile.t_forward + profile.t_dw.sum() + profile.t_dy.sum() == pytest.approx(
        profile.t_full
    )
    assert (profile.t_dw > 0).all() and profile.share_attributed > 0.98
    assert 0 < profile.uncertainty < np.inf and len(profile.calibration) == CELLS


def test_profile_model_builds_a_model_that_was_never_called(undisturbed):
    source = Subclassed()
    model = ElasticModel.from_model(source)
    model.compile("adam", crossentropy())
    x, y = batch()
    profile = profile_model(model, x, y, repeats=1)
    assert profile.count == len(model.tensors) == len(source.trainable_variables) == 6
    model.fit(x, y, verbose=0, callbacks=[ElasticCallback(profile, rho=1.0, probe=(x, y))])


def test_profile_model_leaves_nothing_behind():
    def loss_afterwards(measure: bool) -> list[float]:
        tf.keras.utils.set_random_seed(3)
        inputs = L.Input((4,))
        hidden = L.Dropout(0.5)(L.BatchNormalization()(L.Dense(8)(inputs)))
        model = ElasticModel(inputs, L.Dense(2)(hidden))
        model.compile("adam", "mse", metrics=["mae"])
        x, y = np.ones((8, 4), np.float32), np.ones((8, 2), np.float32)
        model.train_on_batch(x, y)
        if measure:
            metrics = [v for metric in model.metrics for v in metric.variables]
            kept = [*model.variables, *state(model.optimizer), *metrics]
            before = values(kept)
            profile_model(model, x, y, repeats=1)
            assert values(kept) == before
        tf.keras.utils.set_random_seed(4)
        return model.fit(x, y, batch_size=4, epochs=2, verbose=0).history["loss"]

    assert loss_afterwards(True) == loss_afterwards(False)


def test_profile_model_serves_several_inputs_outputs_and_losses():
    one, two = L.Input((3,), name="one"), L.Input((5,), name="two")
    joined = L.Concatenate()([L.Dense(4)(one), L.Dense(4)(two)])
    outputs = {"left": L.Dense(2, name="left")(joined), "right": L.Dense(1, name="right")(joined)}
    model = ElasticModel({"one": one, "two": two}, outputs)
    model.compile("adam", {"left": "mse", "right": "mae"})
    x = {"one": np.ones((4, 3), np.float32), "two": np.ones((4, 5), np.float32)}
    y = {"left": np.ones((4, 2), np.float32), "right": np.ones((4, 1), np.float32)}
    profile = profile_model(model, x, y, repeats=1)
    assert profile.count == 8
    assert profile.input_shape == ((3,), (5,))


def test_op_times_split_the_step_when_the_clock_cannot():
    def trace(time: float) -> StepTrace:
        return StepTrace({}, (), (), {}, {"op": time})

    steps = np.array([[100.0, 101.0], [90.0, 99.0]])
    with pytest.warns(UserWarning, match=r"too busy .* \(95 microseconds"):
        split = profiler._split(steps, trace(10.0), trace(4.0))
    assert split == (95.0, 38.0)


def test_profile_model_takes_differences_where_xla_compiles_the_step(undisturbed):
    model = elastic(jit_compile=True)
    profile = profile_model(model, *batch(), repeats=1)
    assert profile.method == "differences"
    assert profile.note == "XLA compiles the step into one kernel"
    assert profile.device["xla"]
    profile.check(model, batch_size=8)


def test_profile_model_takes_differences_where_the_profiler_yields_nothing(
    monkeypatch, undisturbed
):
    nothing = (np.array([], object), np.zeros((0, 2)), False)
    monkeypatch.setattr(trace_module, "events", lambda run, repeats: nothing)
    profile = profile_model(elastic(), *batch(), repeats=1)
    assert (profile.method, profile.share_attributed) == ("differences", 0.0)
    assert profile.note == "the profiler covers 0% of the backward time"


@pytest.mark.parametrize(("filled", "method"), [(0.5, "differences"), (2.0, "calibrated")])
def test_a_step_that_is_bound_by_launches_is_measured_by_differences(
    monkeypatch, undisturbed, filled, method
):
    """On the planes of a GPU kernels of all ops, which fill a part of the step or all of it."""
    profiled = trace_module.events

    def on_device(run, repeats):
        names, spans, _ = profiled(run, repeats)
        width = 3e3 * filled * repeats / len(names)  # a full step takes 3 ms by its clock
        starts = width * np.arange(len(names))
        return names, np.stack([starts, starts + width], axis=1), True

    monkeypatch.setattr(trace_module, "events", on_device)
    profile = profile_model(elastic(), *batch(), repeats=1)
    assert profile.method == method
    assert ("the rest is launching them" in profile.note) == (method == "differences")


def test_what_cannot_be_measured_is_refused():
    (x, y), model = batch(), elastic()
    with pytest.raises(ValueError, match="`repeats` .* Received: 0"):
        profile_model(model, x, y, repeats=0)
    with pytest.raises(ValueError, match="Received: loss=nan"):
        # not x: a fused activation may make 0 of what is no number
        profile_model(model, x, y, sample_weight=np.full(8, np.nan), repeats=2)
    said = r"Received: x of shape \(8, 5, 6, 2\), y of shape \(8,\).*reason: .*, found shape=\(8, 5"
    with pytest.raises(ValueError, match=said):
        profile_model(model, x[:, :5], y)
    for sample in (3, np.int32(3), tf.constant(3)):
        with pytest.raises(ValueError, match=r"`y` must be .* sample is `np.asarray\(y\)\[None\]`"):
            profile_model(model, x[:1], sample)
    with pytest.raises(ValueError, match=r"The reason: .*label value of 9 .*outside[^\n]*$"):
        profile_model(model, x, np.full(8, 9))


class PerSample(ElasticModel):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return tf.keras.losses.sparse_categorical_crossentropy(y, y_pred)


def test_a_loss_that_is_not_one_number_is_refused():
    with pytest.raises(ValueError, match="cannot be trained on the batch") as refused:
        profile_model(elastic(kind=PerSample), *batch())
    assert "Received: a loss of shape (8,)" in str(refused.value)


def test_state_that_cannot_be_put_back_is_refused():
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)

    class Counting(ElasticModel):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
            table.insert(tf.constant([1], tf.int64), tf.constant([1], tf.int64))
            return super().compute_loss(x, y, y_pred, sample_weight)

    with pytest.raises(ValueError, match="Received: the op LookupTableInsertV2"):
        profile_model(elastic(kind=Counting), *batch())


@pytest.mark.parametrize(
    ("make", "given", "said"),
    [
        (lambda data: data.batch(4), {"y": np.zeros(4)}, "`x` must be arrays.*a dataset.*Take one"),
        (lambda data: batch()[0], {}, r"must be \(x, y\), .* or a dataset of such batches"),
        (lambda data: data, {}, r"batches of \(x, y\).*TensorSpec.*dataset.batch\(batch_size\)"),
        (lambda data: data.map(lambda x, y: x).batch(4), {}, "must yield batches of .*TensorSpec"),
        (lambda data: data.take(0).batch(4), {}, "Received: an empty one"),
    ],
)
def test_profile_model_raises_when_a_dataset_is_not_one_of_batches(make, given, said):
    data = make(tf.data.Dataset.from_tensor_slices(batch()))
    with pytest.raises(ValueError, match=said):
        profile_model(elastic(), data, **given)
