from __future__ import annotations

import gc
import re
import weakref

import numpy as np
import pytest
import tensorflow as tf
from networks import (
    CLASSES,
    IMAGE,
    MORE_OPTIMIZERS,
    OPTIMIZERS,
    SAMPLES,
    K,
    L,
    crossentropy,
    fit,
    images,
    mask_of,
    network,
    values,
)
from tensorflow.python.framework.config import disable_op_determinism

from elastic_tf import optimizers
from elastic_tf.model import ElasticMixin, ElasticModel

UPPER = ("conv2", "head")  # tensors of these layers; both batch normalisations are left out


class Subclassed(tf.keras.Model):
    """The same kind of network with a `call` of its own."""

    def __init__(self):
        super().__init__()
        self.conv = L.Conv2D(3, 3, name="conv")
        self.norm = L.BatchNormalization(name="norm")
        self.flat = L.Flatten()
        self.head = L.Dense(CLASSES, name="head")

    def call(self, inputs, training=None):
        return self.head(self.flat(self.norm(self.conv(inputs), training=training)))


class OwnTrainStep(Subclassed):
    def train_step(self, data):
        return super().train_step(data)


class Switch(tf.keras.callbacks.Callback):
    """Sets the next of `masks` at the start of each epoch, or of each batch."""

    def __init__(self, *masks, batches=False):
        super().__init__()
        self.masks = masks
        self.batches = batches

    def on_epoch_begin(self, epoch, logs=None):
        if not self.batches:
            self.model.set_mask(self.masks[epoch % len(self.masks)])

    def on_train_batch_begin(self, batch, logs=None):
        if self.batches:
            self.model.set_mask(self.masks[batch % len(self.masks)])


@pytest.fixture
def deterministic():
    tf.config.experimental.enable_op_determinism()
    yield
    disable_op_determinism()


def elastic(*, kind: str = "adam", source=network, loss=crossentropy, **options) -> ElasticModel:
    tf.keras.utils.set_random_seed(0)
    model = ElasticModel.from_model(source())
    model.compile(MORE_OPTIMIZERS[kind](), loss(), **options)
    return model


def plain(*, kind: str = "adam", source=network, loss=crossentropy, **options) -> tf.keras.Model:
    tf.keras.utils.set_random_seed(0)
    model = source()
    model.compile(MORE_OPTIMIZERS[kind](), loss(), **options)
    return model


def everything(model) -> list[bytes]:
    return values(model.weights + optimizers.state(model.optimizer))


def random_masks(model, count: int) -> list[np.ndarray]:
    """Different masks with the head in them."""
    rng = np.random.default_rng(0)
    masks = {}
    while len(masks) < count:
        mask = rng.random(len(model.tensors)) < 0.5
        mask[-1] = True
        masks[mask.tobytes()] = mask
    return list(masks.values())


def traced(model, mask) -> tf.Graph:
    """The graph of one step."""
    data = tuple(tf.constant(part) for part in images())
    return tf.function(lambda: model.step(data, mask)).get_concrete_function().graph


def executed(graph) -> list[str]:
    """Types of the ops that a result or an effect of `graph` needs; the others are pruned."""
    queue = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    ops = set(queue)
    while queue:
        op = queue.pop()
        sources = {tensor.op for tensor in op.inputs} | set(op.control_inputs)
        queue += sources - ops
        ops |= sources
    return [op.type for op in ops]


def written(model, mask) -> set[str]:
    """Names of the weights and slots that the graph of one step writes to."""
    names = {id(v.handle): v.name for v in model.weights + optimizers.state(model.optimizer)}
    return {
        names[id(outer)]
        for outer, inner in traced(model, mask).captures
        if id(outer) in names
        and any(op.type.startswith(("Assign", "ResourceApply")) for op in inner.consumers())
    }


