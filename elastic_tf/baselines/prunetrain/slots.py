"""An optimizer that goes on with smaller tensors: its slots are cut like the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from elastic_tf import optimizers
from elastic_tf.baselines.prunetrain.rebuild import Carried
from elastic_tf.stack import forget_tracked


def check(optimizer: Any, variables: Sequence[tf.Variable]) -> None:
    """Refuse an optimizer whose slots cannot be cut.

    Args:
        optimizer: of a kind that `optimizers.check` admits, built or not.
        variables: the trainable tensors.

    Raises:
        TypeError: an optimizer that holds another one.
        ValueError: a slot that does not have the shape of its tensor.
    """
    optimizers.check(optimizer)
    inner = optimizers.unwrapped(optimizer)
    if isinstance(getattr(inner, "_optimizer", None), (optimizers.LEGACY, optimizers.CURRENT)):
        raise TypeError(
            "PruneTrain cuts the slots of one optimizer. Received: "
            f"{type(inner).__name__} around {type(inner._optimizer).__name__}. Use the inner one."
        )
    optimizers.build(optimizer, variables)
    for variable in variables:
        for name, slot in _slots(inner, variable).items():
            if slot.shape != variable.shape:
                raise ValueError(
                    "Every slot of the optimizer must have the shape of its tensor, to be cut with "
                    f"it. Received: slot '{name}' {tuple(slot.shape)} of {type(inner).__name__} "
                    f"for '{variable.name}' {tuple(variable.shape)}. Use for instance Adam."
                )


def carry(optimizer: Any, carried: Sequence[Carried], variables: Sequence[tf.Variable]) -> None:
    """Let an optimizer go on with the variables of a rebuilt network.

    The optimizer stays the same object: its step count, learning rate and everything else that is
    not a slot are untouched. A slot keeps the numbers of what is kept, bit for bit.

    Args:
        optimizer: checked by `check`.
        carried: what each new variable came from.
        variables: the new trainable tensors in Keras's order.
    """
    inner = optimizers.unwrapped(optimizer)
    by_new = {id(item.new): item for item in carried}
    before = {id(variable): _slots(inner, by_new[id(variable)].old) for variable in variables}
    renamed = {by_new[id(variable)].old._unique_id: variable._unique_id for variable in variables}
    if isinstance(inner, optimizers.LEGACY):
        _forget_legacy(inner)
    else:
        single = {
            name: value for name, value in vars(inner).items() if isinstance(value, tf.Variable)
        }
        _forget_slots(inner)
        excluded = getattr(inner, "_exclude_from_weight_decay", None)
        if excluded:
            inner._exclude_from_weight_decay = [renamed.get(key, key) for key in excluded]
    optimizers.build(optimizer, variables)
    for variable in variables:
        for name, slot in _slots(inner, variable).items():
            slot.assign(by_new[id(variable)].of(before[id(variable)][name].numpy()))
    if not isinstance(inner, optimizers.LEGACY):
        for name, value in single.items():  # some are made again with the slots
            if getattr(inner, name) is not value:
                getattr(inner, name).assign(value)


def _slots(inner: Any, variable: tf.Variable) -> dict[str, tf.Variable]:
    """The slots of one tensor by name; none if the optimizer does not know the tensor."""
    key = variable._unique_id
    if isinstance(inner, optimizers.LEGACY):
        return dict(inner._slots.get(key, {}))
    index = inner._index_dict.get(key) if hasattr(inner, "_index_dict") else None
    if index is None:
        return {}
    return {name: slots[index] for name, slots in _slot_lists(inner).items()}


def _slot_lists(inner: Any) -> dict[str, list[tf.Variable]]:
    """The attributes of a Keras optimizer that hold one variable for each tensor."""
    return {
        name: list(value)
        for name, value in vars(inner).items()
        if name != "_variables"
        and isinstance(value, (list, tuple))
        and len(value) == len(inner._index_dict)
        and all(isinstance(item, tf.Variable) for item in value)
    }


def _forget_slots(inner: Any) -> None:
    stale = {id(slot) for slots in _slot_lists(inner).values() for slot in slots}
    inner._variables = [item for item in inner._variables if id(item) not in stale]
    inner._built = False
    forget_tracked(inner)


def _forget_legacy(inner: Any) -> None:
    stale = {id(slot) for slots in inner._slots.values() for slot in slots.values()}
    inner._weights = [item for item in inner._weights if id(item) not in stale]
    inner._slots.clear()
