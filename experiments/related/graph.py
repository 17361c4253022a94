"""A functional model as calls of layers, and the same calls made again with other layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from elastic_tf.model import ElasticModel
from elastic_tf.stack import PLAIN_NORMALISATIONS, graph_ends


class Call(NamedTuple):
    """A call of a layer of a functional model; of an operator of Keras 3, which is no layer, too.

    Attributes:
        layer: that is called; of an input, the layer that stands for it.
        args: what it is called with, symbolic tensors in it.
        kwargs: likewise.
        training: whether it always runs as in training, or never; None: as the model does. Keras 3
            overrides what a call in a graph says.
        inputs: the symbolic tensors that it takes; none of an input.
        outputs: those that it gives.
    """

    layer: Any
    args: Any
    kwargs: Any
    training: bool | None
    inputs: list[Any]
    outputs: list[Any]

    @property
    def is_input(self) -> bool:
        """Whether it is an input of the model."""
        return not self.inputs


def nodes(network: tf.keras.Model) -> Iterator[Call]:
    """The calls of the layers of a functional model, in the order they run."""
    by_depth = getattr(network, "_functional", network)._nodes_by_depth
    for depth in sorted(by_depth, reverse=True):
        for node in by_depth[depth]:
            if hasattr(node, "arguments"):  # Keras 3
                layer, given, inputs = node.operation, node.arguments, node.input_tensors
                training = False if type(layer) in PLAIN_NORMALISATIONS[1:] else None
                yield Call(layer, given.args, given.kwargs, training, inputs, [*node.outputs])
            else:
                inputs = [] if node.is_input else tf.nest.flatten(node.keras_inputs)
                kwargs, made = node.call_kwargs, tf.nest.flatten(node.outputs)
                training = kwargs.get("training")
                yield Call(node.layer, node.call_args, kwargs, training, inputs, made)


def check(model: Any, method: str) -> None:
    """Refuse a model that its layers and their calls do not describe whole, for `method`."""
    ElasticModel.from_model(model)  # refuses what is no model, and training steps
    ends = graph_ends(model)
    if ends is not None:
        layers = tf.keras.Model(*ends).layers
        weights = sum(len(layer.weights) for layer in layers)
        if {*model.layers} <= {*layers} and weights == len(model.weights):
            return
    raise TypeError(
        f"{method} makes the layers anew, so that the model must be a graph of layers and nothing "
        "else: functional, or sequential with an input shape; no add_loss or add_metric, no weight "
        f"in two layers. Received: '{model.name}' of class {type(model).__name__}. Write it as "
        "tf.keras.Model(inputs, outputs)."
    )


def anew(layer: Any) -> Any:
    """A layer of the same config, without the weights."""
    return type(layer).from_config(layer.get_config())


def call(node: Any, layer: Any, tensors: dict[int, Any]) -> Any:
    """Call a layer as in `node`, on what stands for the node's tensors by their id."""
    args, kwargs = tf.nest.map_structure(
        lambda given: tensors.get(id(given), given), (node.args, node.kwargs)
    )
    return layer(*args, **kwargs)


def repeated(
    network: tf.keras.Model,
    make: Callable[[Any], Any],
    after: Callable[[Any, Any, dict[int, Any]], Any] = lambda old, new, tensors: new,
) -> tuple[tf.keras.Model, dict[str, Any]]:
    """A model of the layers that `make` makes, and these by the old ones' names, without weights.

    `after`: (old tensor, new one, all new ones by the old ones' id) -> what goes on.
    """
    twins = {layer.name: make(layer) for layer in network.layers}
    tensors: dict[int, Any] = {}
    for node in nodes(network):
        twin = twins.get(node.layer.name, node.layer)
        made = twin.output if node.is_input else call(node, twin, tensors)
        for old, new in zip(node.outputs, tf.nest.flatten(made)):
            tensors[id(old)] = after(old, new, tensors)
    for layer in network.layers:
        for old, new in zip(layer._flatten_layers(), twins[layer.name]._flatten_layers()):
            new._trainable = old._trainable
    inputs, outputs = tf.nest.map_structure(lambda tensor: tensors[id(tensor)], graph_ends(network))
    return tf.keras.Model(inputs, outputs, name=network.name), twins
