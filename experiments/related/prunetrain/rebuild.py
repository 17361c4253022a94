"""The same network with fewer channels, and the optimizer that goes on with its slots."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf import stack
from elastic_tf.train import optimizers
from related import graph
from related.prunetrain.groups import Channels


class Carried(NamedTuple):
    """A variable of the network before, and what keeps the part of it that stays."""

    old: tf.Variable
    cut: Callable[[np.ndarray], np.ndarray]


def rebuilt(
    network: tf.keras.Model, channels: Channels, keep: np.ndarray
) -> tuple[tf.keras.Model, dict[int, Carried]]:
    """The network of the labels in `keep`, and what its variables came from by their ids."""
    sites = {layer.name: channels.sites[layer.name] for layer in network.layers}
    new, twins = graph.repeated(
        network, lambda layer: graph.anew(layer, **sites[layer.name].changes(layer, keep))
    )
    carried = {}
    for layer in network.layers:
        cut = sites[layer.name].cut
        pairs = zip(stack.weights(layer), stack.weights(twins[layer.name]))
        for index, (old, fresh) in enumerate(pairs):
            carried[id(fresh)] = Carried(old, functools.partial(cut, index, keep=keep))
            fresh.assign(carried[id(fresh)].cut(old.numpy()))
    return new, carried


def carried_on(optimizer: Any, carried: Mapping[int, Carried], variables: Sequence[Any]) -> Any:
    """The same optimizer for `variables` of a rebuilt network, each number kept bit for bit."""
    inner = optimizers.unwrapped(optimizer)
    cuts = {
        id(slot): carried[id(variable)].cut
        for variable in map(stack.raw, variables)
        for slot in slots(inner, carried[id(variable)].old)
        if slot.shape.rank  # a step count has no channels
    }
    new = type(optimizer).from_config(optimizer.get_config())
    optimizers.build(new, variables)
    for old, fresh in zip(optimizers.state(optimizer), optimizers.state(new)):
        value = old.numpy()
        fresh.assign(cuts[id(old)](value) if id(old) in cuts else value)
    return new


def check_slots(optimizer: Any, variables: Sequence[Any]) -> None:
    """Build an optimizer over `variables`, and refuse one whose slots cannot be cut."""
    optimizers.build(optimizer, variables)
    inner = optimizers.unwrapped(optimizer)
    for variable in map(stack.raw, variables):
        for slot in slots(inner, variable):
            if slot.shape.rank and slot.shape != variable.shape:
                raise ValueError(
                    "Every slot of the optimizer must have the shape of its tensor, to be cut with "
                    f"it. Received: '{slot.name}' {tuple(slot.shape)} of {type(inner).__name__} "
                    f"for '{variable.name}' {tuple(variable.shape)}. Use for instance Adam."
                )


def slots(inner: Any, variable: tf.Variable) -> list[tf.Variable]:
    """The slots of one tensor, in the order in which the optimizer made them."""
    index = stack.index_of(inner, variable)
    found = (stack.raw(slots[index]) for slots in stack.slot_lists(inner, index).values())
    return [slot for slot in found if slot is not variable]
