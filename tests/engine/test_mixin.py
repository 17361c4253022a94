import gc
import re
import weakref

import numpy as np
import pytest
import tensorflow as tf
from networks import block, chain, crossentropy, fit, images, mask_of, network, values
from training import UPPER, Switch, elastic, everything

from elastic_tf import stack
from elastic_tf.graph import reach, takes
from elastic_tf.model import ElasticModel
from elastic_tf.plan import Plan, as_plan
from elastic_tf.train import optimizers
from elastic_tf.train.engine import tracing
from elastic_tf.train.engine.mixin import ElasticMixin


class TestMask:
    def test_set_mask_works_before_compile(self):
        model = ElasticModel.from_model(network())
        model.set_mask(mask_of(model, "head"))
        model.compile("sgd", crossentropy())
        before = values(model.get_layer("conv1").weights)
        fit(model)
        assert values(model.get_layer("conv1").weights) == before

    @pytest.mark.parametrize(
        ("plan", "received"),
        [
            (np.ones(9, bool), r"shape \(9,\)"),
            (np.zeros(10, bool), "A tensor must be .*10 frozen ones"),
        ],
        ids=str,
    )
    def test_set_plan_keeps_the_old_plan_when_it_raises_and_none_trains_everything(
        self, plan, received
    ):
        model = elastic()
        for forget in (model.set_plan, model.set_mask):
            model.set_mask(mask_of(model, *UPPER))
            with pytest.raises(ValueError, match=received):
                model.set_plan(plan)
            assert model.plan == Plan.from_mask(mask_of(model, *UPPER))
            forget(None)
            assert model.plan == Plan.full(10)


class TestLeftOut:
    """Tensors outside the mask, their slots and buffers keep every bit and cost nothing."""

    @pytest.mark.parametrize("kind", ["adam", "scaled_sgdw"])
    def test_every_bit_stays_and_the_others_are_trained(self, kind):
        model = elastic(kind=kind)
        fit(model)
        model.set_weights([weight + 1.0 for weight in model.get_weights()])
        model.set_mask(mask_of(model, *UPPER))
        kept = [v for v in stack.weights(model) if not v.name.startswith(UPPER)]
        kept += [v for v in optimizers.state(model.optimizer) if re.search("conv1|bn", v.name)]
        trained = [v for v in stack.weights(model) if v.name.startswith(UPPER)]
        before, others = values(kept), values(trained)
        fit(model)
        assert values(kept) == before
        assert not [v.name for v, bits in zip(trained, others) if v.numpy().tobytes() == bits]

    @pytest.mark.parametrize(
        ("starts", "kernels", "inputs"), [(("conv1",), 1, 1), (("conv2",), 1, 0)]
    )
    def test_gradient_ops_are_not_in_the_graph(self, starts, kernels, inputs):
        model = elastic()
        ops = executed(traced(model, mask_of(model, *starts)))
        assert ops.count("Conv2DBackpropFilter") == kernels
        assert ops.count("Conv2DBackpropInput") == inputs

    def test_updates_are_not_in_the_graph(self):
        model = elastic()
        model.make_train_function()
        graph = traced(model, mask_of(model, "head/bias", "bn1/beta"))
        written = {id(handle) for handle, _ in tracing._written(graph)}
        variables = [*stack.weights(model), *optimizers.state(model.optimizer)]
        names = {v.name for v in variables if id(stack.raw(v).handle) in written}
        own = "head.bias|bn1.(beta|moving)|iteration"  # with the slots of both
        assert len(names) == 7 and names == {v.name for v in variables if re.search(own, v.name)}


class TestTrainFunctions:
    def test_a_kept_mask_makes_no_new_trace(self):
        model = elastic()
        one, two = mask_of(model, "head"), mask_of(model, *UPPER)
        fit(model, callbacks=[Switch(one, two)], epochs=2)
        model.set_mask(one)
        function = model.train_tf_function
        count = function.experimental_get_tracing_count()
        fit(model, callbacks=[Switch(one, two)], epochs=4)
        model.set_mask(one)
        assert model.train_tf_function is function
        assert function.experimental_get_tracing_count() == count

    @pytest.mark.parametrize("name", ["gradients", "__call__"])
    def test_a_step_or_an_evaluation_with_metrics_is_traced_once(self, name, monkeypatch):
        model, calls, whole = elastic(metrics=["accuracy"]), [], getattr(ElasticMixin, name)

        def counted(*given, **more):
            calls.append(1)
            return whole(*given, **more)

        monkeypatch.setattr(ElasticMixin, name, counted)
        x, y = (part[:8] for part in images())
        if name == "gradients":
            assert "accuracy" in fit(model) and len(calls) == 1
            return
        found = model.evaluate(x, y, verbose=0, return_dict=True)
        assert len(calls) == 1
        said = model.predict(x, verbose=0).argmax(axis=1)
        assert found["accuracy"] == pytest.approx(np.mean(said == y))

    def test_masks_can_change_between_batches(self, deterministic):
        model, same = elastic(source=block), elastic(source=block)
        one, two = mask_of(model, "head"), mask_of(model, "conv", "bn")
        fit(model, callbacks=[Switch(one, two, batches=True)], epochs=1)
        x, y = images()
        for k, mask in enumerate((one, two, one)):
            same.set_mask(mask)
            same.train_on_batch(x[8 * k : 8 * k + 8], y[8 * k : 8 * k + 8])
        assert everything(model) == everything(same)

    def test_a_dropped_mask_frees_its_graph(self):
        # silu enters every traced graph into TensorFlow's global registry of gradients
        model = elastic(source=lambda: chain("silu"), steps_per_execution=2)
        graphs, model._elastic.functions.size = [], 1
        for first in (9, 4, 2):
            model.set_mask(np.arange(10) >= first)
            fit(model, epochs=1)
            (concrete, *_) = model.train_tf_function._list_all_concrete_functions()
            graphs.append(weakref.ref(concrete.graph))
        del concrete
        gc.collect()
        assert [graph() is None for graph in graphs] == [True, True, False]


def traced(model, mask) -> tf.Graph:
    """The graph of one step."""
    data = tuple(tf.constant(part) for part in images())
    with model._elastic.planned(as_plan(mask, len(model.tensors))):
        return tf.function(model.train_step).get_concrete_function(data).graph


def executed(graph) -> list[str]:
    """Types of the ops that a result or an effect of `graph` needs; the others are pruned."""
    ends = [*(tensor.op for tensor in graph.outputs), *graph.control_outputs]
    return [op.type for op in reach(ends, lambda op: [*takes(op), *op.control_inputs])]
