"""Optimizers with the paper's settings, by name; among them SGD with decoupled weight decay."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elastic_tf import arguments

_Schedule = tf.keras.optimizers.schedules.LearningRateSchedule


@tf.keras.saving.register_keras_serializable(package="elastic_tf")
class SGDW(tf.keras.optimizers.legacy.SGD):
    """SGD with decoupled weight decay, made by `sgdw`.

    Equals SGDW of TensorFlow Addons bit for bit, the names of its variables included. Of a sparse
    gradient the rows that it has decay alone.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        momentum: float = 0.0,
        nesterov: bool = False,
        *,
        weight_decay: Any,
        name: str = "SGDW",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, momentum, nesterov, name, **kwargs)
        self._set_hyper("weight_decay", weight_decay)

    def get_config(self) -> dict[str, Any]:
        """Settings, from which Keras makes the optimizer again."""
        decay = self._serialize_hyperparameter("weight_decay")
        return {**super().get_config(), "weight_decay": decay}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> SGDW:
        """The optimizer of these settings."""
        decay = config["weight_decay"]
        if isinstance(decay, dict):
            decay = tf.keras.optimizers.schedules.deserialize(decay, custom_objects)
        return super().from_config({**config, "weight_decay": decay}, custom_objects)

    def _prepare_local(self, var_device: Any, var_dtype: Any, apply_state: Any) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        decay = self._get_hyper("weight_decay", var_dtype)
        if isinstance(decay, _Schedule):
            decay = tf.cast(decay(self.iterations), var_dtype)
        apply_state[(var_device, var_dtype)]["weight_decay"] = tf.identity(decay)

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        decayed = var.assign_sub(self._share(var, apply_state) * var, self._use_locking)
        with tf.control_dependencies([decayed]):
            return super()._resource_apply_dense(grad, var, apply_state)

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        update = -self._share(var, apply_state) * tf.gather(var, indices)
        with tf.control_dependencies([self._resource_scatter_add(var, indices, update)]):
            return super()._resource_apply_sparse(grad, var, indices, apply_state)

    def _share(self, var: Any, apply_state: Any) -> tf.Tensor:
        """What is taken off a weight, as a share of it."""
        place = (var.device, var.dtype.base_dtype)
        state = (apply_state or {}).get(place) or self._fallback_apply_state(*place)
        return state["weight_decay"]


def sgdw(
    learning_rate: Any,
    momentum: float = 0.9,
    weight_decay: Any = 5e-4,
    *,
    nesterov: bool = False,
) -> SGDW:
    """SGD with momentum and decoupled weight decay.

    w <- w - weight_decay * w - learning_rate * v, v the momentum of the gradient; the decay is not
    multiplied by the learning rate. Rate and decay may be a `LearningRateSchedule`.

    Raises:
        ValueError: a number that is negative, or a momentum of 1 or more.

    Source: Loshchilov & Hutter, Decoupled Weight Decay Regularization, ICLR 2019, Algorithm 1.
    """
    for name, value in (("learning_rate", learning_rate), ("weight_decay", weight_decay)):
        _check_rate(name, value)
    arguments.number("momentum", momentum, low=0.0, high=1.0, below=True)
    return SGDW(learning_rate, momentum, nesterov, weight_decay=weight_decay)


def by_name(name: str, learning_rate: Any) -> Any:
    """An optimizer with the paper's settings, for a rate or a `LearningRateSchedule`.

    "sgd" has momentum 0.9, "sgdw" momentum 0.9 and decay 5e-4, "adam" is Keras's.

    Raises:
        ValueError: another name, or a rate that is negative.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 8 (SGDW, for ViT Adam).
    """
    arguments.choice("name", name, NAMES)
    _check_rate("learning_rate", learning_rate)
    return _BY_NAME[name](learning_rate)


def _check_rate(name: str, value: Any) -> None:
    """Refuse a number that is no rate; schedules, variables and functions are Keras's to judge."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        hint = "A LearningRateSchedule will do as well."
        arguments.number(name, value, low=0.0, hint=hint)


_BY_NAME = {
    "sgd": lambda rate: tf.keras.optimizers.SGD(rate, momentum=0.9),
    "sgdw": sgdw,
    "adam": tf.keras.optimizers.Adam,
}
#: Names that `by_name` knows.
NAMES = tuple(_BY_NAME)
