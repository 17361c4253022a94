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


class Neighbours:
    """The callbacks of one `fit` that remember something.

    Args:
        callbacks: what `fit` was given: one, several, or None.
    """

    def __init__(self, callbacks: Any) -> None:
        self._items = [
            (callback, names)
            for callback in (tf.nest.flatten(callbacks) if callbacks else [])
            for kind, names in _REMEMBERED.items()
            if isinstance(callback, kind)
        ]

    def state(self) -> list[list[Any]]:
        """Of each its class and what it remembers, weights left out, as JSON values."""
        return [
            [type(callback).__name__, {name: _plain(getattr(callback, name)) for name in names}]
            for callback, names in self._items
        ]

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """The weights that are remembered, with names."""
        for k, (callback, _) in enumerate(self._items):
            for i, value in enumerate(getattr(callback, _WEIGHTS, None) or []):
                yield f"callback/{k}/{i}", value

    def check(self, state: list[list[Any]]) -> None:
        """Refuse what other callbacks remembered.

        Raises:
            ValueError: other callbacks, or in another order.
        """
        held, given = [name for name, _ in state], [type(one).__name__ for one, _ in self._items]
        if held != given:
            raise ValueError(
                "A training goes on with the callbacks it was started with. Received: "
                f"{', '.join(given) or 'none'}, in the backup {', '.join(held) or 'none'}. Use the "
                "same, or another `backup_dir`."
            )

    def go_on(self, state: list[list[Any]], arrays: dict[str, np.ndarray]) -> None:
        """Let them go on from `state`; after `on_train_begin`, in which they forget."""
        for k, ((callback, _), (_, values)) in enumerate(zip(self._items, state)):
            for name, value in values.items():
                if name == _WEIGHTS and value is not None:
                    value = [arrays[f"callback/{k}/{i}"] for i in range(value)]
                setattr(callback, name, value)


def _plain(value: Any) -> Any:
    """A number, or how many weights there are."""
    if isinstance(value, list):
        return len(value)
    return None if value is None else np.asarray(value).item()
