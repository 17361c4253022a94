"""The seam to Keras 3: optimizers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from elastic_tf.stack.keras3 import raw

__all__ = [
    "CORRECTS_MOMENTS",
    "add_slot",
    "apply_gradients",
    "averaging_only",
    "build_optimizer",
    "deduplicated",
    "differentiated",
    "finalized",
    "index_of",
    "keep_with",
    "rate_of",
    "scale_of",
    "slot_lists",
    "starts_build",
    "state_of",
    "unwrapped",
]

#: Kinds whose updates use the step count to correct moments, and for nothing else.
CORRECTS_MOMENTS = (
    tf.keras.optimizers.Adam,
    tf.keras.optimizers.AdamW,
    tf.keras.optimizers.Adamax,
    tf.keras.optimizers.Lamb,
)


def unwrapped(optimizer: Any) -> Any:
    """The optimizer inside a loss scale optimizer, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def build_optimizer(optimizer: Any, variables: Sequence[Any]) -> None:
    """Make the slots of all variables of a model, which are Keras's; those that are there stay."""
    if not optimizer.built:
        with tf.init_scope():
            optimizer.build(list(variables))


def starts_build(optimizer: Any, variables: Sequence[Any]) -> bool:
    """Do what every optimizer does when it is built; False of one that was built before."""
    if optimizer.built:
        return False
    tf.keras.optimizers.Optimizer.build(optimizer, variables)
    return True


def add_slot(optimizer: Any, variable: Any, name: str, start: tf.Tensor | None = None) -> Any:
    """A slot for a variable of the model: zeros of its shape, or what it is to start at."""
    if start is None:
        return optimizer.add_variable_from_reference(variable, name)
    name = f"{getattr(variable, 'path', variable.name).replace('/', '_')}_{name}"
    given = {"dtype": variable.dtype, "name": name.replace(":", "_")}
    return optimizer.add_variable(tuple(start.shape), lambda *_, **__: start, **given)


def index_of(optimizer: Any, variable: Any) -> Any:
    """Number of a variable among those that an optimizer was built over; None of others."""
    return optimizer._trainable_variables_indices.get(optimizer._var_key(variable))


def state_of(optimizer: Any) -> list[tf.Variable]:
    """Every variable of the optimizer: step count, slots, averages, rates, loss scale."""
    inner = unwrapped(optimizer)
    found = [*optimizer.variables, *vars(inner).get(_KEPT, {}).values()]
    return list({id(raw(item)): raw(item) for item in found}.values())


def rate_of(optimizer: Any) -> tf.Variable | None:
    """The learning rate; None where it follows a schedule."""
    found = raw(unwrapped(optimizer)._learning_rate)
    return found if isinstance(found, tf.Variable) else None


def scale_of(optimizer: Any) -> tf.Variable | None:
    """The dynamic loss scale; None of an optimizer without."""
    return raw(getattr(optimizer, "dynamic_scale", None))


def slot_lists(optimizer: Any, index: int) -> dict[str, list[Any]]:
    """Attributes of an optimizer that hold a slot for each variable, by name.

    The variables themselves are among them, for which averages are made.
    """
    return {
        name: value
        for name, value in vars(optimizer).items()
        if isinstance(value, list) and len(value) == len(optimizer._trainable_variables_indices)
        if name != "_variables" and isinstance(value[index], (tf.keras.Variable, tf.Variable))
    }


_KEPT = "_elastic_kept"  # attribute of an optimizer: what it was given, by name


def keep_with(optimizer: Any, name: str, variable: tf.Variable) -> None:
    """Give an optimizer another variable, saved with its own in every format.

    It is none of the optimizer's variables for Keras, which would not load a file that has another
    number of them.
    """
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
    """What `scale_loss` multiplies by; None where it leaves the loss as it is."""
    if unwrapped(optimizer) is optimizer:
        return optimizer.loss_scale_factor
    return raw(optimizer.dynamic_scale) if optimizer.built else optimizer.initial_scale


def deduplicated(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """A sparse gradient that has each row once."""
    rows, places = tf.unique(gradient.indices)
    return tf.IndexedSlices(
        tf.math.unsorted_segment_sum(gradient.values, places, tf.shape(rows)[0]), rows
    )


def apply_gradients(optimizer: Any, pairs: Sequence[tuple[Any, tf.Variable]]) -> None:
    """Update variables by what `differentiated` gave for them."""
    inner, scale = unwrapped(optimizer), _scale(optimizer)
    given = []
    for gradient, variable in pairs:
        index = index_of(inner, variable)
        # Keras's own has the constraint; a slice of it stands for itself
        known = inner._trainable_variables[index] if index is not None else variable
        if scale is not None and inner is not optimizer:
            gradient = _each(gradient, lambda part: part * scale)  # a power of two: exact
        given.append((gradient, known if raw(known) is variable else variable))
    factor, own = inner.loss_scale_factor, vars(inner)
    own["loss_scale_factor"] = None
    try:
        optimizer.apply_gradients(given)
    finally:
        own["loss_scale_factor"] = factor


@contextlib.contextmanager
def averaging_only(
    optimizer: Any, variables: Sequence[tf.Variable], steps: Sequence[tf.Tensor]
) -> Iterator[None]:
    """Let the averages of these variables move alone, in `apply_gradients`.

    Keras 3 moves the averages of all variables, and overwrites all variables by them.

    Args:
        optimizer: not one that scales the loss.
        variables: that are updated, or slices of them.
        steps: that each of all variables took part in, by which Keras knows a first step.
    """
    own, name = vars(optimizer), "_model_variables_moving_average"
    hooks = (
        "_update_model_variables_moving_average",
        "_overwrite_model_variables_with_average_value",
    )
    if not optimizer.use_ema or hooks[0] in own:
        yield
        return
    move, overwrite = (getattr(optimizer, hook) for hook in hooks)
    chosen = sorted({index_of(optimizer, variable) for variable in variables})

    def moved(every: Sequence[Any]) -> None:
        averages, iterations = own[name], optimizer._iterations
        try:
            for k in chosen:
                own[name], own["_iterations"] = [averages[k]], steps[k]
                move([every[k]])
        finally:
            own[name], own["_iterations"] = averages, iterations

    def overwritten(every: Sequence[Any]) -> None:
        averages = own[name]
        own[name] = [averages[k] for k in chosen]
        try:
            overwrite([every[k] for k in chosen])
        finally:
            own[name] = averages

    own.update(zip(hooks, (moved, overwritten)))
    try:
        yield
    finally:
        for hook in hooks:
            del own[hook]


def finalized(
    optimizer: Any, finalize: Callable[[Sequence[Any]], None], variables: Sequence[tf.Variable]
) -> None:
    """Put the averages of these variables in their place, by Keras's own function.

    It pairs variables and averages by their places.
    """
    inner = unwrapped(optimizer)
    own, name = vars(inner), "_model_variables_moving_average"
    every = own[name]
    own[name] = [every[index_of(inner, variable)] for variable in variables]
    try:
        finalize(variables)
    finally:
        own[name] = every
