"""What a backup holds of a model and its process, and putting it back, bit for bit."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import stack
from elastic_tf.stack import context, stateful_random_ops
from elastic_tf.train import optimizers
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.snapshot import host_generators_kept

# What Keras's callbacks remember from epoch to epoch; others keep theirs in `model.fit_state`.
_WEIGHTS = "best_weights"
_REMEMBERED: dict[type, tuple[str, ...]] = {
    tf.keras.callbacks.EarlyStopping: ("wait", "stopped_epoch", "best", "best_epoch", _WEIGHTS),
    tf.keras.callbacks.ReduceLROnPlateau: ("wait", "cooldown_counter", "best"),
    tf.keras.callbacks.ModelCheckpoint: ("best", "epochs_since_last_save"),
}


def variables(model: ElasticMixin) -> list[tf.Variable]:
    """Every variable of a training but the metrics', in an order that the model alone decides."""
    of_metrics = {id(variable) for variable in metrics(model)}
    found = [*stack.weights(model), *stack.seeds_of(model), *optimizers.state(model.optimizer)]
    unique = {id(variable): variable for variable in found if id(variable) not in of_metrics}
    return list(unique.values())


def metrics(model: ElasticMixin) -> list[tf.Variable]:
    """The variables of the metrics; Keras makes some of them in the first step only."""
    return [variable for metric in model.metrics for variable in stack.variables_of(metric)]


def described(items: Sequence[tf.Variable], prefix: str) -> dict[str, Any]:
    """How many variables there are, and of each its name, shape and dtype."""
    found: dict[str, Any] = {f"number of {prefix}s": len(items)}
    for k, item in enumerate(items):
        name = re.sub(r"_\d+", "", item.name.split(":")[0].split("/")[-1])  # Keras counts models
        found[f"{prefix} {k}"] = f"{name} {tuple(item.shape.as_list())} {item.dtype.name}"
    return found


def arrays(items: Sequence[tf.Variable], prefix: str) -> Iterator[tuple[str, np.ndarray]]:
    """Names and values of variables, one after the other."""
    for k, item in enumerate(items):
        value = item.numpy()
        if value.dtype.kind == "V":  # bfloat16 and the like, which .npy does not know
            value = value.view(f"u{value.dtype.itemsize}")
        yield f"{prefix}/{k}", value


def assign(items: Sequence[tf.Variable], values: dict[str, np.ndarray], prefix: str) -> None:
    """Give variables back what `arrays` made of them."""
    for k, item in enumerate(items):
        item.assign(values[f"{prefix}/{k}"].view(item.dtype.as_numpy_dtype))


def make_metrics(model: ElasticMixin, iterator: Any) -> None:
    """Trace the first step, by which Keras makes the metrics, without running it."""
    traceable = model.train_tf_function
    if traceable is not None:
        traceable.get_concrete_function(iterator)
        return
    with host_generators_kept(model):  # run_eagerly
        tf.function(model.train_step).get_concrete_function(iterator.element_spec)


def host_generators() -> dict[str, Any]:
    """The state of the process's random generators, as JSON values."""
    state: Any = np.random.get_state()
    kind, keys, *rest = state
    seeds = getattr(context.context(), "_rng", None)  # of eager ops without a seed
    shared = stateful_random_ops.global_generator
    return {
        "python": random.getstate(),
        "numpy": [kind, keys.tolist(), *rest],
        "seeds": seeds and seeds.getstate(),
        "keras": None if (seed := stack.shared_seed()) is None else seed.numpy().tolist(),
        "tensorflow": shared and [int(shared.algorithm), shared.state.numpy().tolist()],
    }


def set_host_generators(states: dict[str, Any]) -> None:
    """Put the process's random generators back to what `host_generators` returned."""

    def from_json(state: list[Any]) -> tuple[Any, ...]:
        version, numbers, following = state
        return version, tuple(numbers), following

    if states["keras"] is not None:
        shared = stack.shared_seed(make=True)
        assert shared is not None
        shared.assign(states["keras"])
    random.setstate(from_json(states["python"]))  # by which Keras seeds what it makes
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), *rest))
    seeds = getattr(context.context(), "_rng", None)
    if seeds is not None and states["seeds"] is not None:
        seeds.setstate(from_json(states["seeds"]))
    if states["tensorflow"] is not None:
        algorithm, values = states["tensorflow"]
        made = tf.random.Generator.from_state(tf.constant(values, tf.int64), alg=algorithm)
        tf.random.set_global_generator(made)


def remembering(callbacks: Any) -> list[tuple[tf.keras.callbacks.Callback, tuple[str, ...]]]:
    """Those that remember something, with its names, among what `fit` was given."""
    return [
        (callback, names)
        for callback in tf.nest.flatten(callbacks or [])
        for kind, names in _REMEMBERED.items()
        if isinstance(callback, kind)
    ]


def memories(callbacks: Any) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """What each of them remembers as JSON values, NaN and infinity allowed; weights by name."""
    held, weights = [], {}
    for k, (callback, names) in enumerate(remembering(callbacks)):
        found = {name: getattr(callback, name) for name in names if hasattr(callback, name)}
        for i, value in enumerate(found.pop(_WEIGHTS, None) or []):
            weights[f"callback/{k}/{i}"] = value
        held.append({name: np.array(value).tolist() for name, value in found.items()})
    return held, weights


def remind(callbacks: Any, states: list[dict[str, Any]], values: dict[str, np.ndarray]) -> None:
    """Give them back both; after `on_train_begin`, in which they forget."""
    for k, ((callback, names), held) in enumerate(zip(remembering(callbacks), states)):
        vars(callback).update(held)
        weights = [value for name, value in values.items() if name.startswith(f"callback/{k}/")]
        if _WEIGHTS in names and weights:
            callback.best_weights = weights
