"""What Keras's own callbacks remember from epoch to epoch, so that a backup can hold it.

Callbacks of other makes keep what they want to find again in `model.fit_state`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

_WEIGHTS = "best_weights"
_REMEMBERED: dict[type, tuple[str, ...]] = {
    tf.keras.callbacks.EarlyStopping: ("wait", "stopped_epoch", "best", "best_epoch", _WEIGHTS),
    tf.keras.callbacks.ReduceLROnPlateau: ("wait", "cooldown_counter", "best"),
    tf.keras.callbacks.ModelCheckpoint: ("best", "epochs_since_last_save"),
}


def remembering(callbacks: Any) -> list[tuple[tf.keras.callbacks.Callback, tuple[str, ...]]]:
    """Those that remember something, with its names, among what `fit` was given."""
    return [
        (callback, names)
        for callback in tf.nest.flatten(callbacks or [])
        for kind, names in _REMEMBERED.items()
        if isinstance(callback, kind)
    ]


def state(callbacks: Any) -> list[dict[str, Any]]:
    """What each of them remembers, as JSON values; of weights how many there are."""
    return [
        {name: _plain(getattr(callback, name)) for name in names}
        for callback, names in remembering(callbacks)
    ]


def arrays(callbacks: Any) -> Iterator[tuple[str, np.ndarray]]:
    """The weights that are remembered, with names."""
    for k, (callback, _) in enumerate(remembering(callbacks)):
        for i, value in enumerate(getattr(callback, _WEIGHTS, None) or []):
            yield f"callback/{k}/{i}", value


def go_on(callbacks: Any, states: list[dict[str, Any]], values: dict[str, np.ndarray]) -> None:
    """Let them go on from `state` and `arrays`; after `on_train_begin`, in which they forget."""
    for k, ((callback, _), held) in enumerate(zip(remembering(callbacks), states)):
        for name, value in held.items():
            if name == _WEIGHTS and value is not None:
                value = [values[f"callback/{k}/{i}"] for i in range(value)]
            setattr(callback, name, value)


def _plain(value: Any) -> Any:
    """A number, or how many weights there are."""
    if isinstance(value, list):
        return len(value)
    return None if value is None else np.asarray(value).item()
