"""A functional model as calls of layers, and the same calls made again with other layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from elastic_tf.stack import Functional


def nodes(network: tf.keras.Model) -> Iterator[Any]:
    """The calls of the layers of a functional model (Keras's nodes), in the order they run."""
    for depth in sorted(network._nodes_by_depth, reverse=True):
        yield from network._nodes_by_depth[depth]


def check(model: Any, method: str) -> None:
    """Refuse a model that its layers and their calls do not describe whole.

    Args:
        model: to be adapted.
        method: that adapts it, for the message.

    Raises:
        TypeError: no model, or one that is not a graph of layers.
        ValueError: losses beside the graph, or weights that are in two layers.
    """
    if not isinstance(model, tf.keras.Model):
        raise TypeError(
            f"`model` must be a tf.keras.Model. Received: {model!r} of type {type(model).__name__}."
        )
    plain = (Functional.call, tf.keras.Sequential.call)
    if not getattr(model, "_is_graph_network", False) or type(model).call not in plain:
        raise TypeError(
            f"{method} makes the layers anew, so that the model must be a graph of layers: "
            f"functional, or sequential with an input shape. Received: '{model.name}' of class "
            f"{type(model).__name__}. Write it as tf.keras.Model(inputs, outputs)."
        )
    layers = tf.keras.Model(model.input, model.output).layers
    beside = [layer.name for layer in model.layers if layer not in layers]
    if beside:
        raise ValueError(
            f"{method} serves models whose layers all lie between inputs and outputs. Received: "
            f"'{model.name}' with '{beside[0]}' beside them. Put what add_loss or add_metric does "
            "there into the loss or the metrics."
        )
    owners: dict[int, str] = {}
    for layer in layers:
        for weight in layer.weights:
            if owners.setdefault(id(weight), layer.name) != layer.name:
                raise ValueError(
                    f"Every weight must belong to one layer. Received: '{weight.name}' in "
                    f"'{owners[id(weight)]}' and '{layer.name}'. Call one layer twice instead."
                )


def anew(layer: Any, **changes: Any) -> Any:
    """A layer of the same config but for `changes`, without the weights.

    Raises:
        TypeError: a layer that does not describe itself.
    """
    try:
        return type(layer).from_config({**layer.get_config(), **changes})
    except Exception as error:  # whatever a layer's own code raises
        raise TypeError(
            "The model is made anew, so that `get_config` must describe every layer. Received: "
            f"'{layer.name}' of class {type(layer).__name__}: {error!r}. Define get_config there."
        ) from error


def call(node: Any, layer: Any, tensors: dict[int, Any]) -> Any:
    """Call a layer as in `node`, on what stands for the node's tensors by their id."""
    args, kwargs = tf.nest.map_structure(
        lambda given: tensors.get(id(given), given), (node.call_args, node.call_kwargs)
    )
    return layer(*args, **kwargs)


def repeated(
    network: tf.keras.Model,
    make: Callable[[Any], Any],
    after: Callable[[Any, Any, dict[int, Any]], Any] = lambda old, new, tensors: new,
) -> tuple[tf.keras.Model, dict[str, Any]]:
    """The graph of a functional model, made of other layers.

    Args:
        network: functional or sequential model.
        make: layer -> the layer in its place; an input has a twin made by itself.
        after: (old tensor, new one, all new ones by the old ones' id) -> what goes on.

    Returns:
        The new model and its layers by the name of the old ones; weights are not copied.
    """
    twins = {layer.name: make(layer) for layer in network.layers}
    tensors: dict[int, Any] = {}
    for node in nodes(network):
        twin = twins[node.layer.name]
        made = twin.output if node.is_input else call(node, twin, tensors)
        for old, new in zip(tf.nest.flatten(node.outputs), tf.nest.flatten(made)):
            tensors[id(old)] = after(old, new, tensors)
    for layer in network.layers:
        for old, new in zip(layer._flatten_layers(), twins[layer.name]._flatten_layers()):
            new._trainable = old._trainable
    inputs, outputs = tf.nest.map_structure(
        lambda tensor: tensors[id(tensor)], (network.input, network.output)
    )
    return tf.keras.Model(inputs, outputs, name=network.name), twins
