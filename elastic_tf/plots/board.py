"""What TensorBoard shows of an elastic training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import plots
from elastic_tf.files.atomic import directory

_WIDTH = 5.0  # inches of a picture: TensorBoard shows all pictures equally wide


class Board:
    """Writes scalars of each epoch and each selection, and a picture of what was trained when.

    `names` are those of the tensors; `tensorboard --logdir` reads `log_dir`.
    """

    def __init__(self, log_dir: str | Path, names: Sequence[str]) -> None:
        self._names = names
        self._writer = tf.summary.create_file_writer(str(directory(log_dir)))

    def selection(self, record: Any) -> None:
        """Seconds of the selection of a `SelectionRecord`, and what was asked for."""
        values = {name: getattr(record, name) for name in ("seconds_importance", "seconds_solve")}
        values["rho_asked_of_selector"] = record.selection.rho
        values["tensors_trained"] = float(record.mask.sum())
        self._write(values, record.epoch)

    def epoch(self, epoch: int, record: Any, logs: Mapping[str, Any]) -> None:
        """Ratios of the epoch, and what its selection took in all."""
        values = {name: logs.get(name) for name in ("rho", "predicted_ratio", "achieved_ratio")}
        if record.epoch == epoch:
            values["seconds_selection"] = record.seconds
        self._write(values, epoch)

    def picture(self, masks: Sequence[np.ndarray], epoch: int, *, is_last: bool = False) -> None:
        """Which tensors were trained in the epochs so far; drawn after 1, 2, 4, 8, ... of them."""
        count = len(masks)
        if not count or (count & (count - 1) and not is_last):
            return
        figure = plots.selection_map(masks, names=self._names, width=_WIDTH)
        pixels = tf.io.decode_png(plots.png(figure))
        with self._writer.as_default():
            tf.summary.image("elastic/selection", pixels[None], step=epoch)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()

    def _write(self, values: Mapping[str, float | None], step: int) -> None:
        with self._writer.as_default():
            for name, value in values.items():
                if value is not None and np.isfinite(value):
                    tf.summary.scalar(f"elastic/{name}", value, step=step)
        self._writer.flush()
