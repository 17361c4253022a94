"""The same network with fewer channels: new layers, the weights of what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.baselines.prunetrain.groups import Channels, nodes
from elastic_tf.baselines.prunetrain.rules import width_config
from elastic_tf.stack import Functional


@dataclass(frozen=True)
class Carried:
    """A variable and the one that takes its place.

    Attributes:
        old: of the network before.
        new: of the rebuilt network.
        kept: axis -> indices along it that are kept; axes without an entry are kept whole.
    """

    old: tf.Variable
    new: tf.Variable
    kept: Mapping[int, np.ndarray]

    def of(self, value: np.ndarray) -> np.ndarray:
        """The part of an array of the old variable's shape that is kept."""
        for axis, indices in self.kept.items():
            value = np.take(value, indices, axis=axis)
        return value


def flat_network(model: tf.keras.Model) -> tf.keras.Model:
    """A plain functional model of the layers of `model`, of those too of models inside it.

    Args:
        model: functional or sequential; the layers and their weights are shared.

    Raises:
        TypeError: no model, or one that is not a graph of layers.
        ValueError: losses beside the graph, or weights that are in two layers.
    """
    if not isinstance(model, tf.keras.Model):
        raise TypeError(
            f"`model` must be a tf.keras.Model. Received: {model!r} of type {type(model).__name__}."
        )
    if not _is_graph(model):
        raise TypeError(
            "PruneTrain rebuilds the model, so that it must be a graph of layers: functional, or "
            f"sequential with an input shape. Received: '{model.name}' of class "
            f"{type(model).__name__}. Write it as tf.keras.Model(inputs, outputs)."
        )
    for part in model._flatten_layers():
        if _is_graph(part):
            _check_whole(part)
    flat = model
    while any(_is_graph(node.layer) for node in nodes(flat)):
        flat = _opened(flat)
    network = tf.keras.Model(flat.input, flat.output, name=model.name)
    _check_owners(network)
    return network


def check_rebuilds(network: tf.keras.Model) -> None:
    """Refuse layers that cannot be made again from their config.

    Raises:
        TypeError: a layer that does not describe itself.
    """
    for layer in network.layers:
        _anew(layer, {})


def rebuilt(
    network: tf.keras.Model, channels: Channels, keep: np.ndarray
) -> tuple[tf.keras.Model, list[Carried]]:
    """The network without the channels that are not to be kept.

    All layers are made anew, so that nothing refers to the old weights; random generators go on.

    Args:
        network: functional model without models inside.
        channels: its channels.
        keep: True at the labels to keep; bool, shape (labels,); at least one along each axis.

    Returns:
        The new network and, for each of its variables, what it came from.
    """
    layers = {}
    for layer in network.layers:
        site = channels.sites.get(layer.name)
        layers[id(layer)] = _anew(layer, {} if site is None else _widths(site, layer, keep))
    tensors: dict[int, Any] = {}
    for node in nodes(network):
        layer = layers[id(node.layer)]
        if node.is_input:
            made = tf.nest.flatten(layer.output)
            tensors.update(zip((id(tensor) for tensor in tf.nest.flatten(node.outputs)), made))
        else:
            _run(node, layer, tensors)
    new = tf.keras.Model(
        tf.nest.map_structure(lambda tensor: tensors[id(tensor)], network.input),
        tf.nest.map_structure(lambda tensor: tensors[id(tensor)], network.output),
        name=network.name,
    )
    carried = []
    for layer in network.layers:
        twin = layers[id(layer)]
        _take_over_state(layer, twin)
        site = channels.sites.get(layer.name)
        kept: dict[int, dict[int, np.ndarray]] = {}
        for weight, axis, labels in [] if site is None else site.axes:
            if not keep[labels].all():
                kept.setdefault(weight, {})[axis] = np.flatnonzero(keep[labels])
        for index, (old, fresh) in enumerate(zip(layer.weights, twin.weights)):
            carried.append(Carried(old, fresh, kept.get(index, {})))
            fresh.assign(carried[-1].of(old.numpy()))
    return new, carried


