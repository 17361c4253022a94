"""A training step under a plan as one function, and its time by the clock.

What is compared runs in turn; rounds in which the machine was busy are measured again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from elastic_tf.graph import read_graph_def
from elastic_tf.plan import Plan, as_plan
from elastic_tf.stack import context, never_differentiated, optimized_once, trainable
from elastic_tf.timing.trace import StepTrace
from elastic_tf.train import optimizers
from elastic_tf.train.engine import modes
from elastic_tf.train.engine.checks import batch_explained
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.tracing import kept

N = TypeVar("N")

_WARM_UP = 2  # steps after the first that still allocate, pack weights and fill caches
_MICROSECONDS = 1e6  # in a second
_BUSY = 1.5  # times the median: a round that took longer shared the machine
_PATIENCE = 4  # times the repeats asked for: rounds measured before busy ones are accepted
_IN_A_ROW = 3  # timed steps of a function before it is the next one's turn
_FEW = 6  # rounds that say how sure they are; after three, one of twelve was 0.05 off unknowingly


class StepFunction:
    """A training step under a fixed plan as one traced function of the batch.

    Of a class with a `train_step` of its own, it is that one; its gradients can be told if it asks
    the model's `gradients` for them.

    Args:
        model: compiled elastic model.
        plan: how each tensor is trained, or a bool mask. Nothing trained: the forward pass.
        jit_compile: whether XLA compiles the step, whose ops cannot be seen then. None: as the
            model was compiled.
    """

    def __init__(
        self,
        model: ElasticMixin,
        plan: Plan | np.ndarray,
        *,
        jit_compile: bool | None = None,
    ) -> None:
        self.model = model
        model._build_optimizer()
        self.plan = as_plan(plan, len(trainable(model)))
        self.mask = self.plan.mask
        self._slices = modes.slices(model, self.plan)
        self.jit_compile = bool(model.jit_compile if jit_compile is None else jit_compile)
        self._function = tf.function(self._step, jit_compile=self.jit_compile or None)
        self._untimed: StepTrace | None = None
        self._calls = 0

    def __call__(self, data: Any) -> float:
        """Run one step and wait for it; returns the loss.

        Leaves the channels of its plan chosen, where it has some.
        """
        for part, channels in self._slices:
            part.choose(channels)
        with optimized_once():
            loss, _, _ = self._function(data)
        self._calls += 1
        return float(loss)

    def graph(self, data: Any) -> Any:
        """The FuncGraph traced for batches like `data`.

        Its structured outputs are the loss, the logs, and the gradients of the trained tensors.
        """
        started = time.perf_counter()
        with batch_explained(data):
            graph = self._function.get_concrete_function(data).graph
        self.model._ordered_by(graph, time.perf_counter() - started)
        return graph

    def ends(
        self, data: Any, outputs: Iterable[N]
    ) -> tuple[tuple[N, ...], tuple[tuple[N, ...], ...]]:
        """What stands for outputs of the graph: for loss and logs, for each tensor's gradient."""
        left, (loss, logs, gradients) = iter(outputs), self.graph(data).structured_outputs

        def taken(tensors: Any) -> tuple[N, ...]:
            flat = tf.nest.flatten(tensors, expand_composites=True)
            return tuple(next(left) for tensor in flat if tensor is not None)

        results, found = taken((loss, logs)), iter(gradients)
        return results, tuple(taken(next(found)) if on else () for on in self.mask)

    def untimed(self, data: Any) -> StepTrace:
        """What the function, not compiled by XLA, executes, without times.

        To be asked first before the first step, which it runs: TensorFlow tells it only then.
        """
        if self._untimed is not None:
            return self._untimed
        context.enable_graph_collection()
        try:
            self(data)
            metadata = context.context().export_run_metadata()
        finally:
            context.context().disable_graph_collection()
        # eager ops around the call are functions too: the step is by far the largest
        graph_def = max(
            (graph.post_optimization_graph for graph in metadata.function_graphs),
            key=lambda graph: len(graph.node),
        )
        numbered: dict[str, dict[int, str]] = {"_Retval": {}, "_Arg": {}}
        for node in graph_def.node:
            if node.op in numbered:
                numbered[node.op][node.attr["index"].i] = node.name
        returned, given = numbered["_Retval"], numbered["_Arg"]

        graph = self.graph(data)
        results, gradients = self.ends(data, [returned[k] for k in sorted(returned)])
        index = {id(v.handle): k for k, v in enumerate(self.model.tensors)}
        first = len(graph.inputs) - len(graph.captures)
        handles = {
            given[place]: index.get(id(outer), -1)
            for place, (outer, _) in enumerate(graph.captures, first)
            if outer.dtype == tf.resource and place in given
        }
        self._untimed = StepTrace(read_graph_def(graph_def), gradients, results, handles)
        return self._untimed

    def traced(self, data: Any, *, repeats: int) -> StepTrace:
        """`untimed` with the time of each op: medians over `repeats` steps on one batch.

        The steps are real: weights, slots and metrics move. The caller puts them back.
        """
        untimed = self.untimed(data)
        self.warm_up(data)
        return untimed.timed(lambda: self(data), repeats)

    def warm_up(self, data: Any) -> None:
        """Trace, compile, and run the first steps, unless that was done."""
        while self._calls <= _WARM_UP:
            self(data)

    def _step(self, data: Any) -> Any:
        # a step that trains nothing is a forward pass, which tells their order itself
        tensors = self.model.tensors if self.mask.any() else []
        selected = [v for v, on in zip(tensors, self.mask) if on]
        with never_differentiated(), self.model._elastic.planned(self.plan):
            if has_own_step(self.model):
                loss, logs, gradients = self._own_step(data, selected)
            else:
                step, gradients = self.model.gradients(data, selected)
                optimizers.apply_selected(self.model.optimizer, gradients, selected)
                loss, logs = step.loss, self.model.finish(step)
        if loss.shape.rank:
            raise ValueError(
                f"The loss must be one number. Received: a loss of shape {loss.shape}. Take its "
                "mean."
            )
        # what a compiled step returns it must also write to memory
        return loss, logs, () if self.jit_compile else gradients

    def _own_step(self, data: Any, selected: Sequence[tf.Variable]) -> tuple[Any, Any, list[Any]]:
        """The loss, the logs, and what the own `train_step` got from `model.gradients`, or None."""
        asked: list[tuple[Any, dict[int, Any]]] = []

        def gradients(data: Any, variables: Sequence[tf.Variable] | None) -> Any:
            step, found = type(self.model).gradients(self.model, data, variables)
            of = trainable(self.model) if variables is None else variables
            asked.append((step.loss, {id(v): g for v, g in zip(of, found)}))
            return step, found

        self.model.__dict__["gradients"] = gradients
        try:
            logs = self.model.train_step(data)
        finally:
            del self.model.__dict__["gradients"]
        if len(asked) != 1:  # of several passes, no one is the step's
            return tf.convert_to_tensor(logs.get("loss", 0.0)), logs, [None] * len(selected)
        loss, by_id = asked[0]
        return loss, logs, [by_id.get(id(variable)) for variable in selected]


