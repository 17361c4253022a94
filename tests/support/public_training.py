"""The functions that train, each with a call that is right."""

from __future__ import annotations

import time
from typing import Any

import hostile_values as kinds
import tensorflow as tf
from networks import network
from public_call import Call, batch, head, model, table

from elastic_tf.callback import ElasticCallback
from elastic_tf.importance import measures
from elastic_tf.model import ElasticModel
from elastic_tf.optimizers import selected


def taped() -> dict[str, Any]:
    variable = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable**2)
    optimizer = tf.keras.optimizers.SGD(0.1)
    return {"optimizer": optimizer, "tape": tape, "loss": loss, "variables": [variable]}


def built() -> dict[str, Any]:
    given = taped()
    selected.build(given["optimizer"], given["variables"])
    return {
        "optimizer": given["optimizer"],
        "gradients": [tf.ones(2)],
        "variables": given["variables"],
    }


def finalized(**given: Any) -> None:
    with selected.finalizing_only(**given):
        pass


CALLS = (
    Call(
        "optimizers.sgdw",
        selected.sgdw,
        lambda _: {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "nesterov": False},
        {
            "learning_rate": kinds.number,
            "momentum": kinds.number,
            "weight_decay": kinds.number,
            "nesterov": kinds.flag,
        },
    ),
    Call(
        "optimizers.by_name",
        selected.by_name,
        lambda _: {"name": "adam", "learning_rate": 0.1},
        {"name": kinds.text, "learning_rate": kinds.number},
    ),
    Call(
        "optimizers.check",
        selected.check,
        lambda _: {"optimizer": tf.keras.optimizers.SGD()},
        {"optimizer": kinds.thing},
    ),
    Call(
        "optimizers.build",
        selected.build,
        lambda _: {name: item for name, item in built().items() if name != "gradients"},
        {"optimizer": kinds.thing, "variables": kinds.listed},
    ),
    Call(
        "optimizers.gradients",
        selected.gradients,
        lambda _: taped(),
        {
            "optimizer": kinds.thing,
            "tape": kinds.thing,
            "loss": kinds.thing,
            "variables": kinds.listed,
        },
    ),
    Call(
        "optimizers.apply_selected",
        selected.apply_selected,
        lambda _: built(),
        {"optimizer": kinds.thing, "gradients": kinds.listed, "variables": kinds.listed},
    ),
    Call(
        "optimizers.finalizing_only",
        finalized,
        lambda _: {"optimizer": built()["optimizer"], "trained": {1, 2}, "before": lambda: None},
        {"optimizer": kinds.thing, "trained": kinds.listed, "before": kinds.text},
    ),
    *(
        Call(
            f"optimizers.{function.__name__}",
            function,
            lambda _: {"optimizer": built()["optimizer"]},
            {"optimizer": kinds.thing},
        )
        for function in (selected.state, selected.rate, selected.unwrapped)
    ),
    Call(
        "model.ElasticModel.from_model",
        ElasticModel.from_model,
        lambda _: {"model": network()},
        {"model": kinds.thing},
    ),
    Call(
        "mixin.ElasticMixin.set_mask",
        lambda mask: model().set_mask(mask),
        lambda _: {"mask": model().mask},
        {"mask": kinds.mask},
    ),
    Call(
        "callback.ElasticCallback",
        ElasticCallback,
        lambda d: {
            "profile": table(),
            "interval": 2,
            "probe": batch(),
            "probe_size": 4,
            "smoothing": 0.5,
            "control": 0.05,
            "band": 0.05,
            "reprofile_every": 2,
            "backup_dir": d / "backup",
            "backup_every": 5,
            "backup_seconds": 5.0,
            "nan": "stop",
            "seed": 1,
            "rho": 0.5,
            "importance": measures.loss_decrease,
            "required": head(),
            "log_dir": d / "board",
            "verbose": 1,
            "bar": True,
            "clock": time.perf_counter,
            "gradient_probe": batch(),
        },
        {
            "profile": kinds.thing,
            "probe": kinds.thing,
            "gradient_probe": kinds.thing,
            "importance": kinds.function,
            "required": kinds.mask,
            "log_dir": kinds.path,
            "backup_dir": kinds.path,
            "verbose": kinds.count,
            "bar": kinds.flag,
            "clock": kinds.function,
            "interval": kinds.count,
            "probe_size": kinds.count,
            "smoothing": kinds.number,
            "control": kinds.number,
            "band": kinds.number,
            "reprofile_every": kinds.count,
            "backup_every": kinds.count,
            "backup_seconds": kinds.number,
            "nan": kinds.text,
            "seed": kinds.count,
            "rho": kinds.number,
        },
    ),
    Call(
        "callback.ElasticCallback with a deadline",
        lambda deadline: ElasticCallback(table(), probe=batch(), deadline=deadline),
        lambda _: {"deadline": 60.0},
        {"deadline": kinds.number},
    ),
)