def _is_graph(layer: Any) -> bool:
    """Whether it is a model that is its graph of layers and nothing else."""
    plain = (Functional.call, tf.keras.Sequential.call)
    return bool(getattr(layer, "_is_graph_network", False)) and type(layer).call in plain


def _opened(model: tf.keras.Model) -> tf.keras.Model:
    """The same graph, with the layers of models in it in their place."""
    tensors = {id(tensor): tensor for tensor in tf.nest.flatten(model.input)}
    for node in nodes(model):
        if node.is_input:
            continue
        if not _is_graph(node.layer):
            _run(node, node.layer, tensors)
            continue
        inner = {
            id(tensor): tensors[id(outer)]
            for tensor, outer in zip(tf.nest.flatten(node.layer.input), node.keras_inputs)
        }
        for inside in nodes(node.layer):
            if not inside.is_input:
                _run(inside, inside.layer, inner, training=node.call_kwargs.get("training"))
        made = [inner[id(tensor)] for tensor in tf.nest.flatten(node.layer.output)]
        tensors.update(zip((id(tensor) for tensor in tf.nest.flatten(node.outputs)), made))
    outputs = tf.nest.map_structure(lambda tensor: tensors[id(tensor)], model.output)
    return tf.keras.Model(model.input, outputs, name=model.name)


def _run(node: Any, layer: Any, tensors: dict[int, Any], training: bool | None = None) -> None:
    """Call a layer as in `node`, on the tensors that stand for those of the node.

    Args:
        node: the call to repeat.
        layer: what is called.
        tensors: by id of the tensor that they stand for; the outputs are added.
        training: what the model around it was called with.
    """
    args, kwargs = tf.nest.map_structure(
        lambda given: tensors.get(id(given), given), (node.call_args, node.call_kwargs)
    )
    if training is not None and layer._expects_training_arg and kwargs.get("training") is None:
        kwargs["training"] = training
    made = tf.nest.flatten(layer(*args, **kwargs))
    tensors.update(zip((id(tensor) for tensor in tf.nest.flatten(node.outputs)), made))


def _widths(site: Any, layer: Any, keep: np.ndarray) -> dict[str, Any]:
    """What changes in the config of a layer."""
    if site.width is None or keep[site.width[1]].all():
        return {}
    key, labels = site.width
    return {key: width_config(key, layer.get_config(), int(keep[labels].sum()))}


def _anew(layer: Any, changes: dict[str, Any]) -> Any:
    """A layer of the same config but for `changes`."""
    try:
        return type(layer).from_config({**layer.get_config(), **changes})
    except Exception as error:  # whatever a layer's own code raises
        said = (str(error).strip() or repr(error)).splitlines()[0]
        raise TypeError(
            "PruneTrain rebuilds the model, so that every layer must be one that `get_config` "
            f"describes. Received: '{layer.name}' of class {type(layer).__name__}: "
            f"{said} Define get_config in that class."
        ) from error


def _take_over_state(layer: Any, twin: Any) -> None:
    """What a layer holds beside its weights: what is trained, and the random generators."""
    for old, new in zip(layer._flatten_layers(), twin._flatten_layers()):
        new._trainable = old._trainable
        if hasattr(old, "_random_generator"):
            new._random_generator = old._random_generator


def _check_whole(model: tf.keras.Model) -> None:
    """Refuse a graph of which a part would be lost."""
    reached = {id(layer) for layer in tf.keras.Model(model.input, model.output).layers}
    beside = [layer.name for layer in model.layers if id(layer) not in reached]
    if beside:
        raise ValueError(
            "PruneTrain serves models whose layers all lie between inputs and outputs. Received: "
            f"'{model.name}' with '{beside[0]}' beside them. Put what add_loss or add_metric does "
            "there into the loss or the metrics."
        )


def _check_owners(network: tf.keras.Model) -> None:
    """Refuse weights that are in two layers: made anew, they would part."""
    owners: dict[int, str] = {}
    for layer in network.layers:
        for weight in layer.weights:
            if owners.setdefault(id(weight), layer.name) != layer.name:
                raise ValueError(
                    "Every weight must belong to one layer, for the layers are made anew. "
                    f"Received: '{weight.name}' in '{owners[id(weight)]}' and '{layer.name}'. Call "
                    "one layer twice instead."
                )