def has_own_step(model: ElasticMixin) -> bool:
    """Whether the model's class has a `train_step` of its own."""
    return type(model).train_step is not ElasticMixin.train_step


def time_in_turn(
    runs: Sequence[Callable[[Any], Any]], data: Any, *, repeats: int, certain: float = 0.0
) -> np.ndarray:
    """Microseconds of each step function, one after the other; shape (rounds, functions).

    In turn, because the speed of a shared machine drifts: a ratio of neighbours holds. Rounds in
    which the machine was busy with something else are measured again. Each timed step follows one
    of its own kind, as in training: after a larger one it takes up to a tenth longer, for caches
    and memory are not its own.

    Args:
        repeats: undisturbed rounds wanted of the functions, which are traced and warm.
        certain: stop earlier, once `ratio_uncertainty` of each function to the first is below this.
    """
    in_a_row = min(repeats, _IN_A_ROW)
    times = np.zeros((0, len(runs)))
    while True:
        turns = [[seconds(run, data) for _ in range(1 + in_a_row)][1:] for run in runs]
        times = np.concatenate([times, _MICROSECONDS * np.transpose(turns)])
        totals = times.sum(axis=1)
        quiet = times[totals <= _BUSY * np.median(totals)]
        ratios = [ratio_uncertainty(quiet[:, [0, k]]) for k in range(1, len(runs))]
        is_certain = len(quiet) >= _FEW and max(ratios, default=0.0) < certain
        if is_certain or len(quiet) >= repeats or len(times) >= _PATIENCE * repeats:
            return quiet


def time_anew(runs: Sequence[StepFunction], data: Any, **options: Any) -> np.ndarray:
    """`time_in_turn` of step functions of one model that it warms up; leaves nothing behind."""
    with kept(runs[0].model, (run.graph(data) for run in runs)):
        for run in runs:
            run.warm_up(data)
        return time_in_turn(runs, data, **options)


def ratio_uncertainty(steps: np.ndarray) -> float:
    """Half-width of the 95 % interval of the second function's time / the first one's.

    From the middle half of the ratios of neighbouring steps, of shape (rounds, 2): 1.96 standard
    errors of a median.
    """
    low, high = np.quantile(steps[:, 1] / steps[:, 0], (0.25, 0.75))
    deviation = (high - low) / 1.349  # of a normal distribution
    return float(1.96 * 1.2533 * deviation / np.sqrt(len(steps)))


def seconds(run: Callable[[Any], Any], data: Any) -> float:
    """Wall-clock of one step."""
    started = time.perf_counter()
    run(data)
    return time.perf_counter() - started
