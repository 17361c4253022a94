"""Importance during training: evaluated again and again, on a fresh probe each time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from elastic_tf.choose.importance.probe import Draws
from elastic_tf.train.engine import replicas
from elastic_tf.train.engine.mixin import ElasticMixin


def needs_probe(function: Callable[..., np.ndarray]) -> bool:
    """Whether an importance cannot do without samples."""
    second = [*inspect.signature(function).parameters.values()][1:2]
    return not second or second[0].default is inspect.Parameter.empty


class Worth:
    """Evaluates the importance again and again.

    Where the function has parameters `sample_weight` or `micro_batch_size`, it is given the weights
    of the probe and the size of the batches of training.
    """

    def __init__(
        self,
        function: Callable[..., np.ndarray],
        probe: Draws | None,
        micro_batch_size: int | None = None,
    ) -> None:
        self.needs_probe = needs_probe(function)
        self.strategy: str = getattr(function, "strategy", "exact")
        self._function, self._parameters = function, inspect.signature(function).parameters
        self._probe = probe if self.needs_probe else None
        self._micro_batch_size = micro_batch_size
        self._drawn: dict[int, int] = {}  # by the epoch, batches of the probe until then

    def draw(self, epoch: int) -> Any:
        """x, y and sample weights (or None) of the probe as `epoch` begins; None without one."""
        if self._probe is None:
            return None
        try:
            return self._probe.draw()
        finally:
            self._drawn[epoch] = self._probe.drawn

    def evaluate(self, model: ElasticMixin, probe: Any) -> np.ndarray:
        """The importance on what was drawn; float64, shape (N,)."""
        if not self.needs_probe:
            return np.asarray(self._function(model), np.float64)
        shared, size = replicas.count(model.distribute_strategy), self._micro_batch_size
        x, y, weight = probe
        given = {"sample_weight": weight, "micro_batch_size": size and size * shared}
        known = self._parameters
        taken = {k: one for k, one in given.items() if one is not None and k in known}
        importance = np.asarray(self._function(model, x, y, **taken), np.float64)
        return replicas.mean_over_workers(model.distribute_strategy, importance)

    def state(self) -> list[Any]:
        """All that `go_on` needs, as JSON values."""
        return [*self._drawn.items()]

    def go_on(self, state: list[Any]) -> None:
        """Go on from `state`; `pass_over` is to be called for every epoch that was begun."""
        self._drawn = dict(state)

    def pass_over(self, epoch: int) -> None:
        """Draw what the probe drew before that epoch, and drop it."""
        if self._probe is not None:
            self._probe.skip(self._drawn.get(epoch, 0))
