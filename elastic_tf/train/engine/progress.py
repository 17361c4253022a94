"""Keras's own progress bar, with what a callback has to show beside the logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class RatioBar(tf.keras.callbacks.ProgbarLogger):
    """The bar that Keras shows, with some values as they are now.

    They go to the bar alone: neither the logs of other callbacks nor the means of the metrics hold
    them. `ratios` gives them by name; None for what is not to be shown, of the logs too.
    """

    def __init__(self, ratios: Callable[[], dict[str, float | None]]) -> None:
        super().__init__()
        self.use_steps = True  # and not samples
        self._ratios = ratios

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Show the step."""
        super().on_train_batch_end(batch, self._with_ratios(logs))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Show the epoch, with its validation."""
        super().on_epoch_end(epoch, self._with_ratios(logs))

    def _with_ratios(self, logs: dict[str, Any] | None) -> dict[str, Any]:
        ratios = self._ratios()
        if self.progbar is not None:
            if self.progbar.stateful_metrics is not None:  # else nothing is shown as a mean
                self.progbar.stateful_metrics |= ratios.keys()
            for name in ratios.keys() & self.progbar._values.keys():
                # Keras 2.15 would show the last value to the end of the epoch
                del self.progbar._values[name]
                self.progbar._values_order.remove(name)
        shown = {**(logs or {}), **ratios}
        return {name: value for name, value in shown.items() if value is not None}


def add_bar(callbacks: list[Any]) -> None:
    """Add a `RatioBar` where one of the callbacks has a function `bar_ratios` for it.

    Unless there is a bar of the user's own.
    """
    ratios = next(filter(None, (getattr(one, "bar_ratios", None) for one in callbacks)), None)
    has_bar = any(isinstance(one, tf.keras.callbacks.ProgbarLogger) for one in callbacks)
    if ratios is not None and not has_bar:
        callbacks.append(RatioBar(ratios))
