"""TinyTL: a frozen backbone of which the biases train, and a lite residual module for each block.

Source: Cai et al., TinyTL: Reduce Memory, Not Parameters for Efficient On-Device Learning, NeurIPS
2020. Its backbones are pre-trained with group normalisation, weight standardisation and the modules
in place, and quantised to 8 bits; here they are what they are, with batch normalisation on stored
statistics, and the modules start at random. It saves memory, not operations: on MobileNet V1, whose
blocks are light themselves, a step takes more of them than full training.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.baselines.fixed import FixedMask, bias_tensors, is_among
from elastic_tf.baselines.method import Method
from elastic_tf.baselines.tinytl import blocks, sparing
from elastic_tf.baselines.tinytl.lite_residual import LiteResidual, fitting
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.zoo import models

L = tf.keras.layers


def with_lite_residuals(
    model: tf.keras.Model, *, kernel_size: int = 5, groups: int = 2, sparing_layers: bool = True
) -> tf.keras.Model:
    """The same model with a lite residual module beside every block, which adds nothing yet.

    Args:
        model: a functional or sequential model whose blocks `tinytl.blocks` finds.
        kernel_size: of the modules' grouped convolutions, at most; odd.
        groups: of the same, at least.
        sparing_layers: put layers that keep less for the backward pass in the place of batch
            normalisation on stored statistics and of ReLU.

    Returns:
        A model of new layers with a copy of the weights; the given one stays as it is. A model that
        has such modules is returned as it is.

    Raises:
        TypeError: no graph of layers, or a layer that cannot be made again from its config.
        ValueError: no block is found, or losses beside the graph.
    """
    _check(model)
    if any(isinstance(layer, LiteResidual) for layer in model.layers):
        return model
    found = blocks.find(model)
    if not found:
        kinds = sorted({type(layer).__name__ for layer in model.layers})
        raise ValueError(
            "TinyTL needs blocks to put its modules beside: convolutions between an Add and where "
            "its branches part, or a depthwise convolution followed by one of 1x1, in one graph "
            f"of layers. Received: '{model.name}' of {', '.join(kinds)}. Build models inside "
            "into the graph, or use the method 'bn_bias'."
        )
    with model.distribute_strategy.scope():
        modules = {
            id(block.output): (
                block.input,
                fitting(
                    block,
                    kernel_size=kernel_size,
                    groups=groups,
                    name=f"{block.layer.name}_lite",
                    dtype=block.layer._dtype_policy,
                ),
            )
            for block in found
        }
        return _rebuilt(model, modules, sparing_layers)


def tinytl_tensors(model: ElasticMixin) -> np.ndarray:
    """True for the head, for biases, and for all tensors of lite residual modules.

    Returns:
        bool, shape (N,), forward order.
    """
    modules = (layer for layer in model._flatten_layers() if isinstance(layer, LiteResidual))
    inside = is_among(model, (weight for layer in modules for weight in layer.weights))
    return models.head_tensors(model) | bias_tensors(model) | inside


def _rebuilt(
    model: tf.keras.Model, modules: dict[int, tuple[Any, LiteResidual]], sparing_layers: bool
) -> tf.keras.Model:
    """Call new layers as those of the model are called, and the modules after their blocks."""
    by_depth = model._nodes_by_depth
    nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
    stored = {
        id(layer): not layer.trainable
        or all(node.call_kwargs.get("training") is False for node in nodes if node.layer is layer)
        for layer in model.layers
    }
    layers = {}
    for layer in model.layers:
        try:
            is_stored = sparing_layers and stored[id(layer)]
            layers[id(layer)] = (
                sparing.in_place_of(layer, is_stored=is_stored)
                if sparing_layers
                else type(layer).from_config(layer.get_config())
            )
        except Exception as error:  # whatever a layer's own code raises
            raise TypeError(
                "TinyTL makes the layers anew, so that each must be one that `get_config` "
                f"describes. Received: '{layer.name}' of class {type(layer).__name__}: {error}. "
                "Define get_config in that class."
            ) from error

    tensors: dict[int, Any] = {}
    for node in nodes:
        layer = layers[id(node.layer)]
        if node.is_input:
            outputs = layer.output
        else:
            args, kwargs = tf.nest.map_structure(
                lambda given: tensors.get(id(given), given), (node.call_args, node.call_kwargs)
            )
            outputs = layer(*args, **kwargs)
        for old, new in zip(tf.nest.flatten(node.outputs), tf.nest.flatten(outputs)):
            if id(old) in modules:
                block_input, module = modules[id(old)]
                new = module([tensors[id(block_input)], new])
            tensors[id(old)] = new

    for layer in model.layers:
        twin = layers[id(layer)]
        twin.set_weights(layer.get_weights())
        for old, new in zip(layer._flatten_layers(), twin._flatten_layers()):
            new._trainable = old._trainable
    inputs, outputs = tf.nest.map_structure(
        lambda tensor: tensors[id(tensor)], (model.input, model.output)
    )
    return tf.keras.Model(inputs, outputs, name=model.name)


def _check(model: Any) -> None:
    """Refuse what is not its graph of layers and nothing else."""
    if not isinstance(model, tf.keras.Model):
        raise TypeError(
            f"`model` must be a tf.keras.Model. Received: {model!r} of type {type(model).__name__}."
        )
    if not getattr(model, "_is_graph_network", False):
        raise TypeError(
            "TinyTL changes the graph of layers, so that the model must be one: functional, or "
            f"sequential with an input shape. Received: '{model.name}' of class "
            f"{type(model).__name__}. Write it as tf.keras.Model(inputs, outputs)."
        )
    reached = tf.keras.Model(model.input, model.output).layers
    beside = [layer.name for layer in model.layers if layer not in reached]
    if beside:
        raise ValueError(
            "TinyTL serves models whose layers all lie between inputs and outputs. Received: "
            f"'{model.name}' with '{beside[0]}' beside them. Put what add_loss or add_metric does "
            "there into the loss or the metrics."
        )


METHODS = (
    Method(
        "tinytl",
        "head, biases and lite residual modules beside frozen blocks (Cai et al. 2020)",
        lambda task: [FixedMask(tinytl_tensors)],
        adapt=with_lite_residuals,
    ),
)
