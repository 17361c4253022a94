import numpy as np
import pytest
import tensorflow as tf
from networks import (
    CLASSES,
    IMAGE,
    SAMPLES,
    L,
    block,
    crossentropy,
    fit,
    images,
    mask_of,
    network,
    values,
)
from training import OwnTrainStep, Subclassed, assert_trained_alike, elastic

import elastic_tf as et
from elastic_tf import stack
from elastic_tf.model import ElasticModel

OF_A_GRAPH = pytest.mark.skipif(
    not stack.KERAS_VERSION.startswith("2."), reason="Keras 3 has no add_loss of a graph"
)


@pytest.mark.parametrize(
    "call",
    [
        ElasticModel.from_model,
        lambda model: et.save_delta(model, [], "delta"),
        lambda model: et.load_delta(model, "delta"),
        lambda model: et.solve_head(model, *images()),
        lambda model: et.finetune(model, images(), seconds=9, verbose=0),
        et.fewshot.ProtoNet,
    ],
)
def test_a_model_of_another_keras_is_refused_with_what_to_do(call):
    is_legacy = stack.KERAS == "tf_keras"
    home = "keras.src.models.model" if is_legacy else "tf_keras.src.engine.training"
    other = type("Model", (), {"__module__": home})
    said = (
        rf"is a model of the package {home.partition('.')[0]};.*Build it with .*TF_USE_LEGACY_KERAS"
    )
    with pytest.raises(TypeError, match=said):
        call(other())


def test_repr_and_summary_say_what_is_trained(monkeypatch):
    model = ElasticModel.from_model(network())
    with monkeypatch.context() as patch:
        patch.setattr(tf, "function", None)  # no trace for a text
        assert repr(model).endswith(": trains 10 of 10 tensors, 234 of 234 parameters>")
    model.set_mask(mask_of(model, "head"))
    said = f"<ElasticModel '{model.name}': trains 2 of 10 tensors, 51 of 234 parameters>"
    lines = []
    model.summary(print_fn=lambda text, **_: lines.append(text))
    assert repr(model) == lines[-1] == said
    assert "conv1 (Conv2D)" in "".join(lines[:-1])
    assert repr(ElasticModel.from_model(Subclassed())).endswith(": not built>")


@pytest.mark.skipif(stack.IS_KERAS2, reason="Keras 2 leaves XLA off unless asked")
@pytest.mark.parametrize(
    ("args", "options", "compiled"),
    [
        ((), {}, False),
        ((), {"jit_compile": "auto"}, False),
        ((), {"jit_compile": True}, True),
        ((None, None, None, False, 1, True), {}, True),
    ],
)
def test_xla_compiles_a_step_only_where_it_is_asked_for(monkeypatch, args, options, compiled):
    monkeypatch.setattr(tf.keras.Model, "_resolve_auto_jit_compile", lambda _: True)  # as on a GPU
    plain, model = network(), ElasticModel.from_model(network())
    plain.compile("sgd", "mse", jit_compile="auto")
    model.compile("sgd", "mse", *args, **options)
    assert (plain.jit_compile, model.jit_compile) == (True, compiled)


class TestFromModel:
    def test_weights_are_shared(self):
        source = network()
        model = ElasticModel.from_model(source)
        assert [id(v) for v in model.weights] == [id(v) for v in source.weights]

    @pytest.mark.parametrize(
        "kind",
        [*("built_by_call", "nested", "subclassed_graph")]
        + [pytest.param(kind, marks=OF_A_GRAPH) for kind in ("add_loss", "add_callable_loss")],
    )
    def test_trains_as_the_source_would(self, kind, deterministic, as_keras_writes_them):
        assert_trained_alike(source=lambda: SOURCES[kind]())

    @pytest.mark.parametrize("kind", ["subclassed", "shared"])
    def test_leaves_tensors_out(self, kind):
        model = elastic(source=lambda: SOURCES[kind]())
        mask = np.arange(len(model.tensors)) == len(model.tensors) - 1
        model.set_mask(mask)
        before = values(model.tensors)
        fit(model, epochs=1)
        changed = [one != two for one, two in zip(before, values(model.tensors))]
        assert changed == mask.tolist()

    def test_several_inputs_outputs_and_losses(self, deterministic):
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
            return tf.keras.Model(ins, outs)

        options = {
            "loss": lambda: {"kind": crossentropy(), "size": "mse"},
            "loss_weights": {"kind": 1.0, "size": 0.3},
            "metrics": {"kind": "accuracy", "size": ["mae"]},
        }
        assert_trained_alike({"x": x, "y": y}, source=source, **options)

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
        with pytest.raises(TypeError) as refused:
            ElasticModel.from_model(np.eye(40))
        assert len(str(refused.value)) < 250 and "\n" not in str(refused.value)

    def test_raises_when_the_train_step_is_overridden(self):
        with pytest.raises(TypeError, match=r"OwnTrainStep.*train_step.*ElasticMixin"):
            ElasticModel.from_model(OwnTrainStep())


def shared() -> tf.keras.Model:
    """A layer that is used twice."""
    inputs = L.Input(IMAGE)
    twice = L.Conv2D(IMAGE[-1], 3, padding="same")
    return tf.keras.Model(inputs, L.Dense(CLASSES)(L.Flatten()(twice(twice(inputs)))))


def built_by_call() -> tf.keras.Model:
    model = tf.keras.Sequential([L.Conv2D(3, 3), L.BatchNormalization(), L.Flatten(), L.Dense(3)])
    model(images()[0])
    return model


def nested() -> tf.keras.Model:
    inputs = L.Input(IMAGE)
    return tf.keras.Model(inputs, L.Dense(CLASSES)(block()(inputs)))


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


def add_callable_loss() -> tf.keras.Model:
    """A loss of the weights is computed anew in each step."""
    model = network()
    kernel = model.trainable_variables[0]
    model.add_loss(lambda: 0.1 * tf.reduce_sum(kernel**2))
    return model


def subclassed_graph() -> tf.keras.Model:
    """A class of functional models whose `call` does more than its graph."""

    class Doubled(tf.keras.Model):
        def call(self, inputs, training=None, mask=None):
            return 2 * super().call(inputs, training=training, mask=mask)

    source = block()
    return Doubled(source.inputs[0], source.outputs[0])


SOURCES = {
    "shared": shared,
    "built_by_call": built_by_call,
    "nested": nested,
    "subclassed": subclassed,
    "add_loss": add_loss,
    "add_callable_loss": add_callable_loss,
    "subclassed_graph": subclassed_graph,
}
