"""Run training steps under the TensorFlow profiler and keep what the device really executed.

The graph looked at is the one after TensorFlow's own optimisation (fused ops, inlined functions,
lowered loops), so the names of its nodes are those of the profiler's events.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from elastic_tf import optimizers
from elastic_tf.events import op_events
from elastic_tf.graph import Node, read_graph_def

if TYPE_CHECKING:
    from elastic_tf.model import ElasticMixin


@dataclass(frozen=True)
class StepTrace:
    """One traced training step.

    Attributes:
        nodes: the executed graph.
        times: microseconds a step that each node was busy; nodes without an event are left out.
        gradients: for each tensor, the nodes that return its gradient (none where the loss does
            not depend on it).
        results: the nodes that return the loss and the logs.
        handles: node that holds a variable -> index of the tensor, or -1 for any other variable.
        time_unmatched: microseconds a step of op events that belong to no node.
    """

    nodes: dict[str, Node]
    times: dict[str, float]
    gradients: tuple[tuple[str, ...], ...]
    results: tuple[str, ...]
    handles: dict[str, int]
    time_unmatched: float

    def scaled_to(self, total: float) -> StepTrace:
        """The same trace with op times that add up to `total`."""
        scale = total / sum(self.times.values())
        times = {name: time * scale for name, time in self.times.items()}
        return replace(self, times=times, time_unmatched=self.time_unmatched * scale)


class StepFunction:
    """A training step under a fixed mask as one traced function of the batch."""

    def __init__(self, model: ElasticMixin, mask: np.ndarray) -> None:
        self.model = model
        self.mask = np.array(mask, bool)
        self._function = tf.function(self._step)

    def _step(self, data: Any) -> Any:
        selected = [v for v, on in zip(self.model.tensors, self.mask) if on]
        step, gradients = self.model.gradients(data, selected)
        optimizers.apply_selected(self.model.optimizer, gradients, selected)
        return step.loss, self.model.finish(step), gradients

    def __call__(self, data: Any) -> float:
        """Run one step and wait for it; returns the loss."""
        loss, _, _ = self._function(data)
        return float(loss)

    def executed_graph(self, data: Any) -> Any:
        """The GraphDef that TensorFlow executes; must be the function's first call."""
        context.enable_graph_collection()
        try:
            self(data)
            metadata = context.context().export_run_metadata()
        finally:
            context.context().disable_graph_collection()
        # eager ops around the call are functions too: the step is by far the largest
        return max(
            (graph.post_optimization_graph for graph in metadata.function_graphs),
            key=lambda graph: len(graph.node),
        )

    def concrete(self, data: Any) -> Any:
        """The ConcreteFunction traced for batches like `data`."""
        return self._function.get_concrete_function(data)

    def graph(self, data: Any) -> Any:
        """The FuncGraph traced for batches like `data`."""
        return self.concrete(data).graph


def trace_step(run: StepFunction, data: Any, *, repeats: int) -> StepTrace:
    """Trace `repeats` steps on one batch.

    The steps are real: weights, slots and metrics move. The caller puts them back.

    Args:
        run: step function that was never called before.
        data: one batch, as `train_step` takes it.
        repeats: profiled steps; the times are medians over them.

    Returns:
        The executed graph with the time of each op.
    """
    graph_def = run.executed_graph(data)
    for _ in range(2):  # the first calls allocate, pack weights and fill caches
        run(data)
    names, spans = _profile(lambda: run(data), repeats)
    return _join(run, data, graph_def, names, spans, repeats)


def _profile(run: Callable[[], Any], repeats: int) -> tuple[np.ndarray, np.ndarray]:
    """Names, and start and end in microseconds, of every op event of `repeats` runs."""
    with _temporary_directory() as directory:
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=2, python_tracer_level=0, device_tracer_level=1
        )
        tf.profiler.experimental.start(str(directory), options=options)
        try:
            for _ in range(repeats):
                run()
        finally:
            tf.profiler.experimental.stop()
        events = [
            event
            for path in directory.rglob("*.xplane.pb")
            for event in op_events(xplane_pb2.XSpace.FromString(path.read_bytes()))
        ]
    names = np.array([event.name for event in events], object)
    spans = np.array([event[1:] for event in events], np.float64).reshape(-1, 2)
    return names, spans


def wall_clock_shares(spans: np.ndarray) -> np.ndarray:
    """Share of the wall clock of each event when ops overlap.

    Where n events are under way at once, each gets 1 / n of the time, so that the shares add up to
    the time during which anything ran, which the durations of overlapping events do not.

    Args:
        spans: start and end of each event; shape (E, 2).

    Returns:
        One share for each event, in the unit of `spans`; shape (E,).
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


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="elastic_tf_"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _join(
    run: StepFunction,
    data: Any,
    graph_def: Any,
    names: np.ndarray,
    spans: np.ndarray,
    repeats: int,
) -> StepTrace:
    """Put the events onto the nodes and find the roots of the gradients among the results."""
    nodes = read_graph_def(graph_def)
    returned = {node.attr["index"].i: node.name for node in graph_def.node if node.op == "_Retval"}
    arguments = {node.attr["index"].i: node.name for node in graph_def.node if node.op == "_Arg"}

    concrete = run.concrete(data)
    loss, logs, gradients = concrete.structured_outputs
    results_count = len(tf.nest.flatten((loss, logs), expand_composites=True))
    position = results_count
    selected_roots = []
    for gradient in gradients:
        count = (
            len(tf.nest.flatten(gradient, expand_composites=True)) if gradient is not None else 0
        )
        selected_roots.append(tuple(returned[i] for i in range(position, position + count)))
        position += count
    roots = iter(selected_roots)
    per_tensor = tuple(next(roots) if on else () for on in run.mask)

    tensor_index = {id(v.handle): k for k, v in enumerate(run.model.tensors)}
    first_capture = len(concrete.graph.inputs) - len(concrete.graph.captures)
    handles = {}
    for offset, (outer, _) in enumerate(concrete.graph.captures):
        argument = arguments.get(first_capture + offset)
        if argument is not None and outer.dtype == tf.resource:
            handles[argument] = tensor_index.get(id(outer), -1)

    belongs = np.array([name in nodes for name in names], bool)
    shares: dict[str, list[float]] = {}
    for name, share in zip(names[belongs], wall_clock_shares(spans[belongs])):
        shares.setdefault(name, []).append(share)
    times = {
        name: float(np.median(values)) * len(values) / repeats for name, values in shares.items()
    }
    unmatched = float((spans[~belongs, 1] - spans[~belongs, 0]).sum()) / repeats
    results = tuple(returned[i] for i in range(results_count))
    return StepTrace(nodes, times, per_tensor, results, handles, unmatched)
