"""Optimizers with the paper's settings, by name: SGD with decoupled weight decay, fused Adam."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from elastic_tf import arguments


@tf.keras.saving.register_keras_serializable(package="elastic_tf")
class SGDW(tf.keras.optimizers.legacy.SGD):
    """SGD with decoupled weight decay, made by `sgdw`; equals TensorFlow Addons' bit for bit.

    Of a sparse gradient the rows that it has decay alone.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        momentum: float = 0.0,
        nesterov: bool = False,
        *,
        weight_decay: float,
        name: str = "SGDW",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, momentum, nesterov, name, **kwargs)
        self._set_hyper("weight_decay", weight_decay)

    def get_config(self) -> dict[str, Any]:
        """Settings, from which Keras makes the optimizer again."""
        decay = self._serialize_hyperparameter("weight_decay")
        return {**super().get_config(), "weight_decay": decay}

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        decayed = var.assign_sub(self._decay(var) * var, self._use_locking)
        with tf.control_dependencies([decayed]):
            return super()._resource_apply_dense(grad, var, apply_state)

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        update = -self._decay(var) * tf.gather(var, indices)
        with tf.control_dependencies([self._resource_scatter_add(var, indices, update)]):
            return super()._resource_apply_sparse(grad, var, indices, apply_state)

    def _decay(self, var: Any) -> tf.Tensor:
        """What is taken off a weight, as a share of it."""
        return self._get_hyper("weight_decay", var.dtype.base_dtype)


def sgdw(
    learning_rate: Any,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    *,
    nesterov: bool = False,
) -> SGDW:
    """SGD with momentum and decoupled weight decay.

    w <- w - weight_decay * w - learning_rate * v, v the momentum of the gradient; the decay is not
    multiplied by the learning rate, which may be a `LearningRateSchedule`.

    Source: Loshchilov & Hutter, Decoupled Weight Decay Regularization, ICLR 2019, Algorithm 1.
    """
    _check_rate("learning_rate", learning_rate)
    arguments.number("weight_decay", weight_decay, low=0.0)
    arguments.number("momentum", momentum, low=0.0, high=1.0, below=True)
    return SGDW(learning_rate, momentum, nesterov, weight_decay=weight_decay)


@tf.keras.saving.register_keras_serializable(package="elastic_tf")
class FusedAdam(tf.keras.optimizers.legacy.Adam):
    """Adam of which one op updates a tensor, made by `adam`.

    Each tensor has a step count of its own, a slot: the moments of one that joins late begin at
    zero, and are corrected as such. Equals Keras's legacy Adam bit for bit while all are trained.
    """

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        super()._create_slots(var_list)
        for variable in var_list:
            self.add_slot(variable, "steps", shape=())

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        return super()._resource_apply_dense(grad, var, self._corrected(var, apply_state))

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        return super()._resource_apply_sparse(grad, var, indices, self._corrected(var, apply_state))

    def _corrected(self, var: Any, apply_state: Any) -> dict[tuple[str, Any], dict[str, Any]]:
        """The coefficients of one tensor's next step."""
        place = (var.device, var.dtype.base_dtype)
        shared = (apply_state or {}).get(place) or self._fallback_apply_state(*place)
        step = self.get_slot(var, "steps").assign_add(1.0)
        first, second = (tf.pow(shared[name], step) for name in ("beta_1_t", "beta_2_t"))
        rate = shared["lr_t"] * (tf.sqrt(1.0 - second) / (1.0 - first))
        own = {"beta_1_power": first, "beta_2_power": second, "lr": rate}
        return {place: {**shared, **own}}


def adam(learning_rate: Any, beta_1: float = 0.9, beta_2: float = 0.999) -> FusedAdam:
    """Adam, each tensor updated by one op: quicker to trace and to run than Keras's.

    Differs from `tf.keras.optimizers.Adam` by the rounding of 1 - beta alone.

    Source: Kingma & Ba, Adam, ICLR 2015, Algorithm 1.
    """
    _check_rate("learning_rate", learning_rate)
    arguments.number("beta_1", beta_1, low=0.0, high=1.0, below=True)
    arguments.number("beta_2", beta_2, low=0.0, high=1.0, below=True)
    return FusedAdam(learning_rate, beta_1, beta_2)


def by_name(name: str, learning_rate: Any) -> Any:
    """An optimizer with the paper's settings, for a rate or a `LearningRateSchedule`.

    "sgd" has momentum 0.9, "sgdw" momentum 0.9 and decay 5e-4, "adam" is `adam`.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 8 (SGDW, for ViT Adam).
    """
    arguments.choice("name", name, NAMES)
    _check_rate("learning_rate", learning_rate)
    return _BY_NAME[name](learning_rate)


def cosine(
    learning_rate: float, steps: int, *, warm_up: float = 0.0
) -> tf.keras.optimizers.schedules.CosineDecay:
    """A learning rate that falls on a cosine to zero in so many steps.

    It rises linearly before, in a share `warm_up` of them, in [0, 1); never from zero, where no
    tensor would have any importance.
    """
    arguments.rate("learning_rate", learning_rate)
    arguments.part("warm_up", warm_up)
    made = tf.keras.optimizers.schedules.CosineDecay
    rising = round(warm_up * steps)
    if not rising:
        return made(learning_rate, max(steps, 1))
    options = {"warmup_target": learning_rate, "warmup_steps": rising}
    return made(learning_rate / rising, max(steps - rising, 1), **options)


def _check_rate(name: str, value: Any) -> None:
    """Refuse a number that is no rate; schedules, variables and functions are Keras's to judge."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        hint = "A LearningRateSchedule will do as well."
        arguments.rate(name, value, hint)


_BY_NAME = {
    "sgd": lambda rate: tf.keras.optimizers.SGD(rate, momentum=0.9),
    "sgdw": sgdw,
    "adam": adam,
}
#: Names that `by_name` knows.
NAMES = tuple(_BY_NAME)
