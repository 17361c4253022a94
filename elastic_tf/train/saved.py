"""What a backup holds of a model and its process, and the two files, of which one is always whole.

Each file is an .npz archive of arrays; the bytes of the array `json` are the rest. A backup takes
the place of the older of the two. A file that was cut off or changed is seen by its checksums, and
the other one is taken. Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf import stack
from elastic_tf.arguments import brief
from elastic_tf.files import claim, read_arrays, replaced
from elastic_tf.stack import context, stateful_random_ops
from elastic_tf.train import optimizers
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.tracing import host_generators_kept

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


VERSION = 3
_NAMES = ("a.npz", "b.npz")
_JSON = "json"


class State(NamedTuple):
    """What a backup holds."""

    data: dict[str, Any]  # JSON values
    arrays: dict[str, np.ndarray]  # by name


class Slots:
    """The two files of one training, in a directory of their own."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._claim = contextlib.ExitStack()  # empty until the directory is taken
        self._number = 0  # of the newest good one

    def open(self) -> None:
        """Take the directory for this process, until `close`; a kill gives it back."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            rule = "A directory of backups is that of one training."
            self._claim = claim(self.path / "lock", rule=rule, what=self.path)
        except OSError as error:
            raise ValueError(
                "`Backup` needs a directory that can be written. Received: "
                f"'{self.path}': {error}. Choose another one, or change its permissions."
            ) from error

    def close(self) -> None:
        """Give the directory back."""
        self._claim.close()

    def read(self) -> State | None:
        """The newest backup that is whole; None where there is no file, a ValueError if none is."""
        found: dict[int, Path] = {}
        refused = []
        for path in (self.path / name for name in _NAMES):
            try:
                found[_json(read_arrays(path, [_JSON]))["number"]] = path
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                refused.append(f"'{path}' {error}")
        for number, path in sorted(found.items(), reverse=True):
            try:
                arrays = read_arrays(path)
                held = _json(arrays)
                if held["names"] != [*arrays]:
                    raise ValueError("lacks some of its arrays")
            except (OSError, ValueError) as error:
                refused.append(f"'{path}' {error}")
                continue
            for problem in refused:
                warnings.warn(f"The other backup is taken: {problem}.", stacklevel=2)
            self._number = number
            return State(held["data"], arrays)
        if refused:
            raise ValueError(
                "A training goes on from a backup that is whole. Received: "
                f"{'; '.join(refused)}. Remove '{self.path}' to start anew."
            )
        return None

    def write(self, data: dict[str, Any], arrays: Iterable[tuple[str, np.ndarray]]) -> None:
        """Put a backup of JSON values and arrays in the place of the older one, or change nothing.

        NaN and infinity are allowed. Only one array at a time is in memory.
        """
        number = self._number + 1
        path = self.path / _NAMES[number % 2]
        part = path.with_suffix(".part")  # what a kill leaves of it is overwritten
        with replaced(path, part) as file, zipfile.ZipFile(file, "w") as archive:
            names = [_add(archive, name, array) for name, array in arrays]
            held = {"version": VERSION, "number": number, "names": names, "data": data}
            _add(archive, _JSON, np.frombuffer(json.dumps(held).encode(), np.uint8))
        self._number = number

    def said(self) -> str:
        """What there is."""
        some = "the last good backup is" if self._number else "there is no backup yet"
        return f"{some} in '{self.path}'"

    def clear(self) -> None:
        """Remove both backups."""
        for name in _NAMES:
            (self.path / name).unlink(missing_ok=True)


def _add(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> str:
    """Add one array, as `numpy.savez` does with all of them at once; returns its name."""
    write: Any = np.lib.format.write_array  # which has no types
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        write(member, np.asanyarray(array), allow_pickle=False)
    return name


def _json(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """What a backup holds beside arrays; a ValueError ends the sentence that begins with it."""
    try:
        found = json.loads(arrays.pop(_JSON).tobytes())
        version = found["version"]
        if version == VERSION and isinstance(found["data"], dict) and type(found["number"]) is int:
            return dict(found)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"is no backup: {type(error).__name__}: {error}") from error
    raise ValueError(f"is of format {brief(version)}, this version reads {VERSION}")
