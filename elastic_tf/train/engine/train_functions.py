"""The train functions of an elastic model: one for each plan, the last few of them kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from elastic_tf import stack
from elastic_tf.train import optimizers
from elastic_tf.train.engine.state import Step


def switch(model: Any, make: Callable[..., Any], force: bool = False) -> Any:
    """Let a compiled model train by the function of its plan, made unless it is kept; returns it.

    `make` is Keras's own `make_train_function` of it. With `force` none that is kept will do.
    """
    state = model._elastic
    if force:
        state.functions.clear()
    trained = model._trained(state.plan)
    if state.accumulation is not None:
        state.accumulation.hold(trained)  # which updates what was trained before
    cache = None if state.rows is None else state.rows.kept(trained)
    key = (state.plan and state.plan.traced, cache)
    kept = state.functions.get(key)
    if kept is None:
        model._build_optimizer()
        function, state.traceable = stack.made_train_function(
            model, make, state.steps_per_execution
        )
        if state.accumulation is not None:
            function = state.accumulation.function(function, trained)
        if getattr(optimizers.unwrapped(model.optimizer), "use_ema", False):
            function = _noting(model, function)
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


def _noting(model: Any, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A train function that notes which tensors have moving averages of this `fit`."""
    state = model._elastic

    def train_function(iterator: Any) -> Any:
        is_new = state.noted is not state.plan
        if is_new and model.built:
            inner = optimizers.unwrapped(model.optimizer)
            optimizers.start_averages(inner, model._trained(state.plan))
        logs = function(iterator)
        if is_new:
            channels = {} if state.plan is None else state.plan.channels
            some = {id(model.tensors[k]): set(chosen) for k, chosen in channels.items()}
            for one in map(id, model._trained(state.plan)):
                before = state.averaged.get(one, set())
                is_whole = before is None or one not in some
                state.averaged[one] = None if is_whole else before | some[one]
            state.noted = state.plan
        return logs

    return train_function
