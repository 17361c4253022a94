"""What the reader makes of traces recorded on an H100: one step of each, TensorFlow 2.21.

Training steps of batches of 64 by Adam, all tensors or the upper half of them, XLA off. Of each
event its kernel, its op and its times are kept; beside it stand the nodes of the executed graph.
"""

import collections
import gzip
from pathlib import Path

import numpy as np
import pytest

from elastic_tf.stack import xplane_pb2
from elastic_tf.timing.trace import kernel_events, op_events, wall_clock_shares

TRACES = Path(__file__).parent / "traces"
NETWORKS = ("mobilenet_v2", "resnet50", "vit_ti16")


def recorded(name: str, plan: str) -> tuple[xplane_pb2.XSpace, dict[str, str]]:
    """A trace, and the type of each node that ran."""
    trace, nodes = (TRACES / f"{name}.{plan}.{kind}.gz" for kind in ("pb", "nodes"))
    space = xplane_pb2.XSpace.FromString(gzip.decompress(trace.read_bytes()))
    lines = gzip.decompress(nodes.read_bytes()).decode().splitlines()
    return space, dict(line.split(":") for line in lines)


@pytest.mark.parametrize("plan", ["full", "half"])
@pytest.mark.parametrize("name", NETWORKS)
def test_kernels_belong_to_nodes_of_the_executed_graph(name, plan):
    space, nodes = recorded(name, plan)
    found = kernel_events(space)
    assert len(found) == sum(len(line.events) for p in space.planes for line in p.lines)
    of_nodes = sum(end - start for op, start, end in found if op in nodes)
    assert of_nodes > 0.98 * sum(end - start for _, start, end in found)
    assert not list(op_events(space))  # launches on the host stand on another plane

    # shares of the clock add up to the time in which a kernel ran
    spans = np.array([event[1:] for event in found])
    ran, until = 0.0, -np.inf
    for start, end in sorted(map(tuple, spans)):
        ran, until = ran + max(end - max(start, until), 0.0), max(until, end)
    assert wall_clock_shares(spans).sum() == pytest.approx(ran)


@pytest.mark.parametrize("name", NETWORKS)
def test_half_of_the_tensors_leave_gradients_out_and_the_forward_pass_whole(name):
    ran = {}
    for plan in ("full", "half"):
        space, nodes = recorded(name, plan)
        ops = {event[0] for event in kernel_events(space)}
        # frozen convolutions are fused with what follows them
        kinds = (nodes[op].replace("_FusedConv2D", "Conv2D") for op in ops & {*nodes})
        ran[plan] = collections.Counter(kinds)
    full, half = ran["full"], ran["half"]
    updates = "ResourceApplyAdam"
    assert half[updates] == pytest.approx(full[updates] / 2, abs=1)
    for forward in ("Conv2D", "DepthwiseConv2dNative", "Softmax"):
        assert half[forward] == full[forward]
    for backward in ("Conv2DBackpropFilter", "FusedBatchNormGradV3", "BatchMatMulV2"):
        assert half[backward] < full[backward] or not full[backward]