class TestPlainKeras:
    """With all tensors trained, and with layers left out, training is that of plain Keras."""

    @pytest.mark.parametrize("kind", MORE_OPTIMIZERS)
    def test_fit_is_bit_identical(self, kind, deterministic):
        ours, theirs = elastic(kind=kind), plain(kind=kind)
        fit(ours), fit(theirs)
        assert everything(ours) == everything(theirs)

    @pytest.mark.parametrize("kind", OPTIMIZERS)
    def test_history_is_bit_identical(self, kind, deterministic):
        data = {"validation_data": images(seed=1)}
        ours, theirs = (
            elastic(kind=kind, metrics=["accuracy"]),
            plain(kind=kind, metrics=["accuracy"]),
        )
        assert fit(ours, **data) == fit(theirs, **data)

    @pytest.mark.parametrize("kind", OPTIMIZERS)
    def test_left_out_layers_are_bit_identical_to_untrainable_ones(self, kind, deterministic):
        ours, theirs = elastic(kind=kind), network()
        for name in ("conv1", "bn1", "bn2"):
            theirs.get_layer(name).trainable = False
        theirs.compile(OPTIMIZERS[kind](), crossentropy())
        ours.set_mask(mask_of(ours, *UPPER))
        assert fit(ours) == fit(theirs)
        ours_by_name = {v.name: v.numpy().tobytes() for v in ours.weights}
        assert ours_by_name == {v.name: v.numpy().tobytes() for v in theirs.weights}

    @pytest.mark.parametrize(
        "options",
        [
            {"class_weight": {0: 1.0, 1: 3.0, 2: 0.5}},
            {"sample_weight": np.linspace(0.0, 2.0, SAMPLES, dtype=np.float32)},
            {"shuffle": True},
            {"validation_split": 0.2},
        ],
        ids=str,
    )
    def test_fit_options_are_those_of_keras(self, options, deterministic):
        ours, theirs = elastic(weighted_metrics=["accuracy"]), plain(weighted_metrics=["accuracy"])
        assert fit(ours, **options) == fit(theirs, **options)
        assert everything(ours) == everything(theirs)

    @pytest.mark.parametrize(
        "options",
        [
            {"steps_per_execution": 2},
            {"run_eagerly": True},
            pytest.param({"jit_compile": True}, marks=pytest.mark.slow),
        ],
        ids=str,
    )
    def test_compile_options_are_those_of_keras(self, options, deterministic):
        ours, theirs = elastic(**options), plain(**options)
        assert fit(ours) == fit(theirs)
        assert everything(ours) == everything(theirs)

    def test_regularizers_are_those_of_keras(self, deterministic):
        def source():
            return network(regularizer="l2")

        ours, theirs = elastic(source=source), plain(source=source)
        assert fit(ours) == fit(theirs)

    @pytest.mark.parametrize("kind", ["adam", "legacy_sgd", "sgdw"])
    def test_mixed_precision_is_that_of_keras(self, kind, deterministic):
        tf.keras.mixed_precision.set_global_policy("mixed_float16")
        try:
            ours, theirs = elastic(kind=kind), plain(kind=kind)
            assert fit(ours) == fit(theirs)
        finally:
            tf.keras.mixed_precision.set_global_policy("float32")
        assert everything(ours) == everything(theirs)

    def test_sparse_gradients_and_dropout_are_those_of_keras(self, deterministic):
        def source():
            tokens = L.Input((5,), dtype="int64")
            x = L.GRU(4, dropout=0.5)(L.Embedding(9, 3)(tokens))
            return tf.keras.Model(tokens, L.Dense(CLASSES)(L.Dropout(0.5)(x)))

        x = np.random.default_rng(0).integers(0, 9, (SAMPLES, 5))
        ours, theirs = elastic(source=source), plain(source=source)
        assert fit(ours, x=x) == fit(theirs, x=x)
        assert everything(ours) == everything(theirs)

    def test_train_on_batch_is_that_of_keras(self, deterministic):
        ours, theirs = elastic(), plain()
        assert ours.train_on_batch(*images()) == theirs.train_on_batch(*images())

    def test_distribution_strategy_is_that_of_keras(self, deterministic):
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            ours, theirs = elastic(), plain()
        assert fit(ours) == fit(theirs)
        assert everything(ours) == everything(theirs)


