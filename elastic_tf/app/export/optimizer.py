"""What an exported folder is told of the optimizer."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elastic_tf.lite.updates import EVERY
from elastic_tf.stack import raw, unwrapped
from elastic_tf.train.optimizers.named import SGDW
from elastic_tf.train.optimizers.shampoo import Shampoo, blocks_of, rows_of

_OPTIMIZERS = tf.keras.optimizers
# What would change an update, and is not written.
_FOREIGN = ("amsgrad", "clipnorm", "clipvalue", "global_clipnorm", "use_ema")


def told(model: Any) -> dict[str, Any]:
    """The settings that `elastic_tf.lite.updates` takes, of SGD, SGDW, Adam or Shampoo.

    Raises:
        ValueError: another optimizer, or a setting that is not written.
    """
    inner = unwrapped(model.optimizer)
    settings = inner.get_config()
    decay = settings.get("weight_decay") or 0.0
    foreign = next((f"{name}={settings[name]}" for name in _FOREIGN if settings.get(name)), "")
    if not foreign and decay and not isinstance(inner, SGDW):
        foreign = f"weight_decay={decay}"
    is_known = isinstance(inner, (_OPTIMIZERS.SGD, _OPTIMIZERS.Adam))
    if foreign or not is_known or type(inner) is _OPTIMIZERS.AdamW:
        raise ValueError(
            "The optimizer must be SGD, SGDW, Adam or Shampoo, without clipping, averages or "
            f"weight decay but SGDW's. Received: {type(inner).__name__}"
            f"{foreign and ' with ' + foreign}. Compile the model with "
            "elastic_tf.train.optimizers.adam(1e-3), for instance."
        )
    rate = model.optimizer.learning_rate
    rate = rate(model.optimizer.iterations) if callable(rate) else rate
    found: dict[str, Any] = {"learning_rate": float(rate)}
    if isinstance(inner, _OPTIMIZERS.SGD):
        found.update(momentum=float(settings["momentum"]), nesterov=bool(settings["nesterov"]))
        return {**found, "decay": float(decay)}
    found.update({name: float(settings[name]) for name in ("beta_1", "beta_2", "epsilon")})
    if isinstance(inner, Shampoo):
        found.update(momentum=inner.momentum, memory=inner.memory)
        turns = {id(raw(variable)): k for k, variable in enumerate(model.trainable_variables)}
        found["matrices"] = {
            str(k): {
                "rows": rows,
                "blocks": blocks_of(rows),
                "turn": turns[id(tensor)] % EVERY,
            }
            for k, tensor in enumerate(model.tensors)
            if (rows := rows_of(tensor))
        }
    return found
