"""What an exported folder is told of the optimizer."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elastic_tf.lite.updates import EVERY
from elastic_tf.optimizers.named import SGDW
from elastic_tf.optimizers.shampoo import Shampoo, blocks_of, rows_of
from elastic_tf.stack import raw, unwrapped

_OPTIMIZERS = tf.keras.optimizers
_SGD = (_OPTIMIZERS.SGD,)
_ADAM = (_OPTIMIZERS.Adam,)
# What would change an update, and is not written.
_FOREIGN = ("amsgrad", "clipnorm", "clipvalue", "global_clipnorm", "use_ema")


def told(optimizer: Any) -> dict[str, Any]:
    """The settings that `elastic_tf.lite.updates` takes, of SGD, SGDW, Adam or Shampoo.

    Raises:
        ValueError: another optimizer, or a setting that is not written.
    """
    inner = unwrapped(optimizer)
    settings = inner.get_config()
    decay = settings.get("weight_decay") or 0.0
    foreign = next((f"{name}={settings[name]}" for name in _FOREIGN if settings.get(name)), "")
    if not foreign and decay and not isinstance(inner, SGDW):
        foreign = f"weight_decay={decay}"
    if foreign or not isinstance(inner, (*_SGD, *_ADAM)) or type(inner) is _OPTIMIZERS.AdamW:
        raise ValueError(
            "The optimizer must be SGD, SGDW, Adam or Shampoo, without clipping, averages or "
            f"weight decay but SGDW's. Received: {type(inner).__name__}"
            f"{foreign and ' with ' + foreign}. Compile the model with "
            "elastic_tf.optimizers.adam(1e-3), for instance."
        )
    rate = optimizer.learning_rate
    found = {"learning_rate": float(rate(optimizer.iterations) if callable(rate) else rate)}
    if isinstance(inner, _ADAM):
        names = ["beta_1", "beta_2", "epsilon"]
        names += ["momentum", "memory"] * isinstance(inner, Shampoo)
        return found | {name: float(settings[name]) for name in names}
    return found | {
        "momentum": float(settings["momentum"]),
        "nesterov": bool(settings["nesterov"]),
        "decay": float(decay),
    }


def matrices(model: Any) -> dict[str, Any]:
    """What Shampoo takes for matrices, by the tensor's number; nothing of other optimizers."""
    if not isinstance(unwrapped(model.optimizer), Shampoo):
        return {}
    turns = {id(raw(variable)): k for k, variable in enumerate(model.trainable_variables)}
    rows = {k: rows_of(tensor) for k, tensor in enumerate(model.tensors)}
    return {
        "matrices": {
            str(k): {
                "rows": count,
                "blocks": blocks_of(count),
                "turn": turns[id(model.tensors[k])] % EVERY,
            }
            for k, count in rows.items()
            if count
        }
    }
