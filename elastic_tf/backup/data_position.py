"""How an interrupted `fit` gets to the batch that comes next.

What was trained before is drawn again and dropped, which gives the same batches afterwards as long
as their order is fixed by seeds: all batches so far, but of the earlier passes over a
`tf.data.Dataset` one batch each, for a `shuffle` takes its seed when a pass begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elastic_tf.stack import RunningFit


def start_at(
    fit: RunningFit,
    *,
    epoch: int,
    step: int,
    steps: int | None,
    arrived: Callable[[int], None],
    ready: Callable[[Any], None],
) -> None:
    """Let a new `fit` begin in the middle, as if all before had been trained.

    `step` of the `steps` in an epoch, where known, were trained of `epoch`; the one after the last
    begins none. `arrived` is called with each epoch until then, once its pass begins, and `ready`
    with the iterator of the next batch, where `step` is above 0.
    """
    fit.begin_at(epoch, step, steps, arrived=arrived, skip=_skip, ready=ready)


def check(fit: RunningFit, epoch: int) -> None:
    """Refuse another callback that has let it begin elsewhere, at this epoch."""
    if fit.is_moved:
        raise ValueError(
            "`fit` must go on from one backup. Received: `Backup` and another callback, which "
            f"begins with epoch {epoch}. Leave BackupAndRestore out."
        )


def _skip(batches: Any, count: int) -> None:
    for number in range(count):
        if next(batches, None) is None:
            raise ValueError(
                "The data must be those of the training that was interrupted. Received: data that "
                f"end after {number} batches, {count} of them were trained. Train on the same "
                "data, or remove the backup."
            )
