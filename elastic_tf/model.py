"""Elastic models: made of inputs and outputs, or of another Keras model."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elastic_tf import stack
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.tracing import input_spec

# What `from_model` cannot carry over from another class of model.
_TRAINING_METHODS = (
    *("train_step", "test_step", "predict_step"),
    *("make_train_function", "compute_loss", "compute_metrics"),
)


@stack.registered
class ElasticModel(ElasticMixin, tf.keras.Model):
    """A model made of inputs and outputs, `et.ElasticModel(inputs, outputs)`, or of a model."""

    @classmethod
    def from_model(cls, model: tf.keras.Model) -> ElasticMixin:
        """An elastic model with the layers and weights of `model`.

        The weights are shared: training one trains the other. Optimizer, loss and metrics are not
        taken over: compile the new model. It is functional if `model` is, else it calls `model`.

        Raises:
            TypeError: not a Keras model, or one that overrides how it is trained.
        """
        stack.keras_model("model", model)
        if isinstance(model, ElasticMixin):
            return model
        kind = type(model)
        custom = [
            name
            for name in _TRAINING_METHODS
            if getattr(kind, name) is not getattr(tf.keras.Model, name)
        ]
        if custom:
            raise TypeError(
                "`model` must be trained as a plain Keras model. Received: a model of class "
                f"{kind.__name__}, which overrides {', '.join(custom)}. Define class "
                f"Elastic{kind.__name__}(elastic_tf.ElasticMixin, {kind.__name__}) and write its "
                "train_step with self.gradients(data, variables), "
                "elastic_tf.train.optimizers.apply_selected and self.finish(step)."
            )
        ends = stack.graph_ends(model)
        if ends is not None:
            same = cls(inputs=ends[0], outputs=ends[1], name=model.name)
            # A loss added to the graph hangs beside its outputs and would be lost.
            if {id(layer) for layer in same.layers} >= {id(layer) for layer in model.layers}:
                stack.same_settings(same, model)
                return same
        return ElasticWrapper(model)


class ElasticWrapper(ElasticMixin, tf.keras.Model):
    """An elastic model that calls another model."""

    def __init__(self, model: tf.keras.Model) -> None:
        super().__init__(name=model.name, dtype=model.dtype_policy)
        self.model = model
        if model.built:
            self.built = True
            stack.set_input_spec(self, input_spec(model))

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """The model's own forward pass; Keras hands `training` on where it is taken."""
        del training
        return self.model(inputs)
