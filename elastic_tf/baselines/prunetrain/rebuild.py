"""The same network with fewer channels, and the optimizer that goes on with its slots."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf import optimizers
from elastic_tf.baselines import graph
from elastic_tf.baselines.prunetrain.groups import Channels
from elastic_tf.stack import forget_tracked


class Carried(NamedTuple):
    """A variable of the network before, and what keeps the part of it that stays."""

    old: tf.Variable
    cut: Callable[[np.ndarray], np.ndarray]


def rebuilt(
    network: tf.keras.Model, channels: Channels, keep: np.ndarray
) -> tuple[tf.keras.Model, dict[int, Carried]]:
    """The network of the labels in `keep`, and what its variables came from by their ids.

    All layers are made anew, so that nothing refers to the old weights.
    """
    sites = {layer.name: channels.sites[layer.name] for layer in network.layers}
    new, twins = graph.repeated(
        network, lambda layer: graph.anew(layer, **sites[layer.name].changes(layer, keep))
    )
    carried = {}
    for layer in network.layers:
        cut = sites[layer.name].cut
        for index, (old, fresh) in enumerate(zip(layer.weights, twins[layer.name].weights)):
            carried[id(fresh)] = Carried(old, functools.partial(cut, index, keep=keep))
            fresh.assign(carried[id(fresh)].cut(old.numpy()))
    return new, carried


def check_slots(optimizer: Any, variables: Sequence[tf.Variable]) -> None:
    """Build an optimizer over `variables`, and refuse one whose slots cannot be cut.

    Raises:
        ValueError: a slot that does not have the shape of its tensor.
    """
    optimizers.build(optimizer, variables)
    inner = optimizers.unwrapped(optimizer)
    for variable in variables:
        for name, slot in slots(inner, variable).items():
            if slot.shape != variable.shape:
                raise ValueError(
                    "Every slot of the optimizer must have the shape of its tensor, to be cut with "
                    f"it. Received: slot '{name}' {tuple(slot.shape)} of {type(inner).__name__} "
                    f"for '{variable.name}' {tuple(variable.shape)}. Use for instance Adam."
                )


def carry_slots(
    optimizer: Any, carried: Mapping[int, Carried], variables: Sequence[tf.Variable]
) -> None:
    """Let an optimizer go on with the variables of a rebuilt network.

    It stays the same object; a slot keeps the numbers of what is kept, bit for bit.
    """
    inner = optimizers.unwrapped(optimizer)
    came = [carried[id(variable)] for variable in variables]
    before = [slots(inner, one.old) for one in came]
    single = {name: value for name, value in vars(inner).items() if isinstance(value, tf.Variable)}
    stale = {id(slot) for named in before for slot in named.values()}
    if isinstance(inner, optimizers.LEGACY):
        inner._weights = [item for item in inner._weights if id(item) not in stale]
        inner._slots.clear()
    else:
        inner._variables = [item for item in inner._variables if id(item) not in stale]
        inner._built = False
        forget_tracked(inner)
    optimizers.build(optimizer, variables)
    for variable, one, named in zip(variables, came, before):
        for name, slot in slots(inner, variable).items():
            slot.assign(one.cut(named[name].numpy()))
    for name, value in single.items():  # some are made again with the slots
        if getattr(inner, name) is not value:
            getattr(inner, name).assign(value)


def slots(inner: Any, variable: tf.Variable) -> dict[str, tf.Variable]:
    """The slots of one tensor by name."""
    key = variable._unique_id
    if isinstance(inner, optimizers.LEGACY):
        return dict(inner._slots.get(key, {}))
    index = inner._index_dict[key]
    return {
        name: value[index]
        for name, value in vars(inner).items()
        if name != "_variables"
        and isinstance(value, (list, tuple))
        and len(value) == len(inner._index_dict)
        and all(isinstance(item, tf.Variable) for item in value)
    }
