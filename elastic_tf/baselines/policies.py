"""Methods that select by importance, through the same engine and within the same budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.baselines.method import Method, Task, profile_of
from elastic_tf.budget.settings import Control
from elastic_tf.callback import ElasticCallback
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.importance import measures
from elastic_tf.importance.probe import Probe
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.zoo import models

Importance = Callable[..., np.ndarray]

_NEVER = 10**9  # epochs until the next selection


class RandomChoice:
    """An importance function that chooses tensors at random, other ones at each call.

    Tensors are taken in random order as long as they fit the budget. Maximising a random importance
    would be no random choice: it prefers what is cheap. Chosen tensors are worth 1; the others so
    little that they fill what the selector is allowed beyond `rho`, where the control corrects it,
    and displace none.

    Args:
        profile: times measured on the target device.
        rho: allowed step time / full step time.
        required: True where a tensor is trained in any case; bool, shape (N,), forward order.
        seed: of the draws.
    """

    def __init__(
        self, profile: TimingProfile, rho: float, required: np.ndarray, *, seed: int = 0
    ) -> None:
        self._profile = profile
        self._budget = rho * profile.t_full
        self._required = required
        self._generator = np.random.default_rng(seed)

    def __call__(self, model: ElasticMixin, x: Any = None, y: Any = None) -> np.ndarray:
        """1 for the chosen tensors, less than 1 for all others together; float64, shape (N,)."""
        mask = self._required.copy()
        for k in self._generator.permutation(len(mask)):
            tried = mask.copy()
            tried[k] = True
            if self._profile.step_time(tried) <= self._budget:
                mask = tried
        return np.where(mask, 1.0, 1e-3 / len(mask))


def _select(task: Task, function: Importance, **options: Any) -> list[tf.keras.callbacks.Callback]:
    """The elastic callback with another importance."""
    settings: dict[str, Any] = {
        "rho": task.rho,
        "interval": task.interval,
        "probe": Probe(task.probe, size=task.probe_size, seed=task.seed),
        "importance": function,
        "required": models.head_tensors(task.model),
    }
    return [ElasticCallback(profile_of(task), **{**settings, **options})]


def _random(task: Task) -> list[tf.keras.callbacks.Callback]:
    required = models.head_tensors(task.model)
    return _select(task, RandomChoice(profile_of(task), task.rho, required, seed=task.seed))


def _offline_optimal(task: Task) -> list[tf.keras.callbacks.Callback]:
    """The best selection before the first epoch, kept to the end.

    The paper finds it by exhaustive search for the best progress of the first epochs, and does not
    say over which portions: 2^N are out of reach. Here it is the solver's optimum of the importance
    before the first step. Nothing corrects it afterwards: neither a new importance nor the control.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 2.1, Fig. 2(b).
    """
    return _select(task, measures.loss_decrease, interval=_NEVER, control=Control(share=0.0))


def _method(name: str, summary: str, make: Any) -> Method:
    return Method(name, summary, make, needs_profile=True)


METHODS = (
    _method(
        "elastic",
        "what lowers the loss most within rho, chosen anew every few epochs",
        lambda task: _select(task, measures.loss_decrease),
    ),
    _method(
        "elastic_weight",
        "as elastic, by the magnitude of the weights",
        lambda task: _select(task, measures.weight_magnitude),
    ),
    _method(
        "elastic_grad",
        "as elastic, by the magnitude of the gradients",
        lambda task: _select(task, measures.gradient_magnitude),
    ),
    _method("random", "as elastic, at random", _random),
    _method("offline_optimal", "as elastic, chosen once at the start", _offline_optimal),
)
