"""Importance during training: on a fresh probe each time, compared with the time before."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from elastic_tf.choose.importance.probe import Draws
from elastic_tf.files.json_form import to_json
from elastic_tf.train.engine import replicas
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.inputs.batches import sample_shapes


class Worths(NamedTuple):
    """What `select_plan` takes.

    Attributes:
        worth: float64 (N, 1 + M), forward order: of exact tensors, then of each mode; 0 where a
            tensor cannot have it.
        modes: names of the M modes.
        channels: of each kernel, by its index, the squared gradient of its channels.
    """

    worth: np.ndarray
    modes: tuple[str, ...]
    channels: dict[int, np.ndarray]


class Worth:
    """Evaluates the importance again and again.

    Where the function has parameters `sample_weight`, `micro_batch_size` or `gradient_data`, it is
    given the weights of the probe, the size of the batches of training and the second probe.
    `modes` and `channels` are those of the last `Worths`.
    """

    def __init__(
        self,
        function: Callable[..., np.ndarray],
        probe: Draws | None,
        gradient_probe: Draws | None = None,
        micro_batch_size: int | None = None,
    ) -> None:
        parameters = inspect.signature(function).parameters
        if gradient_probe is not None and "gradient_data" not in parameters:
            raise ValueError(
                "`Probe(gradient=...)` needs an importance function that takes `gradient_data`. "
                f"Received: {getattr(function, '__name__', function)!r}. Use "
                "elastic_tf.choose.importance.loss_decrease, or leave `gradient` out."
            )
        second = [*parameters.values()][1:2]
        self.needs_probe = not second or second[0].default is inspect.Parameter.empty
        self.strategy: str = getattr(function, "strategy", "exact")
        self.modes: tuple[str, ...] = ()
        self.channels: dict[int, np.ndarray] = {}
        self._function, self._parameters = function, set(parameters)
        self._probes = [probe, gradient_probe] if self.needs_probe else [None, None]
        self._micro_batch_size = micro_batch_size
        self._drawn: dict[int, list[int]] = {}  # by the epoch, batches of each probe until then
        self._evaluated: np.ndarray | None = None

    def at_most(self, rows: int) -> None:
        """Evaluate on no more samples at a time."""
        if "micro_batch_size" not in self._parameters:
            raise ValueError(
                "`importance` must take `micro_batch_size` where `memory` is limited. Received: "
                f"{getattr(self._function, '__name__', self._function)!r}. Use "
                "elastic_tf.choose.importance.loss_decrease, or another one that takes it."
            )
        size = self._micro_batch_size
        self._micro_batch_size = rows if size is None else min(size, rows)

    def draw(self, model: ElasticMixin, check: Callable[..., None], epoch: int) -> list[Any]:
        """x, y and sample weights (or None) of each probe as `epoch` begins; None of none.

        `check` is called with `batch_size` and `input_shape` of the first one.
        """
        try:
            found = [None if probe is None else probe.draw() for probe in self._probes]
        finally:
            self._drawn[epoch] = [probe.drawn for probe in self._probes if probe is not None]
        first, shared = self._probes[0], replicas.count(model.distribute_strategy)
        if first is not None and found[0] is not None:
            size = None if first.batch_size is None else -(-first.batch_size // shared)
            check(batch_size=size, input_shape=sample_shapes(found[0][0]))
        return found

    def evaluate(
        self, model: ElasticMixin, probe: Any, gradient_probe: Any = None
    ) -> tuple[np.ndarray, float | None]:
        """The importance on what was drawn, and its cosine similarity to that before."""
        if self.needs_probe:
            shared, size = replicas.count(model.distribute_strategy), self._micro_batch_size
            x, y, weight = probe
            options = {
                "sample_weight": weight,
                "micro_batch_size": None if size is None else size * shared,
                "gradient_data": gradient_probe,
            }
            taken = {
                name: value
                for name, value in options.items()
                if value is not None and name in self._parameters
            }
            found = self._function(model, x, y, **taken)
            if isinstance(found, Worths):
                found, self.modes, self.channels = found
            importance = np.asarray(found, np.float64)
            importance = replicas.mean_over_workers(model.distribute_strategy, importance)
        else:
            importance = np.asarray(self._function(model), np.float64)
        before, self._evaluated = self._evaluated, importance
        if before is None or before.shape != importance.shape:
            return importance, None
        return importance, cosine_similarity(before, importance)

    def state(self) -> dict[str, Any]:
        """All that `go_on` needs, as JSON values."""
        return {
            "importance": to_json(self._evaluated),
            "drawn": list(self._drawn.items()),
            "modes": list(self.modes),
            "channels": [(k, to_json(worth)) for k, worth in self.channels.items()],
        }

    def go_on(self, state: dict[str, Any]) -> None:
        """Go on from `state`; `pass_over` is to be called for every epoch that was begun."""
        held = state["importance"]
        self._evaluated = None if held is None else np.array(held)
        self._drawn = dict(state["drawn"])
        self.modes = tuple(state["modes"])
        self.channels = {k: np.array(worth) for k, worth in state["channels"]}

    def pass_over(self, epoch: int) -> None:
        """Draw what the probes drew before that epoch, and drop it."""
        probes = (probe for probe in self._probes if probe is not None)
        for probe, batches in zip(probes, self._drawn.get(epoch, [])):
            probe.skip(batches)


def cosine_similarity(one: np.ndarray, two: np.ndarray) -> float:
    """one . two / (norm(one) * norm(two)); 0 where one of them is all zero."""
    lengths = float(np.linalg.norm(one) * np.linalg.norm(two))
    return float(np.vdot(one, two)) / lengths if lengths else 0.0
