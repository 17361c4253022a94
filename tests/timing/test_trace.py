from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from networks import crossentropy, images, network
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from elastic_tf.model import ElasticModel
from elastic_tf.timing import trace as trace_module
from elastic_tf.timing.step import StepFunction
from elastic_tf.timing.trace import kernel_events, op_events, wall_clock_shares


@pytest.mark.parametrize(
    ("spans", "shares"),
    [
        ([[0, 4]], [4]),
        ([[0, 4], [4, 6]], [4, 2]),
        ([[0, 4], [0, 4]], [2, 2]),
        ([[0, 4], [2, 6]], [3, 3]),
        ([[0, 10], [2, 4], [2, 4]], [8 + 2 / 3, 2 / 3, 2 / 3]),
        ([[0, 1], [5, 6]], [1, 1]),
        ([], []),
    ],
)
def test_wall_clock_shares_split_the_time_of_overlapping_events(spans, shares):
    found = wall_clock_shares(np.array(spans, np.float64).reshape(-1, 2))
    np.testing.assert_allclose(found, shares)


def test_a_traced_step_leaves_out_what_ran_beside_a_step(monkeypatch):
    """Garbage that Python collects meanwhile is executed by TensorFlow too, and told by it."""
    profiled = trace_module.events

    def beside(run, repeats):
        names, spans, _ = profiled(run, repeats)
        foreign = ["once", *["always"] * repeats]
        added = np.array([[0.0, 500.0], *[[0.0, 7.0]] * repeats])
        names = np.append(names, np.array(foreign, object))
        return names, np.concatenate([spans, added]), False

    monkeypatch.setattr(trace_module, "events", beside)
    model = ElasticModel.from_model(network())
    model.compile(tf.keras.optimizers.SGD(0.1), crossentropy())
    data = tuple(tf.constant(part[:8]) for part in images())
    run = StepFunction(model, np.ones(len(model.tensors), bool))
    trace = run.traced(data, repeats=3)
    assert trace.time_unmatched == pytest.approx(7.0)


class Recorder:
    """Writes an XSpace event by event, in microseconds."""

    def __init__(self) -> None:
        self.space = xplane_pb2.XSpace()
        self.plane = self.space.planes.add(name="/host:CPU")
        self.lines: dict[str, object] = {}

    def add(self, line: str, name: str, start: float, end: float, /, **stats) -> Recorder:
        if line not in self.lines:
            self.lines[line] = self.plane.lines.add(name=line, timestamp_ns=0)
        event = self.lines[line].events.add(
            metadata_id=self._id(self.plane.event_metadata, name),
            offset_ps=int(start * 1e6),
            duration_ps=int((end - start) * 1e6),
        )
        for key, value in stats.items():
            stat = event.stats.add(metadata_id=self._id(self.plane.stat_metadata, key))
            if isinstance(value, str):
                stat.ref_value = self._id(self.plane.stat_metadata, value)
            else:
                stat.int64_value = value
        return self

    def run(self, line: str, identity: int, start: float, end: float) -> Recorder:
        return self.add(line, "ExecutorState::Process", start, end, id=identity)

    def call(self, line: str, node: str, run: int, start: float) -> Recorder:
        name = "ExecutorState::ProcessAsync::Start"
        stats = {"name": node, "kernel_type": "PartitionedCall", "step_id": run}
        return self.add(line, name, start, start + 0.5, **stats)

    @staticmethod
    def _id(table, name: str) -> int:
        for key, value in table.items():
            if value.name == name:
                return key
        key = len(table) + 1
        table[key].id, table[key].name = key, name
        return key


def test_op_events_are_told_from_others_by_their_form():
    recorder = Recorder().add("one", "model/conv:Conv2D", 1, 4)
    for name in ("FunctionRun", "KernelAndDeviceFunc::Run", "EagerLocalExecute: f", "step 3:4 x"):
        recorder.add("one", name, 0, 9)
    assert list(op_events(recorder.space)) == [("model/conv", 1.0, 4.0)]


def test_kernels_of_a_gpu_are_told_by_the_op_that_launched_them():
    """Made after TensorFlow's sources, not recorded: no GPU has been at hand."""
    recorder = Recorder().add("one", "conv:Conv2D", 0, 1)
    recorder.plane = recorder.space.planes.add(name="/device:GPU:0")
    recorder.lines = {}
    recorder.add("Stream #13(Kernel)", "sgemm_128x64", 10, 14, tf_op="conv:Conv2D")
    recorder.add("Stream #13(Kernel)", "sgemm_128x64", 15, 16, tf_op="dense/MatMul:MatMul")
    recorder.add("Stream #14(MemcpyH2D)", "MemcpyH2D", 12, 13, correlation_id=7)
    recorder.add("TensorFlow Ops", "conv:Conv2D", 10, 14)  # sums up what stands in streams
    assert kernel_events(recorder.space) == [
        ("conv", 10.0, 14.0),
        ("dense/MatMul", 15.0, 16.0),
        ("MemcpyH2D", 12.0, 13.0),
    ]
    assert list(op_events(recorder.space)) == [("conv", 0.0, 1.0)]  # its launch


def test_ops_inside_a_function_are_counted_for_the_node_that_called_it():
    """Functions with equal names inside are told apart by their order."""
    recorder = Recorder().run("one", 7, 0, 50).add("one", "outer:Mul", 1, 2)
    recorder.call("one", "first", 7, 10).call("one", "second", 7, 30)
    recorder.run("two", 9, 31, 40).add("two", "while/MatMul:MatMul", 32, 36)
    recorder.run("two", 8, 11, 20).add("two", "while/MatMul:MatMul", 12, 15)
    names = {start: name for name, start, _ in op_events(recorder.space)}
    assert names == {1.0: "outer", 12.0: "first", 32.0: "second"}
