"""Methods that select by importance, through the same engine and within the same budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.callback import ElasticCallback
from elastic_tf.choose import importance
from elastic_tf.choose.budget.settings import Control
from elastic_tf.choose.probe import Probe
from elastic_tf.methods.baselines.method import Method, Task
from elastic_tf.train.head.features import head_tensors

Importance = Callable[..., Any]


def at_random(seed: int) -> Importance:
    """An importance that takes tensors in random order, another one at each call.

    They are taken while they fit: the most random importance would prefer what is cheap.
    """
    generator = np.random.default_rng(seed)

    def importance(model: Any, x: Any = None, y: Any = None) -> np.ndarray:
        return 1.0 + generator.permutation(len(model.tensors))

    importance.strategy = "order"  # type: ignore[attr-defined]
    return importance


def with_importance(
    name: str,
    summary: str,
    importance: Importance,
    *,
    is_of_task: bool = False,
    foretells: bool = False,
    **options: Any,
) -> Method:
    """The elastic callback with another importance, or with what that gives for a `Task`."""

    def callbacks(task: Task) -> list[tf.keras.callbacks.Callback]:
        profile: Any = task.profile  # None is refused there
        settings = {
            "rho": task.rho,
            "importance": importance(task) if is_of_task else importance,
            "interval": task.interval,
            "probe": Probe(task.probe, size=task.probe_size, seed=task.seed),
            "required": head_tensors(task.model),
            "memory": task.memory,
        }
        return [ElasticCallback(profile, **{**settings, **options})]

    return Method(name, summary, callbacks, needs_profile=True, foretells=foretells)


METHODS = (
    with_importance("elastic", "the last tensors that fit rho", importance.depth, foretells=True),
    with_importance(
        "elastic_loss",
        "what lowers the loss most within rho, anew each interval",
        importance.loss_decrease,
    ),
    with_importance(
        "elastic_weight",
        "as elastic_loss, by the magnitude of the weights",
        importance.weight_magnitude,
    ),
    with_importance(
        "elastic_grad",
        "as elastic_loss, by the magnitude of the gradients",
        importance.gradient_magnitude,
    ),
    with_importance("elastictrainer", "as the paper's released code", importance.paper),
    with_importance(
        "random", "at random within rho", lambda task: at_random(task.seed), is_of_task=True
    ),
    # The paper searches exhaustively, 2^N plans, for the best progress of the first epochs (Sec.
    # 2.1, Fig. 2b). Here it is the optimum of the first importance, which nothing corrects.
    with_importance(
        "offline_optimal",
        "as elastic_loss, chosen once at the start",
        importance.loss_decrease,
        interval=arguments.MOST,
        control=Control(share=0.0),
    ),
)
