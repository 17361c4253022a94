"""The seam to optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from elastic_tf.stack.tensorflow import IS_KERAS2, attributes, raw

#: Kinds whose updates use the step count to correct moments, and for nothing else.
CORRECTS_MOMENTS: tuple[Any, ...] = (
    tf.keras.optimizers.Adam,
    tf.keras.optimizers.AdamW,
    tf.keras.optimizers.Adamax,
)
if not IS_KERAS2:
    CORRECTS_MOMENTS = (*CORRECTS_MOMENTS, tf.keras.optimizers.Lamb)
_KEPT = "_elastic_kept"  # attribute of an optimizer of Keras 3: what it was given, by name


def unwrapped(optimizer: Any) -> Any:
    """The optimizer inside a loss scale optimizer, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def build_optimizer(optimizer: Any, variables: Sequence[Any]) -> None:
    """Make the slots of all variables of a model, which are Keras's; those that are there stay."""
    inner = unwrapped(optimizer)
    if IS_KERAS2:
        # Keras 2 builds the optimizer inside a loss scale optimizer outside its name scope.
        with tf.name_scope(inner.name if inner is optimizer else ""), tf.init_scope():
            inner.build(list(variables))
    elif not optimizer.built:
        with tf.init_scope():
            optimizer.build(list(variables))


def starts_build(optimizer: Any, variables: Sequence[Any]) -> bool:
    """Do what every optimizer does when it is built; False of one that was built before."""
    name = "_built" if IS_KERAS2 else "built"
    was_built = getattr(optimizer, name, False)
    if IS_KERAS2 or not was_built:
        tf.keras.optimizers.Optimizer.build(optimizer, variables)
        setattr(optimizer, name, True)
    return not was_built


def add_slot(optimizer: Any, variable: Any, name: str, start: tf.Tensor | None = None) -> Any:
    """A slot for a variable of the model: zeros of its shape, or what it is to start at."""
    if start is None:
        return optimizer.add_variable_from_reference(variable, name)
    if IS_KERAS2:
        given = {"shape": start.shape, "initial_value": start}
        return optimizer.add_variable_from_reference(variable, name, **given)
    name = f"{getattr(variable, 'path', variable.name).replace('/', '_')}_{name}"
    given = {"dtype": variable.dtype, "name": name.replace(":", "_")}
    return optimizer.add_variable(tuple(start.shape), lambda *_, **__: start, **given)


def _indices(optimizer: Any) -> dict[Any, int]:
    """Numbers of the variables that an optimizer was built over, by their keys."""
    return getattr(optimizer, "_index_dict" if IS_KERAS2 else "_trainable_variables_indices")


def index_of(optimizer: Any, variable: Any) -> Any:
    """Number of a variable among those that an optimizer was built over; None of others."""
    return _indices(optimizer).get(optimizer._var_key(variable))


def slot_lists(optimizer: Any, index: int) -> dict[str, list[Any]]:
    """Attributes of an optimizer that hold a slot for each variable, by name.

    The variables themselves are among them with Keras 3.
    """
    count = len(_indices(optimizer))
    return {
        name: value
        for name, value in vars(optimizer).items()
        if isinstance(value, list) and len(value) == count
        # of Adam without amsgrad or the like: a list of nothing
        if name != "_variables" and isinstance(raw(value[index]), tf.Variable)
    }


def state_of(optimizer: Any) -> list[tf.Variable]:
    """Every variable of the optimizer: step count, slots, averages, rates, loss scale."""
    inner = unwrapped(optimizer)
    if IS_KERAS2:
        rates = [getattr(inner, f"_{name}learning_rate", None) for name in ("", "current_")]
        found = [*inner.variables, *rates]
        if inner is not optimizer and optimizer.dynamic:
            found += [optimizer.dynamic_counter, scale_of(optimizer)]
    else:
        found = [*optimizer.variables, *vars(inner).get(_KEPT, {}).values()]
    unique = {id(item): item for item in map(raw, found) if isinstance(item, tf.Variable)}
    return list(unique.values())


def rate_of(optimizer: Any) -> tf.Variable | None:
    """The learning rate; None where it follows a schedule."""
    found = raw(unwrapped(optimizer)._learning_rate)
    return found if isinstance(found, tf.Variable) else None


def scale_of(optimizer: Any) -> tf.Variable | None:
    """The dynamic loss scale; None of an optimizer without."""
    if IS_KERAS2:
        return getattr(getattr(optimizer, "_loss_scale", None), "current_loss_scale", None)
    return raw(getattr(optimizer, "dynamic_scale", None))


def keep_with(optimizer: Any, name: str, variable: tf.Variable) -> None:
    """Give an optimizer another variable, saved with its own in every format.

    It is none of the optimizer's variables for Keras 3, which would not load a file that has
    another number of them.
    """
    if IS_KERAS2:
        setattr(optimizer, name, variable)
        optimizer._variables.append(variable)
        # the optimizers of tf_keras 2.21 remember what they found for the first checkpoint
        vars(optimizer).pop("_coalesced_children", None)
        return
    own, save, load = vars(optimizer), optimizer.save_own_variables, optimizer.load_own_variables

    def save_own_variables(store: Any) -> None:
        save(store)
        if variable.numpy().any():
            store[name] = variable.numpy()

    def load_own_variables(store: Any) -> None:
        held = {key: store[key] for key in store.keys()}
        given = held.pop(name, None)
        load(held)
        is_ours = given is not None and given.shape == tuple(variable.shape)
        variable.assign(given[()] if is_ours else tf.zeros_like(variable))

    own.setdefault(_KEPT, {})[name] = own[name] = variable
    own.update(save_own_variables=save_own_variables, load_own_variables=load_own_variables)
    optimizer._track_trackable(variable, name, overwrite=True)  # for checkpoints


def differentiated(
    optimizer: Any, tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[tf.Variable]
) -> list[Any]:
    """Gradients of a loss, scaled in the tape as the optimizer wants, unscaled after."""
    if IS_KERAS2:
        pairs = optimizer.compute_gradients(loss, variables, tape=tape)
        return [gradient for gradient, _ in pairs]
    with tape:
        scaled = optimizer.scale_loss(loss)
    found = tape.gradient(scaled, list(variables))
    scale = _scale(optimizer)
    return found if scale is None else [_each(one, lambda part: part / scale) for one in found]


def _each(gradient: Any, change: Callable[[Any], Any]) -> Any:
    """A gradient with changed values; a sparse one stays sparse, which Keras updates otherwise."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)
    return None if gradient is None else change(gradient)


def _scale(optimizer: Any) -> Any:
    """What `scale_loss` of Keras 3 multiplies by; None where it leaves the loss as it is."""
    if unwrapped(optimizer) is optimizer:
        return optimizer.loss_scale_factor
    return raw(optimizer.dynamic_scale) if optimizer.built else optimizer.initial_scale


def apply_gradients(optimizer: Any, pairs: Sequence[tuple[Any, tf.Variable]]) -> None:
    """Update variables by what `differentiated` gave for them."""
    if IS_KERAS2:
        optimizer.apply_gradients(pairs)
        return
    inner, scale = unwrapped(optimizer), _scale(optimizer)
    given = []
    for gradient, variable in pairs:
        index = index_of(inner, variable)
        # Keras's own has the constraint; a slice of it stands for itself
        known = inner._trainable_variables[index] if index is not None else variable
        if scale is not None and inner is not optimizer:
            gradient = _each(gradient, lambda part: part * scale)  # a power of two: exact
        given.append((gradient, known if raw(known) is variable else variable))
    with attributes(inner, loss_scale_factor=None):
        optimizer.apply_gradients(given)