class TestMask:
    def test_mask_trains_everything_at_the_start(self):
        assert elastic().mask.tolist() == [True] * 10

    def test_mask_is_a_copy(self):
        model = elastic()
        model.mask[:] = False
        assert model.mask.all()

    def test_set_mask_copies(self):
        model = elastic()
        mask = mask_of(model, *UPPER)
        model.set_mask(mask)
        mask[:] = True
        assert model.mask.sum() == 4

    def test_set_mask_works_before_compile(self):
        model = ElasticModel.from_model(network())
        model.set_mask(mask_of(model, "head"))
        model.compile("sgd", crossentropy())
        before = values(model.get_layer("conv1").weights)
        fit(model)
        assert values(model.get_layer("conv1").weights) == before

    @pytest.mark.parametrize(
        ("mask", "received"),
        [
            (np.ones(9, bool), r"shape \(9,\)"),
            (np.ones((10, 1), bool), r"shape \(10, 1\)"),
            (np.ones(10, int), "dtype int64"),
            ([0, 9], "dtype int64"),
            (None, "dtype object"),
            (np.zeros(10, bool), "10 times False"),
        ],
        ids=str,
    )
    def test_set_mask_raises_on_what_is_no_mask(self, mask, received):
        with pytest.raises(ValueError, match=received):
            elastic().set_mask(mask)

    def test_set_mask_keeps_the_old_mask_when_it_raises(self):
        model = elastic()
        model.set_mask(mask_of(model, *UPPER))
        with pytest.raises(ValueError, match="10 times False"):
            model.set_mask(np.zeros(10, bool))
        assert model.mask.sum() == 4

    def test_tensors_run_in_forward_order(self):
        assert [tensor.name for tensor in elastic().tensors] == [
            f"{layer}/{part}:0"
            for layer, parts in [
                ("conv1", ("kernel", "bias")),
                ("bn1", ("gamma", "beta")),
                ("conv2", ("kernel", "bias")),
                ("bn2", ("gamma", "beta")),
                ("head", ("kernel", "bias")),
            ]
            for part in parts
        ]

    def test_tensors_raise_when_not_built(self):
        with pytest.raises(ValueError, match="'subclassed"):
            _ = ElasticModel.from_model(Subclassed()).tensors

    def test_compile_forgets_the_mask_when_tensors_were_frozen(self):
        model = elastic()
        model.set_mask(mask_of(model, *UPPER))
        model.get_layer("conv1").trainable = False
        model.compile("sgd", crossentropy())
        assert model.mask.tolist() == [True] * 8


