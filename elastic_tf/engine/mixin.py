"""The training engine: a Keras model of which any set of tensors is trained, the rest at no cost.

The set is a Python constant of the traced train function: gradients and updates outside it are not
in the graph. A new set is a new function; the last few are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf.engine import data_position, freezing, progress, refusals
from elastic_tf.engine.fit_state import FitState
from elastic_tf.engine.forward_order import forward_order
from elastic_tf.engine.step_functions import TrainFunctions, never_differentiated
from elastic_tf.optimizers import selected
from elastic_tf.optimizers.accumulation import Accumulation
from elastic_tf.optimizers.trial import check_leaves_out

if TYPE_CHECKING:
    from tensorflow.keras import Model as _Model  # what the mixin is mixed with
else:
    _Model = object


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
        self.fit_started: float | None = None  # seconds of time.perf_counter
        self.accumulation: Accumulation | None = None
        self.data: Any = None  # Keras's data handler of this `fit`
        self.callbacks: Any = None  # that it was given
        self.leave: Callable[[], None] | None = None  # called when it ends, in whatever way
        self.finished: Callable[[], None] | None = None  # called when it has ended by itself


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
        refusals.check_bases(cls, ElasticMixin)

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
        mask = refusals.checked_mask(mask, len(self.tensors))
        self._take_mask(None if mask.all() else mask)

    @property
    def fit_state(self) -> dict[str, Any]:
        """What callbacks want to find again when `BackupAndRestore` goes on with a broken `fit`.

        JSON values by name, saved with the mask in the model's checkpoints; empty when `fit`
        starts, filled when the backup is read.
        """
        return self._fit_state.values

    def compile(self, *args: Any, accumulate: int = 1, **kwargs: Any) -> None:
        """`tf.keras.Model.compile`, and gradient accumulation.

        Args:
            *args: as for `tf.keras.Model.compile`, like `**kwargs`.
            accumulate: batches in one update of the weights: each of them is a micro-batch, the
                update is made from the mean of their gradients. What was collected when the mask
                changes or `fit` ends makes an update of its own, of fewer batches.

        Raises:
            TypeError: an optimizer or strategy that cannot leave tensors out.
            ValueError: gradients cannot be accumulated here.
        """
        self._elastic.accumulation = None
        super().compile(*args, **kwargs)
        own = type(self).train_step is not ElasticMixin.train_step
        refusals.check_accumulation(accumulate, own, self)
        if accumulate > 1:
            self._elastic.accumulation = Accumulation(
                accumulate, self.distribute_strategy, self.optimizer
            )

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
        `elastic_tf.engine.freezing`.

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
        return step, selected.gradients(self.optimizer, tape, step.loss, variables)

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
            selected.apply_selected(self.optimizer, gradients, self._trained(mask))
            return self.finish(step)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """One training step under the model's mask; a micro-step where gradients accumulate."""
        state = self._elastic
        if state.accumulation is None:
            return self.step(data, state.mask)
        variables = self._trained(state.mask)
        with never_differentiated():
            step, gradients = self.gradients(data, variables)
            state.accumulation.add(gradients, variables)
            return self.finish(step)

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
            if state.accumulation is not None:
                self.train_function = state.accumulation.function(
                    self.train_function, self._trained(state.mask)
                )
            state.functions.put(key, (self.train_function, self.train_tf_function))
        else:
            self.train_function, self.train_tf_function = kept
        if state.accumulation is not None:
            state.accumulation.hold(self._trained(state.mask))
        if getattr(self.optimizer, "use_ema", False):
            if not self._train_counter.numpy():
                state.averaged.clear()
            state.averaged.update(id(variable) for variable in self._trained(state.mask))
        return self.train_function

    def fit(self, *args: Any, **kwargs: Any) -> tf.keras.callbacks.History:
        """`tf.keras.Model.fit`; moving averages replace the weights of trained tensors only."""
        self._assert_compile_was_called()
        state, saved = self._elastic, self._fit_state
        state.averaged.clear()
        state.callback = None  # an interrupted `fit` leaves one
        state.fit_started = time.perf_counter()
        state.callbacks, args, kwargs = progress.with_bar(args, kwargs)
        saved.values = {}
        saved.listening = True
        flush = state.accumulation.flush if state.accumulation else lambda: None
        try:
            with refusals.xla_explained(bool(getattr(self, "_jit_compile", False))):
                with selected.finalizing_only(self.optimizer, state.averaged, before=flush):
                    with data_position.caught(self, lambda data: setattr(state, "data", data)):
                        history = super().fit(*args, **kwargs)
            flush()
            if state.finished is not None:
                state.finished()
            return history
        finally:
            saved.listening = False
            state.data = state.callbacks = state.finished = None
            if state.leave is not None:
                state.leave()
                state.leave = None
            if state.accumulation is not None:
                state.accumulation.forget()

    def get_compile_config(self) -> dict[str, Any] | None:
        """Called when the model is saved."""
        config = super().get_compile_config()
        if config is not None and self._elastic.accumulation is not None:
            config = {**config, "accumulate": self._elastic.accumulation.steps}
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Called when a saved model is read; Keras leaves it to those who override `compile`."""
        self.compile(**tf.keras.saving.deserialize_keras_object(config))
        self._build_optimizer()

    @property
    def _elastic(self) -> _State:
        if "_elastic_state" not in self.__dict__:
            self._elastic_state = _State()
        return self._elastic_state

    @property
    def _fit_state(self) -> FitState:
        if "_fit_state_tracked" not in self.__dict__:
            saved = FitState(
                lambda: self._elastic.mask,
                lambda mask: self.set_mask(self.mask | True if mask is None else mask),
            )
            object.__setattr__(self, "_fit_state_tracked", saved)
            self._track_trackable(saved, "elastic_fit_state")
        return self._fit_state_tracked

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        """The state of `fit` is for checkpoints; a SavedModel has no use for it."""
        children = super()._trackable_children(save_type, **kwargs)
        if save_type != "checkpoint":
            children.pop("elastic_fit_state", None)
        return children

    def _take_mask(self, mask: np.ndarray | None) -> None:
        self._elastic.mask = mask
        if self.train_function is not None:
            self.make_train_function()

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
                selected.build(self.optimizer, self.trainable_variables)

    def _get_optimizer(self, optimizer: Any) -> Any:
        """Called by `compile`: refuse what cannot leave tensors out."""
        optimizer = super()._get_optimizer(optimizer)
        selected.check(optimizer)
        refusals.check_strategy(self.distribute_strategy)
        check_leaves_out(optimizer)
        return optimizer

    def _reset_compile_cache(self) -> None:
        """Called by `compile`: layers may have been frozen or thawed, all traces are stale."""
        super()._reset_compile_cache()
        state = self._elastic
        state.functions.clear()
        state.tensors = None
        if state.mask is not None and len(state.mask) != len(self.trainable_variables):
            state.mask = None
