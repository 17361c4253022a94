"""What TensorBoard shows of an elastic training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import plots
from elastic_tf.files.atomic import directory
from elastic_tf.selection.records import LOGGED, SelectionRecord

_WIDTH = 5.0  # inches of a picture: TensorBoard shows all pictures equally wide


class Board:
    """Writes scalars of each epoch and each selection, and a picture of what was trained when.

    Args:
        log_dir: directory of the events; `tensorboard --logdir` reads it.
        names: of the tensors, forward order.

    Attributes:
        seconds_picture: wall-clock of the last picture.
    """

    def __init__(self, log_dir: str | Path, names: Sequence[str]) -> None:
        self.seconds_picture = 0.0
        self._names = list(names)
        self._drawn = 0  # epochs in the last picture
        self._writer = tf.summary.create_file_writer(str(directory(log_dir)))

    def selection(self, record: SelectionRecord) -> None:
        """Seconds of the selection, and what was asked for."""
        values = {
            "seconds_importance": record.seconds_importance,
            "seconds_solve": record.seconds_solve,
            "rho_asked_of_selector": record.selection.rho,
            "tensors_trained": float(record.mask.sum()),
            "similarity": record.similarity,
        }
        self._write(values, record.epoch)

    def epoch(self, epoch: int, record: SelectionRecord, logs: dict[str, Any]) -> None:
        """Ratios of the epoch, and what the selection took in all."""
        values = {name: logs.get(name) for name in LOGGED}
        if record.epoch == epoch:
            values["seconds_selection"] = record.seconds
        self._write(values, epoch)

    def picture(self, masks: Sequence[np.ndarray], epoch: int, *, is_last: bool = False) -> None:
        """Which tensors were trained in which epochs so far, if a new picture is due.

        Each has at least twice the epochs of the one before it: there are few, however long the
        training and however often it selects.

        Args:
            masks: one for each epoch so far.
            epoch: the present one.
            is_last: the training ends; draw what is not in a picture yet.
        """
        count = len(masks)
        if count == self._drawn or (count < 2 * self._drawn and not is_last):
            return
        started = time.perf_counter()
        figure = plots.selection_map(masks, names=self._names, width=_WIDTH)
        with self._writer.as_default():
            tf.summary.image("elastic/selection", plots.pixels(figure)[None], step=epoch)
        self._writer.flush()
        self._drawn = count
        self.seconds_picture = time.perf_counter() - started

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()

    def _write(self, values: dict[str, float | None], step: int) -> None:
        with self._writer.as_default():
            for name, value in values.items():
                if value is not None and np.isfinite(value):
                    tf.summary.scalar(f"elastic/{name}", value, step=step)
        self._writer.flush()
