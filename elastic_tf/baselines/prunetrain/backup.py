"""A `fit` that goes on after a crash: the network is cut before its weights are restored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tensorflow as tf

_STATE = "elastic_fit_state/.ATTRIBUTES/py_state"  # of the model's fit_state in a checkpoint


def take_up_backup(model: Any, callbacks: Any) -> None:
    """Remove what was removed before the backup that one of the callbacks will restore.

    Args:
        model: PruneTrain model as it was built, or as the interrupted `fit` left it.
        callbacks: those given to `fit`.

    Raises:
        ValueError: the model is not the one that the backup is of.
    """
    for callback in _each(callbacks):
        if isinstance(callback, tf.keras.callbacks.BackupAndRestore):
            # Keras 2.15 keeps the backup in a folder of this name.
            latest = tf.train.latest_checkpoint(str(Path(callback.backup_dir) / "chief"))
            removed = [] if latest is None else _removed(latest)
            have = model.removed
            if have != removed[: len(have)]:
                raise ValueError(
                    "The backup must be of this model. Received: a model that was rebuilt "
                    f"{len(have)} times, and in '{callback.backup_dir}' the backup of another one, "
                    f"rebuilt {len(removed)} times. Build the model anew, or remove the backup."
                )
            for labels in removed[len(have) :]:
                model.remove(labels)


def _removed(checkpoint: str) -> list[list[int]]:
    """Labels removed at each rebuild before a checkpoint."""
    reader = tf.train.load_checkpoint(checkpoint)
    for key in reader.get_variable_to_shape_map():
        if key.endswith(_STATE):
            values = json.loads(reader.get_tensor(key))["values"]
            return values.get("prunetrain", {}).get("removed", [])
    return []


def _each(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    if isinstance(callbacks, tf.keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
