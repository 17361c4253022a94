"""The training engine: a Keras model of which any set of tensors is trained, the rest at no cost.

The set is a Python constant of the traced train function: gradients and updates outside it are not
in the graph. A new set is a new function; the last few are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf import freezing, optimizers
from elastic_tf.graph import forward_order
from elastic_tf.train_functions import TrainFunctions, never_differentiated

if TYPE_CHECKING:
    from tensorflow.keras import Model as _Model  # what the mixin is mixed with
else:
    _Model = object

_REFUSED_STRATEGIES = (
    tf.distribute.experimental.CentralStorageStrategy,
    tf.distribute.experimental.ParameterServerStrategy,
    tf.distribute.ParameterServerStrategy,
    tf.distribute.TPUStrategy,
)


class Step(NamedTuple):
    """One forward pass: the unpacked batch, the prediction and the total loss."""

    x: Any
    y: Any
    sample_weight: Any
    y_pred: Any
    loss: tf.Tensor


class _State:
    """What an elastic model remembers; a plain object, so that Keras does not track it."""

    def __init__(self) -> None:
        self.mask: np.ndarray | None = None  # None: all tensors
        self.tensors: list[tf.Variable] | None = None  # forward order
        self.variables: list[tf.Variable] = []  # the same in Keras's order
        self.averaged: set[int] = set()  # id of each variable trained in this `fit`
        self.functions = TrainFunctions()
        self.callback: Any = None  # the ElasticCallback of this `fit`


class ElasticMixin(_Model):
    """Adds `set_mask` to a subclassed model: `class MyModel(et.ElasticMixin, tf.keras.Model)`.

    A custom `train_step` goes into the same class and calls `gradients`,
    `optimizers.apply_selected` and `finish`; a custom loss goes into `compute_loss`.
    """

    # Keras does not track what is an attribute of the class as well: tracking would look through
    # all layers at each switch, and keep the graph of the last function beyond `compile`.
    train_function: Any = None
    train_tf_function: Any = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        order = cls.__mro__
        hidden = [
            base
            for base in order[order.index(ElasticMixin) + 1 :]
            if "train_step" in vars(base) and base is not tf.keras.Model
        ]
        if hidden and cls.train_step is ElasticMixin.train_step:
            raise TypeError(
                "The train step of an elastic model must be ElasticMixin's or its own. Received: "
                f"{cls.__name__}, which inherits another one from {hidden[0].__name__}. Define "
                f"train_step in {cls.__name__} with self.gradients(data, variables), "
                "elastic_tf.optimizers.apply_selected and self.finish(step)."
            )

    @property
    def tensors(self) -> list[tf.Variable]:
        """The N trainable variables in forward order.

        Raises:
            ValueError: the model is not built, or has no trainable tensor.
        """
        state = self._elastic
        if state.tensors is None:
            state.tensors = forward_order(self)
            state.variables = list(self.trainable_variables)
        return list(state.tensors)

    @property
    def mask(self) -> np.ndarray:
        """True where a tensor is trained; bool, shape (N,), forward order; a copy."""
        mask = self._elastic.mask
        return np.ones(len(self.tensors), dtype=bool) if mask is None else mask.copy()

    def set_mask(self, mask: np.ndarray) -> None:
        """Train the tensors where `mask` is True from the next step on.

        Works before and during `fit`. The train function of a mask used lately is taken up again;
        for another one the next step traces a new function.

        Args:
            mask: bool, shape (N,), forward order.

        Raises:
            ValueError: wrong length or dtype, or nothing is True.
        """
        mask = _checked(mask, len(self.tensors))
        self._elastic.mask = None if mask.all() else mask
        if self.train_function is not None:
            self.make_train_function()

    def forward(self, data: Any, training: bool = True) -> Step:
        """One forward pass and its total loss, regularisers included."""
        x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(data)
        y_pred = self(x, training=training)
        loss = self.compute_loss(x, y, y_pred, sample_weight)
        self._validate_target_and_loss(y, loss)
        return Step(x, y, sample_weight, y_pred, loss)

    def gradients(
        self, data: Any, variables: Sequence[tf.Variable] | None
    ) -> tuple[Step, list[tf.Tensor | tf.IndexedSlices | None]]:
        """One forward pass in training mode, and the gradients for `variables` alone.

        Layers with buffers of which no tensor is among `variables` run as not trainable; see
        `elastic_tf.freezing`.

        Args:
            data: batch as in `train_step`.
            variables: what to differentiate for. None: all trainable variables, those too that a
                model not yet built makes in this pass.

        Returns:
            The step, and one gradient per variable: None where the loss does not depend on it.
        """
        with tf.GradientTape(watch_accessed_variables=variables is None) as tape:
            if variables is None:
                step = self.forward(data)
            else:
                tape.watch(list(variables))
                with freezing.frozen(freezing.left_out(self, variables)):
                    step = self.forward(data)
        if variables is None:
            variables = self.trainable_variables
        if not variables:
            return step, []
        return step, optimizers.gradients(self.optimizer, tape, step.loss, variables)

    def finish(self, step: Step) -> dict[str, tf.Tensor]:
        """Update the metrics; returns the logs of the step."""
        return self.compute_metrics(step.x, step.y, step.y_pred, step.sample_weight)

    def step(self, data: Any, mask: np.ndarray | None) -> dict[str, tf.Tensor]:
        """One training step under `mask`.

        Args:
            data: batch as in `train_step`.
            mask: bool, shape (N,), forward order. All False: forward pass, loss and metrics only.
                None: all tensors.
        """
        with never_differentiated():
            step, gradients = self.gradients(data, None if mask is None else self._trained(mask))
            optimizers.apply_selected(self.optimizer, gradients, self._trained(mask))
            return self.finish(step)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """One training step under the model's mask."""
        return self.step(data, self._elastic.mask)

    def make_train_function(self, force: bool = False) -> Any:
        """The train function of the model's mask, made unless it is kept."""
        state = self._elastic
        key = b"" if state.mask is None else state.mask.tobytes()
        if force:
            state.functions.clear()
        kept = state.functions.get(key)
        if kept is None:
            self._build_optimizer()
            super().make_train_function(force=True)
            if self.train_tf_function is not None:
                # A trace per mask is meant here; TensorFlow 2.15 would warn of retracing.
                self.train_tf_function._omit_frequent_tracing_warning = True
            state.functions.put(key, (self.train_function, self.train_tf_function))
        else:
            self.train_function, self.train_tf_function = kept
        if getattr(self.optimizer, "use_ema", False):
            if not self._train_counter.numpy():
                state.averaged.clear()
            state.averaged.update(id(variable) for variable in self._trained(state.mask))
        return self.train_function

    def fit(self, *args: Any, **kwargs: Any) -> tf.keras.callbacks.History:
        """`tf.keras.Model.fit`; moving averages replace the weights of trained tensors only."""
        self._elastic.averaged.clear()
        self._elastic.callback = None  # an interrupted `fit` leaves one
        with optimizers.finalizing_only(self.optimizer, self._elastic.averaged):
            return super().fit(*args, **kwargs)

    @property
    def _elastic(self) -> _State:
        if "_elastic_state" not in self.__dict__:
            self._elastic_state = _State()
        return self._elastic_state

    def _trained(self, mask: np.ndarray | None) -> list[tf.Variable]:
        """Variables to train, in Keras's order: global norms are summed in that order."""
        if mask is None:
            return list(self.trainable_variables)
        chosen = {id(tensor) for tensor, keep in zip(self.tensors, mask) if keep}
        return [variable for variable in self._elastic.variables if id(variable) in chosen]

    def _build_optimizer(self) -> None:
        """Make all slots before the first trace, unless the model is built in its first step."""
        if self.built and self.trainable_variables:
            with self.distribute_strategy.scope():
                optimizers.build(self.optimizer, self.trainable_variables)

    def _get_optimizer(self, optimizer: Any) -> Any:
        """Called by `compile`: refuse what cannot leave tensors out."""
        optimizer = super()._get_optimizer(optimizer)
        optimizers.check(optimizer)
        if isinstance(self.distribute_strategy, _REFUSED_STRATEGIES):
            raise TypeError(
                "The strategy must keep all tensors on every replica: MirroredStrategy, "
                "MultiWorkerMirroredStrategy or OneDeviceStrategy. Received: "
                f"{type(self.distribute_strategy).__name__}."
            )
        return optimizer

    def _reset_compile_cache(self) -> None:
        """Called by `compile`: layers may have been frozen or thawed, all traces are stale."""
        super()._reset_compile_cache()
        state = self._elastic
        state.functions.clear()
        state.tensors = None
        if state.mask is not None and len(state.mask) != len(self.trainable_variables):
            state.mask = None


def _checked(mask: Any, count: int) -> np.ndarray:
    """A copy of `mask`, if it is one for `count` tensors."""
    mask = np.array(mask)
    if mask.dtype != bool:
        raise ValueError(
            f"`mask` must be of dtype bool. Received: dtype {mask.dtype}. Convert indices with "
            "np.isin(np.arange(N), indices)."
        )
    if mask.shape != (count,):
        raise ValueError(
            f"`mask` must have one entry per trainable tensor, shape ({count},). Received: shape "
            f"{mask.shape}. See model.tensors for the order."
        )
    if not mask.any():
        raise ValueError(
            f"`mask` must be True somewhere. Received: {count} times False. Keep at least the head "
            "trained."
        )
    return mask