class TestLeftOut:
    """Tensors outside the mask, their slots and buffers keep every bit and cost nothing."""

    @pytest.mark.parametrize("kind", [*OPTIMIZERS, "average", "scaled", "scaled_sgdw"])
    def test_every_bit_stays(self, kind):
        model = elastic(kind=kind)
        fit(model)
        model.set_mask(mask_of(model, *UPPER))
        kept = [v for v in model.weights if not v.name.startswith(UPPER)]
        kept += [v for v in optimizers.state(model.optimizer) if re.search("conv1|bn", v.name)]
        before = values(kept)
        fit(model)
        assert values(kept) == before

    @pytest.mark.parametrize("kind", OPTIMIZERS)
    def test_the_others_are_trained(self, kind):
        model = elastic(kind=kind)
        model.set_mask(mask_of(model, *UPPER))
        trained = [v for v in model.weights if v.name.startswith(UPPER)]
        before = values(trained)
        fit(model)
        assert not [v.name for v, bits in zip(trained, before) if v.numpy().tobytes() == bits]

    @pytest.mark.parametrize("part", ["gamma", "beta"])
    def test_buffers_move_with_one_tensor_of_their_layer(self, part):
        model = elastic()
        model.set_mask(mask_of(model, f"bn1/{part}"))
        before = values(model.get_layer("bn1").non_trainable_weights)
        fit(model)
        after = values(model.get_layer("bn1").non_trainable_weights)
        assert all(one != two for one, two in zip(before, after))

    def test_a_tensor_can_leave_and_come_back(self):
        model = elastic()
        model.set_mask(mask_of(model, "head"))
        fit(model)
        before = values([model.get_layer("conv1").kernel])
        model.set_mask(np.ones(10, bool))
        fit(model)
        assert values([model.get_layer("conv1").kernel]) != before

    @pytest.mark.parametrize(
        ("starts", "kernels", "inputs"),
        [(("conv1", "conv2"), 2, 1), (("conv1",), 1, 1), (("conv2",), 1, 0), (("head",), 0, 0)],
    )
    def test_gradient_ops_are_not_in_the_graph(self, starts, kernels, inputs):
        model = elastic()
        ops = executed(traced(model, mask_of(model, *starts)))
        assert ops.count("Conv2DBackpropFilter") == kernels
        assert ops.count("Conv2DBackpropInput") == inputs

    def test_updates_are_not_in_the_graph(self):
        model = elastic(kind="sgd")
        model.make_train_function()
        assert written(model, mask_of(model, "head/bias", "bn1/beta")) == {
            "head/bias:0",
            "SGD/m/head/bias:0",
            "bn1/beta:0",
            "SGD/m/bn1/beta:0",
            "bn1/moving_mean:0",
            "bn1/moving_variance:0",
            "iteration:0",
        }

    def test_moving_average_is_finalized_for_trained_tensors_only(self):
        model = elastic(kind="average")
        fit(model)
        model.set_weights([weight + 1 for weight in model.get_weights()])
        before = values(model.get_layer("conv1").weights)
        model.set_mask(mask_of(model, "head"))
        fit(model)
        assert values(model.get_layer("conv1").weights) == before

    def test_moving_average_is_finalized_for_tensors_trained_in_some_epoch(self, deterministic):
        model = elastic(kind="average")
        masks = mask_of(model, "head"), mask_of(model, "conv1")
        fit(model, callbacks=[Switch(*masks)])
        kernel = model.get_layer("head").kernel
        (average,) = [
            v for v in optimizers.state(model.optimizer) if "average/head/kernel" in v.name
        ]
        np.testing.assert_array_equal(kernel, average)

    def test_step_without_tensors_changes_metrics_alone(self):
        model = elastic()
        fit(model)
        before = everything(model)
        logs = model.step(tuple(tf.constant(part) for part in images()), np.zeros(10, bool))
        assert everything(model) == before
        assert np.isfinite(logs["loss"])


class TestTrainFunctions:
    def test_a_kept_mask_makes_no_new_trace(self):
        model = elastic()
        one, two = mask_of(model, "head"), mask_of(model, *UPPER)
        fit(model, callbacks=[Switch(one, two)], epochs=2)
        model.set_mask(one)
        function = model.train_function
        count = function.experimental_get_tracing_count()
        fit(model, callbacks=[Switch(one, two)], epochs=4)
        model.set_mask(one)
        assert model.train_function is function
        assert function.experimental_get_tracing_count() == count

    def test_masks_can_change_between_batches(self, deterministic):
        model, same = elastic(), elastic()
        one, two = mask_of(model, "head"), mask_of(model, "conv1", "bn1")
        fit(model, callbacks=[Switch(one, two, batches=True)], epochs=1)
        x, y = images()
        for k, mask in enumerate((one, two, one)):
            same.set_mask(mask)
            same.train_on_batch(x[8 * k : 8 * k + 8], y[8 * k : 8 * k + 8])
        assert everything(model) == everything(same)

    @pytest.mark.parametrize("options", [{}, {"steps_per_execution": 2}], ids=str)
    def test_a_dropped_mask_frees_its_graph(self, options):
        # silu enters every traced graph into TensorFlow's global registry of gradients
        model = elastic(source=lambda: network(activation="silu"), **options)
        graphs = []
        for mask in random_masks(model, 6):
            model.set_mask(mask)
            fit(model, epochs=1)
            (concrete, *_) = model.train_function._list_all_concrete_functions()
            graphs.append(weakref.ref(concrete.graph))
        del concrete
        gc.collect()
        assert [graph() is None for graph in graphs] == [True] * 2 + [False] * 4

    def test_compile_frees_the_graphs_made_before(self):
        model = elastic()
        fit(model)
        graph = weakref.ref(model.train_function._list_all_concrete_functions()[0].graph)
        model.compile("sgd", crossentropy())
        gc.collect()
        assert graph() is None

    def test_force_makes_the_function_anew(self):
        model = elastic()
        function = model.make_train_function()
        assert model.make_train_function() is function
        assert model.make_train_function(force=True) is not function

    def test_tensorboard_finds_the_traced_function(self):
        model = elastic()
        fit(model, callbacks=[Switch(mask_of(model, "head"))])
        assert model.train_tf_function is model.train_function


