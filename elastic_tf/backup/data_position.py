"""How an interrupted `fit` gets to the batch that comes next.

What was trained before is drawn again and dropped, which gives the same batches afterwards as long
as their order is fixed by seeds: all batches so far, but of the earlier passes over a
`tf.data.Dataset` one batch each, for a `shuffle` takes its seed when a pass begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from elastic_tf.stack import data_adapter


def start_at(
    handler: Any,
    *,
    epoch: int,
    step: int,
    steps: int | None,
    arrived: Callable[[int], None],
    ready: Callable[[Any], None],
) -> None:
    """Let the data handler of a new `fit` begin in the middle, as if all before had been trained.

    `step` of the `steps` in an epoch, where known, were trained of `epoch`; the one after the last
    begins none. `arrived` is called with each epoch, earlier ones too, once its pass has begun, and
    `ready` with the iterator of the next batch, where `step` is above 0.
    """
    first = handler._initial_epoch
    every = handler.enumerate_epochs
    if steps is not None:
        handler._inferred_steps = steps

    def epochs() -> Iterator[tuple[int, Any]]:
        if handler._initial_epoch != first:
            raise ValueError(
                "`fit` must go on from one backup. Received: `Backup` and another callback, "
                f"which begins with epoch {handler._initial_epoch}. Leave BackupAndRestore out."
            )
        if epoch >= handler._epochs:
            return
        for now, iterator in every():
            arrived(now)
            if now < epoch:
                if not handler._adapter.should_recreate_iterator():
                    _skip(iterator, steps or 0)
                elif isinstance(handler._adapter, data_adapter.DatasetAdapter):
                    _skip(iterator, 1)  # shuffles below a shuffle take their seeds with it
                continue
            if now == epoch and step:
                _skip(iterator, step)
                handler._initial_step = step
                ready(iterator)
            yield now, iterator

    handler.enumerate_epochs = epochs


def _skip(iterator: Any, count: int) -> None:
    for number in range(count):
        if next(iterator, None) is None:
            raise ValueError(
                "The data must be those of the training that was interrupted. Received: data that "
                f"end after {number} batches, {count} of them were trained. Train on the same "
                "data, or remove the backup."
            )
