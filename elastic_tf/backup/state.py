"""What a backup holds of a model and its process, and putting it back, bit for bit.

Variables: weights, moving statistics, generators of random layers, slots, step counts, learning
rates, loss scale, Keras's count of steps; of a running epoch the metrics too. From the process: the
random generators of Python, NumPy and TensorFlow.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.engine.snapshot import host_generators_kept
from elastic_tf.files.json_form import to_json
from elastic_tf.optimizers import selected
from elastic_tf.stack import backend, context, stateful_random_ops

Arrays = Iterator[tuple[str, np.ndarray]]

# Ops whose place in their sequence cannot be read.
_HIDDEN = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)


def variables(model: ElasticMixin) -> list[tf.Variable]:
    """Every variable of a training but the metrics', in an order that the model alone decides."""
    of_metrics = {id(variable) for variable in metrics(model)}
    found = [
        *model.weights,
        *(generator.state for generator in _generators(model)),
        *selected.state(model.optimizer),
        model._train_counter,
    ]
    unique = {id(variable): variable for variable in found if id(variable) not in of_metrics}
    return list(unique.values())


def metrics(model: ElasticMixin) -> list[tf.Variable]:
    """The variables of the metrics; Keras makes some of them in the first step only."""
    return [variable for metric in model.metrics for variable in metric.variables]


def described(items: Sequence[tf.Variable]) -> list[list[Any]]:
    """Name, shape and dtype of each variable.

    Of a name the last part alone: Keras counts the models of a process in the others.
    """
    return [
        [item.name.split(":")[0].split("/")[-1], item.shape.as_list(), item.dtype.name]
        for item in items
    ]


def check(found: list[list[Any]], items: Sequence[tf.Variable], *, what: str) -> None:
    """Refuse what was kept of another model.

    Args:
        found: from `described`, of what a backup holds.
        items: the variables now.
        what: they are, in the message.

    Raises:
        ValueError: they differ; the first difference is named.
    """
    now = described(items)
    if found == now:
        return
    differs = (k for k, (one, two) in enumerate(zip(found, now)) if one != two)
    at = next(differs, min(len(found), len(now)))
    held, given = (str(kept[at]) if at < len(kept) else "nothing" for kept in (found, now))
    raise ValueError(
        f"A backup is of the same model and optimizer. Received: {len(found)} {what} in the "
        f"backup, {len(now)} now; first difference at {at}: {held} against {given}. Build and "
        "compile the model as before, or choose another `backup_dir`."
    )


def optimizer_settings(optimizer: Any) -> dict[str, Any]:
    """What the optimizer is made with, as JSON values; nothing where it does not tell.

    Warns:
        UserWarning: it does not, as with a schedule of one's own that has no `get_config`.
    """
    try:
        told = to_json(optimizer.get_config())
    except (NotImplementedError, TypeError) as error:
        warnings.warn(
            "A backup is taken up whatever the settings of the optimizer are, for it does not tell "
            f"them: {str(error) or type(error).__name__} Give it, or its learning rate schedule, a "
            "`get_config` of numbers and text.",
            stacklevel=2,
        )
        return {}
    return {name: value for name, value in told.items() if name != "name"}


def check_optimizer(held: dict[str, Any], given: dict[str, Any]) -> None:
    """Refuse other settings than those a backup was begun with; both from `optimizer_settings`.

    Raises:
        ValueError: they differ; the first difference is named.
    """
    for name in sorted({*held, *given} if held and given else ()):
        if held.get(name) != given.get(name):
            raise ValueError(
                "A training goes on with the optimizer it was started with. Received: "
                f"{name}={given.get(name)!r}, in the backup {held.get(name)!r}. Compile the model "
                "as before, or choose another `backup_dir`."
            )


def arrays(items: Sequence[tf.Variable], prefix: str) -> Arrays:
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


def use_generators(model: ElasticMixin) -> None:
    """Let random layers draw from generators whose place can be read and set.

    Dropout of Keras 2.15 keeps its place in an op, out of reach. It draws other numbers afterwards,
    equally seeded.
    """
    changed = False
    for part in _parts(model):
        if isinstance(part, backend.RandomGenerator):
            if part._rng_type == backend.RandomGenerator.RNG_LEGACY_STATEFUL:
                part._rng_type = backend.RandomGenerator.RNG_STATEFUL
                part._built = False
                changed = True
            part._maybe_init()
    if changed:
        model.make_train_function(force=True)


def hidden_draws(model: ElasticMixin) -> list[str]:
    """Random ops of the traced steps whose place no backup can hold."""
    traceable = model.train_tf_function
    found: set[str] = set()
    for traced in [] if traceable is None else traceable._list_all_concrete_functions():
        graph = traced.graph.as_graph_def()
        inside = (node.op for function in graph.library.function for node in function.node_def)
        found |= _HIDDEN & {*(node.op for node in graph.node), *inside}
    return sorted(found)


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
        "seeds": None if seeds is None else seeds.getstate(),
        "tensorflow": None
        if shared is None
        else [int(shared.algorithm), shared.state.numpy().tolist()],
    }


def set_host_generators(states: dict[str, Any]) -> None:
    """Put the process's random generators back to what `host_generators` returned."""
    random.setstate(_as_state(states["python"]))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), *rest))
    seeds = getattr(context.context(), "_rng", None)
    if seeds is not None and states["seeds"] is not None:
        seeds.setstate(_as_state(states["seeds"]))
    if states["tensorflow"] is not None:
        algorithm, values = states["tensorflow"]
        made = tf.random.Generator.from_state(tf.constant(values, tf.int64), alg=algorithm)
        tf.random.set_global_generator(made)


def _as_state(value: list[Any]) -> tuple[Any, ...]:
    """The state of a `random.Random` from JSON."""
    version, numbers, following = value
    return version, tuple(numbers), following


def _generators(model: ElasticMixin) -> Iterator[tf.random.Generator]:
    for part in _parts(model):
        if isinstance(part, backend.RandomGenerator):
            part = part._generator if part._built else None
        if isinstance(part, tf.random.Generator):
            yield part


def _parts(model: ElasticMixin) -> Iterator[Any]:
    """The attributes of all layers."""
    for layer in model._flatten_layers():
        yield from list(vars(layer).values())