class TestFromModel:
    def test_weights_are_shared(self):
        source = network()
        model = ElasticModel.from_model(source)
        assert [id(v) for v in model.weights] == [id(v) for v in source.weights]

    @pytest.mark.parametrize(
        "kind",
        ["sequential", "built_by_call", "nested", "subclassed", "add_loss", "subclassed_graph"],
    )
    def test_trains_as_the_source_would(self, kind, deterministic):
        def source():
            return SOURCES[kind]()

        ours, theirs = elastic(source=source), plain(source=source)
        assert fit(ours) == fit(theirs)
        assert values(ours.weights) == values(theirs.weights)

    @pytest.mark.parametrize("kind", ["sequential", "nested", "subclassed", "add_loss"])
    def test_leaves_tensors_out(self, kind):
        model = elastic(source=lambda: SOURCES[kind]())
        mask = np.arange(len(model.tensors)) == len(model.tensors) - 1
        model.set_mask(mask)
        before = values(model.tensors)
        fit(model)
        assert [k for k, bits in enumerate(values(model.tensors)) if bits != before[k]] == [
            len(mask) - 1
        ]

    @pytest.mark.parametrize("structure", [list, dict])
    def test_several_inputs_outputs_and_losses(self, structure, deterministic):
        rng = np.random.default_rng(0)
        x = {name: rng.normal(size=(SAMPLES, 4)).astype(np.float32) for name in ("a", "b")}
        y = {"kind": images()[1], "size": x["a"][:, :1]}

        def source():
            ins = {name: L.Input((4,), name=name) for name in x}
            joined = L.Dense(5, name="joined")(L.Concatenate()(list(ins.values())))
            outs = {
                "kind": L.Dense(CLASSES, name="kind")(joined),
                "size": L.Dense(1, name="size")(joined),
            }
            if structure is list:
                return tf.keras.Model(list(ins.values()), list(outs.values()))
            return tf.keras.Model(ins, outs)

        options = {
            "loss": lambda: {"kind": crossentropy(), "size": "mse"},
            "loss_weights": {"kind": 1.0, "size": 0.3},
            "metrics": {"kind": "accuracy", "size": ["mae"]},
        }
        ours, theirs = elastic(source=source, **options), plain(source=source, **options)
        assert fit(ours, x=x, y=y) == fit(theirs, x=x, y=y)

    def test_a_model_not_built_is_built_by_fit(self):
        model = elastic(source=Subclassed)
        fit(model)
        assert len(model.tensors) == 6

    def test_an_elastic_model_is_returned_as_it_is(self):
        model = elastic()
        assert ElasticModel.from_model(model) is model

    def test_raises_when_it_is_no_model(self):
        with pytest.raises(TypeError, match="3 of type int"):
            ElasticModel.from_model(3)

    def test_raises_when_the_train_step_is_overridden(self):
        with pytest.raises(TypeError, match=r"OwnTrainStep.*train_step.*ElasticMixin"):
            ElasticModel.from_model(OwnTrainStep())


