"""The training engine: a Keras model of which any set of tensors is trained, the rest at no cost.

The plan is a Python constant of the traced train function: gradients and updates outside it are not
in the graph. A new plan is a new function; the last few are kept.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, stack
from elastic_tf.plan import Plan, as_plan, describe_trained
from elastic_tf.stack import never_differentiated, traced_once
from elastic_tf.train import optimizers, schedule
from elastic_tf.train.engine import (
    checks,
    freezing,
    modes,
    rows,
)
from elastic_tf.train.engine.state import State, Step, switch
from elastic_tf.train.engine.tracing import forward_order, input_spec, traced_pass

if TYPE_CHECKING:
    from tensorflow.keras import Model as _Model  # what the mixin is mixed with
else:
    _Model = object

_FIT = list(inspect.signature(tf.keras.Model.fit).parameters)[1:]  # names, by their place


class ElasticMixin(_Model):
    """Adds `set_plan` to a subclassed model: `class MyModel(et.ElasticMixin, tf.keras.Model)`.

    A custom `train_step` goes into the same class and calls `gradients`,
    `optimizers.apply_selected` and `finish`; a custom loss goes into `compute_loss`.
    """

    # Keras does not track what is an attribute of the class as well: tracking would look through
    # all layers at each switch, and keep the graph of the last function beyond `compile`.
    train_function: Any = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        checks.check_bases(cls, ElasticMixin)

    @property
    def train_tf_function(self) -> Any:
        """The `tf.function` in the train function; None in eager execution. Keras 2 sets it."""
        return self._elastic.traceable

    @train_tf_function.setter
    def train_tf_function(self, value: Any) -> None:
        self._elastic.traceable = value

    @property
    def tensors(self) -> list[tf.Variable]:
        """The N trainable variables in forward order, of a model that is built."""
        if self._elastic.tensors is None:
            started = time.perf_counter()
            graph = traced_pass(self, input_spec(self), training=True).graph
            self._ordered_by(graph, time.perf_counter() - started)
        return list(self._elastic.tensors or ())

    def _ordered_by(self, graph: Any, seconds: float) -> None:
        """Take the order of the tensors from a forward pass traced in so long, if not known."""
        if self._elastic.tensors is None:
            self._elastic.tensors = forward_order(self, graph)
            self._elastic.variables = stack.trainable(self)
            self._elastic.tracing = seconds

    @property
    def plan(self) -> Plan:
        """How each tensor is trained now."""
        plan = self._elastic.plan
        return Plan.full(len(self.tensors)) if plan is None else plan

    @property
    def mask(self) -> np.ndarray:
        """True where a tensor is trained; bool, shape (N,), forward order, read-only."""
        return self.plan.mask

    def __repr__(self) -> str:
        said, state = "not built", self._elastic
        if getattr(self, "built", False):
            # without the order of the tensors, which takes a trace
            tensors = stack.trainable(self) if state.plan is None else self.tensors
            said = describe_trained(state.plan, tensors)
        return f"<{type(self).__name__} '{self.name}': {said}>"

    def summary(self, *args: Any, **kwargs: Any) -> None:
        """`tf.keras.Model.summary`, with a last line that says what is trained."""
        super().summary(*args, **kwargs)
        print_fn = args[2] if len(args) > 2 else kwargs.get("print_fn")
        (print_fn or print)(repr(self))

    def set_plan(self, plan: Plan | np.ndarray | None) -> None:
        """Train as `plan` says from the next step on.

        At the end of `fit` the plan is again that of its beginning. The train function of a plan
        used lately is taken up again; for another one the next step traces a new function. Where
        other tensors are trainable when the model is compiled again, the plan is forgotten.

        Args:
            plan: for the model's tensors; or a bool mask, shape (N,), forward order; or None, to
                train everything.

        Raises:
            ValueError: for another number of tensors, or one that trains none.
        """
        if plan is not None:
            plan = as_plan(plan, len(self.tensors))
            checks.check_plan(plan)
        self._take(None if plan is None or plan == Plan.full(len(plan)) else plan)
        if self.train_function is not None:
            self.make_train_function()

    def set_mask(self, mask: np.ndarray | Plan | None) -> None:
        """As `set_plan`."""
        self.set_plan(mask)

    @property
    def fit_state(self) -> dict[str, Any]:
        """What callbacks want to find again when a backup goes on with a broken `fit`.

        JSON values by name; empty when `fit` starts, filled when the backup is read.
        """
        return self._elastic.fit_state

    def compile(
        self,
        *args: Any,
        keep: float | None = None,
        statistics: str = "batch",
        **kwargs: Any,
    ) -> None:
        """`tf.keras.Model.compile`, with options of the elastic step.

        Args:
            *args: as for `tf.keras.Model.compile`, like `**kwargs`. XLA compiles steps only where
                `jit_compile=True` says so: every plan would be compiled anew, which takes longer
                than a short training.
            keep: what a step may keep of its forward pass for the backward pass, as a share of what
                it keeps otherwise, in [0, 1]. The rest is computed again, which takes up to the
                time of a forward pass and changes no bit. With any share each tensor is updated as
                soon as its gradient exists, which takes a few per cent of a step. None leaves the
                order of the step to TensorFlow, as do XLA and eager execution.
            statistics: what batch normalisations normalise by in training: "batch", as in Keras; or
                "stored", as in inference: the moving statistics, which stay as they are, while
                scale and offset can be trained. The latter serves pre-trained networks, and small
                or unusual batches. Other layers, as dropout and augmentation, run as in training.

        Raises:
            TypeError: an optimizer that cannot leave tensors out, or a distribution strategy.
            ValueError: an option is out of range.
        """
        state = self._elastic
        state.statistics = arguments.choice("statistics", statistics, ("batch", "stored"))
        state.keep = keep if keep is None else arguments.number("keep", keep, low=0.0, high=1.0)
        super().compile(*args, **stack.without_auto_xla(args, kwargs))
        self._forget_traces()
        optimizers.check(self.optimizer)
        checks.check_strategy(self)
        state.steps_per_execution = stack.execution(self)
        if kwargs.get("from_serialized"):
            self._build_optimizer()  # whose saved state Keras puts in next

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As of any Keras model; layers of it run in one op where they can."""
        with modes.in_one_op(self):
            return super().__call__(*args, **kwargs)

    def forward(self, data: Any, training: bool = True) -> Step:
        """One forward pass and its total loss, regularisers included."""
        x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(data)
        with freezing.as_compiled(self) if training else contextlib.nullcontext():
            y_pred = stack.called(self, x, training)
        loss = stack.computed_loss(self, x, y, y_pred, sample_weight, training)
        return Step(x, y, sample_weight, y_pred, loss)

    def gradients(
        self, data: Any, variables: Sequence[tf.Variable] | None
    ) -> tuple[Step, list[tf.Tensor | tf.IndexedSlices | None]]:
        """One forward pass in training mode, and the gradients for `variables` alone.

        Layers with buffers of which no tensor is among `variables` run as not trainable; see
        `train.engine.freezing`. Kernels get the gradients of their mode in the model's plan;
        where that trains some channels, those of these channels alone. None means all trainable
        variables, those too that a model not yet built makes in this pass.

        Returns:
            The step, and one gradient per variable: None where the loss does not depend on it.
        """
        with tf.GradientTape(watch_accessed_variables=variables is None) as tape:
            if variables is None:
                step = self.forward(data)
            else:
                variables = [stack.raw(variable) for variable in variables]
                left_out = freezing.left_out(self, variables)
                variables = modes.watched(self, self.plan, variables)
                tape.watch(variables)
                with freezing.frozen(left_out), freezing.as_compiled(self):
                    with modes.installed(self, self.plan):
                        step = self.forward(data)
        if variables is None:
            variables = stack.trainable(self)
        if not variables:
            return step, []
        found = optimizers.gradients(self.optimizer, tape, step.loss, variables)
        schedule.recompute(self, step.loss, found, variables)
        return step, found

    def finish(self, step: Step) -> dict[str, tf.Tensor]:
        """Update the metrics; returns the logs of the step."""
        stack.track_loss(self, (step.y, step.x), step.loss)
        return self.compute_metrics(step.x, step.y, step.y_pred, step.sample_weight)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Keras's, traced once."""
        with traced_once():
            stack.build_metrics(self, y, y_pred)
            return super().compute_metrics(x, y, y_pred, sample_weight)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """One training step under the model's plan."""
        plan = self._elastic.plan
        with never_differentiated():
            step, gradients = self.gradients(data, None if plan is None else self._trained(plan))
            trained = self._trained(plan)  # which the pass may have made
            if plan is None and all(gradient is None for gradient in gradients):
                raise ValueError(
                    "The loss must depend on a trainable tensor. Received: model "
                    f"'{self.name}', no tensor of which gets a gradient. Look at its loss."
                )
            with schedule.updating_early(self, step.loss, gradients, trained):
                optimizers.apply_selected(self.optimizer, gradients, trained)
            return self.finish(step)

    def make_train_function(self, force: bool = False) -> Any:
        """The train function of the model's plan, made unless it is kept."""
        return switch(self, super().make_train_function, force)

    def fit(self, *args: Any, **kwargs: Any) -> tf.keras.callbacks.History:
        """`tf.keras.Model.fit`.

        However it ends, by itself, by an exception or by Ctrl-C, the model is afterwards as it was
        but for its weights: plan and train function are those of the beginning, whatever callbacks
        did to them.
        """
        stack.check_compiled(self)
        state = self._elastic
        given = {**dict(zip(_FIT, args)), **kwargs}
        plan = state.plan
        state.fit_started = time.perf_counter()
        state.callbacks = given.get("callbacks")
        if not isinstance(state.callbacks, tf.keras.callbacks.CallbackList):
            given["callbacks"] = tf.nest.flatten(state.callbacks or [])
        state.fit_state = {}
        try:
            rows.enter(self, given)
            history = super().fit(**given)
            for ending in state.endings:
                ending()
            return history
        finally:
            self._take(plan)
            rows.leave(self)
            functions = state.functions.get((plan and plan.traced, None))
            self.train_function, state.traceable = functions or (None, None)  # made when needed
            state.endings, leave = [], state.leave
            state.callback = state.ledger = state.data = state.callbacks = None
            state.fit_started = state.lookahead = state.leave = None
            if leave is not None:
                leave()

    def cache_prefix(self, epochs: int) -> None:
        """Compute once what of each sample never changes under a plan for so many epochs.

        For a `fit` of `Samples`; otherwise nothing happens.
        """
        state = self._elastic
        if state.rows is None:
            return
        state.rows.cache(self._trained(state.plan), epochs)
        if self.train_function is not None:
            self.make_train_function()

    def get_compile_config(self) -> dict[str, Any] | None:
        """Called when the model is saved."""
        if getattr(self, "optimizer", None) is not None:  # compiled
            self._build_optimizer()  # what reads the file builds it
        config, state = super().get_compile_config(), self._elastic
        own = {
            "keep": state.keep,
            "statistics": None if state.statistics == "batch" else state.statistics,
        }
        return config and {**config, **{k: v for k, v in own.items() if v is not None}}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Called when a saved model is read; Keras leaves it to those who override `compile`."""
        self.compile(**tf.keras.utils.deserialize_keras_object(config))
        self._build_optimizer()

    def _take(self, plan: Plan | None) -> None:
        """Train by a plan from the next step on, None for everything exact."""
        if plan is not None:
            modes.choose(self, plan)
        self._elastic.plan = plan

    @property
    def _elastic(self) -> State:
        if "_elastic_state" not in self.__dict__:
            self._elastic_state = State()
        return self._elastic_state

    def _trained(self, plan: Plan | np.ndarray | None) -> list[tf.Variable]:
        """Variables to train, in Keras's order: global norms are summed in that order."""
        if plan is None:
            return stack.trainable(self)
        mask = as_plan(plan, len(self.tensors)).mask
        chosen = {id(tensor) for tensor, keep in zip(self.tensors, mask) if keep}
        return [variable for variable in self._elastic.variables if id(variable) in chosen]

    def _build_optimizer(self) -> None:
        """Make all slots before the first trace, unless the model is built in its first step."""
        if self.built and self.trainable_variables:
            optimizers.build(self.optimizer, self.trainable_variables)

    def _forget_traces(self) -> None:
        """All traces are stale when it is compiled, and a plan that is for other tensors too."""
        state = self._elastic
        state.functions.clear()
        state.tensors = self.train_function = state.traceable = None
        if state.plan is not None:
            if {*map(id, state.variables)} != {*map(id, stack.trainable(self))}:
                state.plan = None
