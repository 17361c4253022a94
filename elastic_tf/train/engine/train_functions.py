"""The train functions of an elastic model: one for each plan, the last few of them kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from elastic_tf import stack
from elastic_tf.train.engine.state import Step


def switch(model: Any, make: Callable[..., Any], force: bool = False) -> Any:
    """Let a compiled model train by the function of its plan, made unless it is kept; returns it.

    `make` is Keras's own `make_train_function` of it. With `force` none that is kept will do.
    """
    state = model._elastic
    if force:
        state.functions.clear()
    trained = model._trained(state.plan)
    cache = None if state.rows is None else state.rows.kept(trained)
    key = (state.plan and state.plan.traced, cache)
    kept = state.functions.get(key)
    if kept is None:
        model._build_optimizer()
        function, state.traceable = stack.made_train_function(
            model, make, state.steps_per_execution
        )
        if state.rows is not None and cache is not None:
            function = state.rows.or_whole(function)
        kept = function, state.traceable
        state.functions.put(key, kept)
    model.train_function, state.traceable = kept
    if state.data is None:
        state.data = stack.running_fit(model)
    if state.lookahead is not None:  # it has drawn batches that come before the next one
        model.train_function = state.lookahead.before(model.train_function)
    return model.train_function


def judge_next(model: Any, iterator: Any) -> Any:
    """In the place of a step: the logs of the next batch, which is not trained on."""
    data, rows = next(iterator), model._elastic.rows
    x, y, weight = tf.keras.utils.unpack_x_y_sample_weight(rows.as_samples(data) if rows else data)
    return judged(model, x, y, weight, model(x, training=False))


def judged(model: Any, x: Any, y: Any, weight: Any, y_pred: Any) -> Any:
    """The logs of what was predicted."""
    loss = stack.computed_loss(model, x, y, y_pred, weight, training=False)
    return model.finish(Step(x, y, weight, y_pred, loss))