class TestMixin:
    def test_serves_a_subclassed_model(self):
        class Mine(ElasticMixin, Subclassed):
            pass

        model = Mine()
        model(images()[0])
        model.compile("sgd", crossentropy())
        model.set_mask(np.arange(6) == 5)
        before = values(model.tensors[:5])
        fit(model)
        assert values(model.tensors[:5]) == before

    def test_serves_a_class_of_functional_models(self):
        class Mine(ElasticMixin, tf.keras.Model):
            pass

        source = network()
        model = Mine(source.input, source.output)
        assert len(model.tensors) == 10

    def test_raises_when_it_would_hide_a_train_step(self):
        with pytest.raises(TypeError, match="Mine, which inherits another one from OwnTrainStep"):

            class Mine(ElasticMixin, OwnTrainStep):
                pass

    def test_a_train_step_of_its_own_can_use_the_parts(self):
        class Mine(ElasticMixin, OwnTrainStep):
            def train_step(self, data):
                variables = [v for v, trained in zip(self.tensors, self.mask) if trained]
                step, gradients = self.gradients(data, variables)
                optimizers.apply_selected(self.optimizer, gradients, variables)
                return {**self.finish(step), "twice": 2 * step.loss}

        model = Mine()
        model(images()[0])
        model.compile("sgd", crossentropy())
        model.set_mask(np.arange(6) == 5)
        before = values(model.tensors[:5])
        assert "twice" in fit(model)
        assert values(model.tensors[:5]) == before


class TestCompile:
    def test_fit_raises_as_keras_when_not_compiled(self):
        with pytest.raises(RuntimeError, match="compile your model"):
            fit(ElasticModel.from_model(network()))

    def test_raises_on_several_optimizers(self):
        with pytest.raises(TypeError, match="of type list"):
            ElasticModel.from_model(network()).compile([K.SGD(), K.Adam()], "mse")

    def test_raises_on_a_strategy_that_splits_the_tensors(self):
        with tf.distribute.experimental.CentralStorageStrategy(["CPU:0"]).scope():
            model = ElasticModel.from_model(network())
            with pytest.raises(TypeError, match="CentralStorageStrategy"):
                model.compile("sgd", "mse")


class TestSaving:
    def test_weights_are_those_of_the_source(self, tmp_path):
        model = elastic()
        fit(
            model,
            callbacks=[
                tf.keras.callbacks.ModelCheckpoint(
                    str(tmp_path / "{epoch}.weights.h5"), save_weights_only=True
                )
            ],
        )
        source = network(seed=1)
        source.load_weights(tmp_path / "2.weights.h5")
        assert values(source.weights) == values(model.weights)

    def test_a_saved_model_goes_on_training_as_before(self, tmp_path, deterministic):
        model = elastic()
        model.set_mask(mask_of(model, *UPPER))
        fit(model)
        model.save(tmp_path / "model.keras")
        loaded = tf.keras.models.load_model(tmp_path / "model.keras")
        loaded.set_mask(model.mask)
        assert fit(loaded) == fit(model)
        assert everything(loaded) == everything(model)


def sequential() -> tf.keras.Model:
    return tf.keras.Sequential(
        [L.Input(IMAGE), L.Conv2D(3, 3), L.BatchNormalization(), L.Flatten(), L.Dense(CLASSES)]
    )


def built_by_call() -> tf.keras.Model:
    model = tf.keras.Sequential([L.Conv2D(3, 3), L.BatchNormalization(), L.Flatten(), L.Dense(3)])
    model(images()[0])
    return model


def nested() -> tf.keras.Model:
    inputs = L.Input(IMAGE)
    return tf.keras.Model(inputs, L.Dense(CLASSES)(network()(inputs)))


def subclassed() -> tf.keras.Model:
    model = Subclassed()
    model(images()[0])
    return model


def add_loss() -> tf.keras.Model:
    """A loss hangs beside the output of the graph."""
    inputs = L.Input(IMAGE)
    hidden = L.Dense(4)(L.Flatten()(inputs))
    model = tf.keras.Model(inputs, L.Dense(CLASSES)(hidden))
    model.add_loss(tf.reduce_mean(hidden**2))
    return model


def subclassed_graph() -> tf.keras.Model:
    """A class of functional models whose `call` does more than its graph."""

    class Doubled(tf.keras.Model):
        def call(self, inputs, training=None, mask=None):
            return 2 * super().call(inputs, training=training, mask=mask)

    source = network()
    return Doubled(source.input, source.output)


SOURCES = {
    "sequential": sequential,
    "built_by_call": built_by_call,
    "nested": nested,
    "subclassed": subclassed,
    "add_loss": add_loss,
    "subclassed_graph": subclassed_graph,
}
