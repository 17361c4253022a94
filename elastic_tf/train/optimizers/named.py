"""SGD with decoupled weight decay, Adam of one op for each tensor, and a falling rate."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.stack import index_of, raw, registered


@registered
class SGDW(tf.keras.optimizers.SGD):
    """SGD with decoupled weight decay, made by `sgdw`; equals TensorFlow Addons' bit for bit.

    Of a sparse gradient the rows that it has decay alone. Without momentum TensorFlow Addons leaves
    that out.
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
        super().__init__(learning_rate, momentum, nesterov, name=name, **kwargs)
        self.decay = weight_decay  # Keras multiplies its own `weight_decay` by the learning rate

    def get_config(self) -> dict[str, Any]:
        """Settings, from which Keras makes the optimizer again."""
        return {**super().get_config(), "weight_decay": self.decay}

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any = None) -> None:
        """Decay the variable, then let one op update it; Keras 3 says the rate."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        rate, decay = (tf.cast(part, variable.dtype) for part in (rate, self.decay))
        accumulator = None
        if self.momentum:
            accumulator = raw(self.momentums[index_of(self, variable)]).handle
        if isinstance(gradient, tf.IndexedSlices):
            gradient = _each_row_once(gradient)
            rows, values = gradient.indices, gradient.values
            variable.scatter_sub(tf.IndexedSlices(decay * tf.gather(variable, rows), rows))
            if accumulator is None:
                variable.scatter_sub(tf.IndexedSlices(rate * values, rows))
                return
            given: dict[str, Any] = {"grad": values, "indices": rows}
            update = tf.raw_ops.ResourceSparseApplyKerasMomentum
        else:
            variable.assign_sub(decay * variable)
            if accumulator is None:
                handle = variable.handle
                tf.raw_ops.ResourceApplyGradientDescent(var=handle, alpha=rate, delta=gradient)
                return
            given, update = {"grad": gradient}, tf.raw_ops.ResourceApplyKerasMomentum
        update(
            var=variable.handle,
            accum=accumulator,
            lr=rate,
            momentum=tf.cast(self.momentum, variable.dtype),
            use_nesterov=self.nesterov,
            **given,
        )


def sgdw(
    learning_rate: Any, momentum: float = 0.9, weight_decay: float = 5e-4, *, nesterov: bool = False
) -> SGDW:
    """SGD with momentum and decoupled weight decay.

    w <- w - weight_decay * w - learning_rate * v, v the momentum of the gradient; the decay is not
    multiplied by the learning rate, which may be a `LearningRateSchedule`.

    Source: Loshchilov & Hutter, Decoupled Weight Decay Regularization, ICLR 2019, Algorithm 1.
    """
    check_rate("learning_rate", learning_rate)
    arguments.number("weight_decay", weight_decay, low=0.0)
    arguments.number("momentum", momentum, low=0.0, high=1.0, below=True)
    return SGDW(learning_rate, momentum, nesterov, weight_decay=weight_decay)


@registered
class FusedAdam(tf.keras.optimizers.Adam):
    """Adam of which one op updates a tensor, made by `adam`."""

    _common: tuple[tf.Tensor, ...] = ()

    def in_common(self, steps: tf.Tensor, first: int = 0) -> list[tuple[tf.Tensor, ...]]:
        """What the next update of each tensor is made with, from the steps that it has had.

        These are of tensors in a row, `first` the index of the first; int64, shape (tensors,). One
        op for all of them: one for each takes longer to trace, and on a GPU to launch.
        """
        given, dtype = (self.beta_1, self.beta_2, self.epsilon), self._momentums[0].dtype
        settings = [tf.cast(part, dtype) for part in given]
        after = tf.cast(steps + 1, dtype)
        powers = (tf.unstack(tf.pow(beta, after)) for beta in settings[:2])
        return [(*settings, *both) for both in zip(*powers)]

    def _made_with(self, index: int) -> tuple[tf.Tensor, ...]:
        return self._common or self.in_common(tf.reshape(self.iterations, (1,)), index)[0]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any = None) -> None:
        """Let one op update the variable and its moments; Keras 3 says the rate."""
        index, dtype = index_of(self, variable), variable.dtype
        m, v = (raw(slots[index]) for slots in (self._momentums, self._velocities))
        rate = self.learning_rate if learning_rate is None else learning_rate
        given = (rate, *self._made_with(index)[:5])
        rate, beta_1, beta_2, epsilon, first, second = (tf.cast(part, dtype) for part in given)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=m.handle,
            v=v.handle,
            beta1_power=first,
            beta2_power=second,
            lr=rate,
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
            grad=tf.convert_to_tensor(gradient),  # of an embedding, of all rows
        )


def adam(learning_rate: Any, beta_1: float = 0.9, beta_2: float = 0.999) -> FusedAdam:
    """Adam, each tensor updated by one op: quicker to trace and to run than Keras's.

    Differs from `tf.keras.optimizers.Adam` by the rounding of 1 - beta alone.

    Source: Kingma & Ba, Adam, ICLR 2015, Algorithm 1.
    """
    check_rate("learning_rate", learning_rate)
    arguments.number("beta_1", beta_1, low=0.0, high=1.0, below=True)
    arguments.number("beta_2", beta_2, low=0.0, high=1.0, below=True)
    return FusedAdam(learning_rate, beta_1, beta_2)


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


def check_rate(name: str, value: Any) -> None:
    """Refuse a number that is no rate; schedules, variables and functions are Keras's to judge."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        arguments.rate(name, value, hint="A LearningRateSchedule will do as well.")


def _each_row_once(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """A sparse gradient without repeated rows; Keras 2 gives it so to updates."""
    rows, places = tf.unique(gradient.indices)
    return tf.IndexedSlices(
        tf.math.unsorted_segment_sum(gradient.values, places, tf.shape(rows)[0]), rows
    )
