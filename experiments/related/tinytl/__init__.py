"""TinyTL: biases, the head and small residual branches are trained, kernels stay.

Source: Cai et al., TinyTL: Reduce Memory, Not Parameters for Efficient On-Device Learning, NeurIPS
2020. Its backbones are pre-trained with group normalisation, weight standardisation and the modules
in place, and quantised to 8 bits; here they are what they are, with batch normalisation on stored
statistics, and the modules start at random. It saves memory, not operations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.app import zoo
from elastic_tf.methods.baselines import Method, TrainOnly, bias_tensors
from elastic_tf.stack import weights
from elastic_tf.train.engine.mixin import ElasticMixin
from related import graph
from related.tinytl import blocks
from related.tinytl.lite_residual import LiteResidual, fitting
from related.tinytl.sparing import in_place_of


def with_lite_residuals(model: tf.keras.Model) -> tf.keras.Model:
    """The same model with a lite residual module beside every block, which adds nothing yet.

    It is made of new layers with a copy of the weights; those that keep less for the backward pass
    stand in the place of batch normalisation on stored statistics and of ReLU. A model that has
    such modules is returned as it is.

    Raises:
        TypeError: more than a graph of layers, or a training step of its own.
        ValueError: no block is found.
    """
    graph.check(model, "TinyTL")
    if any(isinstance(layer, LiteResidual) for layer in model.layers):
        return model
    found = {id(block.output): block for block in blocks.find(model)}
    if not found:
        kinds = sorted({type(layer).__name__ for layer in model.layers})
        raise ValueError(
            "TinyTL needs blocks to put its modules beside: convolutions between an Add and where "
            "its branches part, or a depthwise convolution followed by one of 1x1, in one graph "
            f"of layers. Received: '{model.name}' of {', '.join(kinds)}. Build models inside "
            "into the graph, or use the method 'bn_bias'."
        )
    normalises_by_batch = {
        node.layer.name
        for node in graph.nodes(model)
        if getattr(node.layer, "trainable", False) and node.training is not False
    }

    def after(old: Any, new: Any, tensors: dict[int, Any]) -> Any:
        block = found.get(id(old))
        if block is None:
            return new
        name, policy = f"{block.layer.name}_lite", block.layer.dtype_policy
        return fitting(block, name=name, dtype=policy)([tensors[id(block.input)], new])

    with model.distribute_strategy.scope():
        adapted, twins = graph.repeated(
            model,
            lambda layer: in_place_of(layer, is_stored=layer.name not in normalises_by_batch),
            after,
        )
        for layer in model.layers:
            twins[layer.name].set_weights(layer.get_weights())
    return adapted


def tinytl_tensors(model: ElasticMixin) -> np.ndarray:
    """True for head, biases and lite residual modules; bool, shape (N,), forward order."""
    modules = [layer for layer in model._flatten_layers() if isinstance(layer, LiteResidual)]
    own = {id(weight) for layer in modules for weight in weights(layer)}
    inside = np.array([id(tensor) in own for tensor in model.tensors])
    return zoo.head_tensors(model) | bias_tensors(model) | inside


METHODS = (
    Method(
        "tinytl",
        "head, biases and lite residual modules beside frozen blocks (Cai et al. 2020)",
        lambda task: [TrainOnly(tinytl_tensors(task.model))],
        adapt=with_lite_residuals,
    ),
)
