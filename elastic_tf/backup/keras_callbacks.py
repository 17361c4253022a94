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
    """What each of them remembers but weights, as JSON values; NaN and infinity are allowed."""
    return [
        {name: _plain(getattr(callback, name)) for name in names if name != _WEIGHTS}
        for callback, names in remembering(callbacks)
    ]


def arrays(callbacks: Any) -> Iterator[tuple[str, np.ndarray]]:
    """The weights that are remembered, with names."""
    for k, (callback, _) in enumerate(remembering(callbacks)):
        for i, value in enumerate(getattr(callback, _WEIGHTS, None) or []):
            yield f"callback/{k}/{i}", value


def go_on(callbacks: Any, states: list[dict[str, Any]], values: dict[str, np.ndarray]) -> None:
    """Let them go on from `state` and `arrays`; after `on_train_begin`, in which they forget."""
    for k, ((callback, names), held) in enumerate(zip(remembering(callbacks), states)):
        vars(callback).update(held)
        weights = [value for name, value in values.items() if name.startswith(f"callback/{k}/")]
        if _WEIGHTS in names and weights:
            callback.best_weights = weights


def _plain(value: Any) -> Any:
    return None if value is None else np.asarray(value).item()
