"""Run training steps under the TensorFlow profiler and keep what the device really executed.

The graph looked at is the one after TensorFlow's own optimisation (fused ops, inlined functions,
lowered loops), so the names of its nodes are those of the profiler's events.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from elastic_tf.graph import Node, read_graph_def
from elastic_tf.plan import Plan, as_plan
from elastic_tf.stack import context, never_differentiated, optimized_once, trainable, xplane_pb2
from elastic_tf.timing.xplane import kernel_events, op_events
from elastic_tf.train import optimizers
from elastic_tf.train.engine import modes
from elastic_tf.train.engine.checks import batch_explained
from elastic_tf.train.engine.mixin import ElasticMixin

N = TypeVar("N")

_WARM_UP = 2  # steps after the first that still allocate, pack weights and fill caches


@dataclass(frozen=True)
class StepTrace:
    """One traced training step; times are microseconds a step."""

    nodes: dict[str, Node]  # the executed graph
    # For each tensor, the nodes that return its gradient; none where the loss leaves it out.
    gradients: tuple[tuple[str, ...], ...]
    results: tuple[str, ...]  # the nodes that return the loss and the logs
    handles: dict[str, int]  # node that holds a variable -> its tensor, or -1 for another variable
    # Each node's share of the clock, where it has an event.
    times: dict[str, float] = field(default_factory=dict)
    # How long each node was busy; ops that overlap count twice.
    durations: dict[str, float] = field(default_factory=dict)
    # Of op events that belong to no node. What ran in half of the steps or fewer is not the step's:
    # Python may free the data of others meanwhile.
    time_unmatched: float = 0.0
    # Whether the times are those of kernels on a GPU, not of ops on the host that launch them.
    on_device: bool = False

    def scaled_to(self, total: float) -> StepTrace:
        """The same trace with op times that add up to `total`."""
        scale = total / sum(self.times.values())
        times = {name: time * scale for name, time in self.times.items()}
        return replace(self, times=times, time_unmatched=self.time_unmatched * scale)


def trace_step(run: StepFunction, data: Any, *, repeats: int) -> StepTrace:
    """The executed graph with the time of each op: medians over `repeats` steps on one batch.

    The steps are real: weights, slots and metrics move. The caller puts them back.
    """
    untimed = run.untimed(data)
    run.warm_up(data)
    names, spans, on_device = _profile(lambda: run(data), repeats)
    belongs = np.array([name in untimed.nodes for name in names], bool)
    known = names[belongs]
    lengths = spans[:, 1] - spans[:, 0]
    foreign, often = np.unique(names[~belongs], return_counts=True)
    unmatched = np.isin(names, foreign[often > repeats / 2])
    return replace(
        untimed,
        times=_per_step(known, wall_clock_shares(spans[belongs]), repeats),
        durations=_per_step(known, lengths[belongs], repeats),
        on_device=on_device,
        time_unmatched=sum(_per_step(names[unmatched], lengths[unmatched], repeats).values()),
    )


class StepFunction:
    """A training step under a fixed plan as one traced function of the batch.

    Of a class with a `train_step` of its own, it is that one; its gradients can be told if it asks
    the model's `gradients` for them. Where gradients accumulate, every step makes an update.

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


def _profile(run: Callable[[], Any], repeats: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Names, start and end in microseconds of all op events; whether they are a GPU's kernels."""
    with tempfile.TemporaryDirectory(prefix="elastic_tf_") as folder:
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=2, python_tracer_level=0, device_tracer_level=1
        )
        tf.profiler.experimental.start(folder, options=options)
        try:
            for _ in range(repeats):
                run()
        finally:
            tf.profiler.experimental.stop()
        spaces = [
            xplane_pb2.XSpace.FromString(path.read_bytes())
            for path in Path(folder).rglob("*.xplane.pb")
        ]
    kernels = [event for space in spaces for event in kernel_events(space)]
    events = kernels or [event for space in spaces for event in op_events(space)]
    names = np.array([name for name, *_ in events], object)
    spans = np.array([span for _, *span in events], np.float64).reshape(-1, 2)
    return names, spans, bool(kernels)


def has_own_step(model: ElasticMixin) -> bool:
    """Whether the model's class has a `train_step` of its own."""
    return type(model).train_step is not ElasticMixin.train_step


def wall_clock_shares(spans: np.ndarray) -> np.ndarray:
    """Share of the wall clock of each event: 1 / n of the time in which n are under way at once.

    The shares, of shape (E,), add up to the time in which anything ran. `spans` are start and end
    of each event, of shape (E, 2).
    """
    if not len(spans):
        return np.zeros(0)
    times = spans.ravel()
    order = np.argsort(times, kind="stable")
    active = np.cumsum(np.where(order % 2 == 0, 1, -1))[:-1]
    steps = np.diff(times[order]) / np.maximum(active, 1) * (active > 0)
    passed = np.empty(len(times))
    passed[order] = np.concatenate([[0.0], np.cumsum(steps)])
    return passed[1::2] - passed[0::2]


def _per_step(names: np.ndarray, values: np.ndarray, repeats: int) -> dict[str, float]:
    """Value of each node in a step: the median of its events, times how often it ran."""
    collected: dict[str, list[float]] = {}
    for name, value in zip(names, values):
        collected.setdefault(name, []).append(value)
    return {
        name: statistics.median(parts) * len(parts) / repeats for name, parts in collected.items()
    }
