"""What `fit` needs to go on after a crash, carried by the model's checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


class FitState(tf.train.experimental.PythonState):
    """The mask, and what callbacks remember, as a part of the model's checkpoints.

    `tf.keras.callbacks.BackupAndRestore` saves the model with everything it tracks, and restores it
    when `fit` starts again. Only then is the state taken over: weights that are loaded at any other
    time leave the mask alone.

    Attributes:
        values: what callbacks want to find again, JSON values by name; empty when `fit` starts.
        listening: whether a checkpoint that is read now is that of an interrupted `fit`.

    Args:
        get_mask: returns the mask, None where all tensors are trained.
        set_mask: takes it over.
    """

    def __init__(
        self,
        get_mask: Callable[[], np.ndarray | None],
        set_mask: Callable[[np.ndarray | None], None],
    ) -> None:
        self._get_mask = get_mask
        self._set_mask = set_mask
        self.values: dict[str, Any] = {}
        self.listening = False

    def serialize(self) -> str:
        """Called when a checkpoint is written."""
        mask = self._get_mask()
        text = None if mask is None else "".join("1" if on else "0" for on in mask)
        return json.dumps({"mask": text, "values": self.values})

    def deserialize(self, string_value: bytes | str) -> None:
        """Called when a checkpoint is read."""
        if not self.listening:
            return
        data = json.loads(string_value)
        self.values = data["values"]
        mask = data["mask"]
        self._set_mask(None if mask is None else np.array([digit == "1" for digit in mask]))
