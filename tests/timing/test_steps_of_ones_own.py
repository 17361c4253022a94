"""What is measured is the step that is trained: of any loss, any class, any number of batches."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from elastic_tf.model import ElasticModel
from elastic_tf.stack import gradient_registry
from elastic_tf.timing.profiler import profile_model
from elastic_tf.timing.step import StepFunction
from elastic_tf.train import optimizers
from elastic_tf.train.engine.mixin import ElasticMixin

L = tf.keras.layers
X, Y = np.ones((4, 5), np.float32), np.ones((4, 2), np.float32)


class Pooled(tf.keras.Model):
    """Like BERT, it has a pooler that the loss does not use: its last two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.pooler = L.Dense(8), L.Dense(2), L.Dense(8)

    def call(self, inputs):
        hidden = tf.nn.silu(self.body(inputs))
        output = self.head(hidden)
        self.pooler(hidden)
        return output


def pooled(kind: type = Pooled, optimizer="sgd", **options) -> ElasticMixin:
    source = kind()
    source(X)
    model = ElasticModel.from_model(source)
    model.compile(optimizer, "mse", **options)
    return model


class TestUnusedTensors:
    def test_profile_charges_nothing_for_them(self, monkeypatch):
        unused = np.array([[False, False, False, False, True, True]])
        monkeypatch.setattr("elastic_tf.timing.profiler.chosen_masks", lambda *_: unused)
        optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam())
        profile = profile_model(pooled(optimizer=optimizer), X, Y, repeats=1)
        assert profile.t_dw[4:].sum() + profile.t_dy[4:].sum() == 0.0
        assert (profile.t_dw[:4] > 0.0).all()

    def test_a_loss_that_depends_on_nothing_is_refused(self):
        model = pooled()
        model.compute_loss = lambda *_, **__: tf.constant(0.0)
        with pytest.raises(ValueError, match="depend on a trainable tensor. Received: model 'pool"):
            profile_model(model, X, Y, repeats=1)
        with pytest.raises(ValueError, match="depend on a trainable tensor. Received: model 'pool"):
            model.fit(X, Y, verbose=0)


def test_measuring_leaves_no_graph_in_tensorflow(monkeypatch):
    graphs = []
    untimed = StepFunction.untimed

    def noted(run, data):
        graphs.append(weakref.ref(run.graph(data)))
        return untimed(run, data)

    monkeypatch.setattr(StepFunction, "untimed", noted)
    model = pooled()  # Keras 3 traces it to build it
    before = len(gradient_registry._registry)
    profile_model(model, X, Y, repeats=1)
    assert len(gradient_registry._registry) == before
    gc.collect()
    assert graphs and not any(graph() for graph in graphs)


class Twice(ElasticMixin, Pooled):
    """A step of its own: the update is made twice."""

    def train_step(self, data):
        variables = [v for v, on in zip(self.tensors, self.mask) if on]
        step, gradients = self.gradients(data, variables)
        for _ in range(2):
            optimizers.apply_selected(self.optimizer, gradients, variables)
        return self.finish(step)


class ByItself(ElasticMixin, Pooled):
    """A step of its own that asks a tape for its gradients."""

    def train_step(self, data):
        variables = [v for v, on in zip(self.tensors, self.mask) if on]
        with tf.GradientTape() as tape:
            step = self.forward(data)
        gradients = tape.gradient(step.loss, variables)
        optimizers.apply_selected(self.optimizer, gradients, variables)
        return self.finish(step)


def updates(run: StepFunction) -> int:
    """Updates of weights in a step."""
    data = tuple(map(tf.constant, (X, Y)))
    trace = run.untimed(data)
    writes = [node for node in trace.nodes.values() if node.op.startswith("Assign")]
    return sum(trace.handles.get(node.inputs[0], -1) >= 0 for node in writes)


class TestOwnTrainStep:
    def test_it_is_what_is_profiled(self):
        model = pooled(Twice, tf.keras.optimizers.SGD())
        profile = profile_model(model, X, Y, repeats=1)
        assert (profile.method, profile.note) == ("profiler", "")
        assert profile.share_attributed > 0.9
        every = np.ones(6, bool)
        assert [updates(StepFunction(model, mask)) for mask in (every, ~every)] == [8, 0]
        assert (profile.t_dw[:4] > 0.0).all()

    def test_it_goes_by_differences_where_it_finds_its_gradients_by_itself(self):
        model = pooled(ByItself)
        profile = profile_model(model, X, Y, repeats=1)
        assert profile.method == "differences"
        assert profile.note == "ByItself.train_step finds its gradients by itself"
        assert profile.t_full > profile.t_forward
