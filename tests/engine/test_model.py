import numpy as np
import pytest
import tensorflow as tf
from networks import fit, images, network
from training import OwnTrainStep, Subclassed, elastic

import elastic_tf as et
from elastic_tf import stack
from elastic_tf.model import ElasticModel


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
    model.set_mask(np.arange(10) >= 8)
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


def test_from_model_shares_weights_and_returns_an_elastic_model_as_it_is():
    source = network()
    model = ElasticModel.from_model(source)
    assert [id(v) for v in model.weights] == [id(v) for v in source.weights]
    assert ElasticModel.from_model(model) is model


def test_a_model_not_built_is_built_by_fit():
    model = elastic(source=Subclassed)
    fit(model)
    assert len(model.tensors) == 6


def test_from_model_raises_when_it_is_no_model_or_its_train_step_is_overridden():
    with pytest.raises(TypeError, match="3 of type int"):
        ElasticModel.from_model(3)
    with pytest.raises(TypeError) as refused:
        ElasticModel.from_model(np.eye(40))
    assert len(str(refused.value)) < 250 and "\n" not in str(refused.value)
    with pytest.raises(TypeError, match=r"OwnTrainStep.*train_step.*ElasticMixin"):
        ElasticModel.from_model(OwnTrainStep())
